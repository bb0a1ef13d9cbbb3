"""The jobs that a command line asks for."""

from __future__ import annotations

import argparse

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import MissingDependency, ShardGymError, UnknownName
from shard_gym.task import suites
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import findable
from shard_gym_agents.leaderboard.runs import tasks_of
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.trained import NotTrained, Trained

TIME_LIMIT = 60.0  # seconds a task
NO_ROW = {"reshard"}  # where nobody names it: these tasks have no plan in use, and without one it is auto


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Every agent and seed on every suite; names are checked before anything runs."""
    options.suite = list(dict.fromkeys(suites.get(key).key for key in options.suite))
    known = shard_gym_agents.names()
    chosen = known if options.agents is None else options.agents
    if unknown := [name for name in chosen if name not in known]:
        raise UnknownName("agent", unknown[0], known)
    if absent := [agent for agent in options.agent if not findable(agent)]:
        module = absent[0].partition(":")[0].partition(".")[0]
        raise UnknownName(f"agent (No module named {module!r})", absent[0], known)
    if options.simulator:
        simulators.make(options.simulator)
        if options.retrain:
            raise ShardGymError("--retrain trains with each suite's own planner: leave out --simulator")
    if options.retrain and not (options.part.whole and options.ray is None):
        raise ShardGymError("--retrain trains on one machine: train there first, then run the parts, or on Ray")
    if options.calls and len(options.budgets) > 1:
        raise ShardGymError("--calls is a budget itself: leave out --budgets")
    limit = options.time_limit or max(TIME_LIMIT, 2 * max(options.budgets))
    agents = dict.fromkeys((*chosen, *options.agent))
    jobs = [
        Job(
            suite=key,
            agent=agent,
            seed=seed,
            planner=options.simulator or suites.get(key).planner,
            judge=options.simulator or suites.get(key).judge,
            split=options.split,
            budget=budget,
            time_limit=limit,
            calls=options.calls,
        )
        for key in options.suite
        for agent in agents
        if options.agents or _able(agent, key, options.simulator)
        for budget in options.budgets
        for seed in range(options.seeds)
    ]
    tasks_of(jobs[0], 1)  # an unknown split fails here
    return jobs


def _able(agent: str, key: str, simulator: str | None) -> bool:
    """True if an agent has a row where nobody names it: a learner needs weights that serve the suite."""
    if agent in NO_ROW:
        return False
    if agent not in LEARNERS:
        return True
    try:
        Trained(agent, suite=key).require_planner(simulator or suites.get(key).planner)
    except NotTrained:
        return False
    except MissingDependency:
        pass  # its row says so
    return True
