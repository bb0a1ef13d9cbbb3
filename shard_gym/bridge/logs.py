"""Profiles of logs: CSV or Parquet files with one sample a row, and columns of ids as Criteo's have.

    from shard_gym.bridge.logs import Log, profile_log

    log = Log(["day_0.parquet", "day_1.parquet"], columns=["C1", "C2"])
    pool = profile_log(log, batch=4096, rows={"C1": 10_000}).pool(dim=64)

A cell is a whole number, text, or in Parquet a list of either; an empty one is no id. Files are read in pieces, so they
may be larger than memory. Needs pyarrow, `pip install "shard-gym[parquet]"`.

What a cell means, `ids`:

    auto   whole numbers are ids, text is hashed
    int    whole numbers, also where CSV looks like something else
    hex    text of hexadecimal digits, as Criteo's categories are, is the number that it says
    hash   numbers and text are hashed

Hashed ids are taken modulo the rows of their table. Where its rows are not told, each hash is a row of its own, in the
order of appearance, which takes 16 bytes of memory for each. Other ids are rows: not below the rows told, they are
refused, or taken modulo them with `outside="modulo"`; where no rows are told, a table ends with the largest id.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.bridge.batches import Profiler
from shard_gym.bridge.cells import IDS, Hashes, bags_of
from shard_gym.bridge.library import require_pyarrow
from shard_gym.errors import CorruptFile, InvalidPool, UnknownName
from shard_gym.numbers import whole

OUTSIDE = ("raise", "modulo")
CSV, PARQUET = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), (".parquet",)
BLOCK = 2**20  # bytes of CSV, or rows of Parquet / 16, that are read at once
PATIENCE = 2.0  # seconds before a bar is shown


@dataclass(frozen=True)
class Log:
    """Files of samples, read one after the other, and which of their columns hold ids."""

    paths: Sequence[str | Path]
    columns: Sequence[str]
    ids: str = "auto"
    delimiter: str = ","  # of CSV
    header: bool = True  # without one, the columns of CSV are f0, f1, ...

    def __post_init__(self) -> None:
        if isinstance(self.paths, str | Path) or isinstance(self.columns, str):
            raise InvalidPool(f"a log is a list of paths and a list of columns, got {self.paths!r}, {self.columns!r}")
        if not self.paths or not self.columns or len(set(self.columns)) < len(self.columns):
            raise InvalidPool(f"a log has one file or more, and columns of different names, got {self.columns!r:.80}")
        if self.ids not in IDS:
            raise UnknownName("kind of ids", self.ids, IDS)
        for path in self.paths:
            if not Path(path).name.lower().endswith(CSV + PARQUET):
                raise UnknownName("kind of log", Path(path).name, CSV + PARQUET)

    def tables(self) -> Iterator[tuple[Any, float]]:
        """Arrow tables of the columns, and the share of all bytes that is read by then."""
        sizes = [Path(path).stat().st_size for path in self.paths]
        before = 0
        for path, size in zip(map(Path, self.paths), sizes, strict=True):
            read = self._parquet if path.name.lower().endswith(PARQUET) else self._csv
            for table, share in read(path):
                yield table, (before + share * size) / max(sum(sizes), 1)
            before += size

    def _parquet(self, path: Path) -> Iterator[tuple[Any, float]]:
        pyarrow = require_pyarrow()
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                self._check_columns(file.schema_arrow.names)
                rows = 0
                for part in file.iter_batches(BLOCK // 16, columns=list(self.columns)):
                    rows += part.num_rows
                    yield pyarrow.Table.from_batches([part]), rows / file.metadata.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from error

    def _csv(self, path: Path) -> Iterator[tuple[Any, float]]:
        pyarrow = require_pyarrow()
        from pyarrow import csv

        types = {"int": pyarrow.int64(), "hex": pyarrow.string(), "hash": pyarrow.string()}
        told = dict.fromkeys(self.columns, types[self.ids]) if self.ids in types else None
        size = max(path.stat().st_size, 1)
        with path.open("rb") as raw:
            try:
                packed = "gzip" if path.name.lower().endswith(".gz") else None
                reader = csv.open_csv(
                    pyarrow.input_stream(raw, compression=packed),
                    csv.ReadOptions(use_threads=False, block_size=BLOCK, autogenerate_column_names=not self.header),
                    csv.ParseOptions(delimiter=self.delimiter),
                    csv.ConvertOptions(column_types=told, null_values=[""], strings_can_be_null=True),
                )
                self._check_columns(reader.schema.names)
                for part in reader:
                    yield pyarrow.Table.from_batches([part]).select(list(self.columns)), raw.tell() / size
            except (pyarrow.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error

    def _check_columns(self, names: Sequence[str]) -> None:
        if missing := [column for column in self.columns if column not in names]:
            raise UnknownName("column", missing[0], names)


def profile_log(
    log: Log,
    batch: int,
    *,
    tables: Mapping[str, Sequence[str]] | None = None,
    rows: Mapping[str, int] | None = None,
    outside: str = "raise",
    progress: bool = True,
) -> Profiler:
    """What batches of so many samples look up, in the order of the log.

    Each column is a table unless `tables` names the columns of each. A bar on a terminal shows how long it takes yet.
    """
    if outside not in OUTSIDE:
        raise UnknownName("way of ids outside", outside, OUTSIDE)
    if (size := whole(batch)) < 1:
        raise InvalidPool(f"a batch has one sample or more, got {batch}")
    tables = {column: (column,) for column in log.columns} if tables is None else tables
    profiler = Profiler(tables, rows)
    table_of = {column: table for table, columns in profiler.tables.items() for column in columns}
    if set(table_of) != set(log.columns) or len(table_of) < sum(map(len, profiler.tables.values())):
        raise InvalidPool(f"tables share out all columns {list(log.columns)}, each to one of them, got {tables}")
    hashes = {table: Hashes() for table in profiler.tables}
    bar = Bar(progress and sys.stderr.isatty())
    for part, share in _rebatched(log.tables(), size):
        bags = {}
        for column, table in table_of.items():
            ids, lengths, hashed = bags_of(part.column(column), log.ids, column)
            bags[column] = _rows(ids, hashed, profiler.rows.get(table), outside, hashes[table]), lengths
        profiler.add(bags)
        bar.show(profiler.batches * size, share)
    bar.close()
    if not profiler.batches:
        raise InvalidPool(f"{', '.join(map(str, log.paths))}: no samples")
    return profiler


def _rows(ids: np.ndarray, hashed: bool, rows: int | None, outside: str, hashes: Hashes) -> np.ndarray:
    """The rows that ids stand for."""
    if hashed and rows is None:
        return hashes.numbers(ids)
    if rows is not None and (hashed or outside == "modulo"):
        return (ids % ids.dtype.type(rows)).astype(np.int64)
    return np.minimum(ids, ids.dtype.type(2**63 - 1)).astype(np.int64)  # such large ones are refused


def _rebatched(parts: Iterator[tuple[Any, float]], size: int) -> Iterator[tuple[Any, float]]:
    """The same samples in tables of `size`; the last may be smaller."""
    pyarrow = require_pyarrow()
    waiting: list[Any] = []
    share = 1.0
    for part, share in parts:
        waiting.append(part)
        if sum(table.num_rows for table in waiting) < size:
            continue
        whole_parts = pyarrow.concat_tables(waiting, promote_options="permissive")
        full = whole_parts.num_rows // size * size
        for start in range(0, full, size):
            yield whole_parts.slice(start, size).combine_chunks(), share
        waiting = [whole_parts.slice(full)]
    if sum(table.num_rows for table in waiting):
        yield pyarrow.concat_tables(waiting, promote_options="permissive").combine_chunks(), share


def _unreadable(path: Path, error: Exception) -> CorruptFile:
    hint = "; if its ids are text, say ids='hash' or 'hex'" if "conversion error" in str(error) else ""
    return CorruptFile(f"{path} cannot be read: {str(error).splitlines()[0]}{hint}")


class Bar:
    """How far a long read is, on the terminal; nothing for a short one."""

    def __init__(self, visible: bool) -> None:
        self.visible, self.start, self.shown = visible, time.monotonic(), False
        self.next = self.start + PATIENCE

    def show(self, samples: int, share: float) -> None:
        now = time.monotonic()
        if not self.visible or now < self.next:
            return
        self.next, self.shown = now + 0.5, True
        left = (now - self.start) * (1 - share) / max(share, 1e-9)
        sys.stderr.write(f"\r[{'#' * int(30 * share):30}] {share:4.0%}, {samples:,} samples, {left:.0f} s left   ")
        sys.stderr.flush()

    def close(self) -> None:
        if self.shown:
            sys.stderr.write("\n")
