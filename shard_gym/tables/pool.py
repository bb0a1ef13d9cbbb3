"""Embedding tables as columns, and the 21 raw features that describe one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole
from shard_gym.tables.histograms import NUM_BINS, agree, drawn_counts, fitted_counts, spread_evenly

GB = 2**30
REFERENCE_BATCH = 65_536
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
DTYPE = "fp32"  # of weights, unless told
# AutoShard B.2: the order is part of the contract with every fitted network.
FEATURES = ("dim", "rows", "pooling", "size_gb", *(f"uses_{b}" for b in range(NUM_BINS)))

_DTYPES = {"rows": np.int64, "dim": np.int32, "pooling": np.float32, "distinct": np.int64, "bags": np.float32}
_PRECISE = ("pooling", "bags")  # float64 where float32 would lose digits
_FLAGS = ("pooled", "weighted")
LATER = {
    "bags": 1.0,
    "pooled": True,
    "weighted": False,
    "optimizer": "",
}  # columns that came later, and their usual values
_SHARES = ("uses", "accesses")
EXACT = 2.0**53  # bytes and lookups stay below it, as sums of them pass through float64
STATE_BYTES = 8  # the most that an optimizer keeps beside a weight (Adam)


@dataclass(frozen=True, eq=False)
class TablePool:
    """N embedding tables, immutable, one array per property.

    `uses[i, b]` is the share of table i's distinct rows, `accesses[i, b]` the share of its lookups, that fall
    in bin b of uses a reference batch. Pooling and bags are float32 where that holds every digit that is given, else
    float64. Shares of less than 2**24 rows and lookups give the counts back exactly.
    For more, or for rounded shares, `use_counts` finds whole numbers close to the counts.
    """

    rows: np.ndarray  # (N,) int64
    dim: np.ndarray  # (N,) int32, columns of one row
    pooling: np.ndarray  # (N,) mean ids looked up per sample
    distinct: np.ndarray  # (N,) int64, rows touched in one reference batch
    uses: np.ndarray  # (N, 17) float32
    accesses: np.ndarray  # (N, 17) float32
    name: tuple[str, ...]
    dtype: tuple[str, ...]  # of the weights, a key of ELEMENT_BYTES
    reference_batch: int = REFERENCE_BATCH
    # (N,) bags of a sample: one a feature, times its poolings; one number is every table's
    bags: np.ndarray = field(default_factory=lambda: np.ones((), np.float32))
    # (N,) bool, or one for all: rows of a bag are added up, else every row looked up is sent back; ids have weights
    pooled: np.ndarray = field(default_factory=lambda: np.ones((), bool))
    weighted: np.ndarray = field(default_factory=lambda: np.zeros((), bool))
    optimizer: tuple[str, ...] = ()  # of single tables; "" is the task's

    @guarded("a pool of tables", InvalidPool)
    def __post_init__(self) -> None:
        for column in ("bags", *_FLAGS):
            if not np.ndim(getattr(self, column)):
                object.__setattr__(self, column, np.full(np.shape(self.rows), getattr(self, column)))
        object.__setattr__(self, "optimizer", tuple(self.optimizer) or ("",) * np.size(self.rows))
        for column, dtype in {**_DTYPES, **dict.fromkeys(_SHARES, np.float32), **dict.fromkeys(_FLAGS, bool)}.items():
            object.__setattr__(self, column, _frozen(column, getattr(self, column), dtype))
        object.__setattr__(self, "name", tuple(self.name))
        object.__setattr__(self, "dtype", tuple(self.dtype))
        object.__setattr__(self, "reference_batch", _batch(self.reference_batch))
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
    def training_bytes(self) -> np.ndarray:
        """Bytes with the largest optimizer state there is, (N,) float64: it may be more than an int64 holds."""
        return self.rows.astype(np.float64) * self.dim * (self.element_bytes + STATE_BYTES)

    @property
    def later(self) -> tuple[str, ...]:
        """Columns of LATER in which some table has no default value: only these are hashed and written."""
        return tuple(c for c, usual in LATER.items() if (np.asarray(getattr(self, c)) != usual).any())

    @property
    def rows_sent(self) -> np.ndarray:
        """Rows that a sample gets back, (N,) float64: one for each bag, or all that are looked up."""
        return np.where(self.pooled, self.bags, self.pooling).astype(np.float64)

    @property
    def columns_sent(self) -> np.ndarray:
        """Columns that a sample gets back, of all rows, (N,) float64: multiples of 2**-14, so that sums are exact."""
        return np.rint(self.rows_sent * 2.0**14) / 2.0**14 * self.dim

    @property
    def lookups(self) -> np.ndarray:
        """Ids looked up in one reference batch, (N,) int64; never fewer than rows are touched (pooling is rounded)."""
        lookups = np.rint(self.pooling.astype(np.float64) * self.reference_batch).astype(np.int64)
        return np.maximum(lookups, self.distinct)

    def use_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows touched and lookups made in each bin of uses, both (N, 17) int64.

        They sum to `distinct` and `lookups` exactly, and a bin's lookups are possible with its rows.
        """
        touched, looked_up = self._rounded_counts()
        odd, *counts = self._fitted
        if len(odd):
            touched[odd], looked_up[odd] = counts
        return touched, looked_up

    def _rounded_counts(self) -> tuple[np.ndarray, np.ndarray]:
        touched = np.rint(self.uses.astype(np.float64) * self.distinct[:, None]).astype(np.int64)
        looked_up = np.rint(self.accesses.astype(np.float64) * self.lookups[:, None]).astype(np.int64)
        return touched, looked_up

    @cached_property
    def _fitted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tables whose shares do not round to counts that add up, and the counts that take their place."""
        distinct, lookups = self.distinct, self.lookups
        odd = np.flatnonzero(~agree(*self._rounded_counts(), distinct, lookups))
        uses, accesses = self.uses[odd].astype(np.float64), self.accesses[odd].astype(np.float64)
        touched, looked_up, hopeless = fitted_counts(uses, accesses, distinct[odd], lookups[odd])
        if hopeless.any():
            table = int(odd[_first(hopeless)])
            raise InvalidPool(
                f"table {table} ({self.name[table]!r}): {distinct[table]:,} rows with these uses cannot make "
                f"{lookups[table]:,} lookups with these accesses: correct pooling, distinct, uses or accesses"
            )
        return odd, touched, looked_up

    def features(self) -> np.ndarray:
        """The 21 raw features of the papers (FEATURES), (N, 21) float32, not scaled; they do not show `bags`."""
        head = np.stack([self.dim, self.rows, self.pooling, self.weight_bytes / GB], axis=1)
        return np.concatenate([head, self.uses], axis=1).astype(np.float32)

    @guarded("tables are picked by index or by a mask", InvalidPool)
    def take(self, indices: Sequence[int] | np.ndarray) -> TablePool:
        """The tables at `indices`, in that order, repeats are legal; or those where a mask, (N,) bool, is true."""
        picked = _picked(indices, len(self))
        columns = {c: getattr(self, c)[picked] for c in (*_DTYPES, *_SHARES, *_FLAGS)}
        texts: dict[str, Any] = {c: tuple(getattr(self, c)[i] for i in picked) for c in ("name", "dtype", "optimizer")}
        return TablePool(**columns, **texts, reference_batch=self.reference_batch)

    def with_(self, **columns: Any) -> TablePool:
        """A copy with some columns replaced, for example `pool.with_(dim=...)`."""
        return replace(self, **columns)


def at_batch(tables: TablePool, batch: float) -> tuple[np.ndarray, np.ndarray]:
    """Expected rows touched and lookups of a batch, by uses in the reference batch; both (N, 17) float64."""
    return drawn_counts(*tables.use_counts(), batch / tables.reference_batch, tables.rows)


@guarded("a pool of tables", InvalidPool)
def make_pool(
    rows: Any,
    dim: Any = 16,
    pooling: Any = 1.0,
    *,
    dtype: str | Sequence[str] = DTYPE,
    reference_batch: int = REFERENCE_BATCH,
    **columns: Any,
) -> TablePool:
    """Make a pool of tables from columns of numbers; a single number applies to every table.

    Without `distinct`, `uses` and `accesses`, lookups are spread over the rows as evenly as whole numbers allow.
    That is the most distinct rows a batch can touch: uniformly random lookups would touch fewer. Without `name`,
    tables are called table_0, table_1, ... `bags` is 1 unless told, and weights are fp32.
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
        lookups = np.nan_to_num(np.clip(pooling.astype(np.float64) * reference_batch, 0, 2.0**62))
        even = spread_evenly(rows, np.rint(lookups).astype(np.int64))
        columns |= zip(("distinct", *_SHARES), even, strict=True)
    columns.setdefault("name", tuple(f"table_{i}" for i in range(n)))
    dtypes = (dtype,) * n if isinstance(dtype, str) else tuple(dtype)
    return TablePool(rows, dim, pooling, dtype=dtypes, reference_batch=reference_batch, **columns)


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
            if column in _PRECISE and (array != (exact := np.array(given, np.float64))).any():
                array = exact
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidPool(f"column {column} cannot be read as {np.dtype(dtype)}: {error}") from error
    if dtype is bool and not np.array_equal(given, array):
        raise InvalidPool(f"column {column} must hold True or False")
    if np.issubdtype(dtype, np.integer) and given.dtype.kind in "iuf" and not np.array_equal(given, array):
        raise InvalidPool(f"column {column} must hold whole numbers that fit {np.dtype(dtype)}")
    array.setflags(write=False)
    return array


