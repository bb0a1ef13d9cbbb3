"""NeuroShard's search (MLSys 2023): a beam over column splits, and inside it a greedy under limits of columns.

As published, where not said otherwise. The planner takes the place of its cost networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.local_search import Progress
from shard_gym_agents.search_costs import Budget, Costs
from shard_gym_agents.search_greedy import Found, best_under_limits, in_use, no_plan
from shard_gym_agents.search_repair import amiss
from shard_gym_agents.search_state import Board
from shard_gym_agents.solver import require_fast


@dataclass(frozen=True)
class NeuroShard:
    """Beam search over splits; without splits it is the greedy under each limit.

    Departures: a table comes in at most 8 pieces, where every limit runs into a dead end none is set, and a plan in use
    is a start as well. A budget is for whoever wants one.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    beams: int = 3
    candidates: int = 10  # by size, and as many by cost
    splits: int = 10  # at most
    limits: int = 11  # of a device's columns, evenly from 1.0 to 1.5 times the mean
    budget: float = 0.0  # seconds, after which no more lists of pieces are tried; 0: all, as published
    calls: int = 0  # plans asked of the planner, instead of seconds
    progress: Progress | None = field(default=None, repr=False)  # as in local search

    def __post_init__(self) -> None:
        if min(self.beams, self.candidates, self.limits) < 1 or self.splits < 0:
            raise InvalidTask(f"neuroshard needs beams, candidates and limits >= 1 and splits >= 0, got {self}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        budget = Budget(self.budget or math.inf, self.calls)
        board = Board(task, Costs(task, require_fast(planner)), splits=True)
        best = None
        try:
            for best in self._better(board, budget):
                if self.progress is not None and self.progress(best.makespan, budget.spent_seconds):
                    break
        except KeyboardInterrupt:
            if self.progress is None or best is None:
                raise
        if best is None:
            nearest = _without_limit(board)[0]
            raise no_plan(task, board.plan(nearest.nodes, nearest.device))
        return board.plan(best.nodes, best.device)

    def _better(self, board: Board, budget: Budget) -> Iterator[Found]:
        """Ever better placements, level by level of halvings."""
        whole = self._tried(board, [board.whole], budget)
        if whole[0].makespan == np.inf:
            whole = _without_limit(board)
        least, beams = np.inf, [*_stay(board), *whole]
        for _ in range(self.splits + 1):
            beams = sorted(beams, key=lambda found: found.makespan)[: self.beams]
            if not beams:
                break
            if beams[0].makespan < least:
                least = beams[0].makespan
                yield beams[0]
            if budget.over(board.costs):
                break
            halved = [half for found in beams for half in self._halved(board, found.nodes)]
            beams = self._tried(board, halved, budget)

    def _tried(self, board: Board, pieces: list[np.ndarray], budget: Budget) -> list[Found]:
        """The best placement of each list of pieces under any limit."""
        return best_under_limits(board, pieces, np.linspace(1.0, 1.5, self.limits).tolist(), budget)

    def _halved(self, board: Board, nodes: np.ndarray) -> list[np.ndarray]:
        """These pieces with one halved, each of the largest and of the costliest in turn."""
        n = self.candidates
        largest = np.argsort(-board.size[nodes], kind="stable")[:n]
        costliest = np.argsort(-board.single[nodes], kind="stable")[:n]
        found = []
        for i in np.union1d(largest, costliest):
            if board.may_split[nodes[i]]:
                half = nodes[i] + 1
                found.append(np.append(np.where(np.arange(len(nodes)) == i, half, nodes), half))
        return found


def _stay(board: Board) -> Iterator[Found]:
    """The plan in use, where it keeps to the task: to be as good as that."""
    for placement in in_use(board):
        state = board.start(placement)
        if not amiss(state):
            yield Found(state.makespan, state.node, state.device)


def _without_limit(board: Board) -> list[Found]:
    """Whole tables where no limit leads to a plan."""
    return best_under_limits(board, [board.whole], [np.inf])
