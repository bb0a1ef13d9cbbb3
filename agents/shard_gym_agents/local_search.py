"""Local search: take work off the devices that set the pace; where nothing helps, shake and try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.search_costs import Budget, Costs
from shard_gym_agents.search_greedy import starts
from shard_gym_agents.search_moves import finer, improve
from shard_gym_agents.search_repair import feasible, go_home, redeal, repair
from shard_gym_agents.search_state import Board, State
from shard_gym_agents.solver import require_fast, task_rng

KICKS = (2, 5)  # pieces that change places at random when no change helps: from, below
LEAPS, LEAPS_RISE = 0.3, 0.005  # share of the kicks that disregard memory at first: at most, and for each in vain
LEAP_KICKS = 5
IDLE = 1_000  # times that memory lets nothing move, after which a search gives up

Progress = Callable[[float, float], bool | None]  # (best makespan, seconds so far) -> True to stop


@dataclass(frozen=True)
class LocalSearch:
    """Improve cost-greedy's plan until the budget is spent; returns the best plan seen.

    The budget is seconds or, if `calls` is given, that many plans asked of the planner, which makes it deterministic.
    `progress` is told of every better plan and may stop the search; with it, Ctrl-C stops the search as well.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 0.1  # seconds
    calls: int = 0  # instead of seconds
    splits: bool = True  # halve columns where the task allows it
    progress: Progress | None = field(default=None, repr=False)

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        return self.within(Budget(self.budget, self.calls), task, planner)

    def within(self, budget: Budget, task: Task, planner: Simulator) -> Plan:
        """The same, within a budget that then says whether the search was stopped."""
        costs, rng = Costs(task, require_fast(planner)), task_rng(self.seed, task)
        board = Board(task, costs, self.splits)
        state = feasible(board, starts(board, budget.worth_seconds), budget, rng)
        return search(state, budget, rng, self.progress).plan()


def search(state: State, budget: Budget, rng: np.random.Generator, progress: Progress | None = None) -> State:
    """The best placement seen on the way from this feasible one, which stays as it is."""
    best, told, state, costs = state, state, state.copy(), state.board.costs
    idle, stale, split = 0, 0, None  # `split`: the state that was last tried with dear pieces in halves
    try:
        while not budget.over(costs) and idle < IDLE and not _optimal(state):
            helped = improve(state, rng)
            better = progress is not None and state.makespan < told.makespan * (1 - 1e-12)
            told = state.copy() if better else told
            if better and progress is not None and progress(told.makespan, budget.spent_seconds):
                budget.stopped = True
                break
            if helped:
                continue
            if state.makespan < best.makespan * (1 - 1e-12):
                best, stale = state, 0
            else:
                stale += 1
            halved = None if split is best else finer(best)  # once for each
            split = best
            state, moved = _shaken(best, stale, budget, rng) if halved is None else (halved, True)
            idle = 0 if moved else idle + 1
    except KeyboardInterrupt:
        if progress is None:
            raise
        budget.stopped = True
        return told  # whatever was being changed
    return state if state.makespan < best.makespan * (1 - 1e-12) else best


def descend(state: State, budget: Budget, rng: np.random.Generator) -> None:
    """Improve a placement until no change helps."""
    while not budget.over(state.board.costs) and improve(state, rng):
        pass


def kick(state: State, rng: np.random.Generator) -> bool:
    """Move or swap a few random pieces; False if memory and rules allow none of that."""
    touched = dict.fromkeys(go_home(state, rng, fit=True))
    for piece in rng.integers(len(state.node), size=rng.integers(*KICKS)).tolist():
        touched |= dict.fromkeys(_anywhere(state, piece, rng))
    if touched:
        state.rescore()
        state.refresh(list(touched))
    return bool(touched)


def _shaken(best: State, stale: int, budget: Budget, rng: np.random.Generator) -> tuple[State, bool]:
    """Another state to go on from, near the best one, and whether feasible changes led there."""
    state = best.copy()
    moved = kick(state, rng)
    if (not moved or rng.random() < min(LEAPS, stale * LEAPS_RISE)) and not _leap(state, budget, rng):
        state = best.copy()
    return state, moved


def _leap(state: State, budget: Budget, rng: np.random.Generator) -> bool:
    """Mix a few devices whether they overflow or not and repair that: feasible changes do not lead everywhere."""
    redeal(state, rng)
    return repair(state, rng, budget, LEAP_KICKS)


def _anywhere(state: State, piece: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Move a piece to a random device with room, or swap it with a piece where none has; the devices touched."""
    board, home = state.board, int(state.device[piece])
    size = board.size[state.node]
    room = (state.free >= size[piece]) & (state.breaks(piece, np.arange(len(state.free))) <= 0)
    room[home] = False
    devices = np.flatnonzero(room)
    if len(devices):
        target = int(rng.choice(devices))
        state.relocate(piece, target)
        return home, target
    fits = (size[piece] - size <= state.free[state.device]) & (size - size[piece] <= state.free[home])
    fits &= state.breaks(piece, state.device, np.arange(len(size))) <= 0
    others = np.flatnonzero(fits & (state.device != home))
    if not len(others):
        return ()
    other = int(rng.choice(others))
    target = int(state.device[other])
    state.relocate(piece, target)
    state.relocate(other, home)
    return home, target


def _optimal(state: State) -> bool:
    """Whether one piece alone sets the pace, where nothing but tables costs: adding to a device makes none faster."""
    board = state.board
    if len(state.free) == 1:
        return True
    slowest = int(state.own.argmax())
    if not board.costs.kernel or board.costs.slowness[slowest] > board.costs.slowness.min():
        return False
    mine = np.flatnonzero(state.device == slowest)
    return len(mine) == 1 and not board.may_split[state.node[mine[0]]]
