"""The assignment problem: one column for each row, so that what they gain together is most."""

from __future__ import annotations

import numpy as np


def best_columns(gain: np.ndarray) -> np.ndarray:
    """The column of each row, (n,), no column twice, with the largest sum of gains (n, n).

    Shortest augmenting paths (Jonker and Volgenant, 1987), O(n^3) at worst. Exact for whole numbers below 2**53.
    """
    cost = -np.asarray(gain, np.float64)
    columns = cost.min(axis=0, initial=np.inf)  # prices: cost - rows - columns is never negative, and 0 where assigned
    rows = (cost - columns).min(axis=1, initial=np.inf)
    column, row = _where_cheapest(cost - rows[:, None] - columns == 0)
    for free in np.flatnonzero(column < 0).tolist():
        _assign(free, cost, (rows, columns), (column, row))
    return column


def _where_cheapest(tight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows on columns that cost them least, first come, first served: column of each row, row of each; -1: none."""
    column, row = np.full((2, len(tight)), -1)
    for i in range(len(tight)):
        wanted = tight[i] & (row < 0)
        j = int(wanted.argmax()) if len(wanted) else 0
        if wanted[j]:
            column[i], row[j] = j, i
    return column, row


def _assign(
    free: int, cost: np.ndarray, prices: tuple[np.ndarray, np.ndarray], assigned: tuple[np.ndarray, np.ndarray]
) -> None:
    """Give a free row a column: along the cheapest path, on which each row takes over the next one's column."""
    (rows, columns), (column, row) = prices, assigned
    n = len(cost)
    length, before = np.full(n, np.inf), np.full(n, free)  # of the path to each column, and the row it comes from
    waiting, i, end, shortest = np.ones(n, bool), free, -1, 0.0
    while end < 0:
        through = shortest + cost[i] - rows[i] - columns
        closer = waiting & (through < length)
        length[closer], before[closer] = through[closer], i
        far = np.where(waiting, length, np.inf)
        shortest = float(far.min())
        nearest = np.flatnonzero(far == shortest)
        unused = nearest[row[nearest] < 0]
        j = int(unused[0] if len(unused) else nearest[0])
        waiting[j] = False
        i = int(row[j])
        end = j if i < 0 else -1
    passed = ~waiting
    passed[end] = False
    rows[row[passed]] += shortest - length[passed]
    columns[passed] -= shortest - length[passed]
    rows[free] += shortest
    while end >= 0:  # back along the path
        i = int(before[end])
        row[end] = i
        column[i], end = end, (int(column[i]) if i != free else -1)
