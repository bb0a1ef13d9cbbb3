"""Write what cost-greedy's plans return on each suite's training tasks: `python -m benchmarks.thresholds`

They are the `reward_threshold` of the ids. Tasks without a plan of cost-greedy's do not count. Takes two minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import shard_gym
from shard_gym import simulators
from shard_gym.errors import InfeasibleTask
from shard_gym.records.files import write_whole
from shard_gym.results.evaluate import score
from shard_gym.task import suites
from shard_gym.task.suites import Suite
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


def main() -> None:
    """Compute all and write them; suites of the same tasks have the same."""
    of_tasks = {suite.frozen_as: threshold(suite) for suite in suites.SUITES.values() if not suite.bank}
    found = {key: of_tasks[suite.frozen_as] for key, suite in suites.SUITES.items()}
    write_whole(FILE, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
