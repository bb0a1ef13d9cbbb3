"""Lower bounds of tasks of all kinds of sharding, and the price of memory they come with: Lagrange's relaxation.

If a device's cost is at least a weighted sum of what its shards add, the makespan is at least the mean over devices,
and that at least what the tables add in their cheapest forms. With a price on bytes, tables pay for the memory they
take and get back what all memory is worth: whatever the price, no plan that fits costs less. The best price makes the
bound largest. Nor is any plan faster than the dearest shard of one table in the form where that is cheapest.

Plans are those of `Forms`: a table's columns are whole, or come in 2, 4 or 8 pieces that are sharded alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, Forms
from shard_gym.plan.violations import rooms

At: TypeAlias = Callable[[np.ndarray], tuple[float, np.ndarray]]
STEPS = 40  # halvings of a price
ROUNDS = 3  # over the two memories
DEAREST = 2.0**20  # times the mean cost of a byte, at most


@dataclass(frozen=True, eq=False)
class Prices:
    """A bound, ms, and prices of a byte of a device's memory and of its host's, in ms of one device's cost."""

    bound: float
    price: np.ndarray  # (2,)
    table: int | None  # that binds alone
    excess: np.ndarray  # (R, 4) ms that a form and choice adds to the bound, over the cheapest of the table's


def prices(forms: Forms, loads: np.ndarray) -> Prices:
    """The best bound on the slowest device's cost, from loads as `Forms.loads` tells them, and its prices.

    Every table must fit by some choice, see `disproof`.
    """
    task = forms.task
    speed = np.array(task.speed)
    cost, size = _totals(forms, loads, speed / speed.sum()), forms.taken
    room = np.array([memory.sum() for memory in rooms(task)], np.float64)
    flat, sizes = cost.ravel(), size.reshape(2, -1)
    real = np.isfinite(flat)
    starts = 4 * forms.first[:-1]

    def at(price: np.ndarray) -> tuple[float, np.ndarray]:
        """The bound at a price, and the bytes that tables take more than there are."""
        paid = np.where(real, flat + price @ sizes, np.inf)
        least = np.minimum.reduceat(paid, starts)
        chosen = np.flatnonzero(paid == np.repeat(least, 4 * np.diff(forms.first)))
        one = chosen[np.unique(np.searchsorted(starts, chosen, side="right"), return_index=True)[1]]
        return float(least.sum() - price @ room), sizes[:, one].sum(axis=1) - room

    price = np.zeros(2)
    for _ in range(ROUNDS if len(forms.residences) > 1 else 1):
        for memory in np.flatnonzero(sizes[:, real].any(axis=1)).tolist():
            price[memory] = _best(at, price, memory, flat[real].mean() / max(1.0, sizes[memory, real].mean()))
    alone, table = _alone(forms, loads)
    mean = at(price)[0]
    paid = np.where(real, flat + price @ sizes, np.inf)
    excess = paid - np.repeat(np.minimum.reduceat(paid, starts), 4 * np.diff(forms.first)) - max(0.0, alone - mean)
    one = table if alone > mean else None
    return Prices(max(mean, alone), price * task.num_devices, one, excess.reshape(cost.shape))


def _best(at: At, price: np.ndarray, memory: int, scale: float) -> float:
    """The price of one memory at which tables take just what there is: the bound is concave in it."""
    tried = price.copy()
    tried[memory] = 0.0
    if at(tried)[1][memory] <= 0:
        return 0.0
    low, high = scale / DEAREST, scale * DEAREST
    for _ in range(STEPS):
        tried[memory] = np.sqrt(low * high)
        low, high = (tried[memory], high) if at(tried)[1][memory] > 0 else (low, tried[memory])
    tried[memory] = low
    return max((low, high), key=lambda value: at(np.where(np.arange(2) == memory, value, price))[0])


def _totals(forms: Forms, loads: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The least that each form adds by each choice, devices weighted by their shares, (R, 4)."""
    cost = loads * share
    total = cost.sum(axis=2)
    total[:, DEVICE] = cost[:, DEVICE].min(axis=1) * forms.pieces
    total[:, HOST] = forms.by_host(cost[:, HOST]).sum(axis=2).min(axis=1) * forms.pieces
    return np.where(forms.fits, total, np.inf)


def _alone(forms: Forms, loads: np.ndarray) -> tuple[float, int]:
    """The largest over tables of the least cost of the dearest device that holds a part of it."""
    dearest = loads.max(axis=2)
    dearest[:, DEVICE] = loads[:, DEVICE].min(axis=1)
    dearest[:, HOST] = forms.by_host(loads[:, HOST]).max(axis=2).min(axis=1)
    least = np.minimum.reduceat(np.where(forms.fits, dearest, np.inf).min(axis=1), forms.first[:-1])
    return float(least.max()), int(least.argmax())