def _picked(indices: Any, n: int) -> np.ndarray:
    try:
        picked = np.asarray(indices)
    except ValueError as error:
        raise InvalidPool(f"tables are picked by index or by a mask: {error}") from error
    if picked.ndim != 1 or (picked.dtype.kind not in "iub" and picked.size):
        raise InvalidPool(f"tables are picked by a flat list of indices or by a mask, got {indices!r:.80}")
    if picked.dtype == bool:
        if len(picked) != n:
            raise InvalidPool(f"a mask of {len(picked)} cannot pick from {n} tables")
        return np.flatnonzero(picked)
    if outside := picked[(picked < 0) | (picked >= n)].tolist():
        raise InvalidPool(f"table {outside[0]} is not in a pool of {n}")
    return picked.astype(np.int64)


def _batch(samples: Any) -> int:
    try:
        batch = whole(samples)
    except TypeError as error:
        raise InvalidPool(f"reference_batch must be a positive int: {error}") from error
    if not 1 <= batch < EXACT:
        raise InvalidPool(f"reference_batch must be positive and below 2**53, got {batch}")
    return batch


def _check(pool: TablePool) -> None:
    n = len(pool.rows)
    for column, shape in {**dict.fromkeys((*_DTYPES, *_FLAGS), (n,)), **dict.fromkeys(_SHARES, (n, NUM_BINS))}.items():
        values = getattr(pool, column)
        if values.shape != shape:
            raise InvalidPool(f"column {column} has shape {values.shape}, expected {shape}")
        if not np.isfinite(values).all():
            raise InvalidPool(f"column {column} holds NaN or infinity: table {_first(~np.isfinite(values))}")
    for column in ("name", "dtype", "optimizer"):
        if len(told := getattr(pool, column)) != n:
            raise InvalidPool(f"{n} tables need {n} {column}s, got {len(told)}")
    if odd := [
        text for texts in (pool.name, pool.dtype, pool.optimizer) for text in texts if not isinstance(text, str)
    ]:
        raise InvalidPool(f"names, dtypes and optimizers of tables are text, got {odd[0]!r:.60}")
    if unknown := set(pool.dtype) - ELEMENT_BYTES.keys():
        raise InvalidPool(f"unknown weight dtype {sorted(unknown)}; choose from {sorted(ELEMENT_BYTES)}")
    _check_values(pool)


