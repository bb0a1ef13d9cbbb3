"""Runs of jobs, here or on other machines; every finished run is kept on disk until all are done.

A run that broke off is taken up again by the same command: a job's runs lie in `<out>/partial` (see `kept`). Agents are
asked by a place: threads of this machine, or nodes of a cluster (`nodes`). This side alone judges and keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.records.progress import ProgressBar
from shard_gym.results import Result
from shard_gym.results.evaluate import Run, Score, describe, judged, score
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym.work.parts import WHOLE, Part
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.job import tasks_of as job_tasks
from shard_gym_agents.leaderboard.kept import (
    Keeper,
    Watched,
    blank_result,
    job_key,
    kept_runs,
    partial_path,
    piece_key,
)
from shard_gym_agents.leaderboard.seats import Answer, Arena, Seat, no_plan

TIMED = 10  # tasks an agent, whose runs nothing else runs beside
STRIKES = 3  # time-outs and deaths of an agent on a suite before it is given up
LOST = ("late: ", "died: ")

Judged = tuple[Result, Score | None]
Strikes = Counter[tuple[str, str]]  # lost runs, by suite and agent


@dataclass(frozen=True)
class Scope:
    """The runs that are wanted of each job, and where those of an unfinished command are."""

    partial: Path  # folder of unfinished jobs
    tasks: int | None = None  # the first so many only
    fresh: bool = False  # forget what an earlier run kept
    part: Part = WHOLE
    others: tuple[Path, ...] = ()  # folders of what parts of this work kept, which is taken over

    def tasks_of(self, job: Job, told: dict[str, Any]) -> dict[int, Task]:
        """The tasks of a job that are to be run, by number."""
        tasks, key = tasks_of(job, self.tasks), job_key(job, told)
        taken = (self.part.whole or self.part.takes(piece_key(key, task)) for task in tasks)
        return {index: task for index, (task, ours) in enumerate(zip(tasks, taken, strict=True)) if ours}

    def kept(self, job: Job, told: dict[str, Any]) -> dict[str, tuple[Result, Watched]]:
        """Runs of a job that were made before, by task hash."""
        path = partial_path(job, told, self.partial)
        if self.fresh:
            path.unlink(missing_ok=True)
        found = (kept_runs(folder / path.name) for folder in (*self.others, self.partial))
        return {task: run for runs in found for task, run in runs.items()}


class JobRuns:
    """A job's runs, each kept on disk when it is done; those of a command that broke off are not run again."""

    def __init__(self, job: Job, told: dict[str, Any], scope: Scope, strikes: Strikes, progress: ProgressBar) -> None:
        self.job, self.told, self.strikes, self.progress = job, told, strikes, progress
        self.tasks, self.kept = scope.tasks_of(job, told), scope.kept(job, told)
        self.done: dict[int, Judged] = {}  # by number of the task
        self.seen: dict[int, Watched] = {}
        self.keeper = Keeper(partial_path(job, told, scope.partial))
        self.who = job.suite, job.agent
        self.blank = blank_result(job, told)
        strikes[self.who] += sum((result.error or "").startswith(LOST) for result, _ in self.kept.values())

    @cached_property
    def judge(self) -> Simulator:
        """The simulator that scores the plans."""
        return simulators.make(self.job.judge)

    def left(self, first: int | None = None) -> Iterator[int]:
        """Numbers of the tasks, or of the first so many, that the agent is to be asked about, one after another.

        Runs that were kept, and those of an agent that cannot be asked any more, are counted on the way.
        """
        for index, task in islice(self.tasks.items(), first):
            if index in self.done:
                continue
            if task.hash in self.kept:
                self._take_over(index, task)
            elif why := self.blank.error or self._given_up():
                self._count(index, no_plan(why), Watched())
            else:
                yield index

    def add(self, index: int, answer: Answer, alone: bool = False) -> None:
        """Judge and keep what an agent answered; `alone` says that nothing else ran meanwhile."""
        self._count(index, replace(answer.run, alone=alone), answer.seen)
        self.keeper.add(self.done[index][0], answer.seen)
        self.strikes[self.who] += answer.lost
        if len(self.done) == len(self.tasks):
            self.keeper.close()

    def ordered(self) -> list[Judged]:
        """The runs that are done, in the order of the tasks."""
        return [self.done[index] for index in sorted(self.done)]

    def _given_up(self) -> str:
        lost = self.strikes[self.who] >= STRIKES
        return f"given up after {STRIKES} runs that were late or died" if lost else ""

    def _take_over(self, index: int, task: Task) -> None:
        """Count the run that an earlier command kept."""
        earlier, self.seen[index] = self.kept[task.hash]
        found = None if earlier.plan is None else score(task, earlier.plan, self.judge)
        self.done[index] = replace(earlier, index=index), found
        self._tell(fresh=False)

    def _count(self, index: int, run: Run, seen: Watched) -> None:
        self.done[index], self.seen[index] = _judged(self.blank, index, self.tasks[index], run, self.judge), seen
        self._tell(fresh=True)

    def _tell(self, fresh: bool) -> None:
        self.progress.step(f"{self.job.suite} {self.job.agent} seed {self.job.seed}", fresh)


