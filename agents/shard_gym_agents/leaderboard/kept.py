"""Runs that are kept on disk until all of a command's are done, under a key of all that decides them.

That is an agent with its config and source, suite, split, seed, budget, simulators, limits, and all files of both
packages but compiled ones, so that it is the same key on any machine. What a third party's module imports is not in
the key: `--fresh` forgets what was kept.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym
import shard_gym_agents
from shard_gym.errors import CorruptFile
from shard_gym.records import ledger
from shard_gym.records.files import json_sha256
from shard_gym.records.guard import parsed_json
from shard_gym.results import Result
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import FULL, LIMITS

COMPILED = (".so", ".pyd", ".dylib")
FORCED = 0.05  # seconds of a run from which on it outlives the machine, not only this process


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


def blank_result(job: Job, about: dict[str, Any]) -> Result:
    """A result of the job, before anything is solved; the agent told of itself with the first seed and budget."""
    config = about.get("config", {})
    own = {"seed": job.seed, "budget": job.budget or config.get("budget")}
    if job.checkpoint:
        own["checkpoint"] = job.checkpoint  # as the user named it
    return Result(
        suite="" if job.tasks else job.suite,
        agent=job.agent,
        config=config | {name: value for name, value in own.items() if name in config},
        seed=job.seed,
        track=about.get("track", "search"),
        error=about.get("error"),
        planner=job.planner,
        judge=job.judge,
    )


def job_key(job: Job, about: dict[str, Any]) -> str:
    """The hash of all that decides a job's runs; tasks of no suite are told by each run."""
    said = {name: value for name, value in about.items() if name != "build_seconds"}
    return json_sha256({**asdict(job), "tasks": bool(job.tasks), "about": said, "packages": _packages_digest()})


def piece_key(job: str, task: Task) -> str:
    """The hash of all that decides a run on a task, of a job with that key."""
    return json_sha256([job, task.hash])


def partial_path(job: Job, about: dict[str, Any], folder: Path) -> Path:
    """The file of a job's runs; its name tells all that decides them."""
    agent = "".join(c if c.isalnum() else "-" for c in job.agent)
    return folder / f"{job.suite}.{agent}.{job.seed}.{job_key(job, about)[:12]}.jsonl"


def kept_runs(path: Path) -> dict[str, tuple[Result, Watched]]:
    """Runs of an unfinished job, by task hash."""
    try:
        return {result.task: (result, seen) for result, seen in ledger.read(path, kept_run, "kept run")}
    except CorruptFile as error:
        raise CorruptFile(f"{error}; --fresh runs it again") from error


class Keeper:
    """Adds runs to those of an unfinished job; the file is made by the first."""

    def __init__(self, path: Path) -> None:
        self.path, self.open = path, ExitStack()
        self.ledger: ledger.Ledger | None = None

    def add(self, result: Result, seen: Watched) -> None:
        """Keep a run; a short one is sooner run again than forced to disk."""
        if self.ledger is None:
            self.ledger = self.open.enter_context(ledger.opened(self.path))
        self.ledger.append(kept_line(result, seen), force=result.wall_seconds >= FORCED)

    def close(self) -> None:
        """Let others have the file."""
        self.open.close()
        self.ledger = None


def kept_line(result: Result, seen: Watched) -> dict[str, Any]:
    """A run as JSON holds it."""
    return {"task": result.task, "result": result.to_json(), "watched": asdict(seen)}


def kept_run(line: bytes) -> tuple[Result, Watched]:
    """The run of a line."""
    told = parsed_json(line)
    watched = Watched(**told["watched"])
    figures = watched.build, watched.wall, watched.cpu, watched.idle, watched.runs
    if watched.isolation not in ("", FULL, LIMITS) or not all(figure >= 0 for figure in figures):
        raise ValueError("what was watched is an isolation and numbers of 0 or more")
    return Result.from_json(told["result"]), watched


@cache
def _packages_digest() -> str:
    """Hash of every file that is written in both packages, so that an edit never meets runs made before it."""
    digest = hashlib.sha256()
    for package in (shard_gym, shard_gym_agents):
        folder = Path(str(package.__file__)).parent
        files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        for path in sorted(path for path in files if path.suffix not in COMPILED):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
