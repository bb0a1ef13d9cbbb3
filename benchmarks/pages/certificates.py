"""Certificates of the bounds on headroom cards: `python -m benchmarks.certificates [--suite NAME,...]`.

Each test task that has a card gets a certificate by its suite's judge, in benchmarks/results/certificates; suites that
have theirs already are left alone unless `--fresh`. `shard-gym verify benchmarks/results/certificates/*.jsonl.gz`
checks all of them. Half an hour for all suites.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS, pages
from benchmarks.headroom_cards import PROVED, load_cards
from benchmarks.pages import Found, table
from shard_gym import simulators
from shard_gym.bounds.certify import certified
from shard_gym.records.commands import names
from shard_gym.records.files import write_whole
from shard_gym.records.guard import opened, parsed_json
from shard_gym.simulators import FastSimulator
from shard_gym.task import suites
from shard_gym.task.suites import SUITES, Suite
from shard_gym_agents.search.duals import dual_proofs

FOLDER = RESULTS / "certificates"
HEAD = ("suite", "cards", "certificates", "form", "below the card's bound: mean", "most", "proved", "on cards", "bytes")
INTRO = """# Certificates

A headroom card says what no plan of its task beats. A certificate proves such a bound: `shard-gym verify` accepts it by
less than 200 lines of code (`shard_gym/proofs`) that read the task and the simulator, and nothing that solves. Where a
card's bound is a mixed-integer program's, there is no such proof of it: the certificate is of the bound that can be
proved so, and the table says how far that is below.

- form: how it is proved, see `shard_gym/proofs/__init__.py`.
- proved: best known plans within {proved:.2%} of what is certified; on cards: of the card's bound."""


def bounds_of(suite: Suite) -> Iterator[str]:
    """Certificates of the tasks that have a card, a line each."""
    judge, cards = simulators.make(suite.judge), _cards(suite)
    assert isinstance(judge, FastSimulator)  # cards have bounds by no other
    for index, task in enumerate(suite.tasks("test")):
        if "bound" in cards.get(task.hash, {}):
            about = {"suite": suite.key, "split": "test", "index": index}
            yield json.dumps(certified(task, judge, dual_proofs(task, judge)) | {"about": about}) + "\n"


def measure(options: argparse.Namespace) -> Found:
    """Write what is missing; figures of all suites that have certificates."""
    for key in options.suite or SUITES:
        suite = suites.get(key)
        if _cards(suite) and (options.fresh or not _path(suite).exists()):
            text = "".join(bounds_of(suite))
            write_whole(_path(suite), gzip.compress(text.encode(), mtime=0))
            sys.stderr.write(f"{_path(suite)}\n")
    return {"rows": [_row(suite) for suite in SUITES.values() if _path(suite).exists()]}


def page(found: Found) -> str:
    """The table of suites."""
    rows = [[f"{r[name]:.3%}" if name in HEAD[4:6] else str(r[name]) for name in HEAD] for r in found["rows"]]
    made = f"Made by `{found['command']}`, commit {found['commit'] or 'unknown'}."
    return "\n".join([INTRO.format(proved=PROVED), "", *table(HEAD, rows), "", made]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The page, and the certificates that it is about."""
    parser = pages.parser("certificates", __doc__)
    parser.add_argument("--suite", type=names, metavar="NAME,...", help="default: all that have cards")
    parser.add_argument("--fresh", action="store_true", help="also where there are certificates")
    return pages.run(parser, measure, page, arguments)


def _row(suite: Suite) -> dict[str, Any]:
    cards = _cards(suite)
    with opened(_path(suite)) as file:
        told = [parsed_json(line) for line in file]
    pairs = [(cards[one["task"]], one["bound"]) for one in told if one["task"] in cards]
    below = [1 - bound / card["bound"] for card, bound in pairs]
    forms = Counter(one["proof"]["form"] for one in told)
    proved = sum(card["best"] <= bound * (1 + PROVED) for card, bound in pairs)
    figures = (suite.key, sum("bound" in card for card in cards.values()), len(told))
    words = ", ".join(f"{form} {count}" for form, count in forms.most_common())
    on_cards, size = sum(card["proved"] for card, _ in pairs), f"{_path(suite).stat().st_size:,}"
    most = max(0.0, float(np.max(below)))
    return dict(zip(HEAD, (*figures, words, float(np.mean(below)), most, proved, on_cards, size), strict=True))


def _cards(suite: Suite) -> dict[str, Any]:
    return load_cards(RESULTS / "headroom" / f"{suite.key}.json", suite.judge)


def _path(suite: Suite) -> Path:
    return FOLDER / f"{suite.key}.jsonl.gz"


if __name__ == "__main__":
    sys.exit(main())
