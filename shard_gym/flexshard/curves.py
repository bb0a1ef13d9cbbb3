"""Curves: a table's rows in descending order of the probability that a sample looks them up.

A row's probability is that of being in a random sample, so the mean length of samples is the sum of all. Rows come in
buckets of equal probability. A curve that was drawn from a formula makes buckets of rows that are nearly equal; `error`
says by how much of its probability a row may be off, 0 where buckets are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool
from shard_gym.records import tensors as card_files
from shard_gym.records.guard import guarded

SCHEMA = "shard-gym/row-curve/1"
EXACT_ROWS = 4096  # the most frequent rows of a formula stand alone
GRAIN = 1e-3  # width of a formula's further buckets, in the logarithm of the rank
HALVINGS = 200  # of an interval that a constant is searched in


@dataclass(frozen=True, eq=False)
class Curve:
    """Buckets of rows, most frequent first."""

    probability: np.ndarray  # (M,) float64 of each row in a bucket, descending
    rows: np.ndarray  # (M,) int64
    error: float = 0.0  # share by which the probability of a row may be off

    @guarded("a curve", InvalidPool)
    def __post_init__(self) -> None:
        try:
            p = np.array(self.probability, np.float64)
            rows = np.array(self.rows)
        except (TypeError, ValueError) as error:
            raise InvalidPool(f"a curve is probabilities and numbers of rows: {error}") from error
        if p.ndim != 1 or rows.shape != p.shape or not len(p):
            raise InvalidPool(f"a curve needs a row count for each probability, at least one: {p.shape}, {rows.shape}")
        if rows.dtype.kind not in "iu" or (rows < 1).any():
            raise InvalidPool("each bucket of a curve holds a whole number of rows from 1")
        if not ((p >= 0) & (p <= 1)).all():  # NaN neither
            bad = p[~((p >= 0) & (p <= 1))][0]
            raise InvalidPool(f"a row's probability of being in a sample is from 0 to 1, got {bad}")
        if (p[1:] > p[:-1]).any():
            first = int(np.flatnonzero(p[1:] > p[:-1])[0]) + 1
            raise InvalidPool(f"rows go from the most frequent one down, but bucket {first} is above the one before it")
        if not 0 <= self.error < 1:
            raise InvalidPool(f"the error of a curve is a share from 0, got {self.error}")
        for name, array in (("probability", p), ("rows", rows.astype(np.int64))):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @cached_property
    def num_rows(self) -> int:
        """All rows, E."""
        return int(self.rows.sum())

    @cached_property
    def length(self) -> float:
        """Mean number of rows in a sample, L."""
        return float((self.probability * self.rows).sum())

    def covered(self, rows: int) -> float:
        """Summed probability of the most frequent rows, so many of them."""
        ends = np.cumsum(self.rows)
        whole = int(np.searchsorted(ends, rows, side="right"))
        before = int(ends[whole - 1]) if whole else 0
        part = self.probability[whole] * (rows - before) if whole < len(ends) else 0.0
        return float((self.probability[:whole] * self.rows[:whole]).sum() + part)

    def coarser(self, grain: float = GRAIN) -> Curve:
        """Neighbours whose probabilities differ by less than a share of `grain` in one bucket, with their mean.

        What a curve with millions of buckets is planned by: a few thousand of them, for an `error` that is larger by
        less than `grain`.
        """
        if not 0 < grain < 1:
            raise InvalidPool(f"a grain is a share between 0 and 1, got {grain}")
        p = self.probability
        some = int(np.count_nonzero(p))  # buckets that are looked up at all
        first = _steps(p[:some], grain)
        if some < len(p):
            first = np.append(first, some)
        rows = np.add.reduceat(self.rows, first)
        mean = np.add.reduceat(p * self.rows, first) / rows
        last = np.append(first[1:], len(p)) - 1
        mean = np.clip(mean, p[last], p[first])  # where rounding would put rows out of order
        off = np.divide(np.maximum(p[first] - mean, mean - p[last]), mean, out=np.zeros_like(mean), where=mean > 0)
        return Curve(mean, rows, (1 + self.error) * (1 + float(off.max())) - 1)

    def save(self, path: str | Path) -> None:
        """Write probabilities and counts, whole or not at all."""
        tensors = {"probability": self.probability, "rows": self.rows}
        card_files.write(path, SCHEMA, tensors, {"error": self.error, "length": self.length})

    @classmethod
    def load(cls, path: str | Path) -> Curve:
        """Read what `save` wrote."""
        tensors, card = card_files.read(path, SCHEMA, "measure it again")
        try:
            return cls(tensors["probability"], tensors["rows"], float(card["error"]))
        except (KeyError, InvalidPool) as error:
            raise CorruptFile(f"{path} holds no curve: {error}") from error


def _steps(p: np.ndarray, grain: float) -> np.ndarray:
    """First bucket of each step down by a factor of 1 + grain, from positive probabilities in descending order."""
    if not len(p):
        return np.empty(0, np.int64)
    far = int((math.log(p[0]) - math.log(p[-1])) / math.log1p(grain)) + 2
    falling = p[0] * (1 + grain) ** -np.arange(far, dtype=np.float64)
    first = np.unique(len(p) - np.searchsorted(p[::-1], falling, side="right"))
    return first[first < len(p)]


def from_rows(probability: np.ndarray) -> Curve:
    """One probability a row, in any order; equal ones share a bucket."""
    p, rows = np.unique(np.asarray(probability, np.float64), return_counts=True)
    return Curve(p[::-1], rows[::-1])


def from_counts(count: np.ndarray, samples: int, num_rows: int = 0) -> Curve:
    """Curve of rows of which `counts` of `samples` samples hold each, (E,); `num_rows` adds rows that none holds."""
    count = np.asarray(count)
    if count.ndim != 1 or count.dtype.kind not in "iu" or not len(count):
        raise InvalidPool("counts are one whole number a row: in how many samples it is")
    if samples < 1 or count.min() < 0 or count.max() > samples:
        raise InvalidPool(f"a row is in 0 to {samples} of {samples} samples, got {count.min()} to {count.max()}")
    if 0 < num_rows < len(count):
        raise InvalidPool(f"there are counts of {len(count):,} rows, which is more than num_rows={num_rows:,}")
    seen, rows = np.unique(count, return_counts=True)
    if num_rows > len(count):
        none = np.array([0]) if seen[0] else np.array([], np.int64)
        seen, rows = np.append(none, seen), np.append(none, rows)
        rows[0] += num_rows - len(count)
    return Curve(seen[::-1] / samples, rows[::-1])


def power_law(rows: int, length: float, exponent: float) -> Curve:
    """Row r has probability proportional to r ** -exponent, none above 1, that sum to `length`."""
    return zipf_mandelbrot(rows, length, exponent, 0.0)


@guarded("a curve by a formula", InvalidPool)
def zipf_mandelbrot(rows: int, length: float, exponent: float, shift: float) -> Curve:
    """Row r has probability proportional to (r + shift) ** -exponent, none above 1, that sum to `length`."""
    if not 0 <= exponent < math.inf or not 0 <= shift < math.inf:
        raise InvalidPool(f"a power law needs an exponent and a shift from 0, got {exponent} and {shift}")
    return of_formula(lambda rank: (rank + shift) ** -exponent, rows, length)


@guarded("a curve by a formula", InvalidPool)
def of_formula(weight: Callable[[np.ndarray], np.ndarray], rows: int, length: float, grain: float = GRAIN) -> Curve:
    """Weights by rank 1, 2, ..., descending, scaled to sum to `length` with none above 1.

    Beyond the first rows, ranks from a to a * (1 + grain) share a bucket, with the weight in its middle.
    """
    if rows < 1 or not 0 <= length <= rows:
        raise InvalidPool(f"{rows} rows cannot have a mean of {length} in a sample")
    edges = ranks(rows, grain)
    count = np.diff(edges)
    middle = np.sqrt(edges[:-1].astype(np.float64) * (edges[1:] - 1))
    weights = np.asarray(weight(middle), np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all() or (np.diff(weights) > 0).any():
        raise InvalidPool("weights by rank are finite, not negative and descending")
    first, last = weight(edges[:-1].astype(np.float64)), weight(edges[1:] - 1.0)
    off = np.divide(np.maximum(first - weights, weights - last), weights, out=np.zeros_like(weights), where=weights > 0)
    return Curve(_scaled(weights, count, length), count, float(off.max()))


def ranks(rows: int, grain: float = GRAIN) -> np.ndarray:
    """First rank of each bucket, and one past the last rank; buckets beyond the first rows grow with the rank."""
    alone = min(rows, EXACT_ROWS)
    far = int(math.log(max(rows, alone) / alone) / math.log1p(grain)) + 2
    first = np.unique(np.rint(alone * (1 + grain) ** np.arange(far)).astype(np.int64))
    return np.concatenate([np.arange(1, alone + 1), first[(first > alone) & (first <= rows)], [rows + 1]])


def _scaled(weights: np.ndarray, count: np.ndarray, length: float) -> np.ndarray:
    """Weights times a constant, capped at 1, so that all rows sum to `length`."""
    if length == 0:
        return np.zeros_like(weights)
    low, high = 0.0, 1.0 / weights[weights > 0].min()
    if length > count[weights > 0].sum():
        raise InvalidPool(f"only {count[weights > 0].sum()} rows have weight, too few for a mean of {length}")
    for _ in range(HALVINGS):
        scale = (low + high) / 2
        enough = (np.minimum(scale * weights, 1.0) * count).sum() >= length
        low, high = (low, scale) if enough else (scale, high)
    return np.minimum(high * weights, 1.0)
