"""Runs jobs side by side, each in its own worker, and keeps every finished run on disk until all are done.

A run that broke off is taken up again by the same command: a job's runs lie in `<out>/partial` (see `kept`).
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.records.progress import ProgressBar
from shard_gym.results import Result
from shard_gym.results.evaluate import Run, Score, describe, judged, score
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.host import Nursery, Turn, Worker, WorkerLost
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.job import tasks_of as job_tasks
from shard_gym_agents.leaderboard.kept import Keeper, Watched, blank_result, kept_runs, partial_path

TIMED = 10  # tasks an agent, whose runs nothing else runs beside
STRIKES = 3  # time-outs and deaths of an agent on a suite before it is given up
LOST = ("late: ", "died: ")

Judged = tuple[Result, Score | None]


@dataclass
class Arena:
    """State that the threads of a leaderboard share."""

    nursery: Nursery
    partial: Path  # folder of unfinished jobs
    tasks: int | None = None  # the first so many only
    fresh: bool = False  # forget what an earlier run kept
    agents: tuple[str, ...] = ()  # of users, who must not read each other
    stopped: threading.Event = field(default_factory=threading.Event)
    live: set[Worker] = field(default_factory=set)
    strikes: Counter[tuple[str, str]] = field(default_factory=Counter)
    watched: defaultdict[Job, Watched] = field(default_factory=lambda: defaultdict(Watched))

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

    def watched_of(self, jobs: Iterable[Job]) -> dict[str, Watched]:
        """Figures of each agent in these jobs."""
        found = {job.agent: Watched() for job in jobs}
        for job in jobs:
            found[job.agent].add(self.watched[job])
        return found

    def stop(self) -> None:
        """Stop all workers and start no other."""
        self.stopped.set()
        for worker in list(self.live):
            worker.stop()


class Seat:
    """Keeps a job's worker alive: a killed or dead one is replaced for the next task."""

    def __init__(self, job: Job, track: str, arena: Arena) -> None:
        self.job, self.track, self.arena = job, track, arena
        self.worker: Worker | None = None
        self.build = 0.0  # seconds that the worker took to be built

    def solve(self, index: int) -> Turn:
        """The agent's run on one task, whatever becomes of the agent."""
        who = (self.job.suite, self.job.agent)
        if self.arena.strikes[who] >= STRIKES:
            return _none(f"given up after {STRIKES} runs that were late or died")
        try:
            if self.worker is None:
                self.worker = self.arena.start(self.job, self.track)
                about = self.worker.about()
                self.build = about["build_seconds"]
                if error := about.get("error"):
                    raise WorkerLost(f"died: on its restart: {error}")
            return self.worker.solve(index)
        except WorkerLost as lost:
            self.close()
            self.arena.strikes[who] += 1
            return _none(str(lost), self.job.time_limit if str(lost).startswith("late") else 0.0)

    def close(self) -> None:
        """End the worker."""
        self.arena.end(self.worker)
        self.worker = None


def run_jobs(jobs: Mapping[Job, dict[str, Any]], arena: Arena, workers: int) -> tuple[dict[Job, list[Judged]], bool]:
    """Run all jobs (with what each agent is): runs by job in the order of tasks, and true if all were done.

    First come the runs whose times are told, one at a time, then all others side by side. Ctrl-C ends it early: jobs
    then have the runs that were finished.
    """
    progress = ProgressBar(sum(len(tasks_of(job, arena.tasks)) for job in jobs))
    all_runs = [JobRuns(job, about, arena, progress) for job, about in jobs.items()]
    pool = ThreadPoolExecutor(workers)
    complete = True
    try:
        for first in [runs for runs in all_runs if runs.job.seed == 0 and workers > 1]:
            pool.submit(first.be_timed).result()
        futures = [pool.submit(runs.go_on, alone=workers == 1) for runs in all_runs]
        for future in as_completed(futures):
            future.result()
    except KeyboardInterrupt:
        complete = False
    finally:
        arena.stop()
        pool.shutdown(cancel_futures=True)
        progress.close()
    return {runs.job: runs.done for runs in all_runs}, complete


