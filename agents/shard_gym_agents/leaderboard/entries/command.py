"""Pack runs into an entry, and check entries of others."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from shard_gym.errors import EntryRefused, InvalidTask
from shard_gym.records import commands
from shard_gym.records.escape import plain
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.entry import ABOUT, MOST_BYTES, pack, results_of
from shard_gym_agents.leaderboard.entries.validate import Validated, validate, validate_all

REFUSED = 1  # exit code


SUBMIT = """Pack the runs of a card's agent into an entry, which anybody can check and publish.

What does not come out again is not written."""
VALIDATE = "Check entries: score every plan again. The exit code is the highest of all entries."
EXITS = {
    REFUSED: "an entry can be read, but what it claims does not come out, or its card says otherwise; with --strict "
    "also: it is not what is published",
    commands.FAILED: "one is no entry, is half-written, changed or too large, or the command is wrong",
}


def submit(options: argparse.Namespace) -> None:
    """Pack the runs of a card's agent."""
    with commands.waiting(options, "submit: scoring every plan again"):
        made = packed(options.run_of, Card.load(options.card), options.out)
    short = [f"not to be published (validate --strict): {reason}" for reason in made.short]
    commands.answer(options, "entry-packed/1", lambda: _json(made), lambda: "\n".join([told(made), *short]))


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


def check(options: argparse.Namespace) -> int:
    """Check entries, each with a line."""
    folders = [entry for given in options.entries for entry in _entries_in(given)]
    with commands.waiting(options, "validate: scoring every plan again"):
        return max(_report(options, folder, found) for folder, found in validate_all(folders, options.strict))


def told(found: Validated) -> str:
    """One line on an entry that comes out as it claims."""
    card = found.entry.card
    size = sum((found.entry.folder / name).stat().st_size for name in MOST_BYTES)
    runs = f"{found.entry.claims.results} results, {found.plans} plans scored again, {found.feasible} feasible"
    return f"{found.entry.folder}: {card.agent} ({card.track}) on {', '.join(card.suites)}: {runs}; {size:,} bytes"


def _json(found: Validated) -> dict[str, Any]:
    """The same as JSON."""
    card, claims = found.entry.card, found.entry.claims
    return {
        "entry": found.entry.folder,
        "accepted": True,
        "agent": card.agent,
        "track": card.track,
        "suites": card.suites,
        "results": claims.results,
        "plans": found.plans,
        "feasible": found.feasible,
        "notes": found.short,
    }


def _report(options: argparse.Namespace, folder: Path, found: Validated | Exception) -> int:
    """Tell what came of an entry; the exit code."""
    if isinstance(found, Validated):
        lines = [told(found), *(f"  note: {reason}" for reason in found.short)]
        commands.answer(options, "entry-checked/1", lambda: _json(found), lambda: "\n".join(lines))
        return 0
    if options.json:
        why = {"entry": folder, "accepted": False, "error": type(found).__name__, "message": str(found)}
        commands.answer(options, "entry-checked/1", lambda: why, str)
    else:
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


def submit_parser() -> commands.Parser:
    """Options of `submit`."""
    examples = ("shard-gym submit runs/leaderboard --card card.toml --out entry",)
    parser = commands.parser("shard-gym submit", SUBMIT, examples=examples, answer="the entry")
    told = "a file of results, or the folder of a leaderboard"
    parser.add_argument("run_of", type=Path, metavar="RUN", help=told)
    told = "of the agent; `shard-gym new-agent` writes one"
    parser.add_argument("--card", type=Path, required=True, metavar="CARD.toml", help=told)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the entry; an older one there goes")
    parser.set_defaults(run=submit)
    return parser


def validate_parser() -> commands.Parser:
    """Options of `validate`."""
    examples = ("shard-gym validate entry --strict", "shard-gym validate entries --json")
    parser = commands.parser(
        "shard-gym validate", VALIDATE, examples=examples, exits=EXITS, answer="one object an entry"
    )
    told = "a folder, or one that holds entries"
    parser.add_argument("entries", nargs="+", type=Path, metavar="ENTRY", help=told)
    parser.add_argument("--strict", action="store_true", help="refuse also what is not compared with others")
    parser.set_defaults(run=check)
    return parser
