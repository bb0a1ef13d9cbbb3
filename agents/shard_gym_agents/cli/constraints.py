"""Constraints of a command: their options, and the task that has to keep them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.plan.plan import Plan, check
from shard_gym.records.files import read_json
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole
from shard_gym.task.constraints import KINDS, known_kinds
from shard_gym.task.task import Constraints, Task

KEYS = tuple(field.name for field in fields(Constraints))
RESHARD = "reshard"  # the agent to which the plan in use alone says something


def add_constraints(command: argparse.ArgumentParser) -> None:
    """Add the options of what a plan must respect besides memory."""
    add = command.add_argument_group("constraints; tables by name, or by index from 0").add_argument
    add("--constraints", type=Path, metavar="FILE", help=f"JSON with some of: {', '.join(KEYS)}")
    add("--pin", action="append", default=[], metavar="TABLE=DEVICE", help="a table's device, from 0; repeatable")
    add("--together", action="append", default=[], metavar="A,B,...", help="tables that go on one device; repeatable")
    add(
        "--apart",
        action="append",
        default=[],
        metavar="A,B,...",
        help="tables on different devices; repeatable",
    )
    add("--no-split", action="append", default=[], metavar="TABLE", help="a table that is not to be halved; repeatable")
    kinds = f"kinds that a table may have, some of {', '.join(KINDS)}; repeatable"
    add("--kinds-of", action="append", default=[], metavar="TABLE=KIND,...", help=kinds)
    add("--base", type=Path, metavar="PLAN", help="the plan in use, a file that --out wrote")
    add("--max-moves", type=int, metavar="M", help="tables that may leave their device in --base; default: any number")


def constrained(task: Task, options: argparse.Namespace) -> Task:
    """The task with its own constraints, those of the file, and those of the flags."""
    told = _of_file(task, options.constraints) if options.constraints else {}
    given: dict[str, Any] = asdict(task.constraints) | {
        name: told[name] for name in ("base", "max_moves") if name in told
    }
    flags: dict[str, Sequence[Any]] = {
        "pin": [_pin(task, pin) for pin in options.pin],
        "together": [_group(task, group.split(",")) for group in options.together],
        "apart": [_group(task, group.split(",")) for group in options.apart],
        "no_split": _group(task, options.no_split),
        "kinds": [_kinds_of(task, told) for told in options.kinds_of],
    }
    for name, more in flags.items():
        given[name] = (*given[name], *told.get(name, ()), *more)
    if options.base:
        given["base"] = in_use(task, options.base).device
    if options.max_moves is not None:
        given["max_moves"] = options.max_moves
    if options.base and given["max_moves"] is None and not _uses_base(getattr(options, "agent", "")):
        raise InvalidTask("--base alone changes nothing here: add --max-moves M, or see `shard-gym reshard --help`")
    return replace(task, constraints=Constraints(**given))


def _uses_base(agent: str) -> bool:
    """True if the plan in use may change what the agent does: it is `reshard`, or a user's own."""
    return agent == RESHARD or ":" in agent


def in_use(task: Task, path: Path) -> Plan:
    """The plan of a file, if it can be `base`: of this task, and of whole tables."""
    plan = Plan.load(path)
    check(task, plan)
    if not plan.whole_tables:
        told = "so the plan in use must be of whole tables; `shard-gym reshard` takes any"
        raise InvalidTask(
            f"{path} splits tables, or shards or keeps them in other ways: base has one device a table, {told}"
        )
    return plan


def _of_file(task: Task, path: Path) -> dict[str, Any]:
    """Constraints of a JSON file, tables as indices."""
    data = read_json(path)
    if not isinstance(data, dict) or (unknown := data.keys() - set(KEYS)):
        found = sorted(unknown) if isinstance(data, dict) else type(data).__name__
        raise CorruptFile(f"{path}: constraints are an object with some of {', '.join(KEYS)}; got {found}")
    told = dict(data)
    with guarded(path):
        if "pin" in told:
            told["pin"] = [(table_index(task, table), device) for table, device in _pairs(told["pin"])]
        for name in ("together", "apart"):
            told[name] = [_group(task, group) for group in told.get(name) or ()]
        told["no_split"] = _group(task, told.get("no_split") or ())
        told["kinds"] = [(table_index(task, table), kinds) for table, kinds in _pairs(told.get("kinds") or ())]
        return {name: value for name, value in told.items() if value is not None}


def _pairs(told: Any) -> Iterable[Any]:
    """Tables and what is told of each, of an object or of a list of pairs."""
    return told.items() if isinstance(told, dict) else told


def _kinds_of(task: Task, text: str) -> tuple[int, tuple[str, ...]]:
    table, equals, kinds = text.rpartition("=")
    if not equals or not kinds:
        raise InvalidTask(f"--kinds-of takes TABLE=KIND,... with some of {', '.join(KINDS)}; got {text!r}")
    return table_index(task, table), known_kinds(kinds.split(","))


def _pin(task: Task, text: str) -> tuple[int, int]:
    table, equals, device = text.rpartition("=")
    if not equals or not device.isdecimal():
        raise InvalidTask(f"--pin takes TABLE=DEVICE, the device by its number; got {text!r}")
    return table_index(task, table), int(device)


def _group(task: Task, tables: Iterable[Any]) -> tuple[int, ...]:
    if isinstance(tables, str):
        raise InvalidTask(f"a group of tables is a list, got {tables!r}")
    return tuple(table_index(task, table) for table in tables)


def table_index(task: Task, table: Any) -> int:
    """The index of a table that is given by name or by index; a name wins."""
    if not isinstance(table, str):
        return whole(table)
    named = [i for i, name in enumerate(task.tables.name) if name == table]
    if len(named) > 1:
        raise InvalidTask(f"{len(named)} tables are called {table!r}: give an index, one of {named}")
    if named:
        return named[0]
    if not table.isdecimal():
        raise InvalidTask(f"no table is called {table!r}: give a name of the task, or an index from 0")
    return int(table)
