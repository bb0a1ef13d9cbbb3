"""Tasks of a suite's distribution, drawn: tables of a pool, their dims, and memory where it depends on the task.

Frozen banks were drawn by this, and so is whatever is drawn anew from the same distribution. Equal pools and random
numbers give equal tasks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.tables.pool import GB, TablePool
from shard_gym.task import suites
from shard_gym.task.suite import PADDING, Columns, Suite, SuiteTasks, with_doubled_rows
from shard_gym.task.suites import MEAN_LOAD
from shard_gym.task.task import Task

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


def tasks(suite: Suite, split: str, pool: TablePool, count: int, rng: np.random.Generator) -> SuiteTasks:
    """Tasks of the suite's distribution with tables of a pool; drawn as those of a split, where splits differ."""
    if suite.folder or suite.drawn_as not in suites.SUITES:
        raise InvalidTask(f"{suite.key} was not drawn by this package: no task like its own can be drawn")
    base = suites.get(suite.drawn_as)
    columns = drawn(base, split, pool, count, rng)
    if suite.tables:  # with memory of its own
        of_base = SuiteTasks(base, split, lambda: pool, columns)
        columns = {name: column for name, column in columns.items() if name != "memory"} | own_memory(suite, of_base)
    return SuiteTasks(suite, split, lambda: pool, columns)


def drawn(suite: Suite, split: str, pool: TablePool, count: int, rng: np.random.Generator) -> Columns:
    """Columns of so many tasks of a suite with tables of its own."""
    decks = {part: Deck(ids, rng) for part, ids in _parts(pool).items()}
    found = [_draw(suite, split, pool, decks, rng) for _ in range(count)]
    columns: dict[str, np.ndarray] = {}
    for name in [name for name in ("tables", "dims", "doublings") if name in found[0]]:
        padding = PADDING if name == "tables" else 0
        rows = [np.pad(d[name], (0, suite.num_tables - len(d[name])), constant_values=padding) for d in found]
        columns[name] = np.array(rows, np.uint16)
    if "memory" in found[0]:
        columns["memory"] = np.array([d["memory"] for d in found], np.int64)
    return columns


def own_memory(suite: Suite, of_base: SuiteTasks) -> Columns:
    """The column of memory of a suite that has its tables from another one, where memory depends on the task."""
    share = SHARE_OF_LOAD.get(suite.key)
    return {"memory": np.array([_capacity(share, task) for task in of_base], np.int64)} if share else {}


class Deck:
    """Deals different tables to each task, and shuffles again when too few are left: tables are used evenly."""

    def __init__(self, ids: np.ndarray, rng: np.random.Generator) -> None:
        self.ids, self.rng, self.left = ids, rng, ids[:0]

    def deal(self, n: int) -> np.ndarray:
        """The next n ids; the deck is shuffled anew where fewer are left."""
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
        roomy = Task(
            tables,
            (2**60,) * suite.num_devices,
            batch=suite.batch,
            optimizer=suite.optimizer,
            accounting=suite.accounting,
        )
        capacity = _capacity(factor, roomy)
        try:
            first_fit_decreasing(replace(roomy, memory=(capacity,) * suite.num_devices))
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