class JobRuns:
    """A job's runs, one task after another, and kept on disk; those of a command that broke off are not run again."""

    def __init__(self, job: Job, about: dict[str, Any], arena: Arena, progress: ProgressBar) -> None:
        self.job, self.about, self.arena, self.progress = job, about, arena, progress
        self.done: list[Judged] = []
        path = partial_path(job, about, arena.partial)
        if arena.fresh:
            path.unlink(missing_ok=True)
        self.kept, self.keeper = kept_runs(path), Keeper(path)
        lost = sum((result.error or "").startswith(LOST) for result, _ in self.kept.values())
        arena.strikes[job.suite, job.agent] += lost
        self.blank = blank_result(job, about)

    def be_timed(self) -> None:
        """Run the first tasks while nothing else runs, up to the first that fails, which tells no time."""
        self._go_on(tasks_of(self.job, self.arena.tasks)[:TIMED], alone=True, until_failure=True)

    def go_on(self, alone: bool) -> None:
        """Run all tasks that are left; `alone` says that nothing else runs meanwhile."""
        self._go_on(tasks_of(self.job, self.arena.tasks), alone)

    def _go_on(self, tasks: Sequence[Task], alone: bool, until_failure: bool = False) -> None:
        judge = simulators.make(self.job.judge)
        seat = Seat(self.job, self.about.get("track", ""), self.arena)
        label = f"{self.job.suite} {self.job.agent} seed {self.job.seed}"
        try:
            for task in tasks[len(self.done) :]:
                if task.hash not in self.kept and self.arena.stopped.is_set():
                    return
                if not (self._take_over(task, judge) or self._run(task, judge, seat, alone)):
                    return
                self.progress.step(label, fresh=task.hash not in self.kept)
                if until_failure and self.done[-1][0].plan is None:
                    return
        finally:
            self.keeper.close()
            seat.close()

    def _take_over(self, task: Task, judge: Simulator) -> bool:
        """Count the run that an earlier command kept, if there is one."""
        if task.hash not in self.kept:
            return False
        earlier, seen = self.kept[task.hash]
        found = None if earlier.plan is None else score(task, earlier.plan, judge)
        self.done.append((replace(earlier, index=len(self.done)), found))
        self.arena.watched[self.job].add(seen)
        return True

    def _run(self, task: Task, judge: Simulator, seat: Seat, alone: bool) -> bool:
        """Run the agent on the task; false if the run was cut short, whatever the agent says."""
        index = len(self.done)
        turn = _none(self.blank.error) if self.blank.error else seat.solve(index)
        if self.arena.stopped.is_set():
            return False
        self.done.append(_judged(self.blank, index, task, replace(turn.run, alone=alone), judge))
        seen = _watched(turn, seat.build, self.arena)
        if not (turn.run.error or "").startswith("given up"):
            self.keeper.add(self.done[-1][0], seen)
        self.arena.watched[self.job].add(seen)
        return True


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


def _described(job: Job, arena: Arena) -> dict[str, Any]:
    worker = None
    try:
        worker = arena.start(job)
        return worker.about()
    except WorkerLost as lost:
        return {"error": str(lost)}
    finally:
        arena.end(worker)


def tasks_of(job: Job, limit: int | None) -> tuple[Task, ...]:
    """The tasks that a job solves."""
    return tuple(job_tasks(job)[:limit])


def _judged(blank: Result, index: int, task: Task, run: Run, judge: Simulator) -> Judged:
    """The result of a run; a plan that cannot be judged is no plan."""
    try:
        return judged(blank, index, task, run, judge)
    except (ShardGymError, ArithmeticError, MemoryError) as error:
        return judged(blank, index, task, replace(run, plan=None, error=describe(error)), judge)


def _watched(turn: Turn, build: float, arena: Arena) -> Watched:
    if math.isnan(turn.cpu_seconds):  # nobody was asked
        return Watched()
    wall = turn.run.wall_seconds
    return Watched(arena.nursery.isolation, build, wall, turn.cpu_seconds, turn.idle_seconds, runs=1)


def _none(error: str, wall: float = 0.0) -> Turn:
    """No plan, and why."""
    return Turn(Run(None, error, wall, 0), math.nan, math.nan)
