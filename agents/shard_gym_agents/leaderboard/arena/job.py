"""A job of a leaderboard, and how its agent is built and described: in a process of the agent's."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import shard_gym_agents
from shard_gym.records.guard import text_of
from shard_gym.results.evaluate import Solver, config, track
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents.learners.trained import Trained


@dataclass(frozen=True)
class Job:
    """One agent with one seed on one suite."""

    suite: str
    agent: str  # a registered name, or module:Class
    seed: int
    planner: str
    judge: str
    split: str = "test"
    budget: float | None = None  # seconds, where the agent takes one
    time_limit: float = 60.0  # seconds a task
    checkpoint: str = ""  # weights instead of those that the agent ships with
    calls: int = 0  # plans that it may ask the planner about, instead of seconds, where it takes them
    tasks: str = ""  # file of tasks, one JSON a line, that are like the suite's and solved instead of its own


def tasks_of(job: Job) -> Sequence[Task]:
    """The tasks that a job may be asked to solve."""
    return tasks_in(job.tasks) if job.tasks else suites.get(job.suite).tasks(job.split)


@cache
def tasks_in(path: str) -> tuple[Task, ...]:
    """The tasks of a file."""
    return tuple(Task.from_json(line) for line in text_of(path).splitlines())


def build(job: Job) -> Solver:
    """The job's agent with its seed, suite and what else was asked for, as far as its constructor takes them."""
    offered: dict[str, Any] = {"seed": job.seed, "suite": job.suite, "budget": job.budget}
    offered |= {"calls": job.calls or None, "checkpoint": job.checkpoint or None}
    takes = shard_gym_agents.options(job.agent)
    given = {name: value for name, value in offered.items() if name in takes and value is not None}
    solver = shard_gym_agents.make(job.agent, **given)
    if isinstance(solver, Trained):
        solver.require_planner(job.planner)
    return solver


def describe_solver(solver: Any) -> dict[str, Any]:
    """Describe an agent before it runs: track, configuration, source, and whether it is deterministic."""
    deterministic = bool(getattr(solver, "deterministic", False))
    source = inspect.getsourcefile(type(solver))
    digest = ""
    if source is not None:
        with open(source, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    return {
        "track": track(solver),
        "deterministic": deterministic,
        "config": config(solver),
        "source": digest,
    }
