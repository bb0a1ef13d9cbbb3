"""Lower bounds of tasks of all kinds of sharding, and the price of memory they come with: Lagrange's relaxation.

If a device's cost is at least a weighted sum of what its shards add, the makespan is at least the mean over devices,
and that at least what the tables add in their cheapest forms. With a price on bytes, tables pay for the memory they
take and get back what all memory is worth: whatever the price, no plan that fits costs less. The best price makes the
bound largest. Nor has a plan as fast as a guess any shard that is slower than the guess: without such choices the bound
is higher, and where it is above the guess, no plan is as fast.

Plans are those of `Forms`: a table's columns are whole, or come in 2, 4 or 8 pieces that are sharded alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, Forms
from shard_gym.plan.violations import rooms

STEPS = 26  # halvings of a price
ROUNDS = 3  # over the two memories
DEAREST = 2.0**20  # times the mean cost of a byte, at most
GUESSES = 12  # at the bound
CLOSE = 1e-4  # of the bound: how close guesses come to it
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Prices:
    """A bound, ms, and prices of a byte of a device's memory and of its host's, in ms of one device's cost."""

    bound: float
    price: np.ndarray  # (2,)
    table: int | None  # that binds alone
    least: np.ndarray  # (N,) ms that each table adds to the mean of devices at least, memory paid for
    excess: np.ndarray  # (R, 4) ms that a form and choice adds to the bound, over the cheapest of the table's


def prices(forms: Forms, loads: np.ndarray, average: np.ndarray | None = None) -> Prices:
    """The best bound on the slowest device's cost, from loads as `Forms.loads` tells them, and its prices.

    Every table must fit by some choice, see `disproof`. `average` are loads that devices have in the mean, where these
    are more.
    """
    dearest = _dearest(forms, loads)
    cost = _totals(forms, loads if average is None else average)
    alone = np.minimum.reduceat(dearest.min(axis=1), forms.first[:-1])
    table, relaxed = int(alone.argmax()), Relaxed(forms, cost)
    low = max(relaxed.mean, float(alone[table]))  # no plan is faster
    high, guess = np.inf, low
    for _ in range(GUESSES):
        tried = Relaxed(forms, np.where(dearest <= guess * (1 + ROUNDING), cost, np.inf))
        if tried.mean <= guess * (1 + ROUNDING):
            high = guess
        else:
            low, relaxed = guess, tried
            high = min(high, tried.mean)
        if high <= low * (1 + CLOSE):
            break
        guess = (low + high) / 2
    paid = cost + np.tensordot(relaxed.price, forms.taken, axes=1)
    least = np.minimum.reduceat(paid.min(axis=1), forms.first[:-1])
    mean = least.sum() - relaxed.price @ relaxed.room
    excess = paid - least[forms.table, None] - (low - mean)
    binding = table if low <= alone[table] else None
    return Prices(low, relaxed.price * forms.task.num_devices, binding, least, excess)


class Relaxed:
    """The least mean of devices, by forms whose costs are finite, with a price on bytes that makes it largest."""

    def __init__(self, forms: Forms, cost: np.ndarray) -> None:
        self.room = np.array([memory.sum() for memory in rooms(forms.task)], np.float64)
        counts = 4 * np.diff(forms.first)
        place = np.arange(counts.max())
        option = np.minimum(4 * forms.first[:-1, None] + place, cost.size - 1)  # (N, M)
        self.cost = np.where(place < counts[:, None], cost.ravel()[option], np.inf)
        self.size = forms.taken.reshape(2, -1)[:, option].astype(np.float64)
        self.price, self.mean = np.zeros(2), self._at(np.zeros(2))[0]
        real = np.isfinite(self.cost)
        for _ in range(ROUNDS if len(forms.residences) > 1 else 1):
            for memory in np.flatnonzero(self.size[:, real].any(axis=1)).tolist():
                self._set(memory, self.cost[real].mean() / max(1.0, self.size[memory, real].mean()))

    def _at(self, price: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean at a price, and the bytes that tables take more than there are."""
        paid = self.cost + price[0] * self.size[0]
        if price[1]:
            paid += price[1] * self.size[1]
        table, chosen = np.arange(len(paid)), paid.argmin(axis=1)
        return float(paid[table, chosen].sum() - price @ self.room), self.size[:, table, chosen].sum(axis=1) - self.room

    def _set(self, memory: int, scale: float) -> None:
        """Set the price of one memory to where tables take just what there is: the mean is concave in it."""
        tried = self.price.copy()
        tried[memory] = 0.0
        mean, over = self._at(tried)
        if over[memory] <= 0:
            self.price, self.mean = tried, mean
            return
        low, high = scale / DEAREST, scale * DEAREST
        for _ in range(STEPS):
            tried[memory] = np.sqrt(low * high)
            mean, over = self._at(tried)
            if mean > self.mean:
                self.price, self.mean = tried.copy(), mean
            low, high = (tried[memory], high) if over[memory] > 0 else (low, tried[memory])


def _totals(forms: Forms, loads: np.ndarray) -> np.ndarray:
    """The least that each form adds to the mean of devices by each choice, devices weighted by their speed, (R, 4)."""
    speed = np.array(forms.task.speed)
    cost = loads * (speed / speed.sum())
    total = cost.sum(axis=2)
    total[:, DEVICE] = cost[:, DEVICE].min(axis=1) * forms.pieces
    total[:, HOST] = forms.by_host(cost[:, HOST]).sum(axis=2).min(axis=1) * forms.pieces
    return np.where(forms.fits, total, np.inf)


def _dearest(forms: Forms, loads: np.ndarray) -> np.ndarray:
    """The least cost of the dearest device that holds a part of a table, by forms and choices, (R, 4)."""
    dearest = loads.max(axis=2)
    dearest[:, DEVICE] = loads[:, DEVICE].min(axis=1)
    dearest[:, HOST] = forms.by_host(loads[:, HOST]).max(axis=2).min(axis=1)
    return np.where(forms.fits, dearest, np.inf)
