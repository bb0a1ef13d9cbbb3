"""The task of a command: its options, and the task with constraints, planner and judge."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from shard_gym import make_task, simulators
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.records import commands
from shard_gym.records.commands import count, names
from shard_gym.records.guard import text_of
from shard_gym.simulators import Simulator
from shard_gym.tables.pool import ELEMENT_BYTES, GB
from shard_gym.task import suites
from shard_gym.task.constraints import KINDS
from shard_gym.task.machines import MACHINES, Machine, read_machine
from shard_gym.task.optimizers import OPTIMIZERS
from shard_gym.task.own import memory_of
from shard_gym.task.task import ACCOUNTINGS, OBJECTIVES, RESIDENCES, Task

OWN = ("hardware", "hosts", "devices", "memory_gb", "allow_splits")  # options of --tables alone
SETTINGS = ("objective", "batch", "optimizer", "accounting", "kinds", "residences")
TABLES = "your tables: .csv, .json, .parquet, or a dlrm_datasets .pt[.gz]"
HARDWARE = f"a .toml file, or one of {', '.join(MACHINES)}"
SPLIT, INDEX = "test", 0  # of a suite, unless told


def task_of(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    """The task that the options name, with its planner and judge."""
    with commands.waiting(options, "reading the task"):
        return _task_of(options)


def _task_of(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    if not options.tables:
        _refuse(options, OWN, "is for --tables: a task of a suite or a file has its own")
    if not options.suite:
        _refuse(options, ("split", "index"), "is for --suite: it picks one of its tasks")
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
        split, index = picked(options)
        tasks = suite.tasks(split)
        if not 0 <= index < len(tasks):
            raise InvalidTask(f"{suite.key} has {split} tasks 0..{len(tasks) - 1}, not {index}")
        task, ids = tasks[index], (suite.planner, suite.judge)
    planner, judge = (simulators.make(options.simulator or simulator_id) for simulator_id in ids)
    return _changed(task, options), planner, judge


def picked(options: argparse.Namespace) -> tuple[str, int]:
    """The split and the index of a suite's task."""
    return options.split or SPLIT, INDEX if options.index is None else options.index


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    """Refuse options that would say nothing here."""
    told = {name: getattr(options, name, None) for name in names}
    if given := [name for name, value in told.items() if value is not None and value is not False]:
        raise InvalidTask(f"--{given[0].replace('_', '-')} {why}")


def _changed(task: Task, options: argparse.Namespace) -> Task:
    """The task with the settings that the options tell in place of its own."""
    told = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    if options.dtype:
        told["tables"] = task.tables.with_(dtype=(options.dtype,) * task.num_tables)
    if options.kinds:
        told["splits_allowed"] = options.allow_splits  # and where kinds cut columns
    if task.residences == ("hbm",) and not options.residences:
        _refuse(options, ("host_memory_gb", "host_link_gb_s"), "needs rows in host memory: --residences hbm,uvm")
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
    if options.devices is None or options.memory_gb is None:
        raise InvalidTask(
            "--tables needs --devices K and --memory-gb G, the devices and what each has for tables; or --hardware, "
            f"one of {', '.join(MACHINES)} or a .toml file"
        )
    if options.hosts not in (None, 1):
        raise InvalidTask(f"--hosts {options.hosts} needs --hardware, which knows the wires inside and between hosts")
    return make_task(options.tables, options.devices, options.memory_gb, **settings), simulators.DEFAULT


def add_task(command: argparse.ArgumentParser) -> None:
    """The options that name a task."""
    which = command.add_argument_group("the task, by one of").add_mutually_exclusive_group(required=True)
    which.add_argument("--suite", help="a name from `shard-gym suites`; see --split and --index")
    which.add_argument("--task", metavar="FILE", help="a task as JSON, as Task.to_json writes it")
    which.add_argument("--tables", metavar="FILE", help=TABLES)
    of_suite = command.add_argument_group("with --suite")
    of_suite.add_argument("--split", help=f"{', '.join(suites.SPLITS[::-1])}; default {SPLIT}")
    of_suite.add_argument("--index", type=int, metavar="I", help=f"of the task, from 0; default {INDEX}")
    own = command.add_argument_group("with --tables")
    own.add_argument("--hardware", metavar="NAME|FILE", help=HARDWARE)
    _add_own(command, own)


def add_tables(command: argparse.ArgumentParser) -> None:
    """The options that name tables and several machines."""
    command.add_argument("--tables", metavar="FILE", required=True, help=TABLES)
    command.add_argument("--hardware", metavar="NAME|FILE,...", type=names, required=True, help=HARDWARE)
    _add_own(command, command.add_argument_group("of each machine"))
    command.set_defaults(suite=None, task=None, split=None, index=None)


def _add_own(command: argparse.ArgumentParser, own: argparse._ArgumentGroup) -> None:
    own.add_argument("--hosts", type=count, metavar="H", help="hosts of the kind that --hardware tells; default 1")
    own.add_argument("--devices", type=count, metavar="K", help="of all hosts together; default: --hardware's")
    left = "what each device has left for tables, 2**30 bytes; default: --hardware's"
    own.add_argument("--memory-gb", type=float, metavar="GiB", help=left)
    own.add_argument("--allow-splits", action="store_true", help="let solvers halve the columns of tables")
    what = command.add_argument_group("in place of the task's own settings; of --tables these are the defaults")
    what.add_argument("--objective", choices=OBJECTIVES, help="what a plan is worth; default iteration")
    what.add_argument("--batch", type=int, metavar="SAMPLES", help="a step, over all devices; default: the file's")
    dtype = "of the weights of all tables; default: the file's"
    what.add_argument("--dtype", choices=tuple(ELEMENT_BYTES), help=dtype)
    what.add_argument("--optimizer", choices=OPTIMIZERS, help="whose state takes memory; default sgd")
    what.add_argument("--accounting", choices=ACCOUNTINGS, help="what counts as memory; default training")
    kinds = f"of sharding that tables may have, some of {', '.join(KINDS)}; default: whole on one device"
    what.add_argument("--kinds", type=names, metavar="KIND,...", help=kinds)
    places = f"where rows may live, some of {', '.join(RESIDENCES)}; default hbm"
    what.add_argument("--residences", type=names, metavar="PLACE,...", help=places)
    host = "host memory for the tables of each device, 2**30 bytes; default: the machine's"
    what.add_argument("--host-memory-gb", type=float, metavar="GiB", help=host)
    link = "of each device to its host, 1e9 bytes; default: the machine's"
    what.add_argument("--host-link-gb-s", type=float, metavar="GB/s", help=link)
    simulated = f"that plans and judges; default: the suite's own, --hardware's, or {simulators.DEFAULT}"
    what.add_argument("--simulator", metavar="ID", help=simulated)
