"""Show stored results as a page: `shard-gym page RUN --out page.html`. Every plan is scored again.

RUN is a file of results, the folder of a leaderboard, an entry, or a folder of entries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from shard_gym.records import commands
from shard_gym_agents.leaderboard import page
from shard_gym_agents.leaderboard.page.stored import boards

BEST_KNOWN = Path("benchmarks/results/best_known")  # in a checkout; nowhere else are there any


def main(arguments: Sequence[str]) -> int:
    """Read, score and write."""
    parser = commands.parser("shard-gym page", __doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("leaderboard.html"), metavar="FILE")
    parser.add_argument("--best-known", type=Path, default=BEST_KNOWN, metavar="DIR")

    def command(options: argparse.Namespace) -> None:
        found = boards(options.results, options.best_known)
        page.write(options.out, found)
        commands.show(f"{options.out}: {len(found)} suites")

    return commands.run(parser, command, arguments)
