"""Our beam search over column splits: equal states once, all greedies of a level at once, then local search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.local_search import Progress, descend, search
from shard_gym_agents.search_costs import Budget, Costs
from shard_gym_agents.search_greedy import LIMITS, Found, best_under_limits, starts
from shard_gym_agents.search_repair import feasible
from shard_gym_agents.search_state import Board, State
from shard_gym_agents.solver import require_fast, task_rng

BEAM_SHARE = 0.5  # of the budget; the rest is for local search from the best state
PATIENCE = 3  # levels without a better placement before the beam gives up


@dataclass(frozen=True)
class Beam:
    """Which tables to halve, by beam search; where to put the pieces, by greedies and local search.

    A level halves pieces of the devices that set the pace, and pieces that are too dear to be placed well anywhere.
    Budget, `calls` and `progress` are as in local search.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    calls: int = 0  # instead of seconds
    width: int = 4
    candidates: int = 8  # pieces halved, from each state
    progress: Progress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.width < 1 or self.candidates < 1:
            raise InvalidTask(f"beam needs width >= 1 and candidates >= 1, got {self.width}, {self.candidates}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        budget = Budget(self.budget, self.calls)
        costs, rng = Costs(task, require_fast(planner)), task_rng(self.seed, task)
        board = Board(task, costs, splits=True)
        best = feasible(board, starts(board, budget.worth_seconds), budget, rng)
        try:
            for better in self._better(best, budget, rng):
                best = better
                if self.progress is not None and self.progress(best.makespan, budget.spent_seconds):
                    return best.plan()
        except KeyboardInterrupt:
            if self.progress is None:
                raise
            return best.plan()
        return search(best, budget, rng, self.progress).plan()

    def _better(self, best: State, budget: Budget, rng: np.random.Generator) -> Iterator[State]:
        """Ever better placements that halving leads to, from this one."""
        board, seen, stale = best.board, set[bytes](), 0
        best = best.copy()
        descend(best, budget, rng)
        yield best
        beams = [best]
        while beams and stale < PATIENCE and not budget.over(board.costs, BEAM_SHARE):
            halved = {pieces.tobytes(): pieces for state in beams for pieces in self._halved(state)}
            tried = [pieces for key, pieces in halved.items() if key not in seen]
            seen |= halved.keys()
            beams = []
            for found in self._placed(board, tried, budget):
                state = board.start(found.device, found.nodes)
                descend(state, budget, rng)
                beams.append(state)
            first = min([best, *beams], key=lambda state: state.makespan)
            stale = 0 if first.makespan < best.makespan * (1 - 1e-9) else stale + 1
            if first is not best:
                best = first
                yield best

    def _placed(self, board: Board, tried: list[np.ndarray], budget: Budget) -> list[Found]:
        """What greedies make of these lists of pieces, the best few that are feasible."""
        found = sorted(best_under_limits(board, tried, LIMITS, budget), key=lambda found: found.makespan)
        return [placed for placed in found[: self.width] if placed.makespan < np.inf]

    def _halved(self, state: State) -> list[np.ndarray]:
        """The pieces of a state with one halved: those that may be worth it, most promising first."""
        board, node = state.board, state.node
        pace = (state.own >= 0.999 * state.own.max()) | (state.forward >= 0.999 * state.forward.max())
        slow = pace[state.device] & (state.forward + state.own > 0)[state.device]
        total = board.single[node].sum() / len(state.free)
        worth = board.may_split[node] & (slow | (board.single[node] > 0.5 * total))
        candidates = np.flatnonzero(worth)
        dearest = candidates[np.argsort(-board.single[node[candidates]], kind="stable")][: self.candidates]
        return [_with_half(node, i) for i in dearest]


def _with_half(node: np.ndarray, i: int) -> np.ndarray:
    """The pieces with one halved, in a canonical order."""
    halved = np.append(node, node[i] + 1)
    halved[i] += 1
    return np.sort(halved)
