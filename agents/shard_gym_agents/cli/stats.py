"""Report on a plan, rank by rank: shard-gym stats PLAN.json --suite core-80x8 --accounting torchrec --hbm-gb 80"""

from __future__ import annotations

import argparse
import json
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
from shard_gym_agents.cli.plans import assumed
from shard_gym_agents.cli.tasks import add_constraints, add_task, constrained, gib, task_of

TOP = 20  # ranks and tables shown
RESERVES = ("reserve", "dense_gb", "kjt_gb")


def main(arguments: Sequence[str]) -> int:
    """Print the report."""
    return commands.run(_parser(), lambda options: commands.show(_answer(options)), arguments)


def _answer(options: argparse.Namespace) -> str:
    if options.top < 0:
        raise InvalidTask(f"--top is a number from 0, got {options.top}")
    if options.tables and options.memory_gb is None and not options.hardware:
        options.memory_gb = options.hbm_gb  # what is left of it is worked out below
    task, _, judge = task_of(options)
    task = constrained(task, options)
    setup, tables = Setup.of(task, options.pipeline), tables_of(task, options.kernel, options.sequence)
    capacity = _capacity(options, tables, setup)
    if options.why or options.plan in (None, "-"):
        return _why(options, task, judge, capacity)
    stats = plan_stats(task, Plan.load(options.plan), judge, tables=tables, setup=setup, capacity=capacity)
    if options.table is None:
        if options.json:
            return json.dumps(stats.to_dict())
        return report(stats, options.top or None, assumed(task, judge, judge))
    index = table_index(task, options.table)
    own = stats.tables[index]
    table, sizes = replace(tables[index], kernel=own.kernel), own.shard_sizes
    told = explain(table, own.kind, setup, name=own.name, accounting=task.accounting, sizes=sizes)
    if stats.phases("perf") and own.kind in ("tw", "cw") and own.kernel == "fused":
        told = replace(told, steps=(*told.steps, alone(task, index, sizes[0][1], judge)))
    return json.dumps(told.to_dict()) if options.json else f"{told.text()}\n{assumed(task, judge, judge)}"


def _why(options: argparse.Namespace, task: Task, judge: Simulator, capacity: Capacity) -> str:
    if options.table:
        raise InvalidTask("--table explains a number of a plan: give PLAN.json")
    found = limits(replace(task, memory=capacity.left(task)))
    if options.json:
        return json.dumps(found.to_dict() | {"budget": capacity.to_dict()})
    told = [] if capacity.hbm_bytes is None else [f"HBM for tables, of each rank: {reserves(capacity)}"]
    return "\n".join([found.text(), *told, assumed(task, judge, judge)])


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


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("shard-gym stats", __doc__)
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a file that --out wrote; - or none: as --why")
    add_task(parser)
    add_constraints(parser)
    parser.add_argument("--why", action="store_true", help="tell whether there can be a plan, and what is missing")
    parser.add_argument("--table", metavar="NAME", help="explain the numbers of one table, by name or index")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--top", type=int, default=TOP, metavar="N", help=f"ranks and tables shown; 0: all; default {TOP}"
    )
    group = parser.add_argument_group("memory of each device, in place of the task's; GiB, 2**30 bytes")
    group.add_argument("--hbm-gb", type=float, metavar="GiB")
    group.add_argument("--ddr-gb", type=float, metavar="GiB", help="of its host's memory")
    group.add_argument("--dense-gb", type=float, metavar="GiB", help="what the dense part takes; default 0")
    group.add_argument("--kjt-gb", type=float, metavar="GiB", help="what ids take; default: as TorchRec reckons")
    group.add_argument("--reserve", type=float, metavar="SHARE", help=f"for fragmentation; default {RESERVE}")
    group = parser.add_argument_group("what a task does not say; of bytes as torchrec and true count them")
    group.add_argument("--pipeline", choices=PIPELINES, default="none")
    group.add_argument("--kernel", choices=KERNELS, default="fused", help="of all tables but copies (dp)")
    group.add_argument("--sequence", action="store_true", help="tables return every row that is looked up")
    return parser
