"""Logs: tables of them (`shard-gym profile`), and how often rows are looked up (`shard-gym flex curve`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shard_gym.errors import InvalidPool
from shard_gym.flexshard.counts import CAPACITY, count_log
from shard_gym.flexshard.curves import Curve
from shard_gym.records import commands
from shard_gym.records.commands import names
from shard_gym.tables.files import save_pool
from shard_gym.tables.pool import ELEMENT_BYTES, TablePool
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.logs import IDS, OUTSIDE, PARQUET, Log, profile_log

PROFILE = """Make tables of a log: rows, ids a sample, and how often rows are looked up in a batch.

Files are read in pieces, so they may be larger than memory."""
CURVE = "Count how often a log looks rows up, most frequent rows first: the curve that `shard-gym flex` plans with."
SHARES = (0.001, 0.01, 0.1)  # of the rows, that the report tells the lookups of


def profile(arguments: Sequence[str]) -> int:
    """Write a pool, and tell what was looked up."""
    return commands.run(profile_parser(), _profile, arguments)


def profile_parser() -> commands.Parser:
    """Options of `profile`."""
    examples = (
        "shard-gym profile day_0.parquet day_1.parquet --columns C1,C2 --batch 4096 --out pool.json",
        "shard-gym profile clicks.csv.gz --columns user,item --batch 65536 --rows 1000000 --dim 64 --out pool.csv",
    )
    parser = commands.parser("shard-gym profile", PROFILE, examples=examples, answer="what was looked up")
    _add_log(parser)
    add = parser.add_argument
    add("--columns", type=names, required=True, metavar="C1,C2", help="which hold ids; each is a table")
    add("--batch", type=int, required=True, metavar="SAMPLES", help="of the batches that are counted")
    add("--out", type=Path, required=True, metavar="FILE", help="the pool: .json, .csv or .parquet")
    add("--rows", default="", metavar="N", help="of every table, or C1=10000,C2=500; default: rows seen")
    add("--dim", type=int, default=16, metavar="COLUMNS", help="of every table; default 16")
    add("--dtype", choices=tuple(ELEMENT_BYTES), default="fp32", help="of the weights; default fp32")
    parser.set_defaults(run=_profile)
    return parser


def _profile(options: argparse.Namespace) -> None:
    log = _log(options, options.columns)
    rows = _rows(options.rows, log.columns)
    profiler = profile_log(log, options.batch, rows=rows, outside=options.outside, progress=not options.json)
    pool = profiler.pool(dim=options.dim, dtype=options.dtype)
    save_pool(pool, options.out)
    commands.answer(
        options,
        "profiled/1",
        lambda: {"file": options.out, "batches": profiler.batches, "columns": _seen(profiler, pool)},
        lambda: pool_report(profiler, pool),
    )


def curve_parser() -> commands.Parser:
    """Options of `flex curve`."""
    examples = (
        "shard-gym flex curve day_0.parquet --column history --rows 30000000 --out history.safetensors",
        "shard-gym flex curve clicks.csv --column item --out item.safetensors --json",
    )
    parser = commands.parser("shard-gym flex curve", CURVE, examples=examples, answer="the curve in figures")
    _add_log(parser)
    add = parser.add_argument
    add("--column", required=True, metavar="NAME", help="which holds the ids: lists in Parquet, or one a sample")
    add("--rows", type=int, metavar="N", help="of the table; default: rows seen")
    add("--out", type=Path, required=True, metavar="FILE", help="the curve: .safetensors")
    add("--capacity", type=int, default=CAPACITY, metavar="ROWS", help=f"counted exactly; default {CAPACITY:,}")
    parser.set_defaults(run=_curve)
    return parser


def _curve(options: argparse.Namespace) -> None:
    log = _log(options, [options.column])
    counter = count_log(
        log, options.rows, outside=options.outside, capacity=options.capacity, progress=not options.json
    )
    made = counter.curve(options.rows or 0)
    made.save(options.out)
    commands.answer(
        options,
        "curve/1",
        lambda: {"file": options.out, "rows": made.num_rows, "lookups": made.length, "covered": _covered(made)},
        lambda: f"{counter.told()}\n{curve_report(made)}",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to read a log."""
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help=".csv, .tsv or .txt, also .gz, or .parquet")
    add("--ids", choices=IDS, default="auto", help="what cells hold; default auto: numbers, or text that is hashed")
    outside = "what to do with ids beyond --rows; default raise: refuse them"
    add("--outside", choices=OUTSIDE, default="raise", help=outside)
    add("--delimiter", help="of CSV, $'\\t' for tabs; default: a comma")
    add("--no-header", action="store_true", help="columns of CSV are f0, f1, ...; default: the first line names them")


def _log(options: argparse.Namespace, columns: Sequence[str]) -> Log:
    """The log that the options tell of."""
    told = {"--delimiter": options.delimiter is not None, "--no-header": options.no_header}
    parquet = all(path.name.lower().endswith(PARQUET) for path in options.logs)
    if parquet and (given := [name for name, is_told in told.items() if is_told]):
        raise InvalidPool(f"{given[0]} is for CSV: Parquet names its columns itself")
    return Log(options.logs, columns, options.ids, options.delimiter or ",", not options.no_header)


def _rows(text: str, columns: Sequence[str]) -> dict[str, int]:
    """`10000` for every column, or `C1=10000,C2=500`."""
    try:
        if text.isdigit():
            return dict.fromkeys(columns, int(text))
        parts = (part.strip().split("=") for part in text.split(",") if part.strip())
        return {name: int(rows) for name, rows in parts}
    except ValueError as error:
        raise InvalidPool(f"--rows is a number, or C1=10000,C2=500; got {text!r}") from error


def _seen(profiler: Profiler, pool: TablePool) -> list[dict[str, Any]]:
    """Figures of each column: rows of its table, ids a sample, and rows that a batch touches."""
    rows = dict(zip(pool.name, pool.rows.tolist(), strict=True))
    names = ("pooling", "pooling_p50", "pooling_p95", "distinct")
    return [
        {"column": column, "rows": rows[column], **{name: getattr(seen, name) for name in names}}
        for column, seen in profiler.features().items()
    ]


def pool_report(profiler: Profiler, pool: TablePool) -> str:
    """The same, one line a column."""
    lines = [f"{profiler.batches} batches of {profiler.samples} samples"]
    lines += [f"{'column':20} {'rows':>14} {'pooling':>9} {'p50':>9} {'p95':>9} {'distinct':>12}"]
    for seen in _seen(profiler, pool):
        pooling = f"{seen['pooling']:9.3f} {seen['pooling_p50']:9.3f} {seen['pooling_p95']:9.3f}"
        lines += [f"{seen['column']:20} {seen['rows']:14,} {pooling} {seen['distinct']:12,.1f}"]
    return "\n".join(lines)


def _covered(curve: Curve) -> dict[str, float]:
    """Shares of lookups that the most frequent rows have, by their share of rows."""
    return {f"{share:g}": curve.covered(round(share * curve.num_rows)) / curve.length for share in SHARES}


def curve_report(curve: Curve) -> str:
    """Rows, lookups, and what part of these the most frequent rows have."""
    shares = [f"{float(share):.1%} of rows {lookups:.1%}" for share, lookups in _covered(curve).items()]
    about = f"{curve.num_rows:,} rows, of which a sample looks up {curve.length:,.2f}"
    return f"{about}; the most frequent ones of lookups: {', '.join(shares)}"
