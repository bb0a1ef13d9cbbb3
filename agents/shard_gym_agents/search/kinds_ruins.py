"""Tables that a search over all kinds takes out of a plan, to put them back in turn."""

from __future__ import annotations

import numpy as np

from shard_gym_agents.search.kinds_board import Board

RUIN = 2, 9  # tables taken out at a time: from, below
FROM_SLOW = 0.8  # share of the times that they are taken from the slowest device and another
EMPTIED = 0.1  # share of the times that all of a few devices are taken out, ...
EMPTY = 1, 4  # ... how many: from, below, ...
DEAR = 4  # ... and one of so many tables that are farthest above the bound


def ruined(board: Board, excess: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Items to take out, in the order in which they go back; `excess` over the bound is that of options, (R, 4)."""
    if rng.random() < EMPTIED:
        return _emptied(board, excess, rng)
    placed = np.fromiter(board.chosen, np.int64, len(board.chosen))
    count = min(int(rng.integers(*RUIN)), len(placed))
    if rng.random() < FROM_SLOW:
        slow, other = int(board.time.argmax()), int(rng.integers(board.load.shape[1]))
        mine, theirs = (rng.permutation(placed[(board.cost[placed, :, d] > 0).any(axis=1)]) for d in (slow, other))
        return rng.permutation(np.union1d(mine[: (count + 1) // 2], theirs[: count // 2])).tolist()
    return rng.choice(placed, count, replace=False).tolist()


def _emptied(board: Board, excess: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One of the items farthest above the bound, then all of a few devices, dearest first."""
    placed = np.fromiter(board.chosen, np.int64, len(board.chosen))
    over = np.array([excess[option.form, option.choice] for option in board.chosen.values()])
    dear = int(placed[np.argsort(over)[-1 - int(rng.integers(min(DEAR, len(placed))))]])
    k = board.load.shape[1]
    devices = rng.choice(k, min(int(rng.integers(*EMPTY)), k), replace=False)
    out = np.flatnonzero(board.alone[:, devices].any(axis=1))
    by_cost = out[np.argsort(-board.work[out].max(axis=1), kind="stable")]
    return list(dict.fromkeys([dear, *by_cost.tolist()]))
