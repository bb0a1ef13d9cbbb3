"""Row frequencies from logs, in one pass and bounded memory: exact for as many rows as fit, a sketch beyond.

    from shard_gym.torchrec.batches import batch_bags
from shard_gym.torchrec.logs import Log
    from shard_gym.flexshard.counts import count_log

    counter = count_log(Log(["day_0.parquet", "day_1.parquet"], ["history"]), rows=30_000_000)
    counter.curve(num_rows=30_000_000).save("history.safetensors")

A cell of Parquet is a list of ids, or one; a cell of CSV is one. What ids are is told by `shard_gym.torchrec.logs`.

A row counts once in a sample, however often the sample looks it up. The sketch is two: the most frequent rows by
Misra and Gries (1982), whose counts are too low by at most a number that is kept; and all others by those whose hash is
small, a random part of them that is counted exactly and stands for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shard_gym.envs.episodes import hashed
from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.flexshard.curves import Curve, from_counts
from shard_gym.records.numbers import whole
from shard_gym.torchrec.batches import batch_bags
from shard_gym.torchrec.cells import bags_of
from shard_gym.torchrec.logs import OUTSIDE, Log, with_bar

CAPACITY = 2**24  # rows counted exactly, and rows kept of each sketch
SURE = 20  # a row is frequent if its count is so many times what may be missing from it
HASH_BITS = 63
_SEED = 0


class RowCounter:
    """Counter of row lookups: `add` batches of samples, then take the `curve`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 16:
            raise InvalidPool(f"a counter keeps at least 16 rows, got {capacity}")
        self.capacity, self.samples, self.lookups = capacity, 0, 0
        self._frequent = _Counts()
        self.missing = 0  # from the count of a frequent row, at most
        self._sampled = _Counts()
        self._halvings = 0  # one of 2 ** halvings rows is sampled
        self._pending: list[np.ndarray] = []

    @property
    def exact(self) -> bool:
        """True if every row is counted."""
        self._settle()
        return not self._halvings and not self.missing

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """A batch: the ids of its samples one after the other, and how many each has."""
        ids, lengths = np.asarray(ids), np.asarray(lengths)
        if ids.ndim != 1 or lengths.ndim != 1 or not {ids.dtype.kind, lengths.dtype.kind} <= {"i", "u"}:
            raise InvalidPool("a batch is two flat arrays of whole numbers: ids, and lengths of samples")
        if (lengths < 0).any() or lengths.sum() != len(ids) or (ids < 0).any():
            raise InvalidPool(f"lengths sum to {lengths.sum()} for {len(ids)} ids, and none is negative")
        sample = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((ids, sample))
        ids, sample = ids[order].astype(np.int64), sample[order]
        again = (ids[1:] == ids[:-1]) & (sample[1:] == sample[:-1])
        self._pending.append(ids[np.append(True, ~again)] if len(ids) else ids)
        self.samples += len(lengths)
        self.lookups += len(ids)
        if sum(map(len, self._pending)) >= self.capacity:
            self._settle()

    def curve(self, num_rows: int = 0) -> Curve:
        """Curve of the counts; `num_rows` adds rows that no sample has."""
        self._settle()
        if not self.samples:
            raise InvalidPool("no sample was counted")
        if not self.lookups:
            raise InvalidPool(f"none of the {self.samples:,} samples has an id")
        if not self._halvings and not self.missing:
            return from_counts(self._sampled.count, self.samples, num_rows)
        frequent = self._frequent.count >= SURE * max(self.missing, 1)
        rest = ~np.isin(self._sampled.row, self._frequent.row[frequent])
        head = self._frequent.count[frequent] + self.missing / 2
        p = np.concatenate([head, self._sampled.count[rest]]) / self.samples
        rows = np.concatenate([np.ones(len(head), np.int64), np.full(int(rest.sum()), 1 << self._halvings)])
        unseen = num_rows - int(rows.sum())
        if unseen > 0:
            p, rows = np.append(p, 0.0), np.append(rows, unseen)
        order = np.argsort(-p, kind="stable")
        error = self.missing / 2 / head.min() if len(head) else 0.0
        return Curve(np.minimum(p[order], 1.0), rows[order], float(error))

    def order(self, num_rows: int) -> np.ndarray:
        """All rows of a table, most frequent first; rows of one count, and those that were not counted, by number."""
        counted = self._sampled if self.exact else self._frequent
        if len(counted.row) and counted.row[-1] >= num_rows:
            raise InvalidPool(f"row {counted.row[-1]} was looked up, of a table with {num_rows} rows")
        count = np.zeros(num_rows, np.int64)
        count[counted.row] = counted.count
        return np.argsort(-count, kind="stable")

    def told(self) -> str:
        """Tell in words what the counts are worth."""
        if self.exact:
            return f"exact: {len(self._sampled.row):,} rows in {self.samples:,} samples"
        one_of = 1 << self._halvings
        return (
            f"a sketch: counts of the most frequent rows are at most {self.missing:,} too low; of the others one of "
            f"{one_of} is counted, {len(self._sampled.row):,} rows, so sums over them are within about "
            f"{1 / np.sqrt(max(len(self._sampled.row), 1)):.1%}"
        )

    def _settle(self) -> None:
        """Count what is pending, and let go of what does not fit."""
        if not self._pending:
            return
        new = _Counts(*np.unique(np.concatenate(self._pending), return_counts=True))
        self._pending = []
        self._frequent = self._frequent.plus(new)
        if len(self._frequent.row) > self.capacity:
            least = int(np.partition(self._frequent.count, -self.capacity - 1)[-self.capacity - 1])
            self.missing += least
            self._frequent = _Counts(self._frequent.row, self._frequent.count - least).where(
                self._frequent.count > least
            )
        self._sampled = self._sampled.plus(new.where(_small_hash(new.row, self._halvings)))
        while len(self._sampled.row) > self.capacity:
            self._halvings += 1
            self._sampled = self._sampled.where(_small_hash(self._sampled.row, self._halvings))


