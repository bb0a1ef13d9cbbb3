"""A Minari data set of four policies, with a card that says what behaviour cloning makes of it.

    python -m benchmarks.offline [--steps 1000000] [--out runs/minari]

A quarter of its episodes each by random legal devices, cost-greedy, auto and AutoShard, on training tasks of
MetaSyn-80x8 with the observation "flat". Made in the environment of the Minari client, see `benchmarks.clients`; then
`MINARI_DATASETS_PATH=runs/minari` and `minari.load_dataset("shardgym/metasyn-80x8/four-policies-v0")`. The card is
README.md beside the data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import clients
from shard_gym.records import commands


def make(options: argparse.Namespace) -> int:
    """The exit code of the program that makes it."""
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    given = ["offline", "--steps", str(options.steps), "--updates", str(options.updates), "--out", str(folder)]
    return clients.call(clients.python_of("minari"), "benchmarks.programs.minari", given, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    made = commands.parser("python -m benchmarks.offline", __doc__)
    made.add_argument("--steps", type=commands.count, default=1_000_000, help="of all policies together")
    made.add_argument("--updates", type=commands.count, default=10_000, help="of cloning each policy")
    made.add_argument("--out", type=Path, default=Path("runs/minari"), metavar="DIR", help="folder of data sets")
    return commands.run(made, make, arguments)


if __name__ == "__main__":
    sys.exit(main())
