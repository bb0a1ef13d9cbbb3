"""Report on a plan, rank by rank: shard-gym stats PLAN.json --suite core-80x8 --accounting torchrec --hbm-gb 80"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from shard_gym.bridge.storage_reserves import Reserve, kjt_bytes
from shard_gym.bridge.storage_shards import KERNELS, PIPELINES, Setup, Table
from shard_gym.errors import InvalidTask, ShardGymError
from shard_gym.plan import Plan
from shard_gym.stats import Budget, explain, plan_stats, report, room, setup_of, tables_of
from shard_gym.stats.explain import alone, table_index
from shard_gym.stats.text import reserves
from shard_gym.tables import GB
from shard_gym.tasks import ACCOUNTINGS, Task
from shard_gym_agents.cli_plans import add_constraints, constrained
from shard_gym_agents.cli_tasks import add_task, task_of

RESERVE = 0.15  # of HBM, for fragmentation: what TorchRec's users keep
RESERVES = ("reserve", "dense_gb", "kjt_gb")


def main(arguments: Sequence[str]) -> int:
    """Print the report; what the user can put right is told in one line, with exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        sys.stdout.write(_answer(options) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"shard-gym stats: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _answer(options: argparse.Namespace) -> str:
    if options.tables and options.memory_gb is None:
        options.memory_gb = options.hbm_gb  # what is left of it is worked out below
    task, _, judge = task_of(options)
    task = replace(constrained(task, options), accounting=options.accounting or task.accounting)
    setup, tables = setup_of(task, options.pipeline), tables_of(task, options.kernel, not options.sequence)
    budget = _budget(options, tables, setup)
    if options.why or options.plan in (None, "-"):
        return _why(options, task, budget)
    stats = plan_stats(task, Plan.load(options.plan), judge, tables=tables, setup=setup, budget=budget)
    if options.table is None:
        return json.dumps(stats.to_dict()) if options.json else report(stats)
    index = table_index(task, options.table)
    own = stats.tables[index]
    table, sizes = replace(tables[index], kernel=own.kernel), own.shard_sizes
    told = explain(table, own.kind, setup, name=own.name, accounting=task.accounting, sizes=sizes)
    if stats.phases("perf"):
        told = replace(told, steps=(*told.steps, alone(task, index, sizes[0][1], judge)))
    return json.dumps(told.to_dict()) if options.json else told.text()


def _why(options: argparse.Namespace, task: Task, budget: Budget) -> str:
    if options.table:
        raise InvalidTask("--table explains a number of a plan: give PLAN.json")
    found = room(replace(task, memory=budget.capacity(task)))
    if options.json:
        return json.dumps(found.to_dict() | {"budget": budget.to_dict()})
    told = [] if budget.hbm_bytes is None else [f"HBM for tables, of each rank: {reserves(budget)}"]
    return "\n".join([found.text(), *told])


def _budget(options: argparse.Namespace, tables: Sequence[Table], setup: Setup) -> Budget:
    """HBM less reserves; the ids of a batch, in all the copies that TorchRec counts, unless told."""
    given = [name for name in RESERVES if getattr(options, name) is not None]
    ddr = _bytes(options.ddr_gb)
    if options.hbm_gb is None:
        if given:
            raise InvalidTask(f"--{given[0].replace('_', '-')} is taken off --hbm-gb: say that too")
        return Budget(ddr_bytes=ddr)
    kjt = _bytes(options.kjt_gb)
    return Budget(
        _bytes(options.hbm_gb),
        ddr,
        Reserve(
            RESERVE if options.reserve is None else options.reserve,
            dense_bytes=_bytes(options.dense_gb) or 0,
            kjt_bytes=kjt_bytes(tables, setup.batch) if kjt is None else kjt,
        ),
    )


def _bytes(gb: float | None) -> int | None:
    if gb is not None and not 0 <= gb < math.inf:
        raise InvalidTask(f"gigabytes are a number from 0, got {gb}")
    return None if gb is None else int(gb * GB)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("shard-gym stats", description=__doc__)
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a file that --out wrote; - or none: as --why")
    add_task(parser)
    add_constraints(parser)
    parser.add_argument("--why", action="store_true", help="tell whether there can be a plan, and what is missing")
    parser.add_argument("--table", metavar="NAME", help="explain the numbers of one table, by name or index")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--accounting", choices=ACCOUNTINGS, help="what counts as memory; default: the task's own")
    group = parser.add_argument_group("memory of each device, in place of the task's; GB of 2**30 bytes")
    group.add_argument("--hbm-gb", type=float, metavar="GB")
    group.add_argument("--ddr-gb", type=float, metavar="GB", help="of its host's memory")
    group.add_argument("--dense-gb", type=float, metavar="GB", help="what the dense part takes; default 0")
    group.add_argument("--kjt-gb", type=float, metavar="GB", help="what ids take; default: as TorchRec reckons")
    group.add_argument("--reserve", type=float, metavar="SHARE", help=f"for fragmentation; default {RESERVE}")
    group = parser.add_argument_group("what a task does not say; of bytes as torchrec and true count them")
    group.add_argument("--pipeline", choices=PIPELINES, default="none")
    group.add_argument("--kernel", choices=KERNELS, default="fused", help="of all tables but copies (dp)")
    group.add_argument("--sequence", action="store_true", help="tables return every row that is looked up")
    return parser
