"""Runs jobs side by side, each in its own worker, and keeps every finished run on disk until all are done.

A run that broke off is taken up again by the same command: a job's runs lie in `<out>/partial`, under a key
of all that decides them (agent, its config and source, suite, split, seed, simulators, limits, and all files
of both packages). What a third party's module imports is not in the key: `--fresh` forgets what was kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym
import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.records import ledger
from shard_gym.records.files import json_sha256
from shard_gym.records.progress import ProgressBar
from shard_gym.results import Result
from shard_gym.results.evaluate import Run, Score, describe, judged, score
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.host import Nursery, Turn, Worker, WorkerLost
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.job import tasks_of as job_tasks

STRIKES = 3  # time-outs and deaths of an agent on a suite before it is given up
LOST = ("late: ", "died: ")

Judged = tuple[Result, Score | None]


@dataclass
class Watched:
    """Figures of an agent's processes over all its runs, as the host saw them; seconds."""

    isolation: str = ""
    build: float = 0.0  # the longest
    wall: float = 0.0
    cpu: float = 0.0  # from questions to answers
    idle: float = 0.0  # CPU between tasks
    runs: int = 0

    def add(self, other: Watched) -> None:
        """Count another's runs too; the weaker isolation is the whole's."""
        self.isolation = max(self.isolation, other.isolation)  # "", full, limits
        self.build = max(self.build, other.build)
        self.wall, self.cpu, self.idle = self.wall + other.wall, self.cpu + other.cpu, self.idle + other.idle
        self.runs += other.runs


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


def blank_result(job: Job, about: dict[str, Any]) -> Result:
    """A result of the job, before anything is solved; what the agent told of itself, it told with seed 0."""
    config = about.get("config", {})
    if "checkpoint" in config and job.checkpoint:
        config = {**config, "checkpoint": job.checkpoint}  # as the user named it
    return Result(
        suite="" if job.tasks else job.suite,
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
    said = {name: value for name, value in about.items() if name != "build_seconds"}
    decides = {**asdict(job), "about": said, "packages": _packages_digest()}
    key = json_sha256(decides)[:12]
    agent = "".join(c if c.isalnum() else "-" for c in job.agent)
    return folder / f"{job.suite}.{agent}.{job.seed}.{key}.jsonl"


def _run_job(job: Job, about: dict[str, Any], arena: Arena, done: list[Judged], progress: ProgressBar) -> None:
    """Append the job's runs to `done`, those of an earlier run first."""
    path = partial_path(job, about, arena.partial)
    if arena.fresh:
        path.unlink(missing_ok=True)
    kept = {result.task: (result, seen) for result, seen in ledger.read(path, _kept)}
    lost = sum((result.error or "").startswith(LOST) for result, _ in kept.values())
    arena.strikes[job.suite, job.agent] += lost
    judge, blank, seat = simulators.make(job.judge), blank_result(job, about), Seat(job, about.get("track", ""), arena)
    try:
        for index, task in enumerate(tasks_of(job, arena.tasks)):
            if task.hash in kept:
                earlier, seen = kept[task.hash]
                found = None if earlier.plan is None else score(task, earlier.plan, judge)
                done.append((replace(earlier, index=index), found))
            elif arena.stopped.is_set():
                return
            else:
                turn = _none(blank.error) if blank.error else seat.solve(index)
                if arena.stopped.is_set():
                    return  # the run was cut short, whatever it says
                done.append(_judged(blank, index, task, turn.run, judge))
                seen = _watched(turn, seat.build, arena)
                if not (turn.run.error or "").startswith("given up"):
                    line = {"task": task.hash, "result": done[-1][0].to_json(), "watched": asdict(seen)}
                    ledger.append(path, line)
            arena.watched[job].add(seen)
            progress.step(f"{job.suite} {job.agent} seed {job.seed}", fresh=task.hash not in kept)
    finally:
        seat.close()


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


def _kept(line: bytes) -> tuple[Result, Watched]:
    """A line of an unfinished job."""
    told = json.loads(line)
    return Result.from_json(told["result"]), Watched(**told["watched"])


def _none(error: str, wall: float = 0.0) -> Turn:
    """No plan, and why."""
    return Turn(Run(None, error, wall, 0), math.nan, math.nan)


@cache
def _packages_digest() -> str:
    """Hash of every file in both packages, so that an edit never meets runs made before it."""
    digest = hashlib.sha256()
    for package in (shard_gym, shard_gym_agents):
        folder = Path(str(package.__file__)).parent
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
