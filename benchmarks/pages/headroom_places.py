"""Places where headroom's searches run: processes of this machine, or the nodes of a Ray cluster.

A walk is a task of a suite: its attempts are made one after another, as an earlier one may make a later one needless.
On a cluster all walks take a step before any takes its next, so that the runs are the same for any number of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from shard_gym.records.files import json_sha256
from shard_gym.records.processes import end_with_parent
from shard_gym.task.task import Task
from shard_gym.work.cluster import Cluster, Slot, Terms
from shard_gym.work.parts import Part
from shard_gym.work.pieces import Piece

if TYPE_CHECKING:
    from benchmarks.headroom import Call, Line, SuiteSearch

Walk = tuple["SuiteSearch", int]  # a suite, and the number of a task
What = tuple[Task, dict[str, Any], str]  # a task, the fields of an attempt, and the judge


def walks_of(searches: Sequence[SuiteSearch], part: Part) -> list[Walk]:
    """The walks of a part of the work; tasks that differ in name only are in the same one."""
    every = ((one, index) for one in searches for index in range(len(one.tasks)))
    return [(one, index) for one, index in every if part.whole or part.takes(json_sha256(one.key(index)))]


def here(walks: Sequence[Walk], workers: int, try_on: Call) -> None:
    """Task after task, or as many at a time as there are workers."""
    alone = workers == 1
    processes = nullcontext() if alone else ProcessPoolExecutor(workers, get_context("forkserver"), end_with_parent)
    threads = ThreadPoolExecutor(workers)
    with processes as pool:
        call: Call = try_on if pool is None else lambda *what: pool.submit(try_on, *what).result()
        try:
            if alone:
                for search, index in walks:
                    search.walk(index, call)
            else:
                list(threads.map(lambda walk: walk[0].walk(walk[1], call), walks))
        finally:
            for search, _ in walks:
                search.stopped.set()
            threads.shutdown(cancel_futures=True)


def on_nodes(walks: Sequence[Walk], workers: int, cluster: Cluster) -> None:
    """A step of every walk at a time, on whatever node is free."""
    going = {(search, index): search.steps(index) for search, index in walks}
    while going:
        asked: dict[str, tuple[SuiteSearch, What]] = {}
        for walk, steps in list(going.items()):
            attempt = next(steps, None)
            if attempt is None:
                del going[walk]
            else:
                search, index = walk
                fields = asdict(attempt)
                what = search.tasks[index], fields, search.judge
                asked[json_sha256([*search.key(index), fields])] = search, what
        cluster.work_off(
            [Piece(key, what) for key, (_, what) in asked.items()],
            Searcher,
            lambda key, line, asked=asked: asked[key][0].add(line),
            Terms(workers=workers, lost=_lost),
        )


class Searcher:
    """A node's worker, which makes attempts."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def do(self, what: What) -> Line:
        """The line of an attempt."""
        from benchmarks.headroom import Attempt, try_on

        task, fields, judge = what
        return try_on(task, Attempt(**fields), judge)


def _lost(what: What) -> Line:
    """The line of an attempt whose process died of it."""
    from benchmarks.headroom import Attempt, line_of

    task, fields, judge = what
    return line_of(task, Attempt(**fields), judge) | {"error": "its process died, twice"}
