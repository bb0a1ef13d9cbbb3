"""Costs of following a workload that changes: `python -m benchmarks.resharding`.

Tasks of Core-80x8, each with a plan made by `auto`. Then the load of the tables changes: lookups and the rows they
touch by a factor drawn from a lognormal distribution; rows and dims stay. Four answers are compared, for several
horizons: stay, a fresh plan of `auto` as it comes, the same with its devices renamed so that most bytes stay, and
`reshard`. Writes benchmarks/results/resharding.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import shard_gym_agents
from benchmarks import pages
from shard_gym import simulators
from shard_gym.errors import InvalidPool, SimulatorError
from shard_gym.plan.moves import aligned, delta
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.simulators import Roofline
from shard_gym.tables.pool import TablePool
from shard_gym.task import suites
from shard_gym.task.task import Constraints, Task

HEAD = ("horizon, steps", "answer", "total over least", "makespan, ms", "moved, GB", "to move, ms")
HORIZONS = (100, 1_000, 10_000, 100_000)  # steps
ANSWERS = ("stay", "fresh", "aligned", "reshard")


def drifted(task: Task, spread: float, rng: np.random.Generator) -> Task:
    """The task with each table's lookups, and the rows they touch, times a lognormal draw; as rows have room for.

    A table with so few rows touched that its use counts cannot be scaled keeps its load.
    """
    tables = task.tables
    factor = np.minimum(np.exp(rng.normal(0, spread, len(tables))), tables.rows / np.maximum(tables.distinct, 1))
    distinct = np.rint(tables.distinct * factor).astype(np.int64)
    pooling = (tables.pooling * distinct / np.maximum(tables.distinct, 1)).astype(np.float32)
    scales = np.array(
        [_possible(tables.take([i]), pooling[i : i + 1], distinct[i : i + 1]) for i in range(len(tables))]
    )
    distinct, pooling = np.where(scales, distinct, tables.distinct), np.where(scales, pooling, tables.pooling)
    return replace(task, tables=tables.with_(pooling=pooling, distinct=distinct))


def _possible(table: TablePool, pooling: np.ndarray, distinct: np.ndarray) -> bool:
    try:
        table.with_(pooling=pooling, distinct=distinct).use_counts()
    except InvalidPool:
        return False
    return True


def compared(
    task: Task, simulator: Roofline, options: argparse.Namespace, seed: int
) -> dict[str, list[dict[str, float]]]:
    """Answers for each horizon: total ms, makespan and bytes, after the task's load has changed."""
    auto = shard_gym_agents.make("auto", budget=options.budget)
    base = auto(task, simulator)
    task = drifted(task, options.spread, np.random.default_rng([seed, 6]))
    fresh = auto(task, simulator)
    plans = {"stay": base, "fresh": fresh, "aligned": aligned(task, base, fresh, simulator.hardware.links)}
    known = replace(task, constraints=Constraints(base=base.device))
    rows: dict[str, list[dict[str, float]]] = {answer: [] for answer in ANSWERS}
    for horizon in HORIZONS:
        settings = {"budget": options.budget, "horizon": horizon, "bandwidth_gb_s": options.bandwidth_gb_s}
        plans["reshard"] = shard_gym_agents.make("reshard", **settings)(known, simulator)
        for answer, plan in plans.items():
            rows[answer].append(_worth(task, base, plan, simulator, horizon, options.bandwidth_gb_s))
    return rows


def _worth(task: Task, base: Plan, plan: Plan, simulator: Roofline, horizon: int, gb_s: float) -> dict[str, float]:
    moves, makespan = delta(task, base, plan), score(task, plan, simulator).makespan
    move_ms = 1e3 * moves.seconds(gb_s * 1e9)
    return {"total": horizon * makespan + move_ms, "makespan": makespan, "gb": moves.bytes / 1e9, "move_ms": move_ms}


def measure(options: argparse.Namespace) -> pages.Found:
    """The four answers on every task."""
    suite = suites.get(options.suite)
    simulator = simulators.make(suite.planner)
    if not isinstance(simulator, Roofline):
        raise SimulatorError(f"{suite.key} is planned by {simulator.id}, whose costs are fitted to loads that stay")
    tasks = suite.tasks("test")[: options.tasks]
    rows = [compared(task, simulator, options, seed) for seed, task in enumerate(tasks)]
    return {"rows": rows} | {name: getattr(options, name) for name in ("suite", "spread", "bandwidth_gb_s", "budget")}


def page(found: pages.Found) -> str:
    """The comparison as Markdown."""
    every = found["rows"]
    rows = []
    for h, horizon in enumerate(HORIZONS):
        least = [min(of[answer][h]["total"] for answer in ANSWERS) for of in every]
        for answer in ANSWERS:
            mean = {key: np.mean([of[answer][h][key] for of in every]) for key in ("makespan", "gb", "move_ms")}
            over = np.mean([of[answer][h]["total"] / best for of, best in zip(every, least, strict=True)])
            cells = [f"{over:.4f}", f"{mean['makespan']:.3f}", f"{mean['gb']:.2f}", f"{mean['move_ms']:.0f}"]
            rows.append([f"{horizon:,}", answer, *cells])
    gb = {answer: np.mean([of[answer][0]["gb"] for of in every]) for answer in ("fresh", "aligned")}
    lines = [
        "# Re-sharding",
        "",
        f"Made by `{found['command']}`: {len(every)} test tasks of {found['suite']},",
        f"a plan of `auto` in use, then a change of load (lognormal, sigma {found['spread']:g}). A device sends and",
        f"receives {found['bandwidth_gb_s']:g} GB/s while tables move; each solver has {found['budget']:g} s. Means",
        "over tasks; the total is horizon x makespan + time to move, over the least total of the four on each task.",
        "",
        *pages.table(HEAD, rows),
        "",
        f"A fresh plan as it comes moves {gb['fresh'] / gb['aligned']:.2f} times the bytes of the aligned one.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write the page."""
    made = pages.parser("resharding", __doc__)
    made.add_argument("--suite", default="core-80x8", help="one whose planner is a roofline")
    made.add_argument("--tasks", type=int, default=20)
    made.add_argument("--spread", type=float, default=0.5, help="sigma of the logarithm of the change in load")
    made.add_argument("--bandwidth-gb-s", type=float, default=10.0)
    made.add_argument("--budget", type=float, default=1.0, help="seconds, of each solver")
    return pages.run(made, measure, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
