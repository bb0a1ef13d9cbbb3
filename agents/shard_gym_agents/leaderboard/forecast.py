"""Forecast of how long a leaderboard takes, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shard_gym.task import suites
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.runs import TIMED, tasks_of
from shard_gym_agents.learners import LEARNERS

# Seconds a plan of 80 tables on 8 devices, where no budget says it, with what the arena takes; of two cores at 2 GHz.
SECONDS = {"cost-greedy": 0.008, "neuroshard": 0.01, "torchrec-planner": 0.12, "torchrec-planner-perf": 0.12}
QUICK, LEARNED = 0.002, 0.06
TABLES = 80


def seconds_of(jobs: Mapping[Job, dict[str, Any]], tasks: int | None, workers: int) -> float:
    """Seconds that jobs (with what each agent says of itself) will take, as far as can be known."""
    alone = beside = 0.0
    for job, told in jobs.items():
        count = len(tasks_of(job, tasks))
        first = min(count, TIMED) if job.seed == 0 and workers > 1 else 0
        each, build = _plan_seconds(job, told), told.get("build_seconds", 0.0)
        alone += first * each + (build if first else 0.0)
        beside += (count - first) * each + build
    return alone + beside / min(workers, max(len(jobs), 1))


def _plan_seconds(job: Job, told: dict[str, Any]) -> float:
    if "error" in told:
        return 0.0
    each = SECONDS.get(job.agent, LEARNED if job.agent in LEARNERS else QUICK)
    each *= suites.get(job.suite).num_tables / TABLES
    if job.budget and "budget" in told.get("config", {}):
        return min(job.budget, each) if job.agent in SECONDS else job.budget
    return each
