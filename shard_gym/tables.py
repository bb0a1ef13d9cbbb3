"""Embedding tables as columns, and the 21 raw features that describe one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool

GB = 2**30
REFERENCE_BATCH = 65_536
NUM_BINS = 17
# Bin b counts rows used more than BIN_EDGES[b] and at most BIN_EDGES[b + 1] times in a batch.
BIN_EDGES = np.array([0, *(2**b for b in range(16)), np.iinfo(np.int64).max])
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
# AutoShard B.2: the order is part of the contract with every fitted network.
FEATURES = ("dim", "rows", "pooling", "size_gb", *(f"uses_{b}" for b in range(NUM_BINS)))

_DTYPES = {"rows": np.int64, "dim": np.int32, "pooling": np.float32, "distinct": np.int64}
_SHARES = ("uses", "accesses")


@dataclass(frozen=True, eq=False)
class TablePool:
    """N embedding tables, immutable, one array per property.

    `uses[i, b]` is the share of table i's distinct rows, `accesses[i, b]` the share of its lookups, that fall
    in bin b of uses a reference batch. Shares of less than 2**24 rows and lookups give the counts back exactly.
    """

    rows: np.ndarray  # (N,) int64
    dim: np.ndarray  # (N,) int32, columns of one row
    pooling: np.ndarray  # (N,) float32, mean ids looked up per sample
    distinct: np.ndarray  # (N,) int64, rows touched in one reference batch
    uses: np.ndarray  # (N, 17) float32
    accesses: np.ndarray  # (N, 17) float32
    name: tuple[str, ...]
    dtype: tuple[str, ...]  # of the weights, a key of ELEMENT_BYTES
    reference_batch: int = REFERENCE_BATCH

    def __post_init__(self) -> None:
        for column, dtype in {**_DTYPES, **dict.fromkeys(_SHARES, np.float32)}.items():
            object.__setattr__(self, column, _frozen(column, getattr(self, column), dtype))
        object.__setattr__(self, "name", tuple(self.name))
        object.__setattr__(self, "dtype", tuple(self.dtype))
        _check(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TablePool):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]  # a pool is data; Task has a content hash

    @cached_property
    def element_bytes(self) -> np.ndarray:
        """Bytes of one weight, (N,) int64."""
        return np.array([ELEMENT_BYTES[d] for d in self.dtype], np.int64)

    @cached_property
    def weight_bytes(self) -> np.ndarray:
        """Bytes of all weights of each table, (N,) int64."""
        return self.rows * self.dim * self.element_bytes

    @property
    def lookups(self) -> np.ndarray:
        """Ids looked up in one reference batch, (N,) int64."""
        return np.rint(self.pooling.astype(np.float64) * self.reference_batch).astype(np.int64)

    def use_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows touched and lookups made in each bin of uses, exact, both (N, 17) int64."""
        touched = np.rint(self.uses.astype(np.float64) * self.distinct[:, None]).astype(np.int64)
        looked_up = np.rint(self.accesses.astype(np.float64) * self.lookups[:, None]).astype(np.int64)
        return touched, looked_up

    def features(self) -> np.ndarray:
        """The 21 raw features in the order of FEATURES, (N, 21) float32. Scaling belongs to whoever learns."""
        head = np.stack([self.dim, self.rows, self.pooling, self.weight_bytes / GB], axis=1)
        return np.concatenate([head, self.uses], axis=1).astype(np.float32)

    def take(self, indices: Sequence[int] | np.ndarray) -> TablePool:
        """The tables at `indices`, in that order; repeats are legal."""
        picked = np.asarray(indices, np.int64)
        columns = {c: getattr(self, c)[picked] for c in (*_DTYPES, *_SHARES)}
        names = tuple(self.name[i] for i in picked)
        dtypes = tuple(self.dtype[i] for i in picked)
        return TablePool(**columns, name=names, dtype=dtypes, reference_batch=self.reference_batch)

    def with_(self, **columns: Any) -> TablePool:
        """A copy with some columns replaced, for example `pool.with_(dim=...)`."""
        return replace(self, **columns)


def make_pool(
    rows: Any,
    dim: Any = 16,
    pooling: Any = 1.0,
    *,
    dtype: str | Sequence[str] = "fp16",
    reference_batch: int = REFERENCE_BATCH,
    **columns: Any,
) -> TablePool:
    """A pool from what is known of some tables; scalars apply to every table.

    Without `distinct`, `uses` and `accesses`, every row is taken to be equally likely: the statistics are those
    of uniform lookups. Without `name`, tables are called table_0, table_1, ...
    """
    told = {"rows": rows, "dim": dim, "pooling": pooling}
    n = next((np.size(v) for v in told.values() if np.ndim(v)), 1)
    rows, dim, pooling = (_per_table(column, values, _DTYPES[column], n) for column, values in told.items())
    given = {"distinct", "uses", "accesses"} & columns.keys()
    if given and len(given) < 3:
        raise InvalidPool(
            f"distinct, uses and accesses describe one histogram: give all three, not only {sorted(given)}"
        )
    if not given:
        columns |= _uniform_statistics(rows, pooling, reference_batch)
    columns.setdefault("name", tuple(f"table_{i}" for i in range(n)))
    dtypes = (dtype,) * n if isinstance(dtype, str) else tuple(dtype)
    return TablePool(rows, dim, pooling, dtype=dtypes, reference_batch=reference_batch, **columns)


