"""TorchRec's planner of whole tables beside `auto`: `python -m benchmarks.torchrec_whole`.

By our judge and by TorchRec's own estimate: test tasks of Core-80x8 and MetaSyn-80x8, and 856 tables of MetaSyn's on 80
devices. Writes benchmarks/results/torchrec.md. Takes a minute; needs TorchRec, no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

import shard_gym_agents
from benchmarks import pages
from benchmarks.torchrec_both import Both, rated
from shard_gym import simulators
from shard_gym.errors import TimedOut
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.simulators import Simulator
from shard_gym.simulators.torchrec import TorchRecPerf
from shard_gym.tables.metasyn import metasyn
from shard_gym.tables.pool import GB
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents import Solver

SUITES = ("core-80x8", "metasyn-80x8")
BUDGETS = (0.01, 0.1)
REPEATS = 3  # of each call; the median counts
LARGE = (856, 80, 4.0, "roofline:h100-v1")  # tables, devices, GB of each, planner and judge
PERF = TorchRecPerf()
HEAD = ("plan", "ms", "makespan", "TorchRec's estimate", "least saved by it", "estimate over bound", "better by both")
WANTED = 0.05  # of TorchRec's estimate, to count as better
WEIGHT = 2.0  # of TorchRec's estimate beside the planner's costs, both scaled to TorchRec's plans


@dataclass(frozen=True)
class Planned:
    """One way to plan, on every task; makespan by the judge, rating by TorchRec's estimate."""

    name: str
    seconds: np.ndarray
    makespan: np.ndarray
    rating: np.ndarray

    def cells(self, torchrec: Planned, bound: np.ndarray) -> list[str]:
        """Beside TorchRec's plans and what no plan is rated below."""
        makespan, rating = self.makespan / torchrec.makespan, self.rating / torchrec.rating
        both = int(((makespan < 1) & (rating <= 1 - WANTED)).sum())
        return [
            self.name,
            f"{1e3 * np.median(self.seconds):.1f}",
            f"{makespan.mean() - 1:+.1%}",
            f"{rating.mean() - 1:+.1%}",
            f"{1 - rating.max():.1%}",
            f"{(self.rating / bound).mean() - 1:.2%}",
            f"{both} of {len(rating)}",
        ]


def rating_bound(task: Task) -> float:
    """No plan of whole tables is rated below it: costs add up, so neither the mean rank nor the largest table."""
    compute, comm = PERF.embed(task).T / 1e3
    costs = compute + 2 * comm
    return max(float(costs.sum()) / task.num_devices, float(costs.max()))


def planned(name: str, solver: Solver, cases: list[tuple[Task, Simulator, Task]], judge: Simulator) -> Planned:
    """Plan each task by its planner, and look at the plan as one of the last task, the judge's."""
    found = []
    for task, planner, judged in cases:
        plan, seconds = timed(lambda task=task, planner=planner: solver(task, planner))
        found.append((seconds, score(judged, plan, judge).makespan, score(rated(judged), plan, PERF).makespan))
    return Planned(name, *np.array(found).T)


