"""Unite what parts of one piece of work wrote: shard-gym merge runs/1 runs/2 --out runs/all

Folders of `shard-gym measure --part I/N` become one folder with its measurements.npz, results of `shard-gym
leaderboard --part I/N` one result. Parts of different work are refused, and so are two answers to one question.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from shard_gym.errors import CorruptFile
from shard_gym.records import commands

CAMPAIGN = "campaign.json"  # what a folder of measurements holds
MEASURED = "shard_gym.measuring.merging"  # each has merge(paths, out) -> lines to tell
RESULTS = "shard_gym_agents.leaderboard.merging"


def main(arguments: Sequence[str]) -> int:
    """Unite parts."""
    made = commands.parser("shard-gym merge", __doc__)
    made.add_argument("parts", nargs="+", type=Path, metavar="PART", help="folders, or files of results")
    made.add_argument("--out", type=Path, required=True, help="where the whole goes, beside the parts")
    return commands.run(made, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    if absent := [path for path in options.parts if not path.exists()]:
        raise CorruptFile(f"{absent[0]} is not there")
    measured = [(path / CAMPAIGN).exists() for path in options.parts]
    if any(measured) and not all(measured):
        other = options.parts[measured.index(False)]
        raise CorruptFile(f"{other} holds no {CAMPAIGN}, but other parts are folders of measurements")
    merge = import_module(MEASURED if all(measured) else RESULTS).merge
    commands.show("\n".join(merge(options.parts, options.out)))
