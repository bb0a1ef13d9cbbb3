"""Seats of agents: each asks its agent for plans, in processes that are replaced when they are killed or die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from shard_gym.results.evaluate import Run
from shard_gym_agents.leaderboard.arena.host import Nursery, Worker, WorkerLost
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.kept import Watched

Check = Callable[[dict[str, Any]], None]


@dataclass
class Arena:
    """The workers that run side by side on this machine."""

    nursery: Nursery
    agents: tuple[str, ...] = ()  # of users, who must not read each other
    stopped: threading.Event = field(default_factory=threading.Event)
    live: set[Worker] = field(default_factory=set)

    def start(self, job: Job, track: str = "") -> Worker:
        """A worker that `stop` will end."""
        worker = Worker(job, self.nursery, track, self.agents)
        self.live.add(worker)
        if self.stopped.is_set():
            worker.stop()
        return worker

    def end(self, worker: Worker | None) -> None:
        """Kill a worker, if there is one."""
        if worker is not None:
            worker.kill()
            self.live.discard(worker)

    def stop(self) -> None:
        """Stop all workers and start no other."""
        self.stopped.set()
        for worker in list(self.live):
            worker.stop()


@dataclass(frozen=True)
class Answer:
    """Outcome of asking an agent about a task, and what its processes used; `lost` if they were killed or died."""

    run: Run
    seen: Watched = field(default_factory=Watched)
    lost: bool = False


class Seat:
    """Keeps a job's worker alive: a killed or dead one is replaced for the next task.

    `check` is told what each worker's agent says of itself, and may raise.
    """

    def __init__(self, job: Job, track: str, arena: Arena, check: Check = lambda told: None) -> None:
        self.job, self.track, self.arena, self.check = job, track, arena, check
        self.worker: Worker | None = None
        self.build = 0.0  # seconds that the worker took to be built

    def ask(self, index: int) -> Answer:
        """The agent's run on one task, whatever becomes of the agent."""
        try:
            if self.worker is None and (error := self.begin().get("error")):
                raise WorkerLost(f"died: on its restart: {error}")
            assert self.worker is not None
            turn = self.worker.solve(index)
        except WorkerLost as lost:
            self.close()
            limit = self.job.time_limit if str(lost).startswith("late") else 0.0
            return Answer(no_plan(str(lost), limit), lost=True)
        wall, isolation = turn.run.wall_seconds, self.arena.nursery.isolation
        return Answer(turn.run, Watched(isolation, self.build, wall, turn.cpu_seconds, turn.idle_seconds, runs=1))

    def begin(self) -> dict[str, Any]:
        """Start the worker; what its agent says of itself."""
        self.worker = self.arena.start(self.job, self.track)
        told = self.worker.about()
        self.build = told["build_seconds"]
        self.check(told)
        return told

    def close(self) -> None:
        """End the worker."""
        self.arena.end(self.worker)
        self.worker = None


def describe_agents(jobs: Iterable[Job], arena: Arena, workers: int) -> dict[Job, dict[str, Any]]:
    """The description that each job's agent gives of itself, asked in a worker, as its import may crash or hang."""
    jobs = list(jobs)
    with ThreadPoolExecutor(workers) as pool:
        try:
            return dict(zip(jobs, pool.map(lambda job: _described(job, arena), jobs), strict=True))
        except BaseException:  # Ctrl-C
            arena.stop()
            pool.shutdown(cancel_futures=True)
            raise


def no_plan(error: str, wall: float = 0.0) -> Run:
    """A run without a plan, and why."""
    return Run(None, error, wall, 0)


def _described(job: Job, arena: Arena) -> dict[str, Any]:
    seat = Seat(job, "", arena)
    try:
        return seat.begin()
    except WorkerLost as lost:
        return {"error": str(lost)}
    finally:
        seat.close()
