"""Inputs of the networks: properties of a table, at the batch they were fitted for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.tables.histograms import NUM_BINS, kept_share
from shard_gym.tables.pool import FEATURES, TablePool, at_batch

# A first guess of what a table takes: for itself, each number that goes out, lookup, row, line of rows, miss and page.
# A linear fit of the shards measured on two cores of an AMD EPYC, which is 9 % off.
MICROSECONDS = np.array([20.0, 0.002, 0.015, 0.054, 0.010, 0.027, 0.12])
L1_BYTES, PAGE_BYTES = 2**15, 2**12
HUGE = 16  # last-level caches, for how much of a table memory pages and prefetchers keep close
SCALARS = ("lookups", "dim", "row_bytes", "rows", "distinct", "footprint", "work", "bytes", "fresh")
# Order of the inputs of our network's tables, and of what it adds up over a shard.
INPUTS = (*SCALARS, "hits_l2", "hits_l3", "hits_huge", *(f"accesses_{b}" for b in range(NUM_BINS)))
TOTALS = ("tables", "lookups", "traffic", "footprint", "bytes", "dims")
# The same with the lines that no cache keeps, and the pages that rows are spread over.
PHYSICS_INPUTS = (*INPUTS, "missed_l1", "missed_l2", "missed_l3", "pages", "state_pages", "reuse", "bag")
PHYSICS_TOTALS = (*TOTALS, "missed_l2", "missed_l3")
# AutoShard's Table 2 leaves these out one at a time.
GROUPS = {
    "dim": slice(0, 1),
    "rows": slice(1, 2),
    "pooling": slice(2, 3),
    "size": slice(3, 4),
    "distribution": slice(4, len(FEATURES)),
}
# The ranges that a fit remembers, to know a table that is unlike all it has seen.
RANGES = ("dim", "row_bytes", "rows", "pooling")


@dataclass(frozen=True)
class Caches:
    """Bytes that memory hands out at once, and of the last two caches before it; `cpu-v1` was fitted with these."""

    line_bytes: int = 64
    l2_bytes: int = 2**20
    l3_bytes: int = 2**25

    def __post_init__(self) -> None:
        if not all(isinstance(size := getattr(self, f.name), int) and 0 < size < 2**53 for f in fields(self)):
            raise InvalidTask(f"caches are whole bytes above 0, got {self}")

    @classmethod
    def of(cls, card: dict[str, Any]) -> Caches:
        """The caches that a card tells of, of measured hardware or of a fit; where it tells none, the default."""
        told = {name: card[name] for name in ("line_bytes", "l2_bytes", "l3_bytes") if name in card}
        return cls(**told) if len(told) == len(fields(cls)) else cls()

    @property
    def sizes(self) -> tuple[float, ...]:
        """Bytes of the caches that a table's hits are told for."""
        return float(self.l2_bytes), float(self.l3_bytes), float(HUGE * self.l3_bytes)


class Work(NamedTuple):
    """Tables as our network sees them."""

    inputs: np.ndarray  # (N, INPUTS), logarithms and shares
    unit: np.ndarray  # (N,) a first guess of each table's cost, us
    totals: np.ndarray  # (N, TOTALS), amounts that add up over a shard


def published(tables: TablePool) -> np.ndarray:
    """The 21 features of AutoShard and DreamShard, (N, 21) float64."""
    return tables.features().astype(np.float64)


def work(tables: TablePool, batch: int, caches: Caches) -> Work:
    """Work of a batch on these tables: lookups, rows touched, bytes, and how well rows are used again."""
    touched, looked_up = at_batch(tables, batch)
    lookups, distinct = looked_up.sum(axis=1), touched.sum(axis=1)
    dim = tables.dim.astype(np.float64)
    line = caches.line_bytes
    row = np.ceil(dim * tables.element_bytes / line) * line
    footprint = distinct * (row + line)  # with its row of the optimizer's state
    size = tables.weight_bytes.astype(np.float64)
    traffic = lookups * row
    unit = 1.0 + lookups * (1 + dim / 16) / 200
    amounts = [lookups, dim, dim * tables.element_bytes, tables.rows, distinct, footprint, lookups * dim, size]
    logs = np.log2(1 + np.stack(amounts, axis=1))
    fresh = distinct / np.maximum(lookups, 1)
    again = np.maximum(looked_up - touched, 0)  # a row's first use always misses
    kept = kept_share(row, touched, np.array(caches.sizes)[:, None, None])
    hits = (kept * again).sum(axis=2).T / np.maximum(lookups, 1)[:, None]
    inputs = np.column_stack([logs, fresh, hits, tables.accesses])
    return Work(inputs, unit, np.column_stack([np.ones(len(tables)), lookups, traffic, footprint, size, dim]))


def physics(tables: TablePool, batch: int, caches: Caches) -> Work:
    """The same work, and what it makes a processor wait for: lines that a cache misses, pages that hold the rows."""
    found = work(tables, batch, caches)
    touched, looked_up = at_batch(tables, batch)
    lookups, distinct = looked_up.sum(axis=1), touched.sum(axis=1)
    dim = tables.dim.astype(np.float64)
    row = np.ceil(dim * tables.element_bytes / caches.line_bytes) * caches.line_bytes
    sizes = np.array([L1_BYTES, caches.l2_bytes, caches.l3_bytes], np.float64)
    kept = kept_share(row, touched, sizes[:, None, None])
    again = np.maximum(looked_up - touched, 0)
    missed = (lookups - (kept * again).sum(axis=2)) * row / caches.line_bytes  # (3, N), lines
    size = tables.weight_bytes.astype(np.float64)
    pages, state_pages = np.minimum(distinct, size / PAGE_BYTES), np.minimum(distinct, tables.rows * 4 / PAGE_BYTES)
    amounts = [*missed, pages, state_pages, lookups / np.maximum(distinct, 1), lookups / batch]
    logs = np.log2(1 + np.stack(amounts, axis=1))
    totals = np.column_stack([found.totals, missed[1], missed[2]])
    lines = distinct * row / caches.line_bytes
    parts = [np.ones(len(tables)), batch * dim, lookups, distinct, lines, missed[1], pages]
    return Work(np.column_stack([found.inputs, logs]), np.stack(parts, axis=1) @ MICROSECONDS, totals)


def ranged(tables: TablePool) -> np.ndarray:
    """The properties of RANGES as logarithms, (N, RANGES)."""
    values = [tables.dim, tables.dim * tables.element_bytes, tables.rows, tables.pooling * 1024]
    return np.log2(1 + np.stack(values, axis=1).astype(np.float64))
