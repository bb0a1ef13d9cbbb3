"""Share out the rows of sequence tables in tiers, by FlexShard, and tell what comes of it.

`shard-gym flex curve` measures how often a log looks rows up."""

from __future__ import annotations

import argparse
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
METHOD = "flex3"  # unless told
TABLE = "name=history,rows=30000000,length=960,exponent=1.05,dim=256"


def main(arguments: Sequence[str]) -> int:
    """Plan or score; or count, after the word `curve`."""
    if arguments[:1] == ["curve"]:
        made = logs.curve_parser()
        return commands.run(made, lambda options: options.run(options), arguments[1:])
    return commands.run(parser(), flex, arguments)


def flex(options: argparse.Namespace) -> None:
    """Plan, or tell about a plan."""
    if options.plan and options.method:
        raise InvalidTask("--method makes a plan: not with --plan, which names one")
    given = {"nodes": options.nodes, "gpus_per_node": options.gpus_per_node}
    changed = {name: n for name, n in given.items() if n is not None}
    on = replace(network(options.network), gpus=0, overlap=options.overlap, **changed)
    tables = tuple(_table(told) for told in options.table or [TABLE])
    task = RowTask(tables, on, options.batch, options.extra_gb * GB, options.copies)
    with commands.waiting(options, "flex"):
        plan = TieredPlan.load(options.plan, task) if options.plan else solve(task, options.method or METHOD)
    if options.out:
        plan.save(options.out, task)
    commands.answer(
        options,
        "tiers/1",
        lambda: report(task, plan),
        lambda: f"{_assumed(options.network, task)}\n{text(task, plan)}",
    )


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


def parser() -> commands.Parser:
    """Options of `flex`."""
    examples = (
        "shard-gym flex --network a100-4x8 --table name=history,rows=3e7,length=960,exponent=1.05,dim=256",
        "shard-gym flex --table curve=history.safetensors,dim=128 --extra-gb 8 --out tiers.json",
    )
    made = commands.parser("shard-gym flex", __doc__, examples=examples, answer="the tiers of each table")
    add = made.add_argument
    add("--table", action="append", metavar="KEY=VALUE,...", help=f"repeatable; default {TABLE}")
    add("--network", default="a100-4x8", help=f"one of {', '.join(NETWORKS)}; default a100-4x8")
    add("--nodes", type=int, metavar="N", help="hosts; default: the network's")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs of a host; default: the network's")
    add("--overlap", choices=OVERLAPS, default="none", help="collectives that other work hides; default none")
    add("--batch", type=int, default=4096, metavar="SAMPLES", help="a GPU and step; default 4096")
    extra = "GiB that a GPU may use beyond what all RW takes; default 0"
    add("--extra-gb", type=float, default=0.0, metavar="GiB", help=extra)
    copies = f"memory of a replicated row, in rows; default {COPIES:g}, TorchRec's"
    add("--copies", type=float, default=COPIES, metavar="ROWS", help=copies)
    add("--method", choices=METHODS, help=f"that makes the plan; default {METHOD}")
    add("--plan", type=Path, metavar="FILE", help="tell about this plan instead of making one")
    add("--out", type=Path, metavar="FILE", help="where to keep the plan; default: nowhere")
    made.set_defaults(run=flex)
    return made
