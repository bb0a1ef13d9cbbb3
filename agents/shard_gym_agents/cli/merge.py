"""Unite what parts of one piece of work wrote.

Folders of `shard-gym measure --part I/N` become one folder with its measurements.npz, results of `shard-gym
leaderboard --part I/N` one result. Parts of different work are refused, and so are two answers to one question."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path

from shard_gym.errors import CorruptFile
from shard_gym.records import commands

CAMPAIGN = "campaign.json"  # what a folder of measurements holds
MEASURED = "shard_gym.measuring.merging"  # each has merge(paths, out) -> lines to tell
RESULTS = "shard_gym_agents.leaderboard.merging"
FLAGS = "shard_gym_agents.leaderboard.arena.flags"


def parser() -> commands.Parser:
    """Options of `merge`."""
    examples = ("shard-gym merge runs/1 runs/2 --out runs/all", "shard-gym merge campaign-1 campaign-2 --out campaign")
    made = commands.parser("shard-gym merge", __doc__, examples=examples, answer="what was united")
    made.add_argument("parts", nargs="+", type=Path, metavar="PART", help="folders, or files of results")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the whole goes, beside the parts")
    imported = "that registers suites or simulators, as the parts were told; repeatable"
    made.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE", help=imported)
    made.set_defaults(run=merge_parts)
    return made


def merge_parts(options: argparse.Namespace) -> None:
    """Unite parts."""
    if absent := [path for path in options.parts if not path.exists()]:
        raise CorruptFile(f"{absent[0]} is not there")
    measured = [(path / CAMPAIGN).exists() for path in options.parts]
    if any(measured) and not all(measured):
        other = options.parts[measured.index(False)]
        raise CorruptFile(f"{other} holds no {CAMPAIGN}, but other parts are folders of measurements")
    if options.imports:
        import_module(FLAGS).import_modules(options.imports)
    aside = redirect_stdout(sys.stderr) if options.json else nullcontext()  # tables of a leaderboard
    with commands.waiting(options, "merge"), aside:
        told = import_module(MEASURED if all(measured) else RESULTS).merge(options.parts, options.out)
    commands.answer(options, "merged/1", lambda: {"out": options.out, "told": told}, lambda: "\n".join(told))
