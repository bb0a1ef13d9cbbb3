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

from shard_gym import core
from shard_gym.plan.forms import Forms
from shard_gym.plan.violations import rooms
from shard_gym.proofs.prices import dearest_of, totals_of

STEPS = 26  # halvings of a price
ROUNDS = 3  # over the two memories
DEAREST = 2.0**20  # times the mean cost of a byte, at most
GUESSES = 12  # at the bound
CLOSE = 1e-4  # of the bound: how close guesses come to it
ROUNDING = 1e-12
AT_ONCE = 128  # tables whose options are compared, each with each


@dataclass(frozen=True, eq=False)
class Prices:
    """A bound, ms, and prices of a byte of a device's memory and of its host's, in ms of one device's cost."""

    bound: float
    price: np.ndarray  # (2,)
    table: int | None  # that binds alone
    least: np.ndarray  # (N,) ms that each table adds to the mean of devices at least, memory paid for
    excess: np.ndarray  # (R, 4) ms that a form and choice adds to the bound, over the cheapest of the table's
    alone: np.ndarray  # (R, 4) ms of the dearest shard that a form and choice makes, where it is cheapest


def prices(forms: Forms, loads: np.ndarray) -> Prices:
    """The best bound on the slowest device's cost, from loads as `Forms.loads` tells them, and its prices.

    Every table must fit by some choice, see `disproof`.
    """
    return priced(forms, forms.fits, totals_of(forms, loads), dearest_of(forms, loads))


def priced(forms: Forms, may: np.ndarray, total: np.ndarray, dearest: np.ndarray) -> Prices:
    """The same by forms and choices that plans may have, what they add to the mean, and their dearest shard, (R, 4)."""
    cost, dearest = np.where(may, total, np.inf), np.where(may, dearest, np.inf)
    alone = np.minimum.reduceat(dearest.min(axis=1), forms.first[:-1])
    options = _Options(forms, cost, dearest)
    table, relaxed = int(alone.argmax()), _Relaxed(options)
    low = max(relaxed.mean, float(alone[table]))  # no plan is faster
    high, guess = np.inf, low
    for _ in range(GUESSES):
        tried = _Relaxed(options, guess * (1 + ROUNDING))
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
    mean = least.sum() - relaxed.price @ options.room
    excess = paid - least[forms.table, None] - (low - mean)
    binding = table if low <= alone[table] else None
    return Prices(low, relaxed.price * forms.task.num_devices, binding, least, excess, dearest)


class _Options:
    """Forms and choices of finite cost, table by table, without those that another one of the table makes useless.

    Whatever the price and the guess, one that is cheaper, takes no more bytes and has no slower shard is chosen before.
    """

    def __init__(self, forms: Forms, cost: np.ndarray, dearest: np.ndarray) -> None:
        self.room = np.array([memory.sum() for memory in rooms(forms.task)], np.float64)
        self.passes = ROUNDS if len(forms.residences) > 1 else 1
        fits = np.flatnonzero(np.isfinite(cost))
        values = np.stack([cost, dearest, *forms.taken]).reshape(4, -1)
        self.every = values[:, fits]  # cost, slowest shard and bytes
        option, real = _by_table(forms, fits)
        for start in range(0, len(option), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            real[some] &= ~_useless(np.where(real[some], values[:, option[some]], np.inf))
        option, real = _by_table(forms, option[real])
        nothing = np.array([np.inf, np.inf, 0, 0])[:, None, None]
        self.cost, self.dearest, *size = np.where(real, values[:, option], nothing)
        self.size = np.stack(size)  # (2, N, M)


def _by_table(forms: Forms, options: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Options of each table in their order, (N, M), and which are real: as few columns as will do."""
    counts = np.bincount(forms.table[options // 4], minlength=forms.task.num_tables)
    real = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
    option = np.zeros(real.shape, np.int64)
    option[real] = options
    return option, real


def _useless(values: np.ndarray) -> np.ndarray:
    """True for options than which another one of the table is better; cost, slowest shard and bytes (4, N, M)."""
    one, other = values[..., None], values[..., None, :]
    better = other[0] < one[0]
    for more, less in zip(one[1:], other[1:], strict=True):
        better &= less <= more
    found: np.ndarray = better.any(axis=2)
    return found


class _Relaxed:
    """The least mean of devices, by options without a slower shard, with a price on bytes that makes it largest."""

    def __init__(self, options: _Options, slowest: float = np.inf) -> None:
        real = options.every[1] <= slowest
        self.room, self.size = options.room, options.size
        self.cost = np.where(options.dearest <= slowest, options.cost, np.inf)
        self.price, self.mean = np.zeros(2), self._at(np.zeros(2))[0]
        cost, _, *size = options.every[:, real]
        dear = [(i, cost.mean() / max(1.0, taken.mean())) for i, taken in enumerate(size) if taken.any()]
        for _ in range(options.passes):
            before = self.price[1]
            for memory, scale in dear:
                self._set(memory, scale)
            if self.price[1] == before:  # once more would find the same
                break

    def _at(self, price: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean at a price, and the bytes that tables take more than there are."""
        paid = self.cost + price[0] * self.size[0]
        if price[1]:
            paid += price[1] * self.size[1]
        table, chosen = np.arange(len(paid)), paid.argmin(axis=1)
        back = price[0] * self.room[0] + price[1] * self.room[1]
        return float(paid[table, chosen].sum() - back), self.size[:, table, chosen].sum(axis=1) - self.room

    def _set(self, memory: int, scale: float) -> None:
        """Set the price of one memory to where tables take just what there is: the mean is concave in it."""
        range_ = np.array([scale / DEAREST, scale * DEAREST])
        found = core.priced(self.cost, self.size, self.room, self.price, memory, range_, STEPS, self.mean)
        self.mean = self._priced(memory, *range_.tolist()) if found is None else found

    def _priced(self, memory: int, low: float, high: float) -> float:
        """The mean at the best price of one memory, which is set; as `core.priced` does it."""
        tried = self.price.copy()
        tried[memory] = 0.0
        mean, over = self._at(tried)
        if over[memory] <= 0:
            self.price[:] = tried
            return mean
        best = self.mean
        for _ in range(STEPS):
            tried[memory] = np.sqrt(low * high)
            mean, over = self._at(tried)
            if mean > best:
                self.price[:], best = tried, mean
            low, high = (tried[memory], high) if over[memory] > 0 else (low, tried[memory])
        return best
