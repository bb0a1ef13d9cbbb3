"""Boards whose plans are drawn at random, for tests of the leaderboard's page."""

import numpy as np

from shard_gym import simulators
from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import random_placements
from shard_gym.results import Result
from shard_gym.results.evaluate import Score
from shard_gym.task import suites
from shard_gym_agents.leaderboard import report
from shard_gym_agents.leaderboard.kept import Watched
from shard_gym_agents.leaderboard.page import Board
from shard_gym_agents.leaderboard.references import References


def random_board(key, agents, tasks, seeds=1, best_known=True, failed=(), **fields):
    """A board of these agents (name -> track); the first is the best, `failed` gives no plan for its first task."""
    suite = suites.get(key)
    tasks = suite.tasks("test")[:tasks]
    judge, rng = simulators.make(suite.judge), np.random.default_rng(0)
    runs = {agent: [[] for _ in range(seeds)] for agent in agents}
    references = {"random": [], "best": []}
    plans = {}
    for index, task in enumerate(tasks):
        drawn = random_placements(task, len(agents) * seeds + 1, rng)
        makespan = judge.latency(task, drawn).makespan(task.objective)
        order = np.argsort(makespan)
        references["random"].append(makespan.mean())
        references["best"].append(makespan[order[0]] if best_known else np.nan)
        plans[task.hash] = Plan(tuple(drawn[order[0]].tolist()))
        for place, (agent, track) in enumerate(agents.items()):
            for seed in range(seeds):
                at = order[1 + place * seeds + seed]
                told = {
                    "suite": key, "index": index, "task": task.hash, "agent": agent, "track": track, "seed": seed,
                    "config": {"seed": seed}, "planner": suite.planner, "judge": suite.judge,
                    "simulator_calls": 0, "wall_seconds": 10.0 ** (-4 + place % 4) * (1 + place), "cpu_seconds": 0.01,
                }  # fmt: skip
                if agent in failed and index == 0:
                    runs[agent][seed].append((Result(**told, error="ValueError: no plan"), None))
                    continue
                plan, worth = Plan(tuple(drawn[at].tolist())), float(makespan[at])
                result = Result(**told, plan=plan, makespan=worth)
                runs[agent][seed].append((result, Score(worth, 0.5)))
    found = References(*(np.array(values) for values in references.values()))
    watched = {agent: Watched("full", 0.02, 1.0, 1.0, 0.0, len(tasks)) for agent in agents}
    unable = [report.unable_row(suite, "absent", suite.planner, suite.judge, "MissingDependency: needs <torch>")]
    ranking = report.ranking(suite, "test", runs, found, unable, watched)
    return Board(ranking, runs, found, plans if best_known else {}, **fields)
