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
from benchmarks.random_kinds import random_makespans

from shard_gym import simulators
from shard_gym.bounds import certificate
from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.random_plans import random_placements
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.simulators.base import plan_latency
from shard_gym.tables.metasyn import load_metasyn, metasyn, pack
from shard_gym.tables.pool import GB, TablePool
from shard_gym.task.suite import PADDING, SPLITS, Suite, with_doubled_rows
from shard_gym.task.suites import MEAN_LOAD, SUITES
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.solvers.solver import require_fast

OWN = [suite for suite in SUITES.values() if not suite.bank]  # the others show the tasks of one of these
DATA = Path(__file__).parents[2] / "shard_gym" / "data"
POOLS = [(0, 856), (1, 856), (2, 856), (3, 856), (4, 1000), (5, 1000), (6, 1000)]
REFERENCE_PLANS, PLANS_OF_KINDS = 1_000, 100
MIXED_DIMS = np.array([4, 8, 16, 32, 64, 128])
# Memory of each device over the mean load, of suites of all kinds. Below 1 some rows live in the host's memory.
SHARE_OF_LOAD = {
    "tight-80x8-allkinds": 0.5,
    "tightmix-80x8-allkinds": 0.5,
    "wide-300x16-allkinds": 0.4,
}
WIDE_DIMS, MOST_DOUBLINGS = np.array([4, 8, 16, 32, 64, 128, 256, 512]), 8
LARGEST_A100 = 80 * GB
PROD_DIMS, PROD_SHARES = np.array([32, 64, 128, 256, 512, 768]), np.array([0.3, 0.25, 0.2, 0.13, 0.08, 0.04])


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
        if (share := SHARE_OF_LOAD.get(suite.key)) and suite.tables:
            for split in SPLITS:
                of_base = [_capacity(share, task) for task in SUITES[suite.tables].tasks(split)]
                bank.setdefault(f"{suite.key}/{split}/memory", np.array(of_base, np.int64))
    save_arrays(path, bank)


def _drawn(number: int, suite: Suite) -> dict[str, np.ndarray]:
    """Arrays of a suite's tasks, drawn."""
    bank: dict[str, np.ndarray] = {}
    for split, count in _counts(suite).items():
        rng = np.random.default_rng([2021, number, SPLITS.index(split)])
        pool = load_metasyn(*suite.pools[SPLITS.index(split)])
        decks = {part: Deck(ids, rng) for part, ids in _parts(pool).items()}
        drawn = [_draw(suite, split, pool, decks, rng) for _ in range(count)]
        for column in [name for name in ("tables", "dims", "doublings") if name in drawn[0]]:
            padding = PADDING if column == "tables" else 0
            rows = [np.pad(d[column], (0, suite.num_tables - len(d[column])), constant_values=padding) for d in drawn]
            bank[f"{suite.key}/{split}/{column}"] = np.array(rows, np.uint16)
        if "memory" in drawn[0]:
            bank[f"{suite.key}/{split}/memory"] = np.array([d["memory"] for d in drawn], np.int64)
        if split == "train":
            bank[f"{suite.key}/scaling"] = _scaling(suite, drawn)
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
                    known[key] = np.array([_random_makespan(task, simulator, rng) for task in tasks])
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


class Deck:
    """Deals different tables to each task, and shuffles again when too few are left: tables are used evenly."""

    def __init__(self, ids: np.ndarray, rng: np.random.Generator) -> None:
        self.ids, self.rng, self.left = ids, rng, ids[:0]

    def deal(self, n: int) -> np.ndarray:
        if len(self.left) < n:
            self.left = self.rng.permutation(self.ids)
        dealt, self.left = self.left[:n], self.left[n:]
        return dealt


