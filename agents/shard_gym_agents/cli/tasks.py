"""The task of a command: its options, and the task with constraints, planner and judge."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from shard_gym import make_task, simulators
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.plan.plan import Plan, check
from shard_gym.records.commands import count, names
from shard_gym.records.files import read_json
from shard_gym.records.guard import guarded, text_of
from shard_gym.records.numbers import whole
from shard_gym.simulators import Simulator
from shard_gym.tables.pool import ELEMENT_BYTES, GB
from shard_gym.task import suites
from shard_gym.task.constraints import KINDS, known_kinds
from shard_gym.task.machines import MACHINES, Machine, read_machine
from shard_gym.task.optimizers import OPTIMIZERS
from shard_gym.task.own import memory_of
from shard_gym.task.task import ACCOUNTINGS, OBJECTIVES, RESIDENCES, Constraints, Task

OWN = ("hardware", "hosts", "devices", "memory_gb", "allow_splits")  # options of --tables alone
SETTINGS = ("objective", "batch", "optimizer", "accounting", "kinds", "residences")
TABLES = "your tables: .csv, .json, .parquet, or a dlrm_datasets .pt[.gz]"
HARDWARE = f"a .toml file, or one of {', '.join(MACHINES)}"
KEYS = tuple(field.name for field in fields(Constraints))


def task_of(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    """The task that the options name, with its planner and judge."""
    if not options.tables:
        _refuse_own(options)
    if options.task:
        text = text_of(options.task)
        try:
            task = Task.from_json(text)
        except CorruptFile as error:
            raise CorruptFile(f"{options.task}: {error}") from error
        ids = (simulators.DEFAULT, simulators.DEFAULT)
    elif options.tables:
        task, simulator = _task_of_tables(options)
        ids = (simulator, simulator)
    else:
        suite = suites.get(options.suite)
        tasks = suite.tasks(options.split)
        if not 0 <= options.index < len(tasks):
            raise InvalidTask(f"{suite.key} has {options.split} tasks 0..{len(tasks) - 1}, not {options.index}")
        task, ids = tasks[options.index], (suite.planner, suite.judge)
    planner, judge = (simulators.make(options.simulator or simulator_id) for simulator_id in ids)
    return _changed(task, options), planner, judge


def _refuse_own(options: argparse.Namespace) -> None:
    """Refuse what a task of a suite or a file says itself."""
    if given := [name for name in OWN if getattr(options, name)]:
        raise InvalidTask(f"--{given[0].replace('_', '-')} is for --tables: a task of a suite or a file has its own")


def _changed(task: Task, options: argparse.Namespace) -> Task:
    """The task with the settings that the options tell in place of its own."""
    told = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    if options.dtype:
        told["tables"] = task.tables.with_(dtype=(options.dtype,) * task.num_tables)
    if options.kinds:
        told["splits_allowed"] = options.allow_splits  # and where kinds cut columns
    if options.host_memory_gb is not None:
        told["host_memory"] = gib(options.host_memory_gb)
    if options.host_link_gb_s is not None:
        told["host_link"] = options.host_link_gb_s * 1e6
    return replace(task, **told)


def gib(number: float | None) -> int | None:
    """Bytes of a number of GiB."""
    if number is not None and not 0 <= number < math.inf:
        raise InvalidTask(f"gigabytes are a number from 0, got {number}")
    return None if number is None else int(number * GB)


def machine_of(options: argparse.Namespace) -> Machine:
    """The machine of --hardware, with as many hosts and devices as are told."""
    machine = read_machine(options.hardware)
    machine = machine if options.hosts is None else machine.of_hosts(options.hosts)
    return machine if options.devices is None else replace(machine, devices=options.devices)


def _task_of_tables(options: argparse.Namespace) -> tuple[Task, str]:
    """The tables of a file on the devices that the options tell, and the simulator that is closest to these."""
    settings = {"splits_allowed": options.allow_splits}
    if options.hardware:
        machine = machine_of(options)
        task = machine.task(options.tables, **settings)
        if options.memory_gb is not None:
            memory = map(int, memory_of(machine.devices, options.memory_gb))
            task = replace(task, memory=tuple(memory))
        return task, machine.simulator or simulators.DEFAULT
    if not options.devices or not options.memory_gb:
        raise InvalidTask(
            "--tables needs --devices K and --memory-gb G, the devices and what each has for tables; or --hardware, "
            f"one of {', '.join(MACHINES)} or a .toml file"
        )
    if options.hosts not in (None, 1):
        raise InvalidTask(f"--hosts {options.hosts} needs --hardware, which knows the wires inside and between hosts")
    return make_task(options.tables, options.devices, options.memory_gb, **settings), simulators.DEFAULT


def add_task(command: argparse.ArgumentParser) -> None:
    """The options that name a task."""
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--suite", help="a name from `shard-gym suites`")
    which.add_argument("--task", metavar="FILE", help="a task as JSON")
    which.add_argument("--tables", metavar="FILE", help=TABLES)
    own = command.add_argument_group("with --tables")
    own.add_argument("--hardware", metavar="NAME|FILE", help=HARDWARE)
    _add_own(command, own)
    command.add_argument("--index", type=int, default=0, help="of the task in the suite's split")
    command.add_argument("--split", default="test", help="test, val or train")


def add_tables(command: argparse.ArgumentParser) -> None:
    """The options that name tables and several machines."""
    command.add_argument("--tables", metavar="FILE", required=True, help=TABLES)
    command.add_argument("--hardware", metavar="NAME|FILE,...", type=names, required=True, help=HARDWARE)
    _add_own(command, command.add_argument_group("of each machine"))


def _add_own(command: argparse.ArgumentParser, own: argparse._ArgumentGroup) -> None:
    own.add_argument("--hosts", type=count, metavar="H", help="so many of --hardware's")
    own.add_argument("--devices", type=count, metavar="K", help="of all hosts together; default: --hardware's")
    own.add_argument("--memory-gb", type=float, metavar="GiB", help="that each device has left for tables, 2**30 bytes")
    own.add_argument("--allow-splits", action="store_true", help="let solvers halve the columns of tables")
    what = command.add_argument_group("in place of the task's own; of --tables: iteration, the file's, sgd, training")
    what.add_argument("--objective", choices=OBJECTIVES)
    what.add_argument("--batch", type=int, metavar="SAMPLES", help="a step, over all devices")
    what.add_argument("--dtype", choices=tuple(ELEMENT_BYTES), help="of the weights of all tables")
    what.add_argument("--optimizer", choices=OPTIMIZERS)
    what.add_argument("--accounting", choices=ACCOUNTINGS, help="what counts as memory")
    what.add_argument(
        "--kinds", type=names, metavar="KIND,...", help=f"of sharding that tables may have: {', '.join(KINDS)}"
    )
    what.add_argument(
        "--residences", type=names, metavar="PLACE,...", help=f"where rows may live: {', '.join(RESIDENCES)}"
    )
    what.add_argument(
        "--host-memory-gb", type=float, metavar="GiB", help="of its host's, for the tables of each device"
    )
    what.add_argument("--host-link-gb-s", type=float, metavar="GB/S", help="of each device to it, 1e9 bytes")
    simulated = f"default: the suite's, --hardware's, or {simulators.DEFAULT}"
    command.add_argument("--simulator", metavar="ID", help=simulated)


def add_constraints(command: argparse.ArgumentParser) -> None:
    """Add the options of what a plan must respect besides memory."""
    group = command.add_argument_group("constraints, tables by name or index")
    group.add_argument("--constraints", type=Path, metavar="FILE", help=f"JSON with some of: {', '.join(KEYS)}")
    group.add_argument("--pin", action="append", default=[], metavar="TABLE=DEVICE")
    group.add_argument("--together", action="append", default=[], metavar="A,B,...", help="on one device")
    group.add_argument("--apart", action="append", default=[], metavar="A,B,...", help="on different devices")
    group.add_argument("--no-split", action="append", default=[], metavar="TABLE")
    group.add_argument("--kinds-of", action="append", default=[], metavar="TABLE=KIND,...", help="that it may have")
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
        "kinds": [_kinds_of(task, told) for told in options.kinds_of],
    }
    for name, more in flags.items():
        given[name] = (*given[name], *told.get(name, ()), *more)
    if options.base:
        given["base"] = in_use(task, options.base).device
    if options.max_moves is not None:
        given["max_moves"] = options.max_moves
    return replace(task, constraints=Constraints(**given))


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
