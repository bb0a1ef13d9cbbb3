"""Draw shards of every sort for one campaign: `python -m benchmarks.mixture --out FILE.npz`

For each role, from its own tables: shards drawn at random, single and few tables, pieces of tables (columns, blocks of
rows), and what plans of random, greedy, halving and search by the planner of before put on a device. With them go
shards of the campaigns of before, by which old and new times are brought to one level. Measure the list in three visits
far apart (`shard-gym measure --shard-file FILE.npz --repeats 3 --warmups 1 --runs 3 --drop 0 --clock thread`).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.pace import blank

from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.measuring.chosen import shards_of
from shard_gym.measuring.measurements import CUTS, Measurements, pool_named
from shard_gym.measuring.shards import ALL_DIMS, SUITE_DIMS, WIDE_DIMS, Drawn
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.files import read_json, write_whole
from shard_gym.simulators import FastSimulator
from shard_gym.tables.pool import TablePool
from shard_gym.task.task import Task
from shard_gym_agents import make

POOLS = {
    "planner": ("metasyn_0_856", "metasyn_1_856", "metasyn_4_1000"),
    "judge": ("metasyn_2_856", "metasyn_5_1000"),
    "test": ("metasyn_3_856", "metasyn_6_1000"),
}
SHAPES = ((24, 8, ALL_DIMS), (40, 8, ALL_DIMS), (80, 8, ALL_DIMS), (80, 8, SUITE_DIMS))  # tables, devices, columns
SORTS = {"random": 0.24, "single": 0.06, "few": 0.12, "pieces": 0.24, "plans": 0.34}  # shares of a role's shards
OF_TESTS = {"random": 0.12, "single": 0.04, "few": 0.08, "pieces": 0.14, "plans": 0.62}
ROOM = 3.4e9  # bytes of a table: the default arena of a CPU holds it
LEAST_POOLING = 10.0  # ids a sample of a shard, but of single tables
DEVICES = 3  # of each plan that are measured; of the test's all are


@dataclass(frozen=True)
class Mixture:
    """Shards of one role, drawn in turn from its pools."""

    role: str
    planner: FastSimulator
    seed: int
    shares: dict[str, float]  # of each sort
    budget: float  # seconds of a search
    plans: list[dict[str, Any]] = field(default_factory=list)  # those of which all devices are among the shards

    def drawn(self, count: int) -> Measurements:
        """About `count` shards, not measured yet."""
        wanted = {sort: round(share * count / len(POOLS[self.role])) for sort, share in self.shares.items()}
        parts = []
        for number, pool in enumerate(POOLS[self.role]):
            rng = np.random.default_rng([self.seed, number])
            parts.append(self._random(pool, wanted["random"], number))
            for sort, draw in (("single", self._single), ("few", self._few), ("pieces", self._pieces)):
                shards = [draw(pool_named(f"{pool}_rows"), rng) for _ in range(wanted[sort])]
                kind = "single" if sort == "single" else "random"
                parts.append(Measurements.unmeasured(f"{pool}_rows", shards, kind))
            parts.append(self._plans(pool, wanted["plans"], rng))
        return Measurements.concat(parts)

    def _random(self, pool: str, count: int, number: int) -> Measurements:
        source = Drawn(count, pool, ("random", "light", "heavy"), 100 * self.seed + number, dims=ALL_DIMS)
        shards = [source.shard(i) for i in range(count)]
        return Measurements.unmeasured(pool, [(s.table, s.dim) for s in shards], "random")

    def _single(self, pool: TablePool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return self._tables(pool, rng, 1, 0.25, WIDE_DIMS, 0.5)

    def _few(self, pool: TablePool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return self._tables(pool, rng, int(rng.integers(2, 7)), 0.0, WIDE_DIMS, LEAST_POOLING)

    def _pieces(self, pool: TablePool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mostly few tables; none, some or most of them are blocks of rows."""
        count = int(rng.integers(2, 7) if rng.random() < 0.6 else rng.integers(7, 17))
        return self._tables(pool, rng, count, float(rng.choice([0.0, 0.3, 0.7])), ALL_DIMS, LEAST_POOLING)

    def _tables(
        self, pool: TablePool, rng: np.random.Generator, count: int, cut: float, dims: Sequence[int], least: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Different tables, each a block of its rows with probability `cut`, half of them weighted by their lookups."""
        whole = len(pool.pooling) // len(CUTS)
        weight = np.sqrt(pool.pooling[:whole].astype(np.float64))
        while True:
            heavy = rng.random() < 0.5
            table = rng.choice(whole, count, replace=False, p=weight / weight.sum() if heavy else None)
            part = np.where(rng.random(count) < cut, rng.integers(1, len(CUTS), count), 0)
            picked = table + part * whole
            if pool.pooling[picked].sum() >= least:
                most = ROOM / 2 / pool.rows[picked]
                dim = np.array([rng.choice([d for d in dims if d <= each]) for each in most])
                return picked, dim

    def _plans(self, pool: str, count: int, rng: np.random.Generator) -> Measurements:
        """Shards of plans, a task of each shape in turn; of a test's plan all devices."""
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for tables, devices, dims in cycle(SHAPES):
            if len(found) >= count:
                break
            picked = rng.choice(len(pool_named(pool)), tables, replace=False)
            task = _task(pool, picked, rng.choice(dims, tables), devices)
            for solver, plan in self._planned(task, int(rng.integers(2**31))):
                shards = list(shards_of(task, plan))
                if self.role == "test":
                    self.plans.append(
                        {"pool": pool, "tables": tables, "dims": dims, "solver": solver, "shards": shards}
                    )
                else:
                    shards = [shards[i] for i in rng.permutation(len(shards))[:DEVICES]]
                found |= dict.fromkeys(shards)
        return Measurements.unmeasured(pool, list(found), "searched", round=3)

    def _planned(self, task: Task, seed: int) -> Iterator[tuple[str, Plan]]:
        yield "random", make("random", seed=seed)(task, self.planner)
        yield "cost-greedy", make("cost-greedy")(task, self.planner)
        yield "ladder", make("ladder")(task, self.planner)
        yield "local-search", make("local-search", seed=seed, budget=self.budget)(task, self.planner)


def _task(pool: str, picked: np.ndarray, dim: np.ndarray, devices: int) -> Task:
    tables = pool_named(pool).take(picked).with_(dim=dim.astype(np.int32))
    return Task(tables, memory=(2**50,) * devices, batch=2048, optimizer="rowwise_adagrad", splits_allowed=True)


def yardsticks(hardware: Hardware, count: int, seed: int) -> Measurements:
    """Shards of the campaigns of before, those that the pace file holds."""
    reference = Measurements.load(hardware.pace)
    picked = np.random.default_rng(seed).permutation(len(reference))[:count]
    return blank(reference.take(np.sort(picked)))


def again(path: Path) -> Measurements:
    """The shards of plans that were written before."""
    by_pool: dict[str, dict[Any, None]] = {}
    for plan in read_json(path)["plans"]:
        shards = ((tuple(table), tuple(dim)) for table, dim in plan["shards"])
        by_pool.setdefault(plan["pool"], {}).update(dict.fromkeys(shards))
    return Measurements.concat(
        [Measurements.unmeasured(pool, list(shards), "searched", round=3) for pool, shards in by_pool.items()]
    )


def write(options: Namespace) -> None:
    """Write the list."""
    tell_pace = yardsticks(Hardware(options.hardware), options.yardsticks, options.seed)
    if options.again:
        Measurements.concat([again(options.again), tell_pace]).save(options.out)
        return
    planner = simulators.make(options.planner)
    assert isinstance(planner, FastSimulator)
    counts = {"planner": options.planner_shards, "judge": options.judge_shards, "test": options.test_shards}
    sorts = {role: OF_TESTS if role == "test" else SORTS for role in counts}
    if options.plans_only:
        sorts = {role: dict.fromkeys(SORTS, 0.0) | {"plans": 1.0} for role in counts}
    mixtures = {
        role: Mixture(role, planner, seed, sorts[role], options.budget)
        for seed, role in enumerate(counts, options.seed)
    }
    parts = [mixtures[role].drawn(count) for role, count in counts.items() if count]
    found = Measurements.concat([*parts, tell_pace])
    found.save(options.out)
    if options.plans:
        plans = ",\n".join(json.dumps(plan) for plan in mixtures["test"].plans)
        write_whole(options.plans, f'{{"planner": "{planner.id}", "plans": [\n{plans}\n]}}\n')
    print(f"{len(found)} shards to measure in {options.out}: {[len(part) for part in parts]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the list."""
    parser = commands.parser("mixture", __doc__)
    parser.add_argument("--hardware", default="cpu", help="whose old shards are measured again: files HARDWARE-*.npz")
    parser.add_argument("--planner", default="learned:cpu-v1", help="the simulator that plans are made by")
    parser.add_argument("--planner-shards", type=int, default=1200)
    parser.add_argument("--judge-shards", type=int, default=440)
    parser.add_argument("--test-shards", type=int, default=400)
    parser.add_argument("--yardsticks", type=int, default=320)
    parser.add_argument("--plans-only", action="store_true", help="no other sorts of shards")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of a search")
    parser.add_argument("--seed", type=int, default=200)
    parser.add_argument("--plans", type=Path, help="JSON file for the test's plans")
    parser.add_argument("--again", type=Path, help="only list the shards of the plans in this file")
    parser.add_argument("--out", type=Path, required=True)
    return commands.run(parser, write, argv)


if __name__ == "__main__":
    raise SystemExit(main())