def _check_values(pool: TablePool) -> None:
    lookups = pool.pooling.astype(np.float64) * pool.reference_batch
    unused = np.rint(lookups) == 0
    bags = pool.bags.astype(np.float64)
    no_shares = (pool.uses.sum(axis=1) == 0) | (pool.accesses.sum(axis=1) == 0)
    rules = {
        "rows must be at least 1": pool.rows < 1,
        "dim must be at least 1": pool.dim < 1,
        "bytes of weights and optimizer state must stay below 2**53": pool.training_bytes >= EXACT,
        "pooling must not be negative": pool.pooling < 0,
        "pooling times reference_batch must stay below 2**53": lookups >= EXACT,
        "bags must not be negative, and more than 0 where there are lookups": (bags < 0) | ((bags == 0) & ~unused),
        "bags times dim must stay below 2**31, as columns must": bags * pool.dim >= 2.0**31,
        "distinct must lie between 0 and rows": (pool.distinct < 0) | (pool.distinct > pool.rows),
        # pooling is float32
        "distinct must not exceed the lookups, pooling times reference_batch": (
            pool.distinct > np.rint(lookups * (1 + 2.0**-23))
        ),
        "distinct must be at least 1 where there are lookups": (pool.distinct == 0) & ~unused,
        "uses must be shares that sum to 1 (or to 0 for an unused table)": _not_shares(pool.uses),
        "accesses must be shares that sum to 1 (or to 0 for an unused table)": _not_shares(pool.accesses),
        "uses and accesses must sum to 1 where there are lookups": no_shares & ~unused,
    }
    for rule, broken in rules.items():
        if broken.any():
            raise InvalidPool(f"{rule}: table {_first(broken)} ({pool.name[_first(broken)]!r}) breaks it")


def _not_shares(shares: np.ndarray) -> np.ndarray:
    total = shares.sum(axis=1)
    return (shares < 0).any(axis=1) | ((abs(total - 1) > 1e-3) & (total != 0))


def _first(broken: np.ndarray) -> int:
    return int(np.argwhere(broken)[0][0])
