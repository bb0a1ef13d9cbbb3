"""Lower bounds of tasks of all kinds of sharding, and the price of memory they come with: Lagrange's relaxation.

If a device's cost is at least a weighted sum of what its shards add, the makespan is at least the mean over devices, and
that at least what the tables add in their cheapest forms. With a price on bytes, tables pay for the memory they take
and get back what all memory is worth: whatever the price, no plan that fits costs less. The best price makes the bound
largest. Nor is any plan faster than the dearest shard of one table in the form where that is cheapest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms
from shard_gym.plan.violations import rooms

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


def prices(forms: Forms, loads: np.ndarray, offset: float = 0.0) -> Prices:
    """The best bound on the slowest device's cost, from loads as `Forms.loads` tells them, and its prices."""
    task = forms.task
    speed = np.array(task.speed)
    cost, size = _totals(forms, loads, speed / speed.sum())
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
        for memory in np.flatnonzero(sizes[:, real].any(axis=1)):
            price[memory] = _best(at, price, memory, flat[real].mean() / max(1.0, sizes[memory, real].mean()))
    alone, table = _alone(forms, loads)
    mean = at(price)[0]
    paid = np.where(real, flat + price @ sizes, np.inf)
    excess = paid - np.repeat(np.minimum.reduceat(paid, starts), 4 * np.diff(forms.first)) - max(0.0, alone - mean)
    one = table if alone > mean else None
    return Prices(max(mean, alone) + offset, price * task.num_devices, one, excess.reshape(cost.shape))


def _best(at, price: np.ndarray, memory: int, scale: float) -> float:  # type: ignore[no-untyped-def]
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


def _totals(forms: Forms, loads: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least that each form adds by each choice, devices weighted by their shares (R, 4), and bytes (2, R, 4)."""
    task, pieces = forms.task, forms.pieces
    hosts = task.num_devices // task.devices_per_host
    cost, size = loads * share, forms.bytes
    total = np.empty(cost.shape[:2])
    total[:, DEVICE] = cost[:, DEVICE].min(axis=1) * pieces
    total[:, HOST] = cost[:, HOST].reshape(len(cost), hosts, -1).sum(axis=2).min(axis=1) * pieces
    total[:, [ALL, COPY]] = cost[:, [ALL, COPY]].sum(axis=2)
    taken = np.empty((2, *total.shape))
    taken[..., DEVICE] = size[..., DEVICE, 0] * pieces
    taken[..., HOST] = size[..., HOST, : task.devices_per_host].sum(axis=-1) * pieces
    taken[..., [ALL, COPY]] = size[..., [ALL, COPY], :].sum(axis=-1)
    return np.where(fitting(forms), total, np.inf), taken


def fitting(forms: Forms) -> np.ndarray:
    """True for choices of forms that the task leaves and whose single pieces empty devices have room for, (R, 4)."""
    room = np.stack(rooms(forms.task))[:, None, None]
    fits = (forms.bytes <= room).all(axis=0)  # (R, 4, K)
    hosts = forms.task.num_devices // forms.task.devices_per_host
    found = fits.all(axis=2)
    found[:, DEVICE] = fits[:, DEVICE].any(axis=1)
    found[:, HOST] = fits[:, HOST].reshape(len(fits), hosts, -1).all(axis=2).any(axis=1)
    found &= forms.may
    if len(lost := np.flatnonzero(~np.logical_or.reduceat(found.any(axis=1), forms.first[:-1]))):
        t, task = int(lost[0]), forms.task
        raise InfeasibleTask(f"table {t} ({task.tables.name[t]!r}) fits on no device, whole or sharded as allowed")
    return found


def _alone(forms: Forms, loads: np.ndarray) -> tuple[float, int]:
    """The largest over tables of the least cost of the dearest device that holds a part of it."""
    hosts = forms.task.num_devices // forms.task.devices_per_host
    dearest = loads.max(axis=2)
    dearest[:, DEVICE] = loads[:, DEVICE].min(axis=1)
    dearest[:, HOST] = loads[:, HOST].reshape(len(loads), hosts, -1).max(axis=2).min(axis=1)
    least = np.minimum.reduceat(np.where(fitting(forms), dearest, np.inf).min(axis=1), forms.first[:-1])
    return float(least.max()), int(least.argmax())
