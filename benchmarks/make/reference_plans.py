"""Freeze the plans that gaps are told to: `python -m benchmarks.reference_plans --suite KEY --calls 50000`

For each test task of suites whose gaps are to a frozen plan: the better of `ladder` and of `auto` with that effort, by
the planner. The judge is not asked until the plan is chosen, so nothing was searched for its errors. Plans go to
benchmarks/results/reference_plans, one task after another, and a run that broke off goes on where it stopped. When all
are there, their makespans by the judge go to the package's references, and are never overwritten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from benchmarks.freeze import DATA, save_arrays

from benchmarks import RESULTS
from shard_gym import simulators
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.commands import names, seconds
from shard_gym.records.processes import end_with_parent
from shard_gym.results.evaluate import score
from shard_gym.task import suites
from shard_gym.task.suite import FROZEN_PLAN, Suite
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import Entry, keep_best, load_best, today

FOLDER = RESULTS / "reference_plans"
SPLIT = "test"
SECONDS = 10.0


Effort = dict[str, float | int]  # of auto: its budget in seconds, or its calls of the planner


def found(task: Task, planner_id: str, effort: Effort) -> list[Entry]:
    """The plans of `ladder` and of `auto` for a task, worth what the planner predicts."""
    planner, entries = simulators.make(planner_id), []
    for name, options in (("ladder", {}), ("auto", effort)):
        try:
            plan = make(name, **options)(task, planner)
        except InfeasibleTask:
            continue
        worth = score(task, plan, planner)
        who = {"solver": name, "options": options, "seed": 0, "planner": planner_id, "date": today()}
        entries.append({"makespan": worth.makespan, "plan": plan.to_dict(), **who})
    return entries


def search(suite: Suite, effort: Effort, workers: int, folder: Path = FOLDER) -> Path:
    """Keep the better plan of each task that has none yet; the file of all."""
    path = folder / f"{suite.key}.json"
    known = load_best(path, suite.planner, ())
    missing = [task for task in suite.tasks(SPLIT) if task.hash not in known]
    plan = partial(found, planner_id=suite.planner, effort=effort)
    workplace = nullcontext() if workers == 1 else _workers(workers)
    with workplace as pool:
        planned = map(plan, missing) if pool is None else pool.map(plan, missing)
        for number, (task, entries) in enumerate(zip(missing, planned, strict=True), 1):
            keep_best(path, suite.planner, [(task.hash, entry) for entry in entries])
            print(f"{suite.key}: {number} of {len(missing)} tasks", file=sys.stderr)
    return path


def _workers(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, get_context("forkserver"), end_with_parent)


def freeze(suite: Suite, path: Path, data: Path = DATA) -> np.ndarray:
    """Write what the plans take by the judge, NaN where a task has none; what is frozen already stays."""
    references = data / "references.npz"
    frozen = dict(np.load(references))
    key = f"{suite.key}/plan/{SPLIT}/{suite.judge}"
    if key not in frozen:
        tasks, judge = suite.tasks(SPLIT), simulators.make(suite.judge)
        plans = load_best(path, suite.planner, tasks)
        worth = [score(t, plan_of(plans[t.hash]), judge).makespan if t.hash in plans else np.nan for t in tasks]
        frozen[key] = np.array(worth)
        save_arrays(references, frozen)
    return frozen[key]


def plan_of(entry: Entry) -> Plan:
    """The plan of an entry."""
    return Plan.from_dict(entry["plan"])


def run(options: argparse.Namespace) -> None:
    """Search, then freeze."""
    told = [suite for suite in suites.SUITES.values() if suite.gap_to == FROZEN_PLAN and not suite.bank]
    for suite in [suites.get(key) for key in options.suite] if options.suite else told:
        if suite not in told:
            raise InvalidTask(f"gaps of {suite.key} are to {suite.gap_to}, it takes no reference plans")
        effort: Effort = {"calls": options.calls} if options.calls else {"budget": options.budget}
        worth = freeze(suite, search(suite, effort, options.workers))
        print(f"{suite.key}: {np.isfinite(worth).sum()} of {len(worth)} tasks, mean {np.nanmean(worth):.3f} ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Freeze the plans of some suites."""
    parser = commands.parser("python -m benchmarks.reference_plans", __doc__)
    parser.add_argument("--suite", type=names, help="comma-separated, default all whose gaps are to a frozen plan")
    parser.add_argument("--budget", type=seconds, default=SECONDS, help="of auto on a task, default 10s")
    parser.add_argument(
        "--calls", type=int, default=0, help="of the planner instead of a time: the same on any machine"
    )
    parser.add_argument("--workers", type=int, default=1, help="tasks searched at a time")
    return commands.run(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
