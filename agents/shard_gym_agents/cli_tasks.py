"""Which task a command is about: options, and the task with its planner and judge."""

from __future__ import annotations

import argparse
from pathlib import Path

from shard_gym import make_task, simulators, suites
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.simulators import Simulator
from shard_gym.tasks import OBJECTIVES, OPTIMIZERS, Task


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
    """All tables of a file on equal devices, for one step of the batch that the file describes."""
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
