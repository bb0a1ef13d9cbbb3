"""Which shards a campaign measures: drawn for wide coverage, or read from a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.measurements import KINDS, Measurements, pool_named
from shard_gym.tables import TablePool

MAX_TABLES = 16
SUITE_DIMS, ALL_DIMS = (16, 32), (4, 8, 16, 32, 64, 128)
# How often each kind is drawn, out of 100.
SHARES = {"single": 10, "random": 58, "light": 15, "heavy": 14, "repeat": 3}
MIN_POOLING = 30.0  # summed over a shard: 10 ms and more at batch 2,048 on one core
TRIES = 1_000


@dataclass(frozen=True)
class Shard:
    """Tables of a pool that are measured together."""

    pool: str
    table: np.ndarray  # (n,) int32
    dim: np.ndarray  # (n,) int16
    kind: str = "random"
    round: int = 0

    @property
    def tables(self) -> TablePool:
        """The tables with the shard's columns."""
        return pool_named(self.pool).take(self.table).with_(dim=self.dim.astype(np.int32))


class Source(Protocol):
    """A fixed list of shards, by index."""

    def __len__(self) -> int: ...

    def order(self) -> np.ndarray:
        """Every index once, in the order to measure."""
        ...

    def shard(self, index: int) -> Shard:
        """The shard at an index, always the same one."""
        ...

    def describe(self) -> dict[str, Any]:
        """What two runs must agree on to be one campaign."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Shards drawn at random; each follows from (seed, index) alone, so a longer list begins like a shorter one."""

    count: int
    pool: str = "metasyn_0_856"
    kinds: tuple[str, ...] = tuple(SHARES)
    seed: int = 0
    min_pooling: float = MIN_POOLING
    round: int = 0
    _tables: TablePool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in SHARES:
                raise UnknownName("kind of shard to draw", kind, SHARES)
        if self.count < 0 or set(self.kinds) <= {"repeat"}:
            raise SimulatorError(f"draw at least one kind besides repeats, and 0 shards or more; got {self}")
        object.__setattr__(self, "_tables", pool_named(self.pool))

    def __len__(self) -> int:
        return self.count

    def order(self) -> np.ndarray:
        return np.arange(self.count)

    def describe(self) -> dict[str, Any]:
        kinds = sorted(set(self.kinds))
        return {
            "pool": self.pool,
            "kinds": kinds,
            "seed": self.seed,
            "min_pooling": self.min_pooling,
            "round": self.round,
        }

    def shard(self, index: int) -> Shard:
        """Redrawn until it has lookups enough to be timed well; single tables are taken as they come."""
        rng = np.random.default_rng([self.seed, index])
        kind = self._kind(rng, index)
        if kind == "repeat":
            earlier = self.shard(int(rng.integers(index)))
            return Shard(self.pool, earlier.table, earlier.dim, "repeat", self.round)
        for _ in range(TRIES):
            table = self._draw(rng, kind)
            pooling = self._tables.pooling[table].sum()
            if pooling >= self.min_pooling or (kind == "single" and pooling >= 0.1):
                dims = SUITE_DIMS if rng.random() < 0.5 else ALL_DIMS
                dim = rng.choice(dims, len(table)).astype(np.int16)
                return Shard(self.pool, table.astype(np.int32), dim, kind, self.round)
        raise SimulatorError(f"no {kind} shard of {self.pool} in {TRIES} reaches a pooling of {self.min_pooling}")

    def _kind(self, rng: np.random.Generator, index: int) -> str:
        kinds = [k for k in SHARES if k in self.kinds and (k != "repeat" or index)]
        weights = np.array([SHARES[k] for k in kinds], float)
        return kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]

    def _draw(self, rng: np.random.Generator, kind: str) -> np.ndarray:
        """Light shards hold many tables of the lower half by pooling, heavy ones prefer tables much looked up."""
        pooling = self._tables.pooling.astype(np.float64)
        if kind == "single":
            return rng.integers(len(pooling), size=1)
        if kind == "light":
            return rng.choice(np.argsort(pooling)[: len(pooling) // 2], int(rng.integers(8, MAX_TABLES + 1)), False)
        if kind == "heavy":
            return rng.choice(len(pooling), int(rng.integers(1, 13)), False, p=pooling / pooling.sum())
        number = 10 if rng.random() < 0.3 else int(rng.integers(1, MAX_TABLES + 1))
        return rng.choice(len(pooling), number, replace=False)


@dataclass(frozen=True)
class Listed:
    """The shards of a file, measured `repeats` times: pass p of shard i has index p * S + i.

    Within a pass the order is shuffled, so that what drifts on the device hits all shards alike.
    """

    path: Path
    repeats: int = 1
    seed: int = 0

    @cached_property
    def _list(self) -> Measurements:
        return Measurements.load(self.path)

    def __len__(self) -> int:
        return len(self._list) * self.repeats

    def order(self) -> np.ndarray:
        shards = len(self._list)
        passes = [np.random.default_rng([self.seed, p]).permutation(shards) + p * shards for p in range(self.repeats)]
        return np.concatenate([np.zeros(0, np.int64), *passes])

    def describe(self) -> dict[str, Any]:
        return {"shard_file": self._list.content_hash, "repeats": self.repeats, "seed": self.seed}

    def shard(self, index: int) -> Shard:
        i = index % len(self._list)
        table, dim = self._list.tables(i)
        kind = KINDS[self._list.kind[i]] if index == i else "repeat"
        return Shard(self._list.pools[self._list.pool[i]], table, dim, kind, int(self._list.round[i]))
