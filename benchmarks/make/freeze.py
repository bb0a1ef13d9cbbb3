"""Make the data that suites are frozen in: pools, banks of tasks, random references.

`python -m benchmarks.freeze pools banks references` made what is shipped. It adds what is not there yet, and overwrites
nothing: a published suite never changes.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shard_gym import simulators
from shard_gym.bounds import certificate
from shard_gym.errors import InfeasibleTask
from shard_gym.generator import drawn, own_memory
from shard_gym.plan.forms import beyond_columns
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.simulators.base import plan_latency
from shard_gym.simulators.random_plans import random_makespan
from shard_gym.tables.metasyn import load_metasyn, metasyn, pack
from shard_gym.tables.pool import TablePool
from shard_gym.task.suite import PADDING, SPLITS, Columns, Suite, with_doubled_rows
from shard_gym.task.suites import SUITES
from shard_gym.task.task import Task
from shard_gym_agents import make

OWN = [suite for suite in SUITES.values() if not suite.bank]  # the others show the tasks of one of these
DATA = Path(__file__).parents[2] / "shard_gym" / "data"
POOLS = [(0, 856), (1, 856), (2, 856), (3, 856), (4, 1000), (5, 1000), (6, 1000)]


def freeze_pools() -> None:
    """Write the MetaSyn pools that the banks draw from."""
    for seed, n in POOLS:
        if not (path := DATA / f"metasyn_{seed}_{n}.npz").exists():
            save_arrays(path, {"counts": pack(metasyn(seed, n))})


def freeze_banks() -> None:
    """Write the tasks of suites that have none yet: table ids, dims, and capacities where they depend on the task."""
    path = DATA / "banks.npz"
    bank: dict[str, np.ndarray] = dict(np.load(path)) if path.exists() else {}
    for number, suite in enumerate(OWN):
        if f"{suite.drawn_as}/scaling" not in bank:
            bank |= _drawn(number, suite)
        for split in SPLITS if suite.tables else ():
            for name, column in own_memory(suite, SUITES[suite.tables].bank_of(split)).items():
                bank.setdefault(f"{suite.key}/{split}/{name}", column)
    save_arrays(path, bank)


def _drawn(number: int, suite: Suite) -> dict[str, np.ndarray]:
    """Arrays of a suite's tasks, drawn."""
    bank: dict[str, np.ndarray] = {}
    for split, count in _counts(suite).items():
        rng = np.random.default_rng([2021, number, SPLITS.index(split)])
        pool = load_metasyn(*suite.pools[SPLITS.index(split)])
        columns = drawn(suite, split, pool, count, rng)
        bank |= {f"{suite.key}/{split}/{name}": column for name, column in columns.items()}
        if split == "train":
            bank[f"{suite.key}/scaling"] = _scaling(suite, pool, columns)
    return bank


def freeze_references() -> None:
    """Write the mean makespan of random plans under each suite's planner and judge, and the share of tasks that one
    table binds, for suites and simulators that lack it."""
    path = DATA / "references.npz"
    known = dict(np.load(path)) if path.exists() else {}
    for number, suite in enumerate(OWN):
        before = len(known)
        for simulator_id in {suite.planner, suite.judge}:
            simulator = simulators.make(simulator_id)
            for split in SPLITS:
                key = f"{suite.key}/{split}/{simulator_id}"
                if key not in known:
                    rng = np.random.default_rng([1000, number, SPLITS.index(split)])
                    tasks = suite.tasks(split)
                    known[key] = np.array([random_makespan(task, simulator, rng) for task in tasks])
                    print(f"{key}: mean {known[key].mean():.3f} ms over {len(tasks)} tasks")
        key = f"{suite.key}/bound/{suite.planner}"
        if key not in known:
            planner = simulators.make(suite.planner)
            known[key] = np.mean([_bound_by_one(task, planner) for task in suite.tasks("test")])
            print(f"{key}: {known[key]:.0%} of test tasks")
        if len(known) > before:
            save_arrays(path, known)


def _counts(suite: Suite) -> dict[str, int]:
    """Tasks of each split: the papers' numbers, and at least 100 test tasks in ours."""
    if suite.name.startswith("MetaSyn"):
        return {"train": 90, "val": 10, "test": 10}
    if suite.name.startswith("DLRM"):
        return {"train": 50, "val": 10, "test": 50}
    if suite.name.startswith(("Prod", "Wide")):
        return {"train": 20, "val": 5, "test": 100}
    return {"train": 100, "val": 20, "test": 100}


def _scaling(suite: Suite, pool: TablePool, columns: Columns) -> np.ndarray:
    """Mean and deviation of the features of all training tables, (2, 21)."""
    used = columns["tables"] != PADDING
    ids, dims = columns["tables"][used], columns["dims"][used]
    doublings = columns.get("doublings", np.zeros_like(columns["tables"]))[used]
    tables = with_doubled_rows(pool.take(ids).with_(dim=dims, dtype=(suite.dtype,) * len(ids)), doublings)
    features = tables.features().astype(np.float64)
    deviation = features.std(axis=0)
    return np.stack([features.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])


def _bound_by_one(task: Task, planner: simulators.Simulator) -> bool:
    bound = certificate(task, planner, budget=0.0) if beyond_columns(task) or task.splits_allowed else None
    if bound is not None and bound.table is None:
        return False
    try:
        plan = make("ladder" if task.splits_allowed else "cost-greedy")(task, planner)
    except InfeasibleTask:  # memory binds
        return False
    least = simulators.single_costs(planner, task).max() if bound is None else bound.makespan
    return bool(least >= 0.95 * plan_latency(planner, task, plan).makespan(task.objective))


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an archive, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())
    print(f"{path.name}: {len(buffer.getvalue()) / 1e3:.0f} kB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the steps named."""
    steps = {"pools": freeze_pools, "banks": freeze_banks, "references": freeze_references}
    parser = commands.parser("python -m benchmarks.freeze", __doc__)
    parser.add_argument("steps", nargs="+", choices=steps)

    def command(options: argparse.Namespace) -> None:
        for step in options.steps:
            steps[step]()

    return commands.run(parser, command, arguments)


if __name__ == "__main__":
    sys.exit(main())
