"""Tight memory makes work: a device must hold what the others have no room for."""

from __future__ import annotations

import numpy as np


def must_hold(task_bytes: int, capacity: np.ndarray) -> np.ndarray:
    """Bytes that each device holds in every plan: all there are, less the room of all others; (K,), 0 where none."""
    return np.maximum(task_bytes - (capacity.sum() - capacity), 0)


def least_filled(weights: np.ndarray, size: np.ndarray, needed: int) -> np.ndarray:
    """At most the weight of a device that holds table t and `needed` bytes in all, (N,).

    Beside the table it takes the lightest per byte, the last one in part. `size` is the most bytes that a table's
    pieces take, relative to its weight.
    """
    order = np.argsort(weights / size, kind="stable")
    bytes_so_far, so_far = (np.cumsum([0.0, *column[order]]) for column in (size, weights))
    before = np.empty(len(order))  # bytes of the tables that come earlier
    before[order] = bytes_so_far[:-1]
    rest = np.maximum(min(needed, bytes_so_far[-1]) - size, 0.0)
    late = before < rest  # the table itself is among those that would be taken, so more of the others is
    return np.interp(rest + late * size, bytes_so_far, so_far) + ~late * weights
