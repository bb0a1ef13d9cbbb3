"""`shard-gym flex`: share out the rows of sequence tables in tiers, and tell what comes of it.

`shard-gym flex curve` measures how often a log looks rows up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shard_gym.errors import InvalidTask
from shard_gym.flexshard.curves import Curve, zipf_mandelbrot
from shard_gym.flexshard.models import fitted_curve
from shard_gym.flexshard.network import COPIES, NETWORKS, OVERLAPS, network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, report, text
from shard_gym.records import commands
from shard_gym_agents.cli import logs
from shard_gym_agents.solvers.flexshard import METHODS, solve

GB = 2**30
TABLE = "name=history,rows=30000000,length=960,exponent=1.05,dim=256"


def main(arguments: Sequence[str]) -> int:
    """Plan or score."""
    if arguments[:1] == ["curve"]:
        return logs.curve(arguments[1:])
    return commands.run(_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> None:
    given = {"nodes": options.nodes, "gpus_per_node": options.gpus_per_node}
    changed = {name: n for name, n in given.items() if n is not None}
    on = replace(network(options.network), gpus=0, overlap=options.overlap, **changed)
    tables = tuple(_table(told) for told in options.table or [TABLE])
    task = RowTask(tables, on, options.batch, options.extra_gb * GB, options.copies)
    plan = TieredPlan.load(options.plan, task) if options.plan else solve(task, options.method)
    print(json.dumps(report(task, plan)) if options.json else f"{_assumed(options.network, task)}\n{text(task, plan)}")
    if options.out:
        plan.save(options.out, task)


def _assumed(name: str, task: RowTask) -> str:
    """One line of what the plan is made for."""
    nodes, sizes = task.network, {f"{8 * table.element_bytes} bits a number" for table in task.tables}
    where = f"{nodes.nodes} nodes of {nodes.gpus_per_node} GPUs, wires of {name}"
    hidden = OVERLAPS[nodes.overlap]
    told = [
        " and ".join(sorted(sizes)),
        f"batch {task.batch:,} a GPU",
        where,
        f"{task.copies:g} copies of a replicated row",
        *([f"{' and '.join(hidden)} hidden by other work"] if hidden else []),
    ]
    return f"assumes {'; '.join(told)}"


def _table(told: str) -> SequenceTable:
    """Table of "name=h,rows=1000000,length=100,exponent=1.1,dim=64", with curve=FILE or model=RM-1 for a formula."""
    pairs = dict(part.partition("=")[::2] for part in told.split(","))
    try:
        dim, name = int(pairs.pop("dim", 256)), pairs.pop("name", "history")
        element_bytes, pooled = int(pairs.pop("element_bytes", 4)), bool(int(pairs.pop("pooled", 0)))
        if "curve" in pairs:
            curve = Curve.load(pairs.pop("curve"))
        elif "model" in pairs:
            curve = fitted_curve(pairs.pop("model"))
        else:
            rows, length = int(float(pairs.pop("rows"))), float(pairs.pop("length"))
            curve = zipf_mandelbrot(rows, length, float(pairs.pop("exponent", 1.0)), float(pairs.pop("shift", 0.0)))
    except KeyError as error:
        raise InvalidTask(f"--table {told!r} needs {error.args[0]}=, or curve=FILE; for example {TABLE}") from error
    except (ValueError, OverflowError) as error:
        raise InvalidTask(f"--table {told!r}: {error}; for example {TABLE}") from error
    if pairs:
        raise InvalidTask(f"--table {told!r} has unknown {', '.join(pairs)}; for example {TABLE}")
    return SequenceTable(name, curve, dim, element_bytes, pooled)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("shard-gym flex", __doc__)
    add = parser.add_argument
    add("--table", action="append", metavar="KEY=VALUE,...", help=f"repeatable; default {TABLE}")
    add("--network", default="a100-4x8", help=f"one of {', '.join(NETWORKS)}; default a100-4x8")
    add("--nodes", type=int, help="instead of the network's")
    add("--gpus-per-node", type=int, help="instead of the network's")
    add("--overlap", choices=OVERLAPS, default="none", help="collectives that other work hides; default none")
    add("--batch", type=int, default=4096, help="samples a GPU")
    add("--extra-gb", type=float, default=0.0, help="memory a GPU may use beyond what all RW takes; default 0")
    add("--copies", type=float, default=COPIES, help=f"that a replicated row takes; default {COPIES:g}, TorchRec's")
    add("--method", choices=METHODS, default="flex3")
    add("--plan", type=Path, help="tell about this plan instead of making one")
    add("--json", action="store_true")
    add("--out", type=Path, help="write the plan here")
    return parser
