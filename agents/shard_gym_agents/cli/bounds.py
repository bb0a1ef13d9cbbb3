"""Bounds with certificates, and their check.

    shard-gym bound --suite core-80x8 --index 3 --out bound.json
    shard-gym verify bound.json

Exit codes of `verify`: 0 all certificates prove what they claim; 1 one does not, or is not of its task; 2 a file cannot
be read, or the command is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shard_gym import simulators
from shard_gym.bounds import certificate
from shard_gym.bounds.certify import certified
from shard_gym.errors import CorruptFile, SimulatorError, UnknownName
from shard_gym.proofs import verify
from shard_gym.records import commands
from shard_gym.records.escape import plain
from shard_gym.records.files import write_whole
from shard_gym.records.guard import guarded, opened, parsed_json, text_of
from shard_gym.records.ledger import lines_of, parsed
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents.cli.tasks import add_task, task_of
from shard_gym_agents.search.duals import dual_proofs

REFUSED = 1  # exit code


def bound(arguments: Sequence[str]) -> int:
    """Tell what no plan of a task beats by its judge, and write down why."""
    parser = commands.parser("shard-gym bound", __doc__)
    add_task(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the certificate, as JSON")

    def command(options: argparse.Namespace) -> None:
        task, _, judge = task_of(options)
        if not isinstance(judge, FastSimulator):
            raise SimulatorError(f"no bound is known for {judge.id}: give a roofline or a learned simulator")
        told = certified(task, judge, dual_proofs(task, judge))
        if options.suite:
            about = {"suite": suites.get(options.suite).key, "split": options.split, "index": options.index}
            told["about"] = about
        commands.show(f"no plan is faster than {told['bound']:.6f} ms by {judge.id} ({told['proof']['form']})")
        commands.show(f"in the way: {certificate(task, judge, 0.0).resource}")
        if options.out:
            write_whole(options.out, json.dumps(told) + "\n")

    return commands.run(parser, command, arguments)


def verify_files(arguments: Sequence[str]) -> int:
    """Accept or refuse each certificate of some files, one a line."""
    parser = commands.parser("shard-gym verify", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".json or .jsonl, packed if it ends in .gz")
    parser.add_argument(
        "--task", type=Path, metavar="FILE", help="the task as JSON, where a certificate names no suite's"
    )

    def command(options: argparse.Namespace) -> int:
        task = Task.from_json(text_of(options.task)) if options.task else None
        return max(_checked(path, task) for path in options.files)

    return commands.run(parser, command, arguments)


def _checked(path: Path, task: Task | None) -> int:
    """Check a file's certificates, and tell; the exit code."""
    accepted = refused = 0
    for number, told in _certificates(path):
        try:
            simulator = _simulator_of(told)
            verify(told, _task_of(told) if task is None else task, simulator)
            accepted += 1
        except (CorruptFile, SimulatorError, UnknownName) as error:
            refused += 1
            sys.stderr.write(plain(f"refused: {path}, line {number}: {error}") + "\n")
    commands.show(f"{path}: {accepted} certificates accepted, {refused} refused")
    return REFUSED if refused or not accepted else 0


def _certificates(path: Path) -> Iterator[tuple[int, Any]]:
    with opened(path) as file:
        for number, line in lines_of(path, file):
            yield number, parsed(path, number, line, parsed_json, "certificate")


def _task_of(told: Any) -> Task:
    """The task of a suite that a certificate names."""
    with guarded("a certificate names suite, split and index of its task under `about`; or give --task"):
        about = told["about"]
        return suites.get(about["suite"]).bank_of(about["split"])[whole(about["index"])]


def _simulator_of(told: Any) -> FastSimulator:
    """The simulator that a certificate names; files are not opened."""
    named = told.get("simulator") if isinstance(told, dict) else None
    if named not in simulators.registered():
        raise UnknownName("simulator", named, simulators.registered())
    made = simulators.make(named)
    if not isinstance(made, FastSimulator):
        raise SimulatorError(f"{named} measures: it has no bounds")
    return made
