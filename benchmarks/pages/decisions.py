"""Worth of predicted costs to a search, by the judge: `python -m benchmarks.decisions`.

Regret and optimism of greedy and of local search over search effort, on the test tasks of MetaSyn-80x8. Takes some
minutes, writes benchmarks/results/decisions.json; `python -m benchmarks.fidelity` tells what came out.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shard_gym_agents
from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.records import commands
from shard_gym.records.files import read_json, write_whole
from shard_gym.results.evaluate import score
from shard_gym.simulators import Simulator
from shard_gym.task import suites
from shard_gym.task.task import Task

SUITE = "metasyn-80x8"
EFFORTS: tuple[tuple[str, float | None], ...] = (
    ("random", None),
    ("lookup-greedy", None),
    ("cost-greedy", None),
    ("local-search", 0.1),
    ("local-search", 1.0),
    ("local-search", 10.0),
)


@dataclass(frozen=True)
class Decision:
    """One solver at one effort, over tasks."""

    solver: str
    budget: float | None  # seconds
    regret: float  # judge's makespan over the best that any search found by the judge, minus 1; mean
    optimism: float  # judge's makespan over the planner's prediction, minus 1; mean
    optimism_deviation: float
    tasks: int

    @property
    def label(self) -> str:
        return self.solver if self.budget is None else f"{self.solver}, {self.budget:g} s"


def decide(
    tasks: Sequence[Task],
    planner: Simulator,
    judge: Simulator,
    efforts: Sequence[tuple[str, float | None]] = EFFORTS,
    best_seconds: float = 10.0,
) -> list[Decision]:
    """Plan with the planner, look with the judge; regret is against local search on the judge itself."""
    best = np.array([_makespans(task, judge, judge, "local-search", best_seconds)[1] for task in tasks])
    found = []
    for solver, budget in efforts:
        believed, true = np.array([_makespans(task, planner, judge, solver, budget) for task in tasks]).T
        best = np.minimum(best, true)
        found.append((solver, budget, believed, true))
    return [
        Decision(
            solver,
            budget,
            regret=float((true / best - 1).mean()),
            optimism=float((true / believed - 1).mean()),
            optimism_deviation=float((true / believed - 1).std()),
            tasks=len(tasks),
        )
        for solver, budget, believed, true in found
    ]


def _makespans(
    task: Task, planner: Simulator, judge: Simulator, solver: str, budget: float | None
) -> tuple[float, float]:
    """Makespans: what the planner believes of its plan, and what the judge says of it."""
    settings = {} if budget is None else {"budget": budget}
    plan = shard_gym_agents.make(solver, **settings)(task, planner)
    return score(task, plan, planner).makespan, score(task, plan, judge).makespan


def load(hardware: Hardware) -> dict[str, Any] | None:
    """Decisions of the last run, if there was one."""
    path = _file(hardware)
    return read_json(path) if path.exists() else None


def _file(hardware: Hardware) -> Path:
    return hardware.result("decisions").with_suffix(".json")


def section(found: dict[str, Any] | None) -> list[str]:
    """Section of the fidelity page; empty where nothing was decided."""
    if found is None:
        return []
    rows = [Decision(**row) for row in found["decisions"]]
    remark = suites.get(found["suite"]).remark
    lines = [
        "## What a search makes of them",
        "",
        f"{rows[0].tasks} test tasks of {found['suite']}{remark and f' ({remark})'}, planned with {found['planner']} "
        f"and judged by {found['judge']}, a fit of other shards of other tables, so these figures hold the judge's "
        "errors too; optimism is best read against that of random plans, which nobody searched for. Regret: against "
        "the best plan that any search found, one on the judge itself included. Made by "
        "`python -m benchmarks.decisions`.",
        "",
        "| search | regret | optimism ± deviation over tasks |",
        "|---|---|---|",
        *(f"| {r.label} | {r.regret:.2%} | {r.optimism:+.1%} ± {r.optimism_deviation:.1%} |" for r in rows),
        "",
    ]
    return lines


def write(options: Namespace) -> None:
    """Decide and write."""
    hardware = Hardware(options.hardware)
    planner = simulators.make(options.planner or hardware.planner)
    judge = simulators.make(options.judge or hardware.judge)
    rows = decide(suites.get(SUITE).tasks("test"), planner, judge)
    found = {"suite": SUITE, "planner": planner.id, "judge": judge.id, "decisions": [asdict(row) for row in rows]}
    write_whole(_file(hardware), json.dumps(found, indent=1) + "\n")
    print("\n".join(section(found)))


def main(argv: Sequence[str] | None = None) -> int:
    """Decide on the test tasks."""
    parser = commands.parser("decisions", __doc__)
    parser.add_argument("--hardware", default="cpu", help="whose fits decide and judge")
    parser.add_argument("--planner", help="id or weights file; default learned:HARDWARE-v1")
    parser.add_argument("--judge", help="id or weights file; default learned:HARDWARE-judge-v1")
    return commands.run(parser, write, argv)


if __name__ == "__main__":
    raise SystemExit(main())
