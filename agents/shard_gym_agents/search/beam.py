"""Beam searches over column splits.

`Beam` is ours: equal states once, all greedies of a level at once, then local search. `NeuroShard` is that of its paper
(MLSys 2023), as published where not said otherwise: a beam over splits, and inside it a greedy under limits of columns.
The planner takes the place of its cost networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.search.beam_kinds import beam_plan
from shard_gym_agents.search.greedy import LIMITS, Found, best_under_limits, no_plan
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.local_search import descend, search
from shard_gym_agents.search.repair import feasible
from shard_gym_agents.search.seeds import in_use, starts
from shard_gym_agents.search.state import Board, Budget, Costs, State
from shard_gym_agents.solvers.solver import Progress, of_columns, others_named, require_fast, task_rng

BEAM_SHARE = 0.5  # of the budget; the rest is for local search from the best state
PATIENCE = 3  # levels without a better placement before the beam gives up


@dataclass(frozen=True)
class Beam:
    """Beam search for the tables to halve; greedies and local search put the pieces on devices.

    A level halves pieces of the slowest devices, and pieces that cost too much to be placed well anywhere. Budget,
    `calls` and `progress` are as in local search. For tasks of more kinds of sharding, the beam holds partial plans of
    all options of tables: see `search.beam_kinds`.
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
        if beyond_columns(task):
            found = Search(task, require_fast(planner), budget, self.progress)
            return beam_plan(found, self.width, BEAM_SHARE, task_rng(self.seed, task))
        costs, rng = Costs(task, require_fast(planner)), task_rng(self.seed, task)
        board = Board(task, costs, splits=True)
        best = feasible(board, starts(board, budget), budget, rng)
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
                state = State(board, found.nodes, found.device)
                descend(state, budget, rng)
                beams.append(state)
            first = min([best, *beams], key=lambda state: state.makespan)
            stale = 0 if first.makespan < best.makespan * (1 - 1e-9) else stale + 1
            if first is not best:
                best = first
                yield best

    def _placed(self, board: Board, tried: list[np.ndarray], budget: Budget) -> list[Found]:
        """Placements of these lists of pieces by greedies, the best few that are feasible."""
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


@dataclass(frozen=True)
class NeuroShard:
    """Beam search over splits; without splits it is the greedy under each limit.

    It differs from the paper in four points: a table has at most 8 pieces; if no limit gives a plan, no limit is set; a
    plan in use is a start as well; and a budget may be given. It knows the kinds of sharding tw and cw.
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
        with others_named(task):
            return self._planned(of_columns(task, "neuroshard"), planner)

    def _planned(self, task: Task, planner: Simulator) -> Plan:
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
        """Lists of the pieces with one halved, each of the largest and of the costliest in turn."""
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
        if not state.amiss:
            yield Found(state.makespan, state.node, state.device)


def _without_limit(board: Board) -> list[Found]:
    """Whole tables where no limit leads to a plan."""
    return best_under_limits(board, [board.whole], [np.inf])
