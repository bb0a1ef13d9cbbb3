"""A feasible start where greedies run into dead ends: first no device overflows, then the makespan counts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shard_gym.random_plans import first_fit_decreasing
from shard_gym_agents.search_state import Board, State

KICKS = 60  # times that a repair which is stuck moves something at random
PAIRS = 20_000  # exchanges looked at in one round, about


def feasible(board: Board, starts: Iterable[np.ndarray], rng: np.random.Generator) -> State:
    """The first of these placements, (N,), that can be repaired; else first-fit-decreasing, which says what misses."""
    for placement in starts:
        state = board.start(placement)
        if not state.overflow or repair(state, rng):
            return state
    return board.start(first_fit_decreasing(board.task))


def repair(state: State, rng: np.random.Generator, kicks: int = KICKS) -> bool:
    """Move, swap and halve pieces until no device overflows; whether that came to be."""
    best, left = state.copy(), state.overflow
    while state.overflow and kicks:
        if _less_overflow(state, rng) or _halve_largest(state):
            continue
        if state.overflow <= left:
            best, left = state.copy(), state.overflow
        else:
            vars(state).update(vars(best.copy()))
        kicks -= 1
        shake(state, rng)
    state.settle()
    return not state.overflow


def _less_overflow(state: State, rng: np.random.Generator) -> bool:
    """Make the move or swap of the fullest device that leaves the least overflow, if less than now."""
    board, source = state.board, int(state.free.argmin())
    mine = np.flatnonzero(state.device == source)
    others = np.flatnonzero(state.device != source)
    if len(mine) * len(others) > PAIRS:
        others = rng.choice(others, PAIRS // len(mine) + 1, replace=False)
    devices = np.delete(np.arange(len(state.free)), source)
    back = np.append(others, np.full(len(devices), -1))
    target = np.append(state.device[others], devices)
    came = np.where(back >= 0, board.size[state.node[back]], 0)
    grows = board.size[state.node[mine]][:, None] - came
    before = np.maximum(-state.free[source], 0) + np.maximum(-state.free[target], 0)
    after = np.maximum(-(state.free[source] + grows), 0) + np.maximum(-(state.free[target] - grows), 0)
    change = (after - before).astype(np.float64)
    if board.allowed is not None:
        tables = board.nodes.table[state.node]
        forbidden = ~board.allowed[tables[mine]][:, target]
        forbidden |= ~board.allowed[tables[back], source] & (back >= 0)
        change[forbidden] = np.inf
    least = change.min() if change.size else 0.0
    if least >= 0:
        return False
    i, j = np.divmod(int(rng.choice(np.flatnonzero(change == least))), len(back))
    state.relocate(int(mine[i]), int(target[j]))
    if back[j] >= 0:
        state.relocate(int(back[j]), source)
    return True


def _halve_largest(state: State) -> bool:
    """Halve the largest piece of the fullest device; the new half goes where most is free, fit or not.

    Finer pieces can be moved on, and there are three halvings of a table at most.
    """
    source, target = int(state.free.argmin()), int(state.free.argmax())
    mine = np.flatnonzero((state.device == source) & state.board.may_split[state.node])
    if not len(mine) or source == target:
        return False
    size = state.board.size[state.node[mine]]
    piece = int(mine[size.argmax()])
    state.halve(piece, target)
    return True


def shake(state: State, rng: np.random.Generator) -> None:
    """Swap a few random pieces, whatever fits."""
    for piece, other in rng.integers(len(state.node), size=(3, 2)).tolist():
        home, away = int(state.device[piece]), int(state.device[other])
        if _may_be(state, piece, away) and _may_be(state, other, home):
            state.relocate(piece, away)
            state.relocate(other, home)


def redeal(state: State, rng: np.random.Generator) -> None:
    """Deal the pieces of a few devices anew among these, whatever fits."""
    devices = rng.choice(len(state.free), size=min(len(state.free), int(rng.integers(2, 4))), replace=False)
    pieces = np.flatnonzero(np.logical_or.reduce([state.device == d for d in devices]))
    for piece, target in zip(pieces.tolist(), rng.choice(devices, len(pieces)).tolist(), strict=True):
        if _may_be(state, piece, target):
            state.relocate(piece, target)


def _may_be(state: State, piece: int, device: int) -> bool:
    allowed = state.board.allowed
    return allowed is None or bool(allowed[state.board.nodes.table[state.node[piece]], device])
