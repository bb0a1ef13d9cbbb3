"""Profile a log: shard-gym profile LOG --columns C1,C2 --batch 4096 --out pool.json"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shard_gym.bridge.batches import Profiler
from shard_gym.bridge.cells import IDS
from shard_gym.bridge.logs import OUTSIDE, Log, profile_log
from shard_gym.errors import InvalidPool, ShardGymError
from shard_gym.pool_files import save_pool
from shard_gym.tables import ELEMENT_BYTES, TablePool


def main(argv: Sequence[str] | None = None) -> int:
    """Write a pool, and tell what was looked up; what the user can put right is told in one line, with exit code 2."""
    options = _parser().parse_args(argv)
    try:
        log = Log(options.logs, _names(options.columns), options.ids, options.delimiter, not options.no_header)
        rows = _rows(options.rows, log.columns)
        profiler = profile_log(log, options.batch, rows=rows, outside=options.outside)
        pool = profiler.pool(dim=options.dim, dtype=options.dtype)
        save_pool(pool, options.out)
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"shard-gym profile: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(report(profiler, pool))
    return 0


def report(profiler: Profiler, pool: TablePool) -> str:
    """One line a column: rows of its table, ids a sample, and rows that a batch touches."""
    lines = [f"{profiler.batches} batches of {profiler.samples} samples"]
    lines += [f"{'column':20} {'rows':>14} {'pooling':>9} {'p50':>9} {'p95':>9} {'distinct':>12}"]
    rows = dict(zip(pool.name, pool.rows.tolist(), strict=True))
    for column, seen in profiler.features().items():
        pooling = f"{seen.pooling:9.3f} {seen.pooling_p50:9.3f} {seen.pooling_p95:9.3f}"
        lines += [f"{column:20} {rows[column]:14,} {pooling} {seen.distinct:12,.1f}"]
    return "\n".join(lines) + "\n"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _rows(text: str, columns: Sequence[str]) -> dict[str, int]:
    """`10000` for every column, or `C1=10000,C2=500`."""
    try:
        if text.isdigit():
            return dict.fromkeys(columns, int(text))
        return {name: int(rows) for name, rows in (part.split("=") for part in _names(text))}
    except ValueError as error:
        raise InvalidPool(f"--rows is a number, or C1=10000,C2=500; got {text!r}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("shard-gym profile", description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help=".csv, .tsv or .txt, also .gz, or .parquet")
    parser.add_argument("--columns", required=True, metavar="C1,C2", help="which hold ids; each is a table")
    parser.add_argument("--batch", type=int, required=True, metavar="SAMPLES")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the pool: .json, .csv or .parquet")
    parser.add_argument(
        "--rows", default="", metavar="N", help="of every table, or C1=10000,C2=500; seen ones unless told"
    )
    parser.add_argument("--outside", choices=OUTSIDE, default="raise", help="what to do with ids beyond the rows told")
    parser.add_argument("--ids", choices=IDS, default="auto", help="what cells are; see shard_gym.bridge.logs")
    parser.add_argument("--dim", type=int, default=16, help="of every table; default 16")
    parser.add_argument("--dtype", choices=tuple(ELEMENT_BYTES), default="fp32", help="of the weights; default fp32")
    parser.add_argument("--delimiter", default=",", help="of CSV; $'\\t' for tabs")
    parser.add_argument("--no-header", action="store_true", help="columns of CSV are f0, f1, ...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
