"""Plans of TorchRec's planner, and of ours, for forty drawn tasks of all kinds; `torchrec_plans` judges them.

Plans are appended to runs/torchrec_plans as they are found, and packed into benchmarks/results/torchrec_plans.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import RESULTS
from benchmarks.drawn import drawn
from benchmarks.torchrec_both import PERF, Both
from shard_gym import simulators
from shard_gym.errors import CorruptFile, ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.records import ledger
from shard_gym.records.files import write_whole
from shard_gym.results.evaluate import score
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.torchrec import CRITICAL_PATH
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.solvers.torchrec_planner import REST

RUNS, KEPT = Path("runs/torchrec_plans"), RESULTS / "torchrec_plans"
THEIRS, OURS = "theirs", "ours"
LIMIT = 60.0  # seconds of CPU time, of each of TorchRec's configurations
FIRST_SEED = 100  # those below were looked at while the tasks were designed


@dataclass(frozen=True)
class Size:
    """Tasks of one size; `seconds` are those that `auto` has."""

    tables: int
    devices: int
    tasks: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.tables}x{self.devices}"


SIZES = (Size(80, 8, 14, 0.3), Size(80, 16, 12, 1.0), Size(300, 16, 10, 1.0), Size(856, 80, 4, 10.0))
WAYS = {  # TorchRec's configurations
    "default": {"proposers": "default", "partitioner": "greedy"},
    "default, greedy-perf": {"proposers": "default", "partitioner": "greedy-perf"},
    "greedy-total, greedy-perf": {"proposers": "greedy-total", "partitioner": "greedy-perf"},
    "dynamic programming, greedy-perf": {"proposers": "dynamic-programming", "partitioner": "greedy-perf"},
}

ROOFLINE = simulators.make("roofline:h100-v2")
ESTIMATE, CRITICAL, BY_ROOFLINE, BY_BOTH = AIMS = ("estimate", "critical path", "roofline", "both")  # of our plans


@dataclass(frozen=True)
class Run:
    """A plan, or why there is none."""

    task: str  # its name
    hash: str
    way: str
    seconds: float  # of CPU time
    plan: dict[str, Any] | None
    why: str = ""  # there is no plan

    @property
    def key(self) -> tuple[str, str]:
        """Task and way."""
        return self.task, self.way


@cache
def tasks(size: Size) -> tuple[Task, ...]:
    """The tasks of a size, always the same."""
    return tuple(drawn(FIRST_SEED + i, size.tables, size.devices) for i in range(size.tasks))


def every() -> Iterator[tuple[Size, Task]]:
    """All tasks, the first of each size, the second of each and so on."""
    of_sizes = [[(size, task) for task in tasks(size)] for size in SIZES]
    yield from (each for several in zip_longest(*of_sizes) for each in several if each is not None)


def planned(task: Task, way: str, plan: Callable[[], Plan]) -> Run:
    """Run a planner on a task."""
    start = time.process_time()
    try:
        found, why = plan().to_dict(), ""
    except ShardGymError as error:
        found, why = None, f"{type(error).__name__}: {error}"
    return Run(task.name, task.hash, way, round(time.process_time() - start, 2), found, why)


def theirs(task: Task, way: str) -> Run:
    """One of TorchRec's configurations. It proposes for a minute, and is stopped where it has not begun to by then."""
    solver = make("torchrec-planner", **WAYS[way], timeout=LIMIT / REST)
    return planned(task, way, lambda: solver(task, PERF))


def run_theirs() -> None:
    """Run TorchRec's configurations where they have not been run."""
    logging.getLogger().setLevel(logging.ERROR)
    path = RUNS / f"{THEIRS}.jsonl"
    done = kept(THEIRS) | {run.key: run for run in read_lines(path)}
    for _, task in every():
        for way in WAYS:
            if (task.name, way) in done:
                continue
            done[task.name, way] = found = theirs(task, way)
            ledger.append(path, asdict(found))
            print(found.task, found.way, found.seconds, found.why[:80], flush=True)
    pack(THEIRS, list(done.values()))


def ours(size: Size, task: Task, aim: str) -> Run:
    """The plan of `auto` by an aim; its seconds are of CPU time, as TorchRec's are."""
    solver, (aimed, planner) = make("auto", budget=size.seconds), _aimed(task, aim)
    with mock.patch.object(time, "perf_counter", time.process_time):  # the clock of searches
        return planned(task, aim, lambda: solver(aimed, planner))


def _aimed(task: Task, aim: str) -> tuple[Task, FastSimulator]:
    """The task and the planner that an aim stands for. In both, either counts alike for the fastest plan by either."""
    if aim == CRITICAL:
        return replace(task, objective=CRITICAL_PATH), PERF
    if aim == BY_ROOFLINE:
        return task, ROOFLINE
    if aim == BY_BOTH:
        plan = make("cost-greedy")(task, PERF)
        return task, Both(ROOFLINE, score(task, plan, ROOFLINE).makespan / score(task, plan, PERF).makespan)
    return task, PERF


def run_ours(aims: Sequence[str]) -> None:
    """Plan all tasks by these aims anew."""
    found = kept(OURS)
    for size, task in every():
        for aim in aims:
            run = ours(size, task, aim)
            found[run.key] = run
            print(run.task, run.way, run.seconds, run.why[:80], flush=True)
        pack(OURS, list(found.values()))


def read_lines(path: Path) -> list[Run]:
    """Runs of a ledger."""
    return ledger.read(path, lambda line: Run(**json.loads(line)), "run")


def pack(name: str, runs: Sequence[Run]) -> None:
    """Keep runs beside the page, in few bytes; equal runs give an equal file."""
    text = "".join(json.dumps(asdict(run)) + "\n" for run in runs)
    write_whole(KEPT / f"{name}.jsonl.gz", gzip.compress(text.encode(), 9, mtime=0))


def kept(name: str) -> dict[tuple[str, str], Run]:
    """Runs that are kept, by task and way, none where there is no file; those of other tasks are refused."""
    path = KEPT / f"{name}.jsonl.gz"
    if not path.exists():
        return {}
    found = [Run(**json.loads(line)) for line in gzip.decompress(path.read_bytes()).splitlines()]
    hashes = {task.name: task.hash for _, task in every()}
    if odd := next((run for run in found if hashes.get(run.task) != run.hash), None):
        raise CorruptFile(f"{path} has a plan for another {odd.task}, of hash {odd.hash}: were tasks drawn otherwise?")
    return {run.key: run for run in found}
