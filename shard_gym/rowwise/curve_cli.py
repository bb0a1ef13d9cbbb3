"""How often a log looks rows up: shard-gym flex curve LOG --column history --rows 30000000 --out history.safetensors"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shard_gym.bridge.cells import IDS
from shard_gym.bridge.logs import OUTSIDE, Log
from shard_gym.errors import ShardGymError
from shard_gym.rowwise.counts import CAPACITY
from shard_gym.rowwise.curves import Curve
from shard_gym.rowwise.logged import count_log

SHARES = (0.001, 0.01, 0.1)  # of the rows, that the report tells the lookups of


def main(argv: Sequence[str] | None = None) -> int:
    """Write a curve and tell about it; what the user can put right is told in one line, with exit code 2."""
    options = _parser().parse_args(argv)
    try:
        log = Log(options.logs, [options.column], options.ids, options.delimiter, not options.no_header)
        counter = count_log(log, options.rows, outside=options.outside, capacity=options.capacity)
        curve = counter.curve(options.rows or 0)
        curve.save(options.out)
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"shard-gym flex curve: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{counter.told()}\n{report(curve)}\n")
    return 0


def report(curve: Curve) -> str:
    """Rows, lookups, and what part of these the most frequent rows have."""
    shares = [
        f"{share:.1%} of rows {curve.covered(round(share * curve.num_rows)) / curve.length:.1%}" for share in SHARES
    ]
    about = f"{curve.num_rows:,} rows, of which a sample looks up {curve.length:,.2f}"
    return f"{about}; the most frequent ones of lookups: {', '.join(shares)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("shard-gym flex curve", description=__doc__)
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help=".csv, .tsv or .txt, also .gz, or .parquet")
    add("--column", required=True, help="which holds the ids: lists of them in Parquet, or one a sample")
    add("--rows", type=int, metavar="N", help="of the table; seen ones unless told")
    add("--out", type=Path, required=True, metavar="FILE", help="the curve: .safetensors")
    add("--ids", choices=IDS, default="auto", help="what cells are; see shard_gym.bridge.logs")
    add("--outside", choices=OUTSIDE, default="raise", help="what to do with ids beyond the rows told")
    add("--capacity", type=int, default=CAPACITY, metavar="ROWS", help=f"counted exactly; default {CAPACITY:,}")
    add("--delimiter", default=",", help="of CSV; $'\\t' for tabs")
    add("--no-header", action="store_true", help="columns of CSV are f0, f1, ...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
