"""The runs of a round: agents in the arena, and the host's own plans, which gaps are to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shard_gym.records.files import write_whole
from shard_gym.task.task import Task
from shard_gym.work.cluster import Cluster
from shard_gym_agents.leaderboard.arena.host import Nursery
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import Rules
from shard_gym_agents.leaderboard.nodes import place_of
from shard_gym_agents.leaderboard.rounds.folder import Round
from shard_gym_agents.leaderboard.runs import Judged, Scope, run_jobs
from shard_gym_agents.leaderboard.seats import Arena, describe_agents

HOST = ("cost-greedy", "auto")  # whose better plan is the reference of a task
ABSENT = ("missing", "unknown")  # what an agent is told to lack, in its description
TASKS = "tasks.jsonl"  # in the folder of unfinished runs, while agents run


@dataclass(frozen=True)
class Played:
    """The runs of some agents, each job's in the order of the tasks."""

    runs: Mapping[Job, list[Judged]]
    unable: Mapping[str, str]  # agents that could not run, and why
    complete: bool
    isolation: str


def jobs_of(found: Round, agents: Sequence[str], tasks: Path) -> list[Job]:
    """The jobs of the host, then those of the agents."""
    blank = Job(found.suite, "", 0, found.planner, found.judge, tasks=str(tasks))
    limit = max(found.time_limit, 2 * found.reference_budget)
    host = [replace(blank, agent=name, budget=found.reference_budget, time_limit=limit) for name in HOST]
    theirs = replace(blank, budget=found.budget, time_limit=found.time_limit)
    return host + [replace(theirs, agent=agent, seed=seed) for agent in agents for seed in range(found.seeds)]


def play(
    jobs: Sequence[Job],
    rules: Rules,
    scope: Scope,
    workers: int,
    users: Sequence[str] = (),
    cluster: Cluster | None = None,
) -> Played:
    """Let agents plan, here or on a cluster; runs that earlier commands finished are taken over. `users` are theirs."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # workers inherit it
    scope.partial.mkdir(parents=True, exist_ok=True)
    nursery = Nursery(rules, dict.fromkeys(job.agent for job in jobs), jobs)
    arena = Arena(nursery, tuple(users))
    try:
        about = _described(jobs, arena, workers)
        unable = {job.agent: str(told[key]) for job, told in about.items() for key in ABSENT if key in told}
        able = {job: told for job, told in about.items() if job.agent not in unable and not (job.seed and _once(told))}
        found = run_jobs(able, scope, place_of(cluster, arena, list(able), workers))
    finally:
        arena.stop()
        nursery.close()
    weakest = max([nursery.isolation, *(seen.isolation for seen in found.watched_of(able).values())])  # on any machine
    return Played(found.done, unable, found.complete, weakest)


@contextmanager
def handed_out(tasks: Sequence[Task], partial: Path) -> Iterator[Path]:
    """A file of the tasks for those who fork agents, gone at the end; agents behind walls do not see it."""
    path = partial / TASKS
    write_whole(path, "".join(task.to_json() + "\n" for task in tasks), mode=0o600)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _described(jobs: Sequence[Job], arena: Arena, workers: int) -> dict[Job, dict[str, Any]]:
    """The description that each job's agent gives of itself, asked with the first seed."""
    first = {(job.agent, job.budget): job for job in reversed(jobs)}
    told = describe_agents(first.values(), arena, workers)
    return {job: told[first[job.agent, job.budget]] for job in jobs}


def _once(told: dict[str, Any]) -> bool:
    """True if more seeds would change nothing."""
    return bool(told.get("deterministic")) or "error" in told