def _draw(
    suite: Suite, split: str, pool: TablePool, decks: dict[str, Deck], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """One task's table ids, dims and, for tight suites, capacities."""
    if suite.name.startswith("Mixed"):
        return _draw_mixed(suite, pool, rng)
    if suite.name.startswith("Wide"):
        return _draw_wide(suite, pool, decks["all"], rng)
    if suite.memory_gb == (MEAN_LOAD,):
        return _draw_tight(suite, pool, decks["all"], rng)
    ids = _deal(suite, split, decks)
    if suite.name.startswith("Prod"):
        return {"tables": ids, "dims": rng.choice(PROD_DIMS, len(ids), p=PROD_SHARES)}
    if suite.name.startswith("DLRM"):
        return {"tables": ids, "dims": np.full(len(ids), 16)}
    if suite.name.startswith("MetaSyn"):  # drawn once per table of the pool
        return {"tables": ids, "dims": np.random.default_rng(16).choice([16, 32], len(pool))[ids]}
    return {"tables": ids, "dims": rng.choice(MIXED_DIMS, len(ids))}


def _deal(suite: Suite, split: str, decks: dict[str, Deck]) -> np.ndarray:
    """Different tables: from the whole pool, or from halves of it where a paper tests on unseen tables."""
    n = suite.num_tables
    if suite.name.startswith("DLRM"):
        return decks["second" if split == "test" else "first"].deal(n)
    if "Unseen" in suite.name:
        unseen = n * int(suite.name.split("Unseen")[1]) // 100 if split == "test" else 0
        return np.concatenate([decks["second"].deal(unseen), decks["first"].deal(n - unseen)])
    return decks["all"].deal(n)


def _parts(pool: TablePool) -> dict[str, np.ndarray]:
    """Ids of all tables, and of two halves alike in pooling: of two neighbours by pooling, one goes to either half."""
    by_pooling = np.argsort(pool.pooling, kind="stable").reshape(-1, 2)
    flipped = np.random.default_rng(2).random(len(by_pooling)) < 0.5
    pairs = np.where(flipped[:, None], by_pooling[:, ::-1], by_pooling)
    return {"all": np.arange(len(pool)), "first": pairs[:, 0], "second": pairs[:, 1]}


def _draw_mixed(suite: Suite, pool: TablePool, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """NeuroShard's generator: ids with replacement, dims up to a limit of the task's own, redrawn until it fits."""
    low, high = map(int, suite.name.split("-")[1].split("x")[0].split("to"))
    n = int(rng.integers(low, high + 1))
    while True:
        ids = rng.choice(len(pool), n)
        dims = rng.choice(MIXED_DIMS[: rng.integers(1, len(MIXED_DIMS) + 1)], n)
        if (pool.rows[ids] * dims * 4).sum() <= 15 / 16 * suite.memory_gb[0] * GB * suite.num_devices:
            return {"tables": ids, "dims": dims}


def _draw_tight(suite: Suite, pool: TablePool, deck: Deck, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Capacity just above the mean load; drawn again until some packing is known."""
    mixed = "TightMix" in suite.name
    factor, choices = (1.02, MIXED_DIMS) if mixed else (1.05, np.array([16, 32]))
    while True:
        ids = deck.deal(suite.num_tables)
        dims = rng.choice(choices, len(ids))
        tables = pool.take(ids).with_(dim=dims, dtype=(suite.dtype,) * len(ids))
        counted = {"optimizer": suite.optimizer, "accounting": suite.accounting, "batch": suite.batch}
        roomy = Task(tables, (2**60,) * suite.num_devices, **counted)
        capacity = _capacity(factor, roomy)
        tight = Task(tables, (capacity,) * suite.num_devices, **counted)
        try:
            first_fit_decreasing(tight)
        except InfeasibleTask:
            continue
        return {"tables": ids, "dims": dims, "memory": np.array(capacity)}


def _draw_wide(suite: Suite, pool: TablePool, deck: Deck, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows doubled now and then, from millions to 10**9, some tables larger than a device; drawn again until devices
    are no larger than there are."""
    while True:
        ids, dims = deck.deal(suite.num_tables), rng.choice(WIDE_DIMS, suite.num_tables)
        doublings = np.minimum(np.rint(rng.exponential(1.2, len(ids))), MOST_DOUBLINGS).astype(np.int64)
        tables = with_doubled_rows(pool.take(ids).with_(dim=dims, dtype=(suite.dtype,) * len(ids)), doublings)
        roomy = Task(tables, (2**60,) * suite.num_devices, optimizer=suite.optimizer, accounting=suite.accounting)
        capacity = _capacity(SHARE_OF_LOAD[suite.key], roomy)
        if capacity <= LARGEST_A100 and (table_bytes(roomy) > capacity).any():
            return {"tables": ids, "dims": dims, "doublings": doublings, "memory": np.array(capacity)}


def _capacity(share: float, task: Task) -> int:
    """Bytes of a device: so much of what each would hold if all held the same."""
    return int(share * table_bytes(task).sum() / task.num_devices)


def _scaling(suite: Suite, drawn: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Mean and deviation of the features of all training tables, (2, 21)."""
    pool = load_metasyn(*suite.pools[0])
    ids, dims = (np.concatenate([d[column] for d in drawn]) for column in ("tables", "dims"))
    doublings = np.concatenate([d.get("doublings", np.zeros(len(d["tables"]), np.int64)) for d in drawn])
    tables = with_doubled_rows(pool.take(ids).with_(dim=dims, dtype=(suite.dtype,) * len(ids)), doublings)
    features = tables.features().astype(np.float64)
    deviation = features.std(axis=0)
    return np.stack([features.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])


def _random_makespan(task: Task, simulator: simulators.Simulator, rng: np.random.Generator) -> float:
    """Tasks that no known plan solves without splits take uniform placements, full devices or not."""
    if beyond_columns(task):
        return float(random_makespans(task, require_fast(simulator), PLANS_OF_KINDS, rng).mean())
    makespans = []
    for _ in range(10):  # in parts, to bound memory at 1000 x 128
        try:
            placements = random_placements(task, REFERENCE_PLANS // 10, rng)
        except InfeasibleTask:
            placements = rng.integers(task.num_devices, size=(REFERENCE_PLANS // 10, task.num_tables))
        makespans.append(simulator.latency(task, placements).makespan(task.objective))
    return float(np.concatenate(makespans).mean())


def _bound_by_one(task: Task, planner: simulators.Simulator) -> bool:
    bound = certificate(task, planner) if beyond_columns(task) else None
    if bound is not None and bound.table is None:
        return False
    try:
        plan = make("cost-greedy")(task, planner)
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
