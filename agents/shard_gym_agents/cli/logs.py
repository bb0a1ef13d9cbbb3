"""Logs: tables of them (`shard-gym profile`), and how often rows are looked up (`shard-gym flex curve`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shard_gym.errors import InvalidPool
from shard_gym.flexshard.counts import CAPACITY, count_log
from shard_gym.flexshard.curves import Curve
from shard_gym.records import commands
from shard_gym.records.commands import names
from shard_gym.tables.files import save_pool
from shard_gym.tables.pool import ELEMENT_BYTES, TablePool
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.logs import IDS, OUTSIDE, Log, profile_log

PROFILE = "Profile a log: shard-gym profile LOG --columns C1,C2 --batch 4096 --out pool.json"
CURVE = """How often a log looks rows up:
shard-gym flex curve LOG --column history --rows 30000000 --out history.safetensors"""
SHARES = (0.001, 0.01, 0.1)  # of the rows, that the report tells the lookups of


def profile(arguments: Sequence[str]) -> int:
    """Write a pool, and tell what was looked up."""
    parser = commands.parser("shard-gym profile", PROFILE)
    _add_log(parser)
    add = parser.add_argument
    add("--columns", type=names, required=True, metavar="C1,C2", help="which hold ids; each is a table")
    add("--batch", type=int, required=True, metavar="SAMPLES")
    add("--out", type=Path, required=True, metavar="FILE", help="the pool: .json, .csv or .parquet")
    add("--rows", default="", metavar="N", help="of every table, or C1=10000,C2=500; seen ones unless told")
    add("--dim", type=int, default=16, help="of every table; default 16")
    add("--dtype", choices=tuple(ELEMENT_BYTES), default="fp32", help="of the weights; default fp32")
    return commands.run(parser, _profile, arguments)


def _profile(options: argparse.Namespace) -> None:
    log = Log(options.logs, options.columns, options.ids, options.delimiter, not options.no_header)
    rows = _rows(options.rows, log.columns)
    profiler = profile_log(log, options.batch, rows=rows, outside=options.outside)
    pool = profiler.pool(dim=options.dim, dtype=options.dtype)
    save_pool(pool, options.out)
    sys.stdout.write(pool_report(profiler, pool))


def curve(arguments: Sequence[str]) -> int:
    """Write a curve and tell about it."""
    parser = commands.parser("shard-gym flex curve", CURVE)
    _add_log(parser)
    add = parser.add_argument
    add("--column", required=True, help="which holds the ids: lists of them in Parquet, or one a sample")
    add("--rows", type=int, metavar="N", help="of the table; seen ones unless told")
    add("--out", type=Path, required=True, metavar="FILE", help="the curve: .safetensors")
    add("--capacity", type=int, default=CAPACITY, metavar="ROWS", help=f"counted exactly; default {CAPACITY:,}")
    return commands.run(parser, _curve, arguments)


def _curve(options: argparse.Namespace) -> None:
    log = Log(options.logs, [options.column], options.ids, options.delimiter, not options.no_header)
    counter = count_log(log, options.rows, outside=options.outside, capacity=options.capacity)
    made = counter.curve(options.rows or 0)
    made.save(options.out)
    sys.stdout.write(f"{counter.told()}\n{curve_report(made)}\n")


def _add_log(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to read a log."""
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help=".csv, .tsv or .txt, also .gz, or .parquet")
    add("--ids", choices=IDS, default="auto", help="what cells are; see shard_gym.torchrec.logs")
    add("--outside", choices=OUTSIDE, default="raise", help="what to do with ids beyond the rows told")
    add("--delimiter", default=",", help="of CSV; $'\\t' for tabs")
    add("--no-header", action="store_true", help="columns of CSV are f0, f1, ...")


def _rows(text: str, columns: Sequence[str]) -> dict[str, int]:
    """`10000` for every column, or `C1=10000,C2=500`."""
    try:
        if text.isdigit():
            return dict.fromkeys(columns, int(text))
        parts = (part.strip().split("=") for part in text.split(",") if part.strip())
        return {name: int(rows) for name, rows in parts}
    except ValueError as error:
        raise InvalidPool(f"--rows is a number, or C1=10000,C2=500; got {text!r}") from error


def pool_report(profiler: Profiler, pool: TablePool) -> str:
    """One line a column: rows of its table, ids a sample, and rows that a batch touches."""
    lines = [f"{profiler.batches} batches of {profiler.samples} samples"]
    lines += [f"{'column':20} {'rows':>14} {'pooling':>9} {'p50':>9} {'p95':>9} {'distinct':>12}"]
    rows = dict(zip(pool.name, pool.rows.tolist(), strict=True))
    for column, seen in profiler.features().items():
        pooling = f"{seen.pooling:9.3f} {seen.pooling_p50:9.3f} {seen.pooling_p95:9.3f}"
        lines += [f"{column:20} {rows[column]:14,} {pooling} {seen.distinct:12,.1f}"]
    return "\n".join(lines) + "\n"


def curve_report(curve: Curve) -> str:
    """Rows, lookups, and what part of these the most frequent rows have."""
    shares = [
        f"{share:.1%} of rows {curve.covered(round(share * curve.num_rows)) / curve.length:.1%}" for share in SHARES
    ]
    about = f"{curve.num_rows:,} rows, of which a sample looks up {curve.length:,.2f}"
    return f"{about}; the most frequent ones of lookups: {', '.join(shares)}"
