"""Runs jobs side by side, each in its own worker, and keeps every finished run on disk until all are done.

A run that broke off is taken up again by the same command: a job's runs lie in `<out>/partial`, under a key
of all that decides them (agent, its config and source, suite, split, seed, simulators, limits, and all files
of both packages). What a third party's module imports is not in the key: `--fresh` forgets what was kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym
import shard_gym_agents
from shard_gym import simulators
from shard_gym.records import ledger
from shard_gym.records.files import json_sha256
from shard_gym.records.progress import ProgressBar
from shard_gym.results import Result
from shard_gym.results.evaluate import Run, Score, judged, score
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.workers import Job, Worker, WorkerLost

STRIKES = 3  # time-outs and deaths of an agent on a suite before it is given up
LOST = ("late: ", "died: ")

Judged = tuple[Result, Score | None]


@dataclass
class Arena:
    """State that the threads of a leaderboard share."""

    partial: Path  # folder of unfinished jobs
    tasks: int | None = None  # the first so many only
    fresh: bool = False  # forget what an earlier run kept
    stopped: threading.Event = field(default_factory=threading.Event)
    live: set[Worker] = field(default_factory=set)
    strikes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def start(self, job: Job) -> Worker:
        """A worker that `stop` will end."""
        worker = Worker(job)
        self.live.add(worker)
        if self.stopped.is_set():
            worker.kill()
        return worker

    def end(self, worker: Worker | None) -> None:
        """Kill a worker, if there is one."""
        if worker is not None:
            worker.kill()
            self.live.discard(worker)

    def stop(self) -> None:
        """Kill all workers and start no other."""
        self.stopped.set()
        for worker in list(self.live):
            worker.kill()


class Seat:
    """Keeps a job's worker alive: a killed or dead one is replaced for the next task."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self.job, self.arena = job, arena
        self.worker: Worker | None = None

    def solve(self, index: int) -> Run:
        """The agent's run on one task, whatever becomes of the agent."""
        who = (self.job.suite, self.job.agent)
        if self.arena.strikes[who] >= STRIKES:
            return Run(None, f"given up after {STRIKES} runs that were late or died", 0.0, 0)
        try:
            if self.worker is None:
                self.worker = self.arena.start(self.job)
                if error := self.worker.about().get("error"):
                    raise WorkerLost(f"died: on its restart: {error}")
            run = self.worker.solve(index)
        except WorkerLost as lost:
            self.close()
            self.arena.strikes[who] += 1
            return Run(None, str(lost), self.job.time_limit if str(lost).startswith("late") else 0.0, 0)
        if run.wall_seconds > self.job.time_limit:
            return replace(run, plan=None, error=f"late: {run.wall_seconds:.3g} s of {self.job.time_limit:g} s")
        return run

    def close(self) -> None:
        """End the worker."""
        self.arena.end(self.worker)
        self.worker = None


def run_jobs(jobs: Mapping[Job, dict[str, Any]], arena: Arena, workers: int) -> tuple[dict[Job, list[Judged]], bool]:
    """Run all jobs (with what each agent is): runs by job in the order of tasks, and true if all were done.

    Ctrl-C ends it early: jobs then have the runs that were finished.
    """
    progress = ProgressBar(sum(len(tasks_of(job, arena.tasks)) for job in jobs))
    done: dict[Job, list[Judged]] = {job: [] for job in jobs}
    pool = ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(_run_job, job, jobs[job], arena, done[job], progress) for job in jobs]
        for future in as_completed(futures):
            future.result()
    except KeyboardInterrupt:
        return done, False
    finally:
        arena.stop()
        pool.shutdown(cancel_futures=True)
        progress.close()
    return done, True


def describe_agents(jobs: Iterable[Job], arena: Arena) -> dict[Job, dict[str, Any]]:
    """The description that each job's agent gives of itself, asked in a worker, as its import may crash or hang."""
    about: dict[Job, dict[str, Any]] = {}
    for job in jobs:
        worker = arena.start(job)
        try:
            about[job] = worker.about()
        except WorkerLost as lost:
            about[job] = {"error": str(lost)}
        finally:
            arena.end(worker)
    return about


def tasks_of(job: Job, limit: int | None) -> tuple[Task, ...]:
    """The tasks that a job solves."""
    return suites.get(job.suite).tasks(job.split)[:limit]


def blank_result(job: Job, about: dict[str, Any]) -> Result:
    """A result of the job, before anything is solved; what the agent told of itself, it told with seed 0."""
    config = about.get("config", {})
    return Result(
        suite=job.suite,
        agent=job.agent,
        config={**config, "seed": job.seed} if "seed" in config else config,
        seed=job.seed,
        track=about.get("track", "search"),
        error=about.get("error"),
        planner=job.planner,
        judge=job.judge,
    )


def partial_path(job: Job, about: dict[str, Any], folder: Path) -> Path:
    """The file of a job's runs; its name tells all that decides them."""
    decides = {**asdict(job), "verbose": None, "about": about, "packages": _packages_digest()}
    key = json_sha256(decides)[:12]
    agent = "".join(c if c.isalnum() else "-" for c in job.agent)
    return folder / f"{job.suite}.{agent}.{job.seed}.{key}.jsonl"


def _run_job(job: Job, about: dict[str, Any], arena: Arena, done: list[Judged], progress: ProgressBar) -> None:
    """Append the job's runs to `done`, those of an earlier run first."""
    path = partial_path(job, about, arena.partial)
    if arena.fresh:
        path.unlink(missing_ok=True)
    kept = {r.task: r for r in ledger.read(path, Result.from_json)}
    lost = sum((r.error or "").startswith(LOST) for r in kept.values())
    arena.strikes[job.suite, job.agent] += lost
    judge, blank, seat = simulators.make(job.judge), blank_result(job, about), Seat(job, arena)
    try:
        for index, task in enumerate(tasks_of(job, arena.tasks)):
            if earlier := kept.get(task.hash):
                found = None if earlier.plan is None else score(task, earlier.plan, judge)
                done.append((replace(earlier, index=index), found))
            elif arena.stopped.is_set():
                return
            else:
                run = Run(None, blank.error, 0.0, 0) if blank.error else seat.solve(index)
                if arena.stopped.is_set():
                    return  # the run was cut short, whatever it says
                done.append(judged(blank, index, task, run, judge))
                if not (run.error or "").startswith("given up"):
                    ledger.append(path, done[-1][0].to_json())
            progress.step(f"{job.suite} {job.agent} seed {job.seed}", fresh=earlier is None)
    finally:
        seat.close()


@cache
def _packages_digest() -> str:
    """Hash of every file in both packages, so that an edit never meets runs made before it."""
    digest = hashlib.sha256()
    for package in (shard_gym, shard_gym_agents):
        folder = Path(str(package.__file__)).parent
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