@dataclass(frozen=True)
class Finished:
    """The runs of some jobs; `complete` if all of them are done."""

    runs: Sequence[JobRuns]
    complete: bool

    @property
    def done(self) -> dict[Job, list[Judged]]:
        """The runs that are done, by job."""
        return {one.job: one.ordered() for one in self.runs}

    def watched_of(self, jobs: Iterable[Job]) -> dict[str, Watched]:
        """Figures of each agent in these jobs."""
        wanted = set(jobs)
        found = {job.agent: Watched() for job in wanted}
        for one in self.runs:
            for seen in one.seen.values() if one.job in wanted else ():
                found[one.job.agent].add(seen)
        return found

    def forget(self) -> None:
        """Remove what was kept in case of a crash."""
        for one in self.runs:
            one.keeper.path.unlink(missing_ok=True)


class Place(Protocol):
    """Somewhere that agents are: it asks them about all tasks that are left, and hands in what they answer."""

    def work_off(self, runs: Sequence[JobRuns]) -> None:
        """Ask the agents."""


@dataclass(frozen=True)
class Here:
    """Threads of this machine: first runs whose times are told, one at a time, then all others side by side."""

    arena: Arena
    workers: int

    def work_off(self, runs: Sequence[JobRuns]) -> None:
        """Ask the agents, as many at a time as there are workers."""
        pool = ThreadPoolExecutor(self.workers)
        try:
            for first in [one for one in runs if one.job.seed == 0 and self.workers > 1]:
                pool.submit(self._timed, first).result()
            futures = [pool.submit(self._work, one, one.left(), alone=self.workers == 1) for one in runs]
            for future in as_completed(futures):
                future.result()
        finally:
            self.arena.stop()
            pool.shutdown(cancel_futures=True)

    def _timed(self, runs: JobRuns) -> None:
        """Ask about the first tasks while nothing else runs, up to the first that fails, which tells no time."""

        def first() -> Iterator[int]:
            for index in runs.left(TIMED):
                if any(result.plan is None for result, _ in runs.done.values()):
                    return
                yield index

        self._work(runs, first(), alone=True)

    def _work(self, runs: JobRuns, left: Iterable[int], alone: bool) -> None:
        seat = Seat(runs.job, runs.told.get("track", ""), self.arena)
        try:
            for index in left:
                if self.arena.stopped.is_set():
                    return
                answer = seat.ask(index)
                if self.arena.stopped.is_set():  # the run was cut short, whatever the agent says
                    return
                runs.add(index, answer, alone)
        finally:
            runs.keeper.close()
            seat.close()


def run_jobs(jobs: Mapping[Job, dict[str, Any]], scope: Scope, place: Place) -> Finished:
    """Run all jobs (with what each agent is). Ctrl-C ends it early: jobs then have the runs that were finished."""
    strikes, progress = Counter[tuple[str, str]](), ProgressBar(0)
    runs = [JobRuns(job, told, scope, strikes, progress) for job, told in jobs.items()]
    progress.total = sum(len(one.tasks) for one in runs)
    complete = True
    try:
        place.work_off(runs)
    except KeyboardInterrupt:
        complete = False
    finally:
        for one in runs:
            one.keeper.close()
        progress.close()
    return Finished(runs, complete)


def tasks_of(job: Job, limit: int | None) -> tuple[Task, ...]:
    """The tasks that a job solves."""
    return tuple(job_tasks(job)[:limit])


def _judged(blank: Result, index: int, task: Task, run: Run, judge: Simulator) -> Judged:
    """The result of a run; a plan that cannot be judged is no plan."""
    try:
        return judged(blank, index, task, run, judge)
    except (ShardGymError, ArithmeticError, MemoryError) as error:
        return judged(blank, index, task, replace(run, plan=None, error=describe(error)), judge)
