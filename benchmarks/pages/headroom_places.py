"""Places where headroom's searches run: processes of this machine, or the nodes of a Ray cluster.

A walk is a task of a suite: its attempts are made one after another, as an earlier one may make a later one needless.
On a cluster the next step of a walk is given out when the last one is back, so that the runs are the same for any
number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import get_context
from threading import Event
from typing import Protocol

from benchmarks.headroom_attempts import Attempt, Call, Line, line_of, try_on
from shard_gym.records.files import json_sha256
from shard_gym.records.processes import end_with_parent
from shard_gym.task.task import Task
from shard_gym.work.cluster import Cluster, Slot, Terms
from shard_gym.work.parts import Part
from shard_gym.work.pieces import Piece

What = tuple[Task, Attempt, str]  # an attempt on a task, and the judge


class Search(Protocol):
    """The searches on the tasks of a suite."""

    judge: str
    tasks: Sequence[Task]
    stopped: Event

    def key(self, index: int) -> list[str]:
        """The task, whatever its name is, and who judges its plans."""
        ...

    def steps(self, index: int) -> Iterator[Attempt]:
        """Attempts to make on a task; the line of one must be added before the next is asked for."""
        ...

    def add(self, line: Line) -> None:
        """Keep the line of an attempt."""
        ...


Walk = tuple[Search, int]  # searches, and the number of a task


def walks_of(searches: Sequence[Search], part: Part) -> list[Walk]:
    """The walks of a part of the work; tasks that differ in name only are in the same one."""
    every = ((one, index) for one in searches for index in range(len(one.tasks)))
    return [(one, index) for one, index in every if part.whole or part.takes(json_sha256(one.key(index)))]


def here(walks: Sequence[Walk], workers: int) -> None:
    """Task after task, or as many at a time as there are workers."""
    alone = workers == 1
    processes = nullcontext() if alone else ProcessPoolExecutor(workers, get_context("forkserver"), end_with_parent)
    threads = ThreadPoolExecutor(workers)
    with processes as pool:
        call: Call = try_on if pool is None else lambda *what: pool.submit(try_on, *what).result()
        try:
            if alone:
                for walk in walks:
                    _take(walk, call)
            else:
                list(threads.map(lambda walk: _take(walk, call), walks))
        finally:
            for search, _ in walks:
                search.stopped.set()
            threads.shutdown(cancel_futures=True)


def _take(walk: Walk, call: Call) -> None:
    """Take all steps of a walk."""
    search, index = walk
    for attempt in search.steps(index):
        if search.stopped.is_set():
            return
        search.add(call(search.tasks[index], attempt, search.judge))


def on_nodes(walks: Sequence[Walk], workers: int, cluster: Cluster) -> None:
    """All walks at a time, a step of each, on whatever node is free."""
    asked: dict[str, list[Walk]] = {}  # walks that wait for the line of an attempt

    def keep(key: str, line: Line) -> None:
        waiting = asked.pop(key)
        waiting[0][0].add(line)

    cluster.work_off(_pieces(walks, asked), Searcher, keep, Terms(workers=workers, lost=_lost))


def _pieces(walks: Sequence[Walk], asked: dict[str, list[Walk]]) -> Iterator[Piece | None]:
    """Steps of all walks; None while each of them waits for the line of an attempt."""
    going = {walk: walk[0].steps(walk[1]) for walk in walks}
    while going:
        waiting = {walk for all_of_key in asked.values() for walk in all_of_key}
        for walk in [walk for walk in going if walk not in waiting]:
            if (attempt := next(going[walk], None)) is None:
                del going[walk]
                continue
            search, index = walk
            key = json_sha256([*search.key(index), asdict(attempt)])
            asked.setdefault(key, []).append(walk)
            if asked[key] == [walk]:  # tasks that differ in name only are asked about once
                yield Piece(key, (search.tasks[index], attempt, search.judge))
        if waiting and len(waiting) == len(going):
            yield None


class Searcher:
    """A node's worker, which makes attempts."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def do(self, what: What) -> Line:
        """The line of an attempt."""
        return try_on(*what)


def _lost(what: What) -> Line:
    """The line of an attempt whose process died of it."""
    return line_of(*what) | {"error": "its process died, twice"}
