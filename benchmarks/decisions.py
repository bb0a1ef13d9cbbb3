"""What predicted costs are worth to a planner: regret and optimism by the judge, over search effort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import shard_gym_agents
from shard_gym.evaluate import score
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task

EFFORTS: tuple[tuple[str, float | None], ...] = (
    ("cost-greedy", None),
    ("local-search", 0.1),
    ("local-search", 1.0),
    ("local-search", 10.0),
)


@dataclass(frozen=True)
class Decision:
    """One solver at one effort, over tasks."""

    solver: str
    budget: float | None  # seconds
    regret: float  # judge's makespan over the best that a search with the judge found, minus 1; mean
    optimism: float  # judge's makespan over the planner's prediction, minus 1; mean
    optimism_deviation: float
    tasks: int


def decide(
    tasks: Sequence[Task],
    planner: Simulator,
    judge: Simulator,
    efforts: Sequence[tuple[str, float | None]] = EFFORTS,
    best_seconds: float = 10.0,
) -> list[Decision]:
    """Plan with the planner, look with the judge; regret is against local search on the judge itself."""
    best = np.array([_makespan(task, judge, judge, "local-search", best_seconds)[1] for task in tasks])
    found = []
    for solver, budget in efforts:
        both = [_makespan(task, planner, judge, solver, budget) for task in tasks]
        believed, true = np.array(both).T
        best = np.minimum(best, true)
        found.append((solver, budget, believed, true))
    return [
        Decision(
            solver,
            budget,
            regret=float((true / best - 1).mean()),
            optimism=float((true / believed - 1).mean()),
            optimism_deviation=float((true / believed - 1).std()),
            tasks=len(tasks),
        )
        for solver, budget, believed, true in found
    ]


def _makespan(
    task: Task, planner: Simulator, judge: Simulator, solver: str, budget: float | None
) -> tuple[float, float]:
    """What the planner believes of its plan, and what the judge says of it."""
    settings = {} if budget is None else {"budget": budget}
    plan = shard_gym_agents.make(solver, **settings)(task, planner)
    return score(task, plan, planner).makespan, score(task, plan, judge).makespan
