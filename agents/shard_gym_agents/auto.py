"""For whoever does not want to choose: all greedies, then local search, with splits where they are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.local_search import Progress, search
from shard_gym_agents.search_costs import Budget, Costs
from shard_gym_agents.search_greedy import in_use, named, starts
from shard_gym_agents.search_repair import amiss, feasible
from shard_gym_agents.search_state import Board, State
from shard_gym_agents.solver import require_fast, task_rng


@dataclass(frozen=True)
class Auto:
    """The best plan found in the time given, never predicted to be worse than a greedy's, or the one in use.

    Of the greedies cost-greedy is asked only where its questions leave most of the time to others.

    What a search wins on a fitted planner is in part what the planner gets wrong. So a plan takes the place of the best
    greedy's only where the predicted gain exceeds `sure` standard deviations of the planner (of the slowest device,
    where it tells them): within them greedy's is as good a guess, and nobody searched for its errors.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    calls: int = 0  # plans asked of the planner, instead of seconds
    headroom: float = 0.0  # share of each device's memory to keep free
    sure: float = 1.0
    progress: Progress | None = field(default=None, repr=False)  # as in local search

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1 or not self.sure >= 0:
            raise InvalidTask(f"auto needs 0 <= headroom < 1 and sure >= 0, got {self.headroom}, {self.sure}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        budget = Budget(self.budget, self.calls)
        if not self.headroom:
            return self._planned(task, planner, budget)
        less = replace(task, memory=tuple(max(1, int(m * (1 - self.headroom))) for m in task.memory))
        try:
            return self._planned(less, planner, budget)
        except InfeasibleTask as error:
            raise InfeasibleTask(f"with {self.headroom:.4g} of each device's memory kept free: {error}") from error

    def _planned(self, task: Task, planner: Simulator, budget: Budget) -> Plan:
        rng = task_rng(self.seed, task)
        board = Board(task, Costs(task, require_fast(planner)), splits=True)
        greedy = self._best_greedy(board, budget)
        start = greedy or feasible(board, starts(board, budget.worth_seconds), budget, rng)
        found = search(start, budget, rng, self.progress)
        if greedy is not None:
            gain = greedy.makespan - found.makespan
            if gain <= self.sure * board.costs.doubt(found.sums, greedy.sums):
                return greedy.plan()
        return found.plan()

    def _best_greedy(self, board: Board, budget: Budget) -> State | None:
        """The best plan that a greedy finds without help, or the one in use, if there is any."""
        states = (board.start(placement) for placement in _greedies(board, budget))
        return min((state for state in states if not amiss(state)), key=lambda state: state.makespan, default=None)


def _greedies(board: Board, budget: Budget) -> Iterator[np.ndarray]:
    yield from in_use(board)
    yield from named(board)
    yield from islice(starts(board, budget.worth_seconds), 2)
