"""Index traces: the ids that a batch looks up in one table, as FBGEMM takes them."""

from __future__ import annotations

import math

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.records.guard import expect, guarded
from shard_gym.tables.pool import TablePool


@guarded("a trace", InvalidPool)
def trace(pool: TablePool, table: int, batch: int | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(indices, offsets) int64 of one table: sample s looks up indices[offsets[s]:offsets[s + 1]].

    At the pool's reference batch the trace has exactly the table's rows, lookups and use counts. A smaller batch
    is a draw of samples from such a trace. Equal arguments give equal traces.
    """
    expect(pool, TablePool, InvalidPool)
    batch = pool.reference_batch if batch is None else batch
    if not 0 < batch <= pool.reference_batch:
        raise InvalidPool(f"a trace has 1 to {pool.reference_batch} samples (the reference batch), asked for {batch}")
    one = pool.take([table])
    rng = _rng(seed, table)
    counts, repeats = run_lengths(one)
    total = int(one.lookups[0])
    wanted = total if batch == pool.reference_batch else int(rng.binomial(total, batch / pool.reference_batch))
    lengths = rng.multinomial(wanted, np.full(batch, 1 / batch))  # each lookup falls on a sample at random
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = _scattered_ids(rng, int(one.rows[0]), int(repeats.sum()))
    if wanted == total:
        indices = np.repeat(ids, np.repeat(counts, repeats))
        rng.shuffle(indices)
        return indices, offsets
    return ids[_owner(rng.choice(total, wanted, replace=False), counts, repeats)], offsets


def _rng(seed: int, table: int) -> np.random.Generator:
    if seed < 0:
        raise InvalidPool(f"a seed is a whole number from 0, got {seed}")
    return np.random.default_rng([seed, table])


def run_lengths(table: TablePool) -> tuple[np.ndarray, np.ndarray]:
    """Use counts of the touched rows of a pool's one table: `repeats[j]` rows are used `counts[j]` times each.

    A bin's lookups are spread over its rows as evenly as whole numbers allow, so every count is inside the bin.
    """
    touched, looked_up = (a[0] for a in table.use_counts())
    filled = touched > 0
    touched, looked_up = touched[filled], looked_up[filled]
    low, extra = looked_up // touched, looked_up % touched
    counts = np.stack([low, low + 1], axis=1).ravel()
    repeats = np.stack([touched - extra, extra], axis=1).ravel()
    return counts, repeats


def _scattered_ids(rng: np.random.Generator, rows: int, distinct: int) -> np.ndarray:
    """`distinct` different row ids, far apart."""
    step, shift = scatter(rng, rows)
    return (shift + step * np.arange(distinct, dtype=np.int64)) % rows


def _owner(lookups: np.ndarray, counts: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    """The touched row that each lookup (a position in the unshuffled trace) belongs to."""
    lookup_end, row_end = np.cumsum(counts * repeats), np.cumsum(repeats)
    run = np.searchsorted(lookup_end, lookups, side="right")
    inside = lookups - (lookup_end - counts * repeats)[run]
    return (row_end - repeats)[run] + inside // counts[run]


def scatter(rng: np.random.Generator, rows: int) -> tuple[int, int]:
    """(step, shift) that spread ranks over all rows; the step has no factor in common with `rows`."""
    step = int(rng.integers(1, rows + 1))
    while math.gcd(step, rows) != 1:
        step = step % rows + 1
    return step, int(rng.integers(rows))
