"""Of the `shard-gym` command: constraints as people write them, the line that follows a search, and what moves."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.evaluate import Score
from shard_gym.files import read_json
from shard_gym.moves import Delta
from shard_gym.numbers import whole
from shard_gym.plan import Plan, check
from shard_gym.tables import GB
from shard_gym.tasks import Constraints, Task

KEYS = tuple(field.name for field in fields(Constraints))


def add_constraints(command: argparse.ArgumentParser) -> None:
    """What a plan must respect besides memory."""
    group = command.add_argument_group("constraints, tables by name or index")
    group.add_argument("--constraints", type=Path, metavar="FILE", help=f"JSON with some of: {', '.join(KEYS)}")
    group.add_argument("--pin", action="append", default=[], metavar="TABLE=DEVICE")
    group.add_argument("--together", action="append", default=[], metavar="A,B,...", help="on one device")
    group.add_argument("--apart", action="append", default=[], metavar="A,B,...", help="on different devices")
    group.add_argument("--no-split", action="append", default=[], metavar="TABLE")
    group.add_argument("--base", type=Path, metavar="PLAN", help="the plan in use, a file that --out wrote")
    group.add_argument("--max-moves", type=int, metavar="M", help="tables that may leave their device in --base")


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
    }
    for name, more in flags.items():
        given[name] = (*given[name], *told.get(name, ()), *more)
    if options.base:
        given["base"] = in_use(task, options.base).device
    if options.max_moves is not None:
        given["max_moves"] = options.max_moves
    return replace(task, constraints=Constraints(**given))


def in_use(task: Task, path: Path) -> Plan:
    """The plan of a file, if it can be `base`: of this task, and without splits."""
    plan = Plan.load(path)
    check(task, plan)
    if plan.splits:
        raise InvalidTask(f"{path} splits tables: base has one device a table, so the plan in use must have no splits")
    return plan


def _of_file(task: Task, path: Path) -> dict[str, Any]:
    """Constraints of a JSON file, tables as indices."""
    data = read_json(path)
    if not isinstance(data, dict) or (unknown := data.keys() - set(KEYS)):
        found = sorted(unknown) if isinstance(data, dict) else type(data).__name__
        raise CorruptFile(f"{path}: constraints are an object with some of {', '.join(KEYS)}; got {found}")
    told = dict(data)
    try:
        if "pin" in told:
            pins = told["pin"].items() if isinstance(told["pin"], dict) else told["pin"]
            told["pin"] = [(table_index(task, table), device) for table, device in pins]
        for name in ("together", "apart"):
            told[name] = [_group(task, group) for group in told.get(name) or ()]
        told["no_split"] = _group(task, told.get("no_split") or ())
        return {name: value for name, value in told.items() if value is not None}
    except (TypeError, ValueError) as error:
        raise CorruptFile(f"{path}: {error}") from error


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


class Line:
    """One line on the terminal that follows a search: the best makespan, and the time."""

    def __init__(self, shown: bool, budget: float | None) -> None:
        self.shown, self.of, self.written = shown, "" if budget is None else f" of {budget:g}", False

    def __call__(self, makespan: float, seconds: float) -> None:
        """Told of a better plan."""
        if self.shown:
            sys.stderr.write(f"\rbest {makespan:.3f} ms after {seconds:.1f}{self.of} s ")
            sys.stderr.flush()
            self.written = True

    def end(self) -> None:
        """What is printed next begins a line of its own."""
        if self.written:
            sys.stderr.write("\n")


def delta_report(task: Task, delta: Delta, scores: Sequence[Score]) -> str:
    """Makespans of the old and the new plan, then what moves."""
    old, new = scores
    lines = [f"makespan {old.makespan:.3f} -> {new.makespan:.3f} ms ({task.objective})"]
    for which, score in zip(("old", "new"), scores, strict=True):
        lines += [f"INFEASIBLE, the {which} plan: {violation}" for violation in score.violations]
    lines.append(f"{delta.tables} of {task.num_tables} tables move, {delta.bytes / GB:.2f} GB")
    if delta.moves:
        wide = max(5, *(len(move.name) for move in delta.moves))
        lines.append(f"{'table':{wide}} {'columns':>9} {'GB':>8} {'from':>5} {'to':>5}")
        lines += [
            f"{move.name:{wide}} {move.columns[0]:4}-{move.columns[1] - 1:<4} {move.bytes / GB:8.3f} "
            f"{move.source:5} {move.target:5}"
            for move in delta.moves
        ]
    return "\n".join(lines)


def delta_json(delta: Delta, scores: Sequence[Score]) -> str:
    """The same as JSON."""
    worth = {which: asdict(score) for which, score in zip(("old", "new"), scores, strict=True)}
    return json.dumps(worth | {"tables": delta.tables, "bytes": delta.bytes, **asdict(delta)})


def repaid(delta: Delta, scores: Sequence[Score], gb_s: float) -> str:
    """How long moving takes, and after how many steps it is repaid."""
    ms, gain = 1e3 * delta.seconds(gb_s * 1e9), scores[0].makespan - scores[1].makespan
    told = f"moving takes {ms:.1f} ms at {gb_s:g} GB/s a device"
    return f"{told}, repaid after {ms / gain:,.0f} steps" if gain > 0 and ms > 0 else told