class _Counts:
    """Rows in ascending order and their counts."""

    def __init__(self, row: np.ndarray | None = None, count: np.ndarray | None = None) -> None:
        self.row = np.empty(0, np.int64) if row is None else row
        self.count = np.empty(0, np.int64) if count is None else count

    def where(self, kept: np.ndarray) -> _Counts:
        return _Counts(self.row[kept], self.count[kept])

    def plus(self, other: _Counts) -> _Counts:
        row, index = np.unique(np.concatenate([self.row, other.row]), return_inverse=True)
        count = np.bincount(index, np.concatenate([self.count, other.count]), minlength=len(row))
        return _Counts(row, count.astype(np.int64))


def _small_hash(row: np.ndarray, halvings: int) -> np.ndarray:
    keys = hashed(np.full(len(row), _SEED, np.uint64), row.astype(np.uint64))
    return (keys >> np.uint64(1)) < np.uint64(1 << (HASH_BITS - halvings))


def count_log(
    log: Log, rows: int | None = None, *, outside: str = "raise", capacity: int = CAPACITY, progress: bool = True
) -> RowCounter:
    """Count how many samples of a log look each row up, in its one column; a bar on a terminal shows how far it is."""
    if len(log.columns) != 1:
        raise InvalidPool(f"a curve is of one column, got {', '.join(log.columns)}: count them one at a time")
    if outside not in OUTSIDE:
        raise UnknownName("way of ids outside", outside, OUTSIDE)
    if rows is not None and whole(rows) < 1:
        raise InvalidPool(f"a table has one row or more, got {rows}")
    (column,), counter = log.columns, RowCounter(capacity)
    for part in with_bar(log.tables(), progress):
        ids, lengths, hashed = bags_of(part.column(column), log.ids, column)
        counter.add(_rows_of(ids, hashed, rows, outside, column), lengths)
    return counter


def count_batches(
    batches: Iterable[Any], tables: Mapping[str, Sequence[str]], capacity: int = CAPACITY
) -> dict[str, RowCounter]:
    """Count how many samples look each row of tables up; `tables` names the features of each.

    A batch is a KeyedJaggedTensor, or a dict of (values, lengths) by feature.
    """
    counters = {name: RowCounter(capacity) for name in tables}
    features = dict.fromkeys(feature for names in tables.values() for feature in names)
    for number, batch in enumerate(batches):
        bags = batch_bags(batch, features, f"batch {number}")
        for name, counter in counters.items():
            values, lengths = zip(*((bags[f][0], bags[f][1]) for f in tables[name]), strict=True)
            sample = np.concatenate([np.repeat(np.arange(len(n)), n) for n in lengths])
            order = np.argsort(sample, kind="stable")
            counter.add(np.concatenate(values)[order], np.sum(lengths, axis=0))
    return counters


def _rows_of(ids: np.ndarray, hashed: bool, rows: int | None, outside: str, column: str) -> np.ndarray:
    """The rows that ids stand for; hashes are rows as they are where no number of rows is told."""
    if rows is not None and (hashed or outside == "modulo"):
        return (ids % ids.dtype.type(rows)).astype(np.int64)
    if hashed:
        return (ids >> np.uint64(1)).astype(np.int64)
    if len(ids) and (ids.min() < 0 or (rows is not None and ids.max() >= rows)):
        odd = ids.min() if ids.min() < 0 else ids.max()
        below = "0 and up" if rows is None else f"0 to {rows - 1}"
        raise InvalidPool(f'column {column!r}: {odd} is no row, those are {below}; outside="modulo" wraps ids around')
    return ids
