"""Linear programs over shares of tables: the least of a cost while two weighted sums are held."""

from __future__ import annotations

import numpy as np

STEPS = 14  # halvings of the interval of a multiplier; any multiplier gives a valid bound, more steps a better one
TAIL = 6  # first of which in proportion: multipliers span many orders of magnitude


def least_of(cost: np.ndarray, weight: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray]:
    """min cost.x with weight.x = total and x in [0, 1]^N, and the x that reaches it; cost (R, N) -> (R,), (R, N).

    The fractional knapsack: cheapest per weight first. Weights are positive and sum to `total` at least.
    """
    order = np.argsort(cost / weight, axis=1)
    sorted_weight = weight[order]
    before = np.cumsum(sorted_weight, axis=1) - sorted_weight
    taken = np.clip((total - before) / sorted_weight, 0, 1)
    x = np.empty_like(cost)
    np.put_along_axis(x, order, taken, axis=1)
    return (cost * x).sum(axis=1), x


def least_between(
    cost: np.ndarray, weight: np.ndarray, total: float, second: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """At most the least cost.x with weight.x = total and low <= second.x <= high; cost (R, N), low (R,) -> (R,).

    Lagrange: for any multiplier m >= 0 the least of (cost - m second).x, plus m low, is no more than the least cost
    under second.x >= low; and so with the sign turned for high. The best m is searched by halving.
    """
    best, x = least_of(cost, weight, total)
    reached = x @ second
    rows = np.flatnonzero((reached < low) | (reached > high))
    if not len(rows):
        return best
    sign = np.where(reached[rows] < low[rows], 1.0, -1.0)
    target, found = np.where(sign > 0, low[rows], high[rows]), best[rows]
    small, large = np.zeros(len(rows)), (abs(cost[rows]) / second).max(axis=1)
    for step in range(STEPS):
        middle = (small + large) / 2 if step >= TAIL else np.where(small > 0, np.sqrt(small * large), large / 64)
        tilted = cost[rows] - (sign * middle)[:, None] * second
        value, x = least_of(tilted, weight, total)
        found = np.maximum(found, value + sign * middle * target)
        more = sign * (x @ second) < sign * target
        small, large = np.where(more, middle, small), np.where(more, large, middle)
    best[rows] = found
    return best
