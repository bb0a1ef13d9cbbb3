"""Write what cost-greedy's plans return on each suite's training tasks: `python -m benchmarks.thresholds`

They are the `reward_threshold` of the ids. Tasks without a plan of cost-greedy's do not count. For Flex ids they are
what the optimal tiers of rows return when each stretch goes where its last row does. Those that are there already stay;
all of them take two minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import shard_gym
from shard_gym import simulators
from shard_gym.errors import InfeasibleTask
from shard_gym.flexshard import NAMES
from shard_gym.flexshard.bank import flex_bank
from shard_gym.flexshard.states import States
from shard_gym.flexshard.stretches import Stretches
from shard_gym.records.files import write_whole
from shard_gym.results.evaluate import score
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym_agents.solvers.flexshard import Frontier
from shard_gym_agents.solvers.greedy import CostGreedy

FILE = Path(shard_gym.__file__).parent / "data" / "thresholds.json"


def threshold(suite: Suite) -> float:
    """Mean return of cost-greedy's plans, with the suite's planner and its default reward."""
    planner, returns = simulators.make(suite.planner), []
    for task, random_ms in zip(suite.tasks(), suite.random_makespans("train", suite.planner), strict=True):
        try:
            found = score(task, CostGreedy()(task, planner), planner)
        except InfeasibleTask:
            continue
        returns.append(found.balance if suite.reward == "balance" else -found.makespan / random_ms)
    return round(float(np.mean(returns)), 4)


def flex_threshold(name: str) -> float:
    """Mean return of `flex3`'s plans in stretches; where a stretch may not go to its tier, to the last one allowed."""
    bank = flex_bank(name)
    states, each = States(bank, len(bank)), np.arange(len(bank))
    states.begin(each, each)
    for wanted in np.stack([_tiers(of) for of in bank.stretches], axis=1):
        masks = states.masks()
        states.put(np.where(masks[each, wanted], wanted, 2 - masks[:, ::-1].argmax(axis=1)))
    return round(float(np.mean(states.ends(each).reward)), 4)


def _tiers(of: Stretches) -> np.ndarray:
    """The tier of each stretch's last row."""
    plan = Frontier(of.task).best("flex3")
    cuts = np.cumsum([sum(plan.dp_rows), sum(plan.flex_rows)])
    return np.searchsorted(cuts, np.cumsum(of.parts[0]) * (1 - 1e-12))


def main() -> None:
    """Compute those that are not there yet and write all; suites of the same tasks have the same."""
    known: dict[str, float] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in NAMES:
        if f"flex-{name.lower()}" not in known:
            known[f"flex-{name.lower()}"] = flex_threshold(name)
    for suite in sorted(suites.SUITES.values(), key=lambda suite: bool(suite.bank)):
        if suite.key not in known:
            known[suite.key] = known[suite.bank] if suite.bank else threshold(suite)
    order = [*(f"flex-{name.lower()}" for name in NAMES), *suites.SUITES]
    write_whole(FILE, json.dumps({key: known[key] for key in order}, indent=1) + "\n")


if __name__ == "__main__":
    main()
