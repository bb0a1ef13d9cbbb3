"""Bounds with certificates, and their check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
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
from shard_gym_agents.cli.tasks import add_task, picked, task_of
from shard_gym_agents.search.duals import dual_proofs

REFUSED = 1  # exit code


BOUND = """Tell what no plan of a task beats by its judge, and which resource is in the way.

--out keeps the certificate. `shard-gym verify` checks a certificate by code that neither bounds nor searches."""
VERIFY = "Accept or refuse certificates of bounds, one a line of each file."


def bound(options: argparse.Namespace) -> None:
    """Tell what no plan of a task beats by its judge, and write down why."""
    task, _, judge = task_of(options)
    if not isinstance(judge, FastSimulator):
        raise SimulatorError(f"no bound is known for {judge.id}: give a roofline or a learned simulator")
    with commands.waiting(options, "bound"):
        told = certified(task, judge, dual_proofs(task, judge))
    if options.suite:
        split, index = picked(options)
        told["about"] = {"suite": suites.get(options.suite).key, "split": split, "index": index}
    resource = certificate(task, judge, 0.0).resource
    if options.out:
        write_whole(options.out, json.dumps(told) + "\n")
    first = f"no plan is faster than {told['bound']:.6f} ms by {judge.id} ({told['proof']['form']})"
    commands.answer(options, "certificate/1", lambda: told, lambda: f"{first}\nin the way: {resource}")


def verify_files(options: argparse.Namespace) -> int:
    """Accept or refuse each certificate of some files, one a line."""
    task = Task.from_json(text_of(options.task)) if options.task else None
    with commands.waiting(options, "verify"):
        return max(_checked(options, path, task) for path in options.files)


def _checked(options: argparse.Namespace, path: Path, task: Task | None) -> int:
    """Check a file's certificates, and tell; the exit code."""
    accepted, refused = 0, []
    for number, told in _certificates(path):
        try:
            simulator = _simulator_of(told)
            verify(told, _task_of(told) if task is None else task, simulator)
            accepted += 1
        except (CorruptFile, SimulatorError, UnknownName) as error:
            refused.append({"line": number, "why": str(error)})
            if not options.json:
                sys.stderr.write(plain(f"refused: {path}, line {number}: {error}") + "\n")
    commands.answer(
        options,
        "verified/1",
        lambda: {"file": path, "accepted": accepted, "refused": refused},
        lambda: f"{path}: {accepted} certificates accepted, {len(refused)} refused",
    )
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


def bound_parser() -> commands.Parser:
    """Options of `bound`."""
    examples = (
        "shard-gym bound --suite core-80x8 --index 3 --out bound.json",
        "shard-gym bound --tables tables.csv --hardware dgx-h100 --json",
    )
    parser = commands.parser("shard-gym bound", BOUND, examples=examples, answer="the certificate")
    add_task(parser)
    told = "where to write the certificate, as JSON; default: nowhere"
    parser.add_argument("--out", type=Path, metavar="FILE", help=told)
    parser.set_defaults(run=bound)
    return parser


def verify_parser() -> commands.Parser:
    """Options of `verify`."""
    examples = ("shard-gym verify bound.json", "shard-gym verify bound.json --task task.json")
    exits = {REFUSED: "a certificate does not prove what it claims, or is not of its task"}
    answer = "one object a file"
    parser = commands.parser("shard-gym verify", VERIFY, examples=examples, exits=exits, answer=answer)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".json or .jsonl, packed if it ends in .gz")
    told = "the task as JSON, where a certificate names no suite's"
    parser.add_argument("--task", type=Path, metavar="FILE", help=told)
    parser.set_defaults(run=verify_files)
    return parser
