"""The task of a command: its options, and the task with constraints, planner and judge."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from shard_gym import make_task, simulators
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.plan.plan import Plan, check
from shard_gym.records.files import read_json
from shard_gym.records.numbers import whole
from shard_gym.simulators import Simulator
from shard_gym.task import suites
from shard_gym.task.task import OBJECTIVES, OPTIMIZERS, Constraints, Task

KEYS = tuple(field.name for field in fields(Constraints))


def task_of(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    """The task that the options name, with its planner and judge."""
    if options.task:
        try:
            task = Task.from_json(Path(options.task).read_text(encoding="utf-8"))
        except (CorruptFile, UnicodeDecodeError) as error:
            raise CorruptFile(f"{options.task}: {error}") from error
        ids = (simulators.DEFAULT, simulators.DEFAULT)
    elif options.tables:
        task, ids = _task_of_tables(options), (simulators.DEFAULT, simulators.DEFAULT)
    else:
        suite = suites.get(options.suite)
        tasks = suite.tasks(options.split)
        if not 0 <= options.index < len(tasks):
            raise InvalidTask(f"{suite.key} has {options.split} tasks 0..{len(tasks) - 1}, not {options.index}")
        task, ids = tasks[options.index], (suite.planner, suite.judge)
    planner, judge = (simulators.make(options.simulator or simulator_id) for simulator_id in ids)
    return task, planner, judge


def _task_of_tables(options: argparse.Namespace) -> Task:
    """The tables of a file on equal devices, for one step of the batch that the file describes."""
    if not options.devices or not options.memory_gb:
        raise InvalidTask("--tables needs --devices K and --memory-gb G, the devices and what each has for tables")
    return make_task(
        options.tables,
        options.devices,
        options.memory_gb,
        objective=options.objective,
        optimizer=options.optimizer,
        splits_allowed=options.allow_splits,
    )


def add_task(command: argparse.ArgumentParser) -> None:
    """The options that name a task."""
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--suite", help="a name from `shard-gym suites`")
    which.add_argument("--task", metavar="FILE", help="a task as JSON")
    which.add_argument(
        "--tables", metavar="FILE", help="your tables: .csv, .json, .parquet, or a dlrm_datasets .pt[.gz]"
    )
    own = command.add_argument_group("with --tables")
    own.add_argument("--devices", type=int, metavar="K")
    own.add_argument("--memory-gb", type=float, metavar="G", help="of each device, for weights and optimizer state")
    own.add_argument("--objective", choices=OBJECTIVES, default="iteration")
    own.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    own.add_argument("--allow-splits", action="store_true", help="let solvers halve the columns of tables")
    command.add_argument("--index", type=int, default=0, help="of the task in the suite's split")
    command.add_argument("--split", default="test", help="test, val or train")
    command.add_argument("--simulator", metavar="ID", help=f"default: the suite's own, or {simulators.DEFAULT}")


def add_constraints(command: argparse.ArgumentParser) -> None:
    """Add the options of what a plan must respect besides memory."""
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
