"""Report on a plan, rank by rank, as TorchRec reports it; or explain one table, or why there is no plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from shard_gym.errors import InvalidTask
from shard_gym.memory.shards import KERNELS, PIPELINES, Setup, Table
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.simulators import Simulator
from shard_gym.task.machines import RESERVE
from shard_gym.task.task import Task
from shard_gym.torchrec.limits import limits
from shard_gym.torchrec.report import report, reserves
from shard_gym.torchrec.stats import alone, explain, plan_stats, table_index, tables_of
from shard_gym.torchrec.values import Capacity, Reserve, kjt_bytes
from shard_gym_agents.cli.constraints import add_constraints, constrained
from shard_gym_agents.cli.plans import assumed
from shard_gym_agents.cli.tasks import add_task, gib, task_of

TOP = 20  # ranks and tables shown
RESERVES = ("reserve", "dense_gb", "kjt_gb")


def main(arguments: Sequence[str]) -> int:
    """Print the report."""
    return commands.run(parser(), stats, arguments)


def stats(options: argparse.Namespace) -> None:
    """Print the report, the explanation of a table, or what is missing for a plan."""
    _refuse_odd(options)
    if options.tables and options.memory_gb is None and not options.hardware:
        options.memory_gb = options.hbm_gb  # what is left of it is worked out below
    task, _, judge = task_of(options)
    task = constrained(task, options)
    setup, tables = Setup.of(task, options.pipeline), tables_of(task, options.kernel, options.sequence)
    capacity = _capacity(options, tables, setup)
    if _asks_why(options):
        _why(options, task, judge, capacity)
        return
    found = plan_stats(task, Plan.load(options.plan), judge, tables=tables, setup=setup, capacity=capacity)
    if options.table is None:
        top = TOP if options.top is None else options.top
        assumes = assumed(task, judge, judge)
        commands.answer(options, "stats/1", found.to_dict, lambda: report(found, top or None, assumes))
        return
    index = table_index(task, options.table)
    own = found.tables[index]
    table, sizes = replace(tables[index], kernel=own.kernel), own.shard_sizes
    told = explain(table, own.kind, setup, name=own.name, accounting=task.accounting, sizes=sizes)
    if found.phases("perf") and own.kind in ("tw", "cw") and own.kernel == "fused":
        told = replace(told, steps=(*told.steps, alone(task, index, sizes[0][1], judge)))
    commands.answer(options, "explanation/1", told.to_dict, lambda: f"{told.text()}\n{assumed(task, judge, judge)}")


def _asks_why(options: argparse.Namespace) -> bool:
    return options.why or options.plan in (None, "-")


def _refuse_odd(options: argparse.Namespace) -> None:
    """Refuse options that would say nothing, or no sense."""
    if options.top is not None and options.top < 0:
        raise InvalidTask(f"--top is a number from 0, got {options.top}")
    if options.top is not None and (options.json or options.table or _asks_why(options)):
        raise InvalidTask("--top shortens the report of a whole plan: not with --json, --table or --why")
    if options.table and _asks_why(options):
        raise InvalidTask("--table explains a number of a plan: give PLAN.json, and not --why")
    if options.why and options.plan not in (None, "-"):
        raise InvalidTask("--why is about the task, whatever the plan: leave out PLAN")


def _why(options: argparse.Namespace, task: Task, judge: Simulator, capacity: Capacity) -> None:
    found = limits(replace(task, memory=capacity.left(task)))
    told = [] if capacity.hbm_bytes is None else [f"HBM for tables, of each rank: {reserves(capacity)}"]
    commands.answer(
        options,
        "room/2",
        lambda: found.to_dict() | {"budget": capacity.to_dict()},
        lambda: "\n".join([found.text(), *told, assumed(task, judge, judge)]),
    )


def _capacity(options: argparse.Namespace, tables: Sequence[Table], setup: Setup) -> Capacity:
    """HBM less reserves; the ids of a batch, in all the copies that TorchRec counts, unless told."""
    given = [name for name in RESERVES if getattr(options, name) is not None]
    ddr = gib(options.ddr_gb)
    if options.hbm_gb is None:
        if given:
            raise InvalidTask(f"--{given[0].replace('_', '-')} is taken off --hbm-gb: say that too")
        return Capacity(ddr_bytes=ddr)
    kjt = gib(options.kjt_gb)
    return Capacity(
        gib(options.hbm_gb),
        ddr,
        Reserve(
            RESERVE if options.reserve is None else options.reserve,
            dense_bytes=gib(options.dense_gb) or 0,
            kjt_bytes=kjt_bytes(tables, setup.batch) if kjt is None else kjt,
        ),
    )


def parser() -> commands.Parser:
    """Options of `stats`."""
    examples = (
        "shard-gym stats plan.json --suite core-80x8 --accounting torchrec --hbm-gb 80",
        "shard-gym stats plan.json --tables tables.csv --hardware dgx-h100 --table user",
        "shard-gym stats --why --tables tables.csv --devices 8 --hbm-gb 40",
    )
    made = commands.parser("shard-gym stats", __doc__, examples=examples, answer="the report")
    made.add_argument("plan", nargs="?", metavar="PLAN", help="a file that --out wrote; - or none: as --why")
    add_task(made)
    add_constraints(made)
    made.add_argument("--why", action="store_true", help="tell whether there can be a plan, and what is missing")
    made.add_argument("--table", metavar="NAME", help="explain the numbers of one table, by name or index")
    made.add_argument("--top", type=int, metavar="N", help=f"ranks and tables shown; 0: all; default {TOP}")
    _add_memory(made)
    group = made.add_argument_group("what a task does not say; of bytes as torchrec and true count them")
    pipeline = "the train pipeline, which keeps batches in memory; default none"
    group.add_argument("--pipeline", choices=PIPELINES, default="none", help=pipeline)
    kernel = "of all tables but copies (dp); default fused"
    group.add_argument("--kernel", choices=KERNELS, default="fused", help=kernel)
    group.add_argument("--sequence", action="store_true", help="tables return every row that is looked up")
    made.set_defaults(run=stats)
    return made


def _add_memory(made: commands.Parser) -> None:
    add = made.add_argument_group("memory of each device, in place of the task's; GiB, 2**30 bytes").add_argument
    add("--hbm-gb", type=float, metavar="GiB", help="of the device, before reserves; default: what the task leaves")
    add("--ddr-gb", type=float, metavar="GiB", help="of its host's memory; default: not looked at")
    add("--dense-gb", type=float, metavar="GiB", help="what the dense part takes; default 0")
    add("--kjt-gb", type=float, metavar="GiB", help="what ids take; default: as TorchRec reckons")
    add("--reserve", type=float, metavar="SHARE", help=f"of --hbm-gb, for fragmentation; default {RESERVE}")