def bin_of(counts: np.ndarray) -> np.ndarray:
    """The bin of uses that each count (>= 1) falls in."""
    return np.searchsorted(BIN_EDGES, counts, side="left") - 1


def use_histogram(counts: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """(distinct, uses, accesses) of a table from how often each touched row is used."""
    counts = counts[counts > 0]
    if not len(counts):
        return 0, np.zeros(NUM_BINS, np.float32), np.zeros(NUM_BINS, np.float32)
    bins = bin_of(counts)
    uses = np.bincount(bins, minlength=NUM_BINS) / len(counts)
    accesses = np.bincount(bins, weights=counts, minlength=NUM_BINS) / counts.sum()
    return len(counts), uses.astype(np.float32), accesses.astype(np.float32)


def _uniform_statistics(rows: np.ndarray, pooling: np.ndarray, batch: int) -> dict[str, Any]:
    """Use counts of lookups spread as evenly over the rows as whole numbers allow."""
    lookups = np.rint(np.nan_to_num(np.clip(pooling.astype(np.float64) * batch, 0, 2.0**62))).astype(np.int64)
    distinct = np.minimum(rows, lookups).astype(np.int64)
    uses, accesses = np.zeros((2, len(rows), NUM_BINS), np.float32)
    for i, (d, m) in enumerate(zip(distinct, lookups, strict=True)):
        if d <= 0:
            continue
        low, extra = divmod(int(m), int(d))  # `extra` rows are used once more than the others
        for count, share in ((low, 1 - extra / d), (low + 1, extra / d)):
            if share > 0:
                b = bin_of(np.array(count))
                uses[i, b] += share
                accesses[i, b] += share * d * count / m
    return {"distinct": distinct, "uses": uses, "accesses": accesses}


def _per_table(column: str, values: Any, dtype: Any, n: int) -> np.ndarray:
    array = _frozen(column, values, dtype)
    if array.shape not in ((), (1,), (n,)):
        raise InvalidPool(f"column {column} has shape {array.shape}, expected one number or {n}")
    return np.broadcast_to(array, n)


def _frozen(column: str, values: Any, dtype: Any) -> np.ndarray:
    try:
        given = np.asarray(values)
        with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is refused below
            array = np.array(given, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidPool(f"column {column} cannot be read as {np.dtype(dtype)}: {error}") from error
    if np.issubdtype(dtype, np.integer) and given.dtype.kind in "iuf" and not np.array_equal(given, array):
        raise InvalidPool(f"column {column} must hold whole numbers that fit {np.dtype(dtype)}")
    array.setflags(write=False)
    return array


def _check(pool: TablePool) -> None:
    n = len(pool.rows)
    for column, shape in {**dict.fromkeys(_DTYPES, (n,)), **dict.fromkeys(_SHARES, (n, NUM_BINS))}.items():
        values = getattr(pool, column)
        if values.shape != shape:
            raise InvalidPool(f"column {column} has shape {values.shape}, expected {shape}")
        if not np.isfinite(values).all():
            raise InvalidPool(f"column {column} holds NaN or infinity: table {_first(~np.isfinite(values))}")
    if len(pool.name) != n or len(pool.dtype) != n:
        raise InvalidPool(f"{n} tables need {n} names and dtypes, got {len(pool.name)} and {len(pool.dtype)}")
    if unknown := set(pool.dtype) - ELEMENT_BYTES.keys():
        raise InvalidPool(f"unknown weight dtype {sorted(unknown)}; choose from {sorted(ELEMENT_BYTES)}")
    if pool.reference_batch < 1:
        raise InvalidPool(f"reference_batch must be positive, got {pool.reference_batch}")
    _check_values(pool)


def _check_values(pool: TablePool) -> None:
    rules = {
        "rows must be at least 1": pool.rows < 1,
        "dim must be at least 1": pool.dim < 1,
        "pooling must not be negative": pool.pooling < 0,
        "pooling times reference_batch must stay below 2**62": pool.pooling >= 2.0**62 / pool.reference_batch,
        "distinct must lie between 0 and rows": (pool.distinct < 0) | (pool.distinct > pool.rows),
        "uses must be shares that sum to 1 (or to 0 for an unused table)": _not_shares(pool.uses),
        "accesses must be shares that sum to 1 (or to 0 for an unused table)": _not_shares(pool.accesses),
    }
    for rule, broken in rules.items():
        if broken.any():
            raise InvalidPool(f"{rule}: table {_first(broken)} ({pool.name[_first(broken)]!r}) breaks it")


def _not_shares(shares: np.ndarray) -> np.ndarray:
    total = shares.sum(axis=1)
    return (shares < 0).any(axis=1) | ((abs(total - 1) > 1e-3) & (total != 0))


def _first(broken: np.ndarray) -> int:
    return int(np.argwhere(broken)[0][0])