def timed(plan: Callable[[], Plan]) -> tuple[Plan, float]:
    """A plan, and the median seconds it takes."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        found = plan()
        seconds.append(time.perf_counter() - start)
    return found, float(np.median(seconds))


@contextmanager
def library_seconds() -> Iterator[list[float]]:
    """Seconds of each call of TorchRec's `plan` alone, without the model that our solver makes for it."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner

    seconds, whole = [], EmbeddingShardingPlanner.plan

    def plan(*args, **kwargs):
        start = time.perf_counter()
        try:
            return whole(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    EmbeddingShardingPlanner.plan = plan
    try:
        yield seconds
    finally:
        EmbeddingShardingPlanner.plan = whole


def suite_section(key: str, count: int) -> list[str]:
    """One suite as a table."""
    suite = suites.get(key)
    planner, judge, tasks = simulators.make(suite.planner), simulators.make(suite.judge), suite.tasks("test")[:count]
    own = [(task, planner, task) for task in tasks]
    by_torchrec = [(rated(task), PERF, task) for task in tasks]
    shard_gym_agents.make("auto", calls=10)(tasks[0], planner)  # first calls
    shard_gym_agents.make("torchrec-planner")(tasks[0], planner)
    with library_seconds() as seconds:
        torchrec = planned("torchrec-planner", shard_gym_agents.make("torchrec-planner"), own, judge)
    costliest = shard_gym_agents.make("torchrec-planner", partitioner="greedy-perf")
    rows = [torchrec, planned("torchrec-planner, greedy-perf", costliest, own, judge)]
    for budget in BUDGETS:
        auto, what = shard_gym_agents.make("auto", budget=budget), f"auto, {budget:g} s"
        rows.append(planned(f"{what}, by {planner.id}", auto, own, judge))
        rows.append(planned(f"{what}, by {PERF.id}", auto, by_torchrec, judge))
    share = WEIGHT * torchrec.makespan / torchrec.rating
    both = [(task, Both(planner, s), task) for task, s in zip(tasks, share, strict=True)]
    rows += [planned(f"auto, {b:g} s, by both", shard_gym_agents.make("auto", budget=b), both, judge) for b in BUDGETS]
    bound = np.array([rating_bound(rated(task)) for task in tasks])
    return [
        f"## {suite.name}",
        "",
        f"The first {len(tasks)} test tasks, judged by {judge.id}. TorchRec's `plan` alone takes "
        f"{1e3 * np.median(seconds):.1f} ms, the rest is the model that it plans for.",
        "",
        *pages.table(HEAD, [row.cells(torchrec, bound) for row in rows]),
        "",
    ]


def large_section(timeout: float) -> list[str]:
    """856 tables on 80 devices, where TorchRec's own search over all types takes longer than anyone waits."""
    tables, devices, memory, simulator_id = LARGE
    planner = simulators.make(simulator_id)
    task = Task(metasyn(0, tables), (int(memory * GB),) * devices, objective="iteration")
    bound = rating_bound(task)
    head, rows = ("plan", "seconds", f"makespan by {simulator_id}, ms", "estimate over bound"), []
    ways = [("torchrec-planner", {}, planner), ("torchrec-planner", {"partitioner": "greedy-perf"}, planner)]
    ways += [("auto", {"budget": b}, p) for b in BUDGETS for p in (planner, PERF)]
    for agent, options, by in ways:
        plan, seconds = timed(lambda a=agent, o=options, b=by: shard_gym_agents.make(a, **o)(task, b))
        makespan, rating = score(task, plan, planner).makespan, score(task, plan, PERF).makespan
        how = [f"{budget:g} s" for budget in options.values() if agent == "auto"] or [*options.values()]
        told = ", ".join([agent, *how, *([f"by {by.id}"] if agent == "auto" else [])])
        rows.append((told, f"{seconds:.2f}", f"{makespan:.3f}", f"{rating / bound - 1:.2%}"))
    start = time.perf_counter()
    try:
        shard_gym_agents.make("torchrec-planner", types="all", timeout=timeout)(task, planner)
        ended = f"{time.perf_counter() - start:.1f}"
    except TimedOut:
        ended = f"stopped after {time.perf_counter() - start:.1f}"
    rows.append(("torchrec-planner, all types", ended, "", ""))
    return [f"## {tables} tables on {devices} devices", "", *pages.table(head, rows), ""]


def measure(options: argparse.Namespace) -> pages.Found:
    """Every suite, and the large task."""
    lines = [line for key in SUITES for line in suite_section(key, options.tasks)]
    return {"lines": lines + large_section(options.timeout)}


def page(found: pages.Found) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torchrec", "torch", "fbgemm-gpu-cpu"))
    lines = [
        "# TorchRec's planner beside ours",
        "",
        f"Made by `{found['command']}` with {versions}.",
        "",
        "Table-wise plans. Times are medians over tasks of the median of "
        f"{REPEATS} calls, imports aside. Makespan and TorchRec's own estimate (of its slowest rank): mean difference "
        "to the plans of torchrec-planner, TorchRec's defaults; `least saved`: on the task where it is least. The "
        "bound: estimates add up, so no plan is rated below the mean rank, nor below its largest table. `better by "
        f"both`: where the makespan is lower than TorchRec's and the estimate at least {WANTED:.0%} lower. By "
        f"both: planned by the sum of both, TorchRec's estimate counting {WEIGHT:g} times. greedy-perf is TorchRec's "
        "partitioner told to place the costliest table first; by default it places the largest first.",
        "",
    ]
    return "\n".join(lines + found["lines"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    made = pages.parser("torchrec_whole", __doc__)
    made.add_argument("--tasks", type=int, default=10, help="of each suite")
    made.add_argument("--timeout", type=float, default=20.0, help="seconds for TorchRec's search over all types")
    return pages.run(made, measure, page, arguments, file="torchrec.md")


if __name__ == "__main__":
    sys.exit(main())
