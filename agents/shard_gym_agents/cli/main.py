"""The `shard-gym` command: finds the subcommand and runs it, or tells which there are."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from shard_gym.errors import SettingsIgnored, meant
from shard_gym.records import commands
from shard_gym_agents.cli import version
from shard_gym_agents.cli.index import COMMANDS, GROUPS

NAME = "shard-gym"
USAGE = f"usage: {NAME} COMMAND ..."
BEGIN = (
    f"{NAME} solve --tables tables.csv --hardware dgx-h100 --agent auto --budget 1s",
    f"{NAME} leaderboard --suite core-60x4 --agents random,cost-greedy --tasks 5",
)
HELP = (
    f"{NAME} --help            a line on each command",
    f"{NAME} COMMAND --help    options, examples and exit codes of one",
    f"{NAME} --version         versions of what is installed",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an agent may be a module of the current folder; a torch.py there is not torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsIgnored)  # the line of what is assumed tells
        return commands.ended(NAME, lambda: _main(given), as_json="--json" in given)


def _main(given: list[str]) -> int:
    for words in (2, 1):
        if (name := " ".join(given[:words])) in COMMANDS:
            return COMMANDS[name].run(given[words:])
    first = given[0] if given else ""
    within = {name: command.about for name, command in COMMANDS.items() if name.startswith(f"{first} ")}
    if "--version" in given and not within:
        return version.tell("--json" in given)
    if first in ("-h", "--help"):
        commands.show("\n".join(_long()))
    elif not given:
        commands.show("\n".join(_short()))
    elif within and given[1:] in ([], ["-h"], ["--help"]):
        commands.show("\n".join([f"usage: {NAME} {first} STAGE ...", "", *_lines(within)]))
    else:
        known = {name.partition(" ")[0]: "" for name in COMMANDS} | within
        asked = " ".join(given[:2]) if within else first
        message = f"unknown command {asked!r}{meant(asked, known)}"
        commands.complain(NAME, "WrongCommand", message, "--json" in given, f"{NAME} --help")
        return commands.FAILED
    return 0


def _short() -> Iterator[str]:
    """Names of the commands in their groups, and what to begin with."""
    yield from (USAGE, "")
    for group, of in GROUPS.items():
        names = dict.fromkeys(name.partition(" ")[0] for name in of)
        yield f"  {group:16} {', '.join(names)}"
    yield from ("", "to begin with:", *(f"  {line}" for line in BEGIN), "", *HELP)


def _long() -> Iterator[str]:
    """A line on each command, group by group."""
    yield from (USAGE, "", "Embedding-table sharding: plans, their costs, and agents that make them.")
    for group, of in GROUPS.items():
        yield from ("", f"{group}:", *_lines({name: command.about for name, command in of.items()}))
    yield from ("", "to begin with:", *(f"  {line}" for line in BEGIN), "", *HELP, "", "exit codes:")
    yield from (f"  {code:<3}  {what}" for code, what in commands.EXITS.items())


def _lines(about: dict[str, str]) -> Iterator[str]:
    return (f"  {name:13} {what}" for name, what in about.items())


if __name__ == "__main__":
    sys.exit(main())
