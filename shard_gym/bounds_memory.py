"""Tight memory makes work: a device must hold what the others have no room for."""

from __future__ import annotations

import numpy as np

from shard_gym.bounds_knapsack import least_of


def must_hold(task_bytes: int, capacity: np.ndarray) -> np.ndarray:
    """Bytes that each device holds in every plan: all there are, less the room of all others; (K,), 0 where none."""
    return np.maximum(task_bytes - (capacity.sum() - capacity), 0)


def least_filled(weights: np.ndarray, size: np.ndarray, needed: int) -> np.ndarray:
    """At most the weight of a device that holds table t and `needed` bytes in all, (N,).

    Beside the table it takes the lightest per byte, the last one in part. `size` is the most bytes that a table's
    pieces take, relative to its weight.
    """
    cost = np.tile(weights, (len(weights), 1))
    np.fill_diagonal(cost, -cost.max() * size.max() - 1.0)  # the table itself is taken first
    _, x = least_of(cost, size.astype(np.float64), float(min(needed, size.sum())))
    return np.maximum(weights, x @ weights)
