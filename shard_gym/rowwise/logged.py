"""Row frequencies of a table from logs: CSV or Parquet files with one sample a row, read once and in pieces.

    from shard_gym.bridge.logs import Log
    from shard_gym.rowwise.logged import count_log

    counter = count_log(Log(["day_0.parquet", "day_1.parquet"], ["history"]), rows=30_000_000)
    counter.curve(num_rows=30_000_000).save("history.safetensors")

A cell of Parquet is a list of ids, or one; a cell of CSV is one. What ids are is told by `shard_gym.bridge.logs`: with
`rows`, hashed ones are taken modulo it, and others must be below it or are with `outside="modulo"`.
"""

from __future__ import annotations

import sys

import numpy as np

from shard_gym.bridge.cells import bags_of
from shard_gym.bridge.logs import OUTSIDE, Bar, Log
from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.numbers import whole
from shard_gym.rowwise.counts import CAPACITY, RowCounter


def count_log(
    log: Log, rows: int | None = None, *, outside: str = "raise", capacity: int = CAPACITY, progress: bool = True
) -> RowCounter:
    """How many samples of a log look each row up, in its one column; a bar on a terminal shows how far it is."""
    if len(log.columns) != 1:
        raise InvalidPool(f"a curve is of one column, got {', '.join(log.columns)}: count them one at a time")
    if outside not in OUTSIDE:
        raise UnknownName("way of ids outside", outside, OUTSIDE)
    if rows is not None and whole(rows) < 1:
        raise InvalidPool(f"a table has one row or more, got {rows}")
    (column,), counter = log.columns, RowCounter(capacity)
    bar = Bar(progress and sys.stderr.isatty())
    for part, share in log.tables():
        ids, lengths, hashed = bags_of(part.column(column), log.ids, column)
        counter.add(_rows(ids, hashed, rows, outside, column), lengths)
        bar.show(counter.samples, share)
    bar.close()
    return counter


def _rows(ids: np.ndarray, hashed: bool, rows: int | None, outside: str, column: str) -> np.ndarray:
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
