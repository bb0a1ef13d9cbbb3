"""Local search: move work off the slowest devices; when no move helps, change the plan at random and go on.

`LocalSearch` improves one greedy's plan, `Auto` the best of all greedies', where that is worth it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.search.kinds import searched
from shard_gym_agents.search.moves import finer, improve
from shard_gym_agents.search.repair import feasible, go_home, redeal, repair
from shard_gym_agents.search.seeds import best_seed, in_haste, starts
from shard_gym_agents.search.state import Board, Budget, Costs, State
from shard_gym_agents.solvers.solver import Progress, require_fast, task_rng

KICKS = (2, 5)  # pieces that change places at random when no change helps: from, below
LEAPS, LEAPS_RISE = 0.3, 0.005  # share of the kicks that disregard memory at first: at most, and for each in vain
LEAP_KICKS = 5
IDLE = 1_000  # times that memory lets nothing move, after which a search gives up


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
        """Plan within a budget that then says whether the search was stopped."""
        if beyond_columns(task):
            return searched(task, require_fast(planner), budget, self.seed, self.progress).plan
        if (plan := in_haste(task, require_fast(planner), budget)) is not None:
            return plan
        costs, rng = Costs(task, require_fast(planner)), task_rng(self.seed, task)
        board = Board(task, costs, self.splits)
        state = feasible(board, starts(board, budget), budget, rng)
        return search(state, budget, rng, self.progress).plan()


@dataclass(frozen=True)
class Auto:
    """Greedy rules, then searches; the plan is never predicted to be slower than a greedy's or the plan in use.

    Greedies that would not end within the budget are left out. Once one greedy has found a plan, greedies that take
    more time than they are likely to be worth are left out too.

    On a fitted planner, part of the gain of a search is the planner's error. So with a planner that knows its standard
    deviation (of the slowest device), a search's plan replaces the best greedy's only where the predicted gain exceeds
    `sure` standard deviations. With `sure=0`, any predicted gain replaces greedy's plan.
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
        if beyond_columns(task):
            return searched(task, require_fast(planner), budget, self.seed, self.progress, self.sure).plan
        return self._of_tables(task, planner, budget)

    def _of_tables(self, task: Task, planner: Simulator, budget: Budget) -> Plan:
        if (plan := in_haste(task, require_fast(planner), budget)) is not None:
            return plan
        rng = task_rng(self.seed, task)
        board = Board(task, Costs(task, require_fast(planner)), splits="cw" in task.kinds_allowed)
        greedy = best_seed(board, budget, task_rng(self.seed, task))
        start = greedy or feasible(board, starts(board, budget), budget, rng)
        found = search(start, budget, rng, self.progress)
        if greedy is not None:
            gain = greedy.makespan - found.makespan
            if gain <= self.sure * board.costs.doubt(found.sums, greedy.sums):
                return greedy.plan()
        return found.plan()


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
    """Shake the best state: a state near it to go on from, and True if feasible changes led there.

    Now and then a few devices are mixed whether they overflow or not, and repaired: feasible changes do not lead
    everywhere.
    """
    state = best.copy()
    moved = kick(state, rng)
    if not moved or rng.random() < min(LEAPS, stale * LEAPS_RISE):
        redeal(state, rng)
        state = repair(state, rng, budget, LEAP_KICKS)
        if state.amiss:
            state = best.copy()
    return state, moved


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
    """True if one piece alone sets the pace and nothing but tables costs: adding to a device makes none faster."""
    board = state.board
    if len(state.free) == 1:
        return True
    slowest = int(state.own.argmax())
    if not board.costs.kernel or board.costs.slowness[slowest] > board.costs.slowness.min():
        return False
    mine = np.flatnonzero(state.device == slowest)
    return len(mine) == 1 and not board.may_split[state.node[mine[0]]]
