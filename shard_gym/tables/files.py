"""Pools of tables in files: JSON, CSV or Parquet, told apart by the suffix of the name.

    pool = load_pool("tables.csv")
    save_pool(pool, "tables.parquet")        # Parquet needs the extra `parquet`

A file holds one row a table. Only `rows` is required:

    rows             rows of the table
    dim              columns of a row; 16 if the column is missing
    pooling          mean ids looked up per sample; 1 if missing
    name             text; table_0, table_1, ... if missing
    dtype            of the weights: fp32, fp16, bf16 or int8; fp32 if missing
    distinct         rows touched in one reference batch
    bags             bags of a sample, one for each feature of the table; 1 if missing
    pooled           false where every row looked up is sent back, not a sum for each bag; true if missing
    weighted         true where ids have weights; false if missing
    optimizer        of the table; empty, or missing: that of the task
    uses_0 ... uses_16          share of the distinct rows used 1, 2, 3-4, 5-8, ... times in that batch
    accesses_0 ... accesses_16  share of the lookups that go to those rows
    pooling64, bags64  in the place of pooling and bags, which are float32: numbers of which that would lose digits
    reference_batch  samples in that batch, the same in every row; 65536 if missing

`distinct`, `uses` and `accesses` describe one histogram: all three, or none, and then lookups are spread over
the rows as evenly as whole numbers allow, which touches the most rows possible. A column that is there must be
filled in every row, and an unknown column is refused rather than dropped. Upper and lower case of a column's name are
one. So a small CSV file is

    name,rows,dim,pooling
    user,5000000,64,1
    clicks,800000,32,24.5

JSON holds the same rows under "tables"; `uses` and `accesses` may be lists of 17 numbers (and are, as written
here), and `reference_batch` stands once, beside the tables:

    {"schema": "shard-gym/pool/1", "reference_batch": 65536, "tables": [{"rows": 5000000, "dim": 64}]}

The list of objects alone, as other programs write it, is read too; `reference_batch` is then one of their keys.

What `save_pool` writes, `load_pool` reads back equal, bit for bit. Errors count rows from 0, as tables are
counted everywhere, headers not included.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool, MissingDependency, UnknownName
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import MOST_BYTES, MOST_JSON_BYTES, content_of, guarded, reason
from shard_gym.records.installing import install
from shard_gym.tables.pool import ELEMENT_BYTES, LATER, NUM_BINS, TablePool, make_pool

SCHEMA = "shard-gym/pool/1"
HOW = "give CSV: a header such as name,rows,dim,pooling and a line a table, such as user,5000000,64,20"
# Columns as others call them: they are refused, and told what they are called here.
OTHER_NAMES = {
    **dict.fromkeys(("num_embeddings", "num_rows", "hash_size", "cardinality", "vocab_size"), "rows"),
    **dict.fromkeys(("embedding_dim", "dimension", "num_columns", "columns"), "dim"),
    **dict.fromkeys(("pooling_factor", "ids", "mean_ids"), "pooling"),
    **dict.fromkeys(("data_type", "type", "precision"), "dtype"),
    **dict.fromkeys(("table", "table_name"), "name"),
    **dict.fromkeys(("batch", "batch_size"), "reference_batch"),
}
_SHARES = ("uses", "accesses")
_BINS = {share: tuple(f"{share}_{b}" for b in range(NUM_BINS)) for share in _SHARES}
MOST_CELLS = 2**23  # of a file
_REAL_MAX = 2.0**128 - 2.0**103  # what is not below rounds to infinity in float32
_WRITTEN = ("name", "rows", "dim", "pooling", "dtype", "distinct")
_PRECISE = {"pooling": "pooling64", "bags": "bags64"}  # columns of float64, where float32 would lose digits
# What CSV and Parquet files hold, in this order; those of LATER only where a table is not as usual.
COLUMNS = (*_WRITTEN, *LATER, *_BINS["uses"], *_BINS["accesses"], "reference_batch")

Columns = dict[str, list[Any]]  # cells as a file has them, one list a column
Format = tuple[Callable[[Path], Columns], Callable[[TablePool], str | bytes]]  # how to read and write one


def load_pool(path: str | Path) -> TablePool:
    """Read a .json, .csv or .parquet file of tables."""
    path = Path(path)
    columns = _format(path)[0](path)
    if unknown := sorted(set(columns) - {*COLUMNS, *_SHARES, *_PRECISE.values()}):
        known = "".join(f"; {name} is called {ours} here" for name in unknown if (ours := OTHER_NAMES.get(name)))
        raise CorruptFile(f"{path}: unknown columns {unknown}{known}; known are {', '.join(COLUMNS)}")
    if "rows" not in columns:
        raise CorruptFile(f"{path}: no column rows, the one that every pool needs; {HOW}")
    if not columns["rows"]:
        raise CorruptFile(f"{path} holds no tables")
    with guarded(path):
        return make_pool(**_parsed(columns, str(path)))


def save_pool(pool: TablePool, path: str | Path) -> None:
    """Write a .json, .csv or .parquet file, whole or not at all."""
    if not len(pool):
        raise InvalidPool("a pool without tables cannot be saved")
    try:
        write_whole(path, _format(Path(path))[1](pool))
    except UnicodeEncodeError as error:
        raise InvalidPool(f"a name is not valid Unicode: {error}") from error


def _parsed(columns: Columns, path: str) -> dict[str, Any]:
    """Arguments of make_pool."""
    values: dict[str, Any] = {c: _each(columns[c], _CELLS[c], path, c) for c in columns if c in _CELLS}
    values |= {column: np.array(values[column], np.float32) for column in _PRECISE if column in columns}
    for column, precise in _PRECISE.items():
        if precise in columns:
            if column in columns:
                raise CorruptFile(f"{path}: both {column} and {precise}: give one of the two")
            values[column] = values.pop(precise)
    for share in _SHARES:
        if (shares := _share_columns(columns, share, path)) is not None:
            values[share] = shares
    if batches := values.get("reference_batch"):
        if differ := [row for row, batch in enumerate(batches) if batch != batches[0]]:
            raise CorruptFile(f"{path}: row {differ[0]}: reference_batch is not that of row 0")
        values["reference_batch"] = batches[0]
    return values


def _share_columns(columns: Columns, share: str, path: str) -> np.ndarray | None:
    """The bins of `uses` or `accesses`, (N, 17) float32; None when the file has none."""
    there = [c for c in _BINS[share] if c in columns]
    if share in columns:
        if there:
            raise CorruptFile(f"{path}: both {share} and {there[0]}: give one of the two")
        return np.array(_each(columns[share], _bins, path, share), np.float32)
    if not there:
        return None
    if missing := [c for c in _BINS[share] if c not in columns]:
        raise CorruptFile(f"{path}: has {there[0]} but not {', '.join(missing)}")
    return np.array([_each(columns[c], _real, path, c) for c in there], np.float32).T


def _each(cells: list[Any], read: Callable[[Any], Any], path: str, column: str) -> list[Any]:
    values = []
    for row, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptFile(f"{path}: row {row}: {column} {error}, found {cell!r:.60}") from error
    return values


def _integer(bits: int) -> Callable[[Any], int]:
    largest = 2 ** (bits - 1) - 1

    def read(cell: Any) -> int:
        if isinstance(cell, str) and cell.strip().removeprefix("-").isdecimal():
            cell = int(cell)  # exact, however large
        value = cell if isinstance(cell, int) and not isinstance(cell, bool) else _real(cell)
        if value != int(value) or abs(value) > largest:
            raise ValueError(f"must be a whole number up to {largest}")
        return int(value)

    return read


def _real(cell: Any) -> float:
    known = isinstance(cell, str | int | float) and not isinstance(cell, bool)
    try:
        value = float(cell) if known else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not abs(value) < _REAL_MAX:
        raise ValueError("must be a number")
    return value


def _text(cell: Any) -> str:
    if not isinstance(cell, str):
        raise TypeError("must be text")
    return cell


def _dtype(cell: Any) -> str:
    dtype = _text(cell).strip().lower()
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"must be one of {', '.join(ELEMENT_BYTES)}")
    return dtype


def _flag(cell: Any) -> bool:
    told = str(cell).strip().lower()
    if told not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return told in ("true", "1")


def _bins(cell: Any) -> list[float]:
    if not isinstance(cell, list) or len(cell) != NUM_BINS:
        raise ValueError(f"must be a list of {NUM_BINS} numbers")
    return [_real(value) for value in cell]


_CELLS: dict[str, Callable[[Any], Any]] = {
    "rows": _integer(64),
    "dim": _integer(32),
    "pooling": _real,
    "name": _text,
    "dtype": _dtype,
    "distinct": _integer(64),
    "bags": _real,
    "pooled": _flag,
    "weighted": _flag,
    "optimizer": _text,
    "pooling64": _real,
    "bags64": _real,
    "reference_batch": _integer(64),
}


def _read_json(path: Path) -> Columns:
    data = read_json(path)
    if isinstance(data, list):
        return _transposed(data, path)
    if not isinstance(data, dict) or not isinstance(data.get("tables"), list):
        example = '[{"rows": 5000000, "dim": 64, "pooling": 20}]'
        raise CorruptFile(f'{path}: expected a list of objects, or an object with it as "tables"; such as {example}')
    if unknown := data.keys() - {"schema", "reference_batch", "tables"}:
        raise CorruptFile(f"{path}: unknown keys {sorted(unknown)}; known are schema, reference_batch, tables")
    if data.get("schema", SCHEMA) != SCHEMA:
        raise CorruptFile(f"{path}: schema {data['schema']!r} is not {SCHEMA}")
    columns = _transposed(data["tables"], path)
    if "reference_batch" in columns:
        raise CorruptFile(f"{path}: row 0: reference_batch stands beside the tables, not in them")
    return columns | ({"reference_batch": [data["reference_batch"]]} if "reference_batch" in data else {})


def _transposed(tables: list[Any], path: Path) -> Columns:
    first = tables[0] if tables else {"rows": None}
    for row, table in enumerate(tables):
        if not isinstance(table, dict):
            raise CorruptFile(f"{path}: row {row}: expected an object, found {table!r:.50}")
        if differ := table.keys() ^ first.keys():
            raise CorruptFile(f"{path}: row {row}: {sorted(differ)} must be in every row or in none")
    cells = [[table[column] for table in tables] for column in first]
    return dict(zip(_headers(first, path), cells, strict=True))


def _read_csv(path: Path) -> Columns:
    try:
        text = content_of(path, MOST_JSON_BYTES).decode("utf-8-sig")  # a spreadsheet may begin with a byte order mark
        header, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFile(f"{path} is not CSV: {error}") from error
    if len(header) * len(rows) > MOST_CELLS:
        raise CorruptFile(f"{path} holds {len(rows):,} rows of {len(header):,} columns, more than are read")
    if len(header) == 1 and (separator := next((mark for mark in ";\t|" if mark in header[0]), None)):
        raise CorruptFile(f"{path}: columns are separated by commas, found {separator!r}; {HOW}")
    header = _headers(header, path)
    rows = [row for row in rows if row]  # blank lines
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise CorruptFile(f"{path}: row {i}: {len(row)} cells under {len(header)} columns")
    return {column: [row[c] for row in rows] for c, column in enumerate(header)}


def _read_parquet(path: Path) -> Columns:
    pyarrow = _pyarrow()
    content = content_of(path)
    try:
        with guarded(f"{path} is not Parquet"), pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
            _check_size(file.metadata, path)
            table = file.read(use_threads=False)
            columns = [column.to_pylist() for column in table.columns]
            return dict(zip(_headers(table.column_names, path), columns, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise CorruptFile(f"{path} is not Parquet: {reason(error)}") from error


def _check_size(metadata: Any, path: Path) -> None:
    """Refuse a file that unpacks to more than is read, by what it says itself."""
    unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if metadata.num_rows * max(metadata.num_columns, 1) > MOST_CELLS or unpacked > MOST_BYTES:
        told = f"{metadata.num_rows:,} rows of {metadata.num_columns:,} columns and {unpacked:,} bytes"
        raise CorruptFile(f"{path} holds {told}, more than are read")


def _headers(given: Iterable[str], path: Path) -> list[str]:
    """Names of columns, in lower case."""
    names = [name.strip().lower() for name in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CorruptFile(f"{path}: columns {twice} appear more than once")
    return names


def _json(pool: TablePool) -> str:
    columns = {name: _plain(column) for name, column in _written(pool).items()}
    columns |= {share: _plain(getattr(pool, share)) for share in _SHARES}
    tables = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    lines = ",\n".join(json.dumps(table) for table in tables)
    return f'{{"schema": "{SCHEMA}", "reference_batch": {pool.reference_batch}, "tables": [\n{lines}\n]}}\n'


def _csv(pool: TablePool) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    columns = _flat(pool)
    writer.writerow(columns)
    writer.writerows(zip(*map(_plain, columns.values()), strict=True))
    return text.getvalue()


def _parquet(pool: TablePool) -> bytes:
    pyarrow = _pyarrow()
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(_flat(pool)), sink)
    return sink.getvalue().to_pybytes()


def _flat(pool: TablePool) -> dict[str, Any]:
    """The columns that are written, of COLUMNS."""
    told = _written(pool)
    for share in _SHARES:
        told |= zip(_BINS[share], getattr(pool, share).T, strict=True)
    return told | {"reference_batch": np.full(len(pool), pool.reference_batch, np.int64)}


def _written(pool: TablePool) -> dict[str, Any]:
    columns = {c: getattr(pool, c) for c in (*_WRITTEN, *pool.later)}
    precise = {c for c in _PRECISE if c in columns and columns[c].dtype == np.float64}
    return {_PRECISE[c] if c in precise else c: column for c, column in columns.items()}


def _plain(column: Any) -> list[Any]:
    """A column as Python values; float32 with the few digits that read back the same (0.1)."""
    if isinstance(column, tuple) or column.dtype != np.float32:
        return list(column) if isinstance(column, tuple) else column.tolist()
    short = column.astype(str).astype(np.float64)
    return np.where(short.astype(np.float32) == column, short, column.astype(np.float64)).tolist()


_FORMATS: dict[str, Format] = {
    ".json": (_read_json, _json),
    ".csv": (_read_csv, _csv),
    ".parquet": (_read_parquet, _parquet),
}


def _format(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise UnknownName("suffix of a pool file", suffix, _FORMATS, HOW)
    return _FORMATS[suffix]


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(f"Parquet files need pyarrow: {install('parquet')}") from error
    return pyarrow
