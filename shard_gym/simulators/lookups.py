"""Lookups of a batch in each shard, by the use histogram of its table: a shard is a smaller table.

Ids are taken to be spread evenly over the blocks of rows, so a block has as large a share of the rows touched, and of
their lookups, as of the table's rows. A copy is asked by its own device's samples only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.memory.shards import Shards
from shard_gym.tables.histograms import HIGH, LOW, bin_of, kept_share
from shard_gym.tables.pool import TablePool, at_batch
from shard_gym.task.task import Task

SECTOR = 32  # bytes of the smallest DRAM or L2 access


@dataclass(frozen=True, eq=False)
class Lookups:
    """Lookups of S shards in a batch, by uses in the reference batch, and what its samples get for them.

    Shards of as many rows and columns of a table look up alike, wherever they live: counts of those side by side are
    told once.
    """

    counts: np.ndarray  # (2, D, 17) rows touched and lookups
    first: np.ndarray | slice  # (D,) the first shard that each is of
    at: np.ndarray | slice  # (S,) the counts of each shard
    distinct: np.ndarray  # (S,) all rows touched
    ids: np.ndarray  # (S,) all lookups
    bags: np.ndarray  # (S,), those of a block of rows are all samples' bags; 0 where nothing is looked up
    pooled: np.ndarray  # (S,) bool

    @property
    def touched(self) -> np.ndarray:
        """Rows touched of each shard, (S, 17)."""
        return self.counts[0, self.at]

    @property
    def looked_up(self) -> np.ndarray:
        """Lookups of each shard, (S, 17)."""
        return self.counts[1, self.at]

    @property
    def rows_out(self) -> np.ndarray:
        """Rows that are written for the samples, (S,): one for each bag, or for each id of tables that do not pool."""
        return np.where(self.pooled, self.bags, self.ids)

    @classmethod
    def of_tables(cls, tables: TablePool, batch: float) -> Lookups:
        """Expected counts of whole tables in a batch."""
        counts, bags = np.stack(at_batch(tables, batch)), batch * tables.bags.astype(np.float64)
        return cls._counted(counts, slice(None), slice(None), bags, tables.pooled)

    @classmethod
    def of(cls, task: Task, shards: Shards, batch: int) -> Lookups:
        """Expected counts of a batch over all devices."""
        table, tables, copied = shards.table, task.tables, shards.kind == "dp"
        found = [cls.of_tables(tables, batch / ranks) for ranks in (1, task.num_devices)[: 1 + copied.any()]]
        sizes = np.stack([table, shards.rows, shards.dim, copied])
        new = np.append(True, (sizes[:, 1:] != sizes[:, :-1]).any(axis=0))[: len(table)]
        first, at = np.flatnonzero(new), np.cumsum(new) - 1
        share = (shards.rows[first] / tables.rows[table[first]])[:, None]
        of = copied[first] * len(tables) + table[first]
        counts = np.concatenate([some.counts for some in found], axis=1)[:, of] * share
        bags = np.concatenate([some.bags for some in found])[copied * len(tables) + table]
        return cls._counted(counts, first, at, bags, tables.pooled[table])

    @classmethod
    def _counted(
        cls,
        counts: np.ndarray,
        first: np.ndarray | slice,
        at: np.ndarray | slice,
        bags: np.ndarray,
        pooled: np.ndarray,
    ) -> Lookups:
        distinct, ids = counts.sum(axis=2)[:, at]
        return cls(counts, first, at, distinct, ids, np.where(ids > 0, bags, 0), pooled)

    def hits(self, row: np.ndarray, cache_bytes: float) -> np.ndarray:
        """Lookups that a cache answers which holds the most used rows, (S,), rows of `row` bytes each, (S,)."""
        touched, looked_up = self.counts
        kept = kept_share(row[self.first], touched, cache_bytes)
        found: np.ndarray = (kept * np.maximum(looked_up - touched, 0)).sum(axis=1)
        return found[self.at]

    def missed(self, shards: Shards, row: np.ndarray) -> np.ndarray:
        """Rows that come from the host's memory in a batch, (S,), where a row takes `row` bytes there.

        All that are touched; with a cache, those that it does not hold, once each. It holds the most used rows of the
        shard. Rows used once are taken to be other ones each time, of all rows that are not used more.
        """
        found, cached = np.where(shards.of.in_host, self.distinct, 0), np.flatnonzero(shards.of.cached)
        touched, rows, row = self.touched[cached], shards.rows[cached], row[cached]
        there = touched.copy()
        there[:, 0] = np.maximum(rows - touched[:, 1:].sum(axis=1), touched[:, 0])
        kept = kept_share(row, there, (shards.of.cache_load_factor[cached] * rows * row)[:, None])
        found[cached] = (touched * (1 - kept)).sum(axis=1)
        return found


def sectors(row_bytes: np.ndarray) -> np.ndarray:
    """Bytes that move when a row is touched: whole sectors."""
    return np.ceil(row_bytes / SECTOR) * SECTOR


def smaller_tables(task: Task, shards: Shards) -> TablePool:
    """Shards as tables of their own rows and columns, with their share of the lookups; an empty block as one row."""
    return blocks(task.tables.take(shards.table).with_(dim=shards.dim.astype(np.int32)), shards.rows)


def blocks(tables: TablePool, rows: np.ndarray) -> TablePool:
    """Blocks of so many rows of tables, (N,), as tables with their share of the lookups."""
    if (rows == tables.rows).all():
        return tables
    share = (rows / tables.rows)[:, None]
    touched, looked_up = _whole_rows(*(np.rint(counts * share).astype(np.int64) for counts in tables.use_counts()))
    distinct, lookups = touched.sum(axis=1), looked_up.sum(axis=1)
    return tables.with_(
        rows=np.maximum(rows, np.maximum(distinct, 1)),  # each bin's rows are rounded
        pooling=lookups / tables.reference_batch,
        distinct=distinct,
        uses=touched / np.maximum(distinct, 1)[:, None],
        accesses=looked_up / np.maximum(lookups, 1)[:, None],
    )


def _whole_rows(touched: np.ndarray, looked_up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that can make these lookups, (S, 17) both: a part of a row is one that is used less."""
    shard, bin_ = np.nonzero((looked_up > 0) & (looked_up < LOW))
    part = looked_up[shard, bin_]
    touched[shard, bin_] = looked_up[shard, bin_] = 0
    np.add.at(touched, (shard, bin_of(part)), 1)
    np.add.at(looked_up, (shard, bin_of(part)), part)
    return np.clip(touched, -(-looked_up // HIGH), looked_up // LOW), looked_up
