"""Measurements laid out for fitting: each distinct table once, shards as lists of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.cost_models import features
from shard_gym.errors import InvalidPool
from shard_gym.measurements import Measurements, pool_named
from shard_gym.tables import TablePool

FOLDS = 20  # tables are dealt to so many folds; one of them is held out for early stopping
MIN_SHARDS = 40  # below, nothing can be held out


@dataclass(frozen=True, eq=False)
class Shards:
    """S shards over U distinct tables (a table of another dim is another table)."""

    tables: TablePool  # U
    batch: int
    row: np.ndarray  # (M,) which distinct table
    shard: np.ndarray  # (M,) of which shard, ascending
    origin: np.ndarray  # (M,) which table of all pools, whatever its dim
    times: np.ndarray  # (S, 2) forward and backward ms
    card: dict[str, Any]  # of the measurements

    def __len__(self) -> int:
        return len(self.times)

    def sums(self, per_table: np.ndarray) -> np.ndarray:
        """Sum of each shard's tables, (U, H) -> (S, H)."""
        out = np.zeros((len(self), per_table.shape[1]))
        np.add.at(out, self.shard, per_table[self.row])
        return out

    def holding(self, origins: np.ndarray) -> np.ndarray:
        """Which shards hold one of these tables, (S,) bool."""
        out = np.zeros(len(self), bool)
        out[self.shard[np.isin(self.origin, origins)]] = True
        return out

    def folds(self, seed: int) -> list[np.ndarray]:
        """For every fold of tables the shards that hold one of them, (S,) bool each."""
        tables = np.unique(self.origin)
        fold = np.random.default_rng(seed).permutation(len(tables)) % FOLDS
        return [self.holding(tables[fold == f]) for f in range(FOLDS)]


def shards_of(measured: Measurements) -> Shards:
    """Lay out measurements; those without a time are left out."""
    m = measured.take(np.isfinite(measured.total_ms) & (measured.total_ms > 0))
    if len(m) < MIN_SHARDS:
        raise InvalidPool(f"a fit needs at least {MIN_SHARDS} measured shards, got {len(m)}")
    shard = np.repeat(np.arange(len(m)), m.tables_per_shard)
    keys = np.column_stack([m.pool[shard], m.table, m.dim]).astype(np.int64)
    distinct, row = np.unique(keys, axis=0, return_inverse=True)
    origin = keys[:, 0] * 2**32 + keys[:, 1]
    times = np.column_stack([m.forward_ms, m.backward_ms]).astype(np.float64)
    return Shards(_joined(m.pools, distinct), batch_of(m.card), row.ravel(), shard, origin, times, m.card)


def batch_of(card: dict[str, Any]) -> int:
    """The batch that shards were measured at; joined measurements must agree on it."""
    batches = {part.get("batch") or part.get("settings", {}).get("batch") for part in card.get("parts", [card])}
    batch = batches.pop() if len(batches) == 1 else None
    if not isinstance(batch, int):
        raise InvalidPool('these measurements do not share one batch: their card needs "batch": samples a step')
    return batch


def bounds(tables: TablePool) -> np.ndarray:
    """Least, greatest and standard deviation of the properties of `features.RANGES`, (3, RANGES)."""
    values = features.ranged(tables)
    deviation = values.std(axis=0)
    return np.stack([values.min(axis=0), values.max(axis=0), np.where(deviation > 0, deviation, 1.0)])


def _joined(pools: tuple[str, ...], keys: np.ndarray) -> TablePool:
    parts = []
    for p, name in enumerate(pools):
        mine = keys[keys[:, 0] == p]
        if len(mine):
            parts.append(pool_named(name).take(mine[:, 1]).with_(dim=mine[:, 2].astype(np.int32)))
    if len({part.reference_batch for part in parts}) > 1:
        raise InvalidPool("pools of different reference batches cannot be fitted together")
    columns = ("rows", "dim", "pooling", "distinct", "uses", "accesses")
    return TablePool(
        **{c: np.concatenate([getattr(part, c) for part in parts]) for c in columns},
        name=tuple(n for part in parts for n in part.name),
        dtype=tuple(d for part in parts for d in part.dtype),
        reference_batch=parts[0].reference_batch,
    )
