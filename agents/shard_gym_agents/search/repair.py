"""A feasible start where greedies run into dead ends: first rules and memory are kept, then the makespan counts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof, first_fit_decreasing
from shard_gym_agents.search.greedy import no_plan
from shard_gym_agents.search.mend import Exchanges
from shard_gym_agents.search.state import Board, Budget, State

KICKS = 60  # times that a repair which is stuck moves something at random
AGAIN, AGAIN_KICKS = 40, 8  # repairs tried anew where those of all starts failed, without a budget of seconds; kicks


def feasible(board: Board, starts: Iterable[np.ndarray], budget: Budget, rng: np.random.Generator) -> State:
    """The first of these placements, (N,), that can be repaired, of tasks with rules or a plan in use the best.

    Where none can, the error that says what misses.
    """
    states: Iterable[State] = (board.start(placement) for placement in starts)
    if board.rules.binding or board.task.constraints.base:
        states = sorted(states, key=lambda state: (state.amiss, state.makespan))
    tried = []
    for begun in states:
        state = repair(begun.copy(), rng, budget) if begun.amiss else begun
        if not state.amiss:
            return state
        tried.append((state, begun))
        if budget.hopeless:
            break
    return _last_resorts(*min(tried, key=lambda pair: pair[0].amiss), budget, rng)


def _last_resorts(nearest: State, whole: State, budget: Budget, rng: np.random.Generator) -> State:
    """Try the rest where repairs failed: a proof that all must fail, first-fit-decreasing, and other repairs.

    Every other one begins with whole tables: those that a repair halves stay halved in those that follow it.
    """
    task, state = nearest.board.task, nearest
    if disproof(task):
        raise no_plan(task, nearest.plan())
    if not nearest.board.rules.binding:
        try:
            return nearest.board.start(first_fit_decreasing(task))
        except InfeasibleTask:
            pass
    for attempt in range(AGAIN) if budget.calls else count():
        if budget.hopeless:
            break
        state = (whole if attempt % 2 else state).copy()
        redeal(state, rng)
        state = repair(state, rng, budget, AGAIN_KICKS)
        if not state.amiss:
            return state
        nearest = min(nearest, state, key=lambda one: one.amiss)
    raise no_plan(task, nearest.plan())


def repair(state: State, rng: np.random.Generator, budget: Budget | None = None, kicks: int = KICKS) -> State:
    """Move, swap and halve pieces of a placement until nothing is amiss; else the placement with the least amiss."""
    best, least = state.copy(), state.amiss
    while (left := state.amiss) and kicks and not (budget is not None and budget.hopeless):
        if _less_amiss(state, rng) or _halve_largest(state):
            continue
        if left <= least:
            best, least = state.copy(), left
        else:
            state = best.copy()
        kicks -= 1
        shake(state, rng)
    if state.amiss > least:
        state = best
    state.settle()
    return state


def _less_amiss(state: State, rng: np.random.Generator) -> bool:
    """Make the move or swap of the most troubled device that leaves the least amiss, if less than now."""
    troubled = state.troubled()
    offer = Exchanges.of(state, int(rng.choice(troubled)), rng)
    least = offer.amiss.min() if offer.amiss.size else 0.0
    if least >= 0:
        return False
    offer.make(state, int(rng.choice(np.flatnonzero(offer.amiss == least))))
    return True


def _halve_largest(state: State) -> bool:
    """Halve the largest piece of the fullest device; the new half goes where most is free, fit or not.

    Finer pieces can be moved on, and there are three halvings of a table at most.
    """
    source, target = int(state.free.argmin()), int(state.free.argmax())
    mine = np.flatnonzero((state.device == source) & state.board.may_split[state.node])
    if not len(mine) or source == target or not state.overflow:
        return False
    size = state.board.size[state.node[mine]]
    piece = int(mine[size.argmax()])
    state.halve(piece, target)
    return True


def shake(state: State, rng: np.random.Generator) -> None:
    """Swap a few random pieces, whatever fits; where moves are limited, first one that moved goes home."""
    go_home(state, rng)
    for piece, other in rng.integers(len(state.node), size=(3, 2)).tolist():
        home, away = int(state.device[piece]), int(state.device[other])
        if home != away and state.breaks(piece, away, other) <= 0:
            state.relocate(piece, away)
            state.relocate(other, home)


def redeal(state: State, rng: np.random.Generator) -> None:
    """Deal the pieces of a few devices anew among these, whatever fits."""
    go_home(state, rng)
    devices = rng.choice(len(state.free), size=min(len(state.free), int(rng.integers(2, 4))), replace=False)
    pieces = np.flatnonzero(np.logical_or.reduce([state.device == d for d in devices]))
    for piece, target in zip(pieces.tolist(), rng.choice(devices, len(pieces)).tolist(), strict=True):
        if state.breaks(piece, target) <= 0:
            state.relocate(piece, target)


def go_home(state: State, rng: np.random.Generator, fit: bool = False) -> tuple[int, ...]:
    """Send a table that moved back, where only so many may (`fit`: only where it fits); the devices touched."""
    rules = state.board.rules
    if rules.away is None:
        return ()
    home = rules.home[state.board.table[state.node]]
    may = home != state.device
    if fit:
        may &= state.board.size[state.node] <= state.free[home]
    moved = np.flatnonzero(may)
    if not len(moved):
        return ()
    piece = int(rng.choice(moved))
    source, target = int(state.device[piece]), int(home[piece])
    if state.breaks(piece, target) > 0:
        return ()
    state.relocate(piece, target)
    return source, target
