"""NeuroShard's search (MLSys 2023): a beam over column splits, and inside it a greedy under limits of columns.

As published, where not said otherwise. The planner takes the place of its cost networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.search_costs import Costs
from shard_gym_agents.search_greedy import by_cost, place, what_misses
from shard_gym_agents.search_state import Board, plan_of
from shard_gym_agents.solver import refuse_constraints, require_fast


@dataclass(frozen=True)
class NeuroShard:
    """Beam search over splits; without splits it is the greedy under each limit.

    Two departures: a table comes in at most 8 pieces, and where every limit runs into a dead end none is set.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    beams: int = 3
    candidates: int = 10  # by size, and as many by cost
    splits: int = 10  # at most
    limits: int = 11  # of a device's columns, evenly from 1.0 to 1.5 times the mean

    def __post_init__(self) -> None:
        if min(self.beams, self.candidates, self.limits) < 1 or self.splits < 0:
            raise InvalidTask(f"neuroshard needs beams, candidates and limits >= 1 and splits >= 0, got {self}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        refuse_constraints(task)
        board = Board(task, Costs(task, require_fast(planner)), splits=True)
        best = _Found(np.inf, board.nodes.whole, board.nodes.whole)
        beams = self._tried(board, [board.nodes.whole])
        for _ in range(self.splits + 1):
            beams = sorted(beams, key=lambda found: found.makespan)[: self.beams]
            if not beams:
                break
            best = min(best, beams[0], key=lambda found: found.makespan)
            halved = [half for found in beams for half in self._halved(board, found.nodes)]
            beams = self._tried(board, halved) if halved else []
        if best.makespan == np.inf:
            best = _without_limit(board)
        return plan_of(board.nodes, best.nodes, best.device)

    def _tried(self, board: Board, pieces: list[np.ndarray]) -> list[_Found]:
        """The best placement of each list of pieces under any limit; costliest pieces first."""
        mean = board.dim[board.nodes.whole].sum() / board.task.num_devices
        limits = np.linspace(1.0, 1.5, self.limits) * mean
        nodes = by_cost(board, np.repeat(np.stack(pieces), self.limits, axis=0))
        placed = place(board, nodes, np.tile(limits, len(pieces)))
        makespans = placed.makespans(board.costs).reshape(len(pieces), self.limits)
        best = makespans.argmin(axis=1) + self.limits * np.arange(len(pieces))
        return [_Found(float(makespans.ravel()[i]), placed.nodes[i], placed.device[i]) for i in best]

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


@dataclass(frozen=True, eq=False)
class _Found:
    """A list of pieces, the best placement of them, and what it is worth."""

    makespan: float
    nodes: np.ndarray
    device: np.ndarray


def _without_limit(board: Board) -> _Found:
    placed = place(board, by_cost(board, board.nodes.whole)[None])
    if not placed.feasible[0]:
        raise what_misses(board, placed.nodes[0], placed.device[0])
    return _Found(float(placed.makespans(board.costs)[0]), placed.nodes[0], placed.device[0])
