"""Profiles of logs: CSV or Parquet files with one sample a row, and columns of ids as Criteo's have.

    from shard_gym.torchrec.logs import Log, profile_log

    log = Log(["day_0.parquet", "day_1.parquet"], columns=["C1", "C2"])
    pool = profile_log(log, batch=4096, rows={"C1": 10_000}).pool(dim=64)

Files are read in pieces, so they may be larger than memory. Needs pyarrow, the extra `parquet`.
A cell is a whole number, text, or in Parquet a list of either; an empty one is no id. What a cell means, `ids`:

    auto   whole numbers are ids, text is hashed
    int    whole numbers, also where CSV looks like something else
    hex    text of hexadecimal digits, as Criteo's categories are, is the number that it says
    hash   numbers and text are hashed

Hashed ids are taken modulo the rows told of their table; untold, each hash is a row of its own in the order of
appearance, 16 bytes of memory each. Other ids are rows: from the rows told on they are refused, or taken modulo them
with `outside="modulo"`; untold, a table ends with the largest id.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool, MissingDependency, UnknownName
from shard_gym.records.installing import install
from shard_gym.records.numbers import whole
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.cells import Hashes, bags_of

IDS = ("auto", "int", "hex", "hash")
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
        pyarrow = require_pyarrow()
        sizes, before = [Path(path).stat().st_size for path in self.paths], 0
        for path, size in zip(map(Path, self.paths), sizes, strict=True):
            read = self._parquet if path.name.lower().endswith(PARQUET) else self._csv
            try:
                for part, share in read(path):
                    table = pyarrow.Table.from_batches([part]).select(list(self.columns))
                    yield table, (before + share * size) / max(sum(sizes), 1)
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                hint = "; if its ids are text, say ids='hash' or 'hex'" if "conversion error" in str(error) else ""
                raise CorruptFile(f"{path} cannot be read: {str(error).splitlines()[0]}{hint}") from error
            before += size

    def _parquet(self, path: Path) -> Iterator[tuple[Any, float]]:
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            self._check_columns(file.schema_arrow.names)
            rows = 0
            for part in file.iter_batches(BLOCK // 16, columns=list(self.columns)):
                rows += part.num_rows
                yield part, rows / file.metadata.num_rows

    def _csv(self, path: Path) -> Iterator[tuple[Any, float]]:
        import pyarrow
        from pyarrow import csv

        types = {"int": pyarrow.int64(), "hex": pyarrow.string(), "hash": pyarrow.string()}
        told = dict.fromkeys(self.columns, types[self.ids]) if self.ids in types else None
        packed = "gzip" if path.name.lower().endswith(".gz") else None
        with path.open("rb") as raw:
            reader = csv.open_csv(
                pyarrow.input_stream(raw, compression=packed),
                csv.ReadOptions(use_threads=False, block_size=BLOCK, autogenerate_column_names=not self.header),
                csv.ParseOptions(delimiter=self.delimiter),
                csv.ConvertOptions(column_types=told, null_values=[""], strings_can_be_null=True),
            )
            self._check_columns(reader.schema.names)
            for part in reader:
                yield part, raw.tell() / max(path.stat().st_size, 1)

    def _check_columns(self, names: Sequence[str]) -> None:
        if twice := [column for column in self.columns if list(names).count(column) > 1]:
            raise CorruptFile(f"a log has two columns {twice[0]!r}: rename one")
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
    """Count what batches of so many samples look up, in the order of the log.

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
    for part in with_bar(_rebatched(log.tables(), size), progress):
        bags = {}
        for column, table in table_of.items():
            ids, lengths, hashed = bags_of(part.column(column), log.ids, column)
            bags[column] = _rows(ids, hashed, profiler.rows.get(table), outside, hashes[table]), lengths
        profiler.add(bags)
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
    """Tables of `size` samples each, in their order; the last may be smaller."""
    pyarrow = require_pyarrow()
    waiting: list[Any] = []
    share = 1.0
    for part, share in parts:
        waiting.append(part)
        if sum(table.num_rows for table in waiting) >= size:
            joined = pyarrow.concat_tables(waiting, promote_options="permissive")
            full = joined.num_rows // size * size
            for start in range(0, full, size):
                yield joined.slice(start, size).combine_chunks(), share
            waiting = [joined.slice(full)]
    if sum(table.num_rows for table in waiting):
        yield pyarrow.concat_tables(waiting, promote_options="permissive").combine_chunks(), share


def with_bar(parts: Iterator[tuple[Any, float]], progress: bool) -> Iterator[Any]:
    """Tables without their shares; on a terminal, a bar shows how far a long read is."""
    visible, start, samples, shown = progress and sys.stderr.isatty(), time.monotonic(), 0, False
    due = start + PATIENCE
    for part, share in parts:
        yield part
        samples += part.num_rows
        now = time.monotonic()
        if visible and now >= due:
            due, shown = now + 0.5, True
            left = (now - start) * (1 - share) / max(share, 1e-9)
            bar = "#" * int(30 * share)
            sys.stderr.write(f"\r[{bar:30}] {share:4.0%}, {samples:,} samples, {left:.0f} s left   ")
            sys.stderr.flush()
    if shown:
        sys.stderr.write("\n")


def require_pyarrow() -> Any:
    """The package `pyarrow`, which reads logs, or how to get it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(f"logs need pyarrow: {install('parquet')}") from error
    return pyarrow
