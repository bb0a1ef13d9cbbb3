"""Plans of every kind, trained by TorchRec on gloo: `python -m benchmarks.executed`.

Five small models are trained for 20 steps on two processes, and on four that stand for two hosts of two, all their
tables in one way: each kind, rows in the host's memory, our plans of all kinds, and that of TorchRec's planner. Losses
are compared with those of the same model unsharded, on one process. Writes benchmarks/results/executed.md, and
executed.json, which has the exact numbers. It needs TorchRec and takes five minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING

from benchmarks import pages
from shard_gym.records.commands import names

if TYPE_CHECKING:
    from benchmarks.executed_runs import Trained

WORLDS = ((2, 2), (4, 2))  # processes, and how many of them one host has
ENOUGH = 1e-5  # losses that differ by no more are equal
OPTIMIZERS = ("sgd", "rowwise_adagrad")
SCHEMA = "shard-gym/executed/1"
HEAD = ("sharded", "tables", "loss, SGD", "loss, row-wise Adagrad", "step, ms", "CPU, ms")
ABOUT = f"""\
# Plans of every kind, trained by TorchRec on gloo

{{made}} 20 steps of 64 samples, over all processes; float32, no GPU.
*loss*: the largest difference of a step's mean loss from that of the same model unsharded, in bold above {ENOUGH:g}.
*step*: its median by the clock, of processes with one thread each; *CPU*: what the busiest of them computes in it.
Processes share {{cores}} cores with whatever else runs there, so compare times of one table only, and roughly. *ours*
is `auto`'s plan in 0.2 s by `torchrec:cuda-v1`, an estimate of GPUs, *plan_model* what that gives unless told more
than batch ({2**18:,} samples over all processes), ids and links, *TorchRec's* the plan of its
`EmbeddingShardingPlanner` for CPUs: none is made for these times.

{{equal}} of {{trained}} trainings have the losses of the unsharded model to {ENOUGH:g}; with tables that are not
trained losses differ by {{matter:.2g}} at least. {{rest}}
Row-wise Adagrad keeps one number for a row of a shard, so pieces of a row's columns are not scaled alike: whoever
planned. By SGD the same plans have the same losses.
"""


def measure(options: argparse.Namespace) -> pages.Found:
    """Losses and times of all cases."""
    os.environ["OMP_NUM_THREADS"] = "1"  # in the processes, too
    from benchmarks import executed_runs as runs
    from benchmarks.recommenders import MODELS
    from shard_gym.torchrec.launch import launch

    ways = options.ways or runs.WAYS
    alone = {each: runs.unsharded(*each) for each in product(MODELS, OPTIMIZERS)}
    frozen = {each: runs.unsharded(*each, frozen=True) for each in alone}
    matter = min(differ(frozen[each], alone[each]) for each in alone)
    cases = [runs.Case(*each) for each in product(MODELS, ways, OPTIMIZERS)]
    before = pages.kept_of(options.out / "executed.json", SCHEMA)["rows"] if options.ways else []
    rows: list[pages.Row] = [row for row in before if row["way"] not in ways]
    for world, per_host in WORLDS:
        ranks = launch(runs.run, world, cases, per_host, per_host=per_host, patience=60.0)
        for case, found in zip(cases, zip(*ranks, strict=True), strict=True):
            rows.append({**asdict(case), "world": world, **row(found, alone[case.model, case.optimizer])})
    rows.sort(key=lambda row: runs.WAYS.index(row["way"]))
    return {"cores": os.cpu_count(), "matter": matter, "only": options.ways or [], "rows": rows}


def differ(one: Trained, other: Trained) -> float:
    """The largest difference of two losses of the same step."""
    return max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))


def row(ranks: Sequence[Trained], alone: Trained) -> pages.Row:
    """Outcome of one training, as its ranks tell it."""
    first = ranks[0]
    if first.refused:
        return {"refused": first.refused}
    cpu = max(rank.cpu_ms for rank in ranks)
    return {
        "refused": "",
        "differ": differ(first, alone),
        "kinds": first.kinds,
        "wall_ms": first.wall_ms,
        "cpu_ms": cpu,
    }


def page(found: pages.Found) -> str:
    """A table for each model and number of processes."""
    rows = found["rows"]
    trained = [row for row in rows if not row["refused"]]
    odd = [row for row in trained if row["differ"] > ENOUGH]
    split = [row for row in odd if row["optimizer"] != "sgd" and pieces(row)]
    rest = f"Of the other {len(odd)}, {len(split)} are by row-wise Adagrad and have columns split."
    about = ABOUT.format(
        made=f"Made by `{found['command']}`{', the other rows by a run before' if found['only'] else ''}.",
        cores=found["cores"],
        equal=len(trained) - len(odd),
        trained=len(trained),
        matter=found["matter"],
        rest=rest,
    )
    lines = [about]
    for model, world in product(dict.fromkeys(row["model"] for row in rows), dict(WORLDS)):
        own = [row for row in rows if (row["model"], row["world"]) == (model, world)]
        hosts = "one host" if dict(WORLDS)[world] == world else f"{world // dict(WORLDS)[world]} hosts"
        lines += [f"## {model}, {world} processes, {hosts}", ""]
        ways = dict.fromkeys(row["way"] for row in own)
        lines += [*pages.table(HEAD, [line([r for r in own if r["way"] == way]) for way in ways]), ""]
    return "\n".join(lines)


def pieces(row: pages.Row) -> bool:
    """True if some table's columns are split."""
    return "column_wise" in row["kinds"] or "grid_shard" in row["kinds"]


def line(rows: Sequence[pages.Row]) -> list[str]:
    """One way of sharding: times are those of the first optimizer."""
    first = rows[0]
    if first["refused"]:
        return [first["way"], f"TorchRec: {first['refused'][:90]}", *["-"] * 4]
    losses = [f"**{row['differ']:.1e}**" if row["differ"] > ENOUGH else f"{row['differ']:.0e}" for row in rows]
    kinds = list(dict.fromkeys(row["kinds"] for row in rows))
    return [first["way"], "; by Adagrad ".join(kinds), *losses, f"{first['wall_ms']:.0f}", f"{first['cpu_ms']:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page; returns the exit code."""
    made = pages.parser("executed", __doc__)
    made.add_argument("--ways", type=names, help="measure these ways only, and keep the other rows of the page")
    return pages.run(made, measure, page, arguments, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
