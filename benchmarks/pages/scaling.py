"""Time and memory of `auto` over the size of the task: `python -m benchmarks.scaling`

Each size runs in a process of its own on one core: tables of a MetaSyn pool, twice the memory they need, the planner
of the flag. Writes a row a size to benchmarks/results/scaling.md, and the exponents of time and memory fitted over
sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import pages
from shard_gym.errors import SimulatorError
from shard_gym.task.task import Task

GROWS = (("seconds", "seconds"), ("added MB", "added_mb"))
HEAD = ("tables x devices", "CPU seconds", "planner calls", "peak MB", "added MB", "below lookup-greedy")
SIZES = ("100x10", "1000x100", "10000x1000", "100000x4096")


def scaled_task(tables: int, devices: int, objective: str) -> Task:
    """A task of that size, always the same one."""
    from shard_gym.tables.metasyn import metasyn

    rng = np.random.default_rng(0)
    pool = metasyn(7, 856)
    drawn = pool.take(rng.integers(len(pool), size=tables))
    drawn = drawn.with_(dim=rng.choice([4, 8, 16, 32, 64, 128], tables).astype(np.int32))
    capacity = int(max(2 * drawn.weight_bytes.sum() / devices, drawn.weight_bytes.max()))
    return Task(drawn, (capacity,) * devices, objective=objective)


def one(size: str, agent: str, planner_id: str, objective: str, budget: float) -> dict[str, Any]:
    """Plan a task of that size here; `added_mb` is what planning took more than the process had held before."""
    import shard_gym_agents
    from shard_gym import simulators
    from shard_gym.results.evaluate import run, score

    planner = simulators.make(planner_id)
    tables, devices = map(int, size.split("x"))
    task = scaled_task(tables, devices, objective)
    shard_gym_agents.make("lookup-greedy")(task, planner)  # imports and first calls
    solver = shard_gym_agents.make(agent, **({"budget": budget} if budget else {"calls": 1}))
    before = peak_mb()
    start = time.process_time()
    found = run(solver, planner, task)
    seconds = time.process_time() - start
    peak = peak_mb()
    if found.plan is None:
        raise SystemExit(found.error)
    makespan = score(task, found.plan, planner).makespan
    blind = score(task, shard_gym_agents.make("lookup-greedy")(task, planner), planner).makespan
    row = {"size": size, "tables": tables, "seconds": seconds, "calls": found.simulator_calls}
    return row | {"peak_mb": peak, "added_mb": peak - before, "makespan": makespan, "lookup_greedy": blind}


def peak_mb() -> float:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def exponent(sizes: list[float], values: list[float]) -> float:
    """The power of the size that values grow with, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def page(found: pages.Found) -> str:
    """Table of all rows, what they grow with, and how they were made."""
    rows = found["rows"]
    lines = [
        "# Time and memory over the size of the task",
        "",
        f"Made by `{found['command']}` at commit {found['commit']}, on one core: {found['agent']} with a budget of "
        f"{found['budget']:g} s (0: what it takes to begin, greedies and their repair), planner {found['planner']}, "
        f"objective {found['objective']}. The target is 10,000 tables on 1,000 devices in less than 5 s and 1 GB. "
        "Added is what planning took more than the process held before it, tables and simulator included.",
        "",
        *pages.table(HEAD, [_cells(row) for row in rows]),
        "",
    ]
    if len(rows) > 1:
        sizes = [float(row["tables"]) for row in rows]
        grown = [(what, [max(float(row[key]), 1e-3) for row in rows]) for what, key in GROWS]
        lines += [f"- {what}: tables to the power of {exponent(sizes, values):.2f}" for what, values in grown]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["size"], f"{row['seconds']:.2f}", f"{row['calls']:,}", f"{row['peak_mb']:.0f}"]
    return [*cells, f"{row['added_mb']:.0f}", f"{1 - row['makespan'] / row['lookup_greedy']:.1%}"]


def measure(options: argparse.Namespace) -> pages.Found:
    """A row a size; one that fails is told and left out."""
    rows = []
    one_core = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for size in options.sizes.split(","):
        command = [sys.executable, "-m", "benchmarks.scaling", *options.given, "--one", size]
        done = subprocess.run(command, env=one_core, capture_output=True, text=True, check=False)
        if done.returncode:
            why = done.stderr.strip() or f"ended with {done.returncode}, for want of memory perhaps"
            print(f"{size}: {why.splitlines()[-1]}", file=sys.stderr)
            continue
        rows.append(json.loads(done.stdout))
    if not rows:
        raise SimulatorError("no size was planned")
    return {"rows": rows} | {name: getattr(options, name) for name in ("agent", "budget", "planner", "objective")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every size, print and write."""
    made = pages.parser("scaling", __doc__)
    made.add_argument("--sizes", default=",".join(SIZES), help="tables x devices")
    made.add_argument("--agent", default="auto")
    made.add_argument("--planner", default="roofline:h100-v1")
    made.add_argument("--objective", default="kernel")
    made.add_argument("--budget", type=float, default=0.0, help="seconds of search; 0: what it takes to begin")
    made.add_argument("--one", help=argparse.SUPPRESS)
    options = made.parse_args(arguments)
    if options.one:
        print(json.dumps(one(options.one, options.agent, options.planner, options.objective, options.budget)))
        return 0
    return pages.run(made, measure, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
