"""Pack runs into an entry, and check entries of others.

    shard-gym submit runs/leaderboard --card card.toml --out entry
    shard-gym validate entry --strict

Exit codes of `validate`, the highest of all entries: 0 each comes out as it claims; 1 one can be read, but something
else comes out, or its card says otherwise (with --strict also: it is not what is published); 2 one is no entry, is
half-written, changed or too large, or the command is wrong; 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shard_gym.errors import EntryRefused, InvalidTask
from shard_gym.records import commands
from shard_gym.records.escape import plain
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.entry import ABOUT, MOST_BYTES, pack, results_of
from shard_gym_agents.leaderboard.entries.validate import Validated, validate, validate_all

REFUSED = 1  # exit code


def submit(arguments: Sequence[str]) -> int:
    """Pack the runs of a card's agent."""
    parser = commands.parser("shard-gym submit", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a file of results, or the folder of a leaderboard")
    parser.add_argument("--card", type=Path, required=True, metavar="CARD.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the entry; an older one there goes")

    def command(options: argparse.Namespace) -> None:
        made = packed(options.run, Card.load(options.card), options.out)
        commands.show(told(made))
        for reason in made.short:
            commands.show(f"not to be published (validate --strict): {reason}")

    return commands.run(parser, command, arguments)


def packed(run: Path, card: Card, out: Path, strict: bool = False) -> Validated:
    """An entry made of a run and checked; what does not come out is not written."""
    if out.exists() and not _may_go(out):
        raise InvalidTask(f"{out} holds something else than an entry: name a folder that is not there yet")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
        made = Path(beside) / out.name
        pack(results_of(run, card.agent), card, made)
        found = validate(made, strict)
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return replace(found, entry=replace(found.entry, folder=out))


def check(arguments: Sequence[str]) -> int:
    """Check entries, each with a line."""
    parser = commands.parser("shard-gym validate", __doc__)
    parser.add_argument("entries", nargs="+", type=Path, metavar="ENTRY", help="a folder, or one that holds entries")
    parser.add_argument("--strict", action="store_true", help="refuse also what is not compared with others")

    def command(options: argparse.Namespace) -> int:
        folders = [entry for given in options.entries for entry in _entries_in(given)]
        return max(_report(folder, found) for folder, found in validate_all(folders, options.strict))

    return commands.run(parser, command, arguments)


def told(found: Validated) -> str:
    """One line on an entry that comes out as it claims."""
    card = found.entry.card
    size = sum((found.entry.folder / name).stat().st_size for name in MOST_BYTES)
    runs = f"{found.entry.claims.results} results, {found.plans} plans scored again, {found.feasible} feasible"
    return f"{found.entry.folder}: {card.agent} ({card.track}) on {', '.join(card.suites)}: {runs}; {size:,} bytes"


def _report(folder: Path, found: Validated | Exception) -> int:
    """Tell what came of an entry; the exit code."""
    if isinstance(found, Validated):
        commands.show("\n".join([told(found), *(f"  note: {reason}" for reason in found.short)]))
        return 0
    sys.stdout.flush()
    what = "refused" if isinstance(found, EntryRefused) else "cannot be read"
    sys.stderr.write(plain(f"{what}: {found}") + "\n")
    return REFUSED if isinstance(found, EntryRefused) else commands.FAILED


def _entries_in(folder: Path) -> list[Path]:
    """The folder itself, or the folders in one that holds folders alone."""
    if not folder.is_dir() or (folder / ABOUT).exists():
        return [folder]
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return inside if inside and all(path.is_dir() for path in inside) else [folder]


def _may_go(folder: Path) -> bool:
    """True for an older entry and an empty folder."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= MOST_BYTES.keys()
