"""Show stored results as an HTML page. Every plan is scored again.

RUN is a file of results, the folder of a leaderboard, an entry, or a folder of entries."""

from __future__ import annotations

import argparse
from pathlib import Path

from shard_gym.records import commands
from shard_gym_agents.leaderboard import page
from shard_gym_agents.leaderboard.page.stored import boards

BEST_KNOWN = Path("benchmarks/results/best_known")  # in a checkout; nowhere else are there any


def show_page(options: argparse.Namespace) -> None:
    """Read, score and write."""
    with commands.waiting(options, "page: scoring every plan again"):
        found = boards(options.results, options.best_known)
        page.write(options.out, found)
    commands.answer(
        options,
        "page/1",
        lambda: {"file": options.out, "suites": [board.ranking.suite.key for board in found]},
        lambda: f"{options.out}: {len(found)} suites",
    )


def parser() -> commands.Parser:
    """Options of `page`."""
    examples = ("shard-gym page runs/leaderboard --out page.html", "shard-gym page entry core-80x8.jsonl --json")
    made = commands.parser("shard-gym page", __doc__, examples=examples, answer="the file and its suites")
    made.add_argument("results", nargs="+", type=Path, metavar="RUN", help="results, as files or folders")
    out = "the page; default leaderboard.html"
    made.add_argument("--out", type=Path, default=Path("leaderboard.html"), metavar="FILE", help=out)
    best = f"best known plans of suites whose gaps are to these; default {BEST_KNOWN}, of a checkout"
    made.add_argument("--best-known", type=Path, default=BEST_KNOWN, metavar="DIR", help=best)
    made.set_defaults(run=show_page)
    return made
