"""Lookups of batches, measured as they stream by: pooling, rows touched, how often each.

    from shard_gym.torchrec.batches import Profiler

    profiler = Profiler.of_configs(configs)
    for batch in loader:
        profiler.add(batch.sparse_features)  # a KeyedJaggedTensor
    pool = profiler.pool(configs)

A batch may also be a dict of (values, lengths), or (values, lengths, weights), of arrays by feature. All batches have
the same number of samples, which is the pool's reference batch; one that is smaller, as the last often is, tells of
rows only. Memory is that of one batch, and 8 bytes a feature for each batch seen.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.tables.configs import columns_of
from shard_gym.tables.histograms import NUM_BINS, bin_of, fitted_counts
from shard_gym.tables.pool import TablePool, make_pool

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor

ROWS_MAX = 2**40  # beyond it the bytes of a table would not fit int64: no row number


@dataclass(frozen=True)
class FeatureProfile:
    """Lookups of one feature in all batches."""

    rows_seen: int  # largest id + 1
    pooling: float  # mean ids a sample
    pooling_p50: float  # of the batches' means
    pooling_p95: float
    distinct: float  # mean rows touched in a batch
    weighted: bool


@dataclass
class _FeatureCounts:
    rows: int = 0
    distinct: int = 0
    weighted: bool = False
    pooling: array[float] = field(default_factory=lambda: array("d"))  # one number a batch


@dataclass
class _TableCounts:
    lookups: int = 0
    touched: np.ndarray = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    looked_up: np.ndarray = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))


class Profiler:
    """Counts what batches look up, feature by feature, and table by table as one batch uses it."""

    def __init__(self, tables: Mapping[str, Sequence[str]], rows: Mapping[str, int] | None = None) -> None:
        """`tables` names the features of each table; ids of a table whose `rows` are told must be below them."""
        self.tables = {table: tuple(features) for table, features in tables.items()}
        if not self.tables or not all(self.tables.values()):
            raise InvalidPool(f"a profile is of tables with one feature or more each, got {tables!r:.80}")
        self.rows = dict(rows or {})
        if unknown := self.rows.keys() - self.tables.keys():
            raise UnknownName("table in rows", min(unknown), self.tables)
        self.batches = 0
        self.samples = 0  # of a batch
        self._features = {feature: _FeatureCounts() for features in self.tables.values() for feature in features}
        self._tables = {table: _TableCounts() for table in self.tables}

    @classmethod
    def of_configs(cls, configs: Sequence[Any]) -> Profiler:
        """A profiler of TorchRec's configs: ids beyond their rows are refused."""
        columns_of(configs)
        return cls({c.name: c.feature_names for c in configs}, {c.name: c.num_embeddings for c in configs})

    def add(self, batch: KeyedJaggedTensor | Mapping[str, Any]) -> None:
        """Count one batch; features that no table has are left alone."""
        bags = batch_bags(batch, self._features, f"batch {self.batches}")
        sizes = {len(lengths) for _, lengths, _ in bags.values()}
        if len(sizes) > 1:
            raise InvalidPool(
                f"batch {self.batches}: features of {sorted(sizes)} samples; a batch has one number of them"
            )
        samples = sizes.pop()
        self._check_ids({feature: values for feature, (values, _, _) in bags.items()})
        if not samples or samples > (self.samples or samples):
            raise InvalidPool(
                f"batch {self.batches} has {samples} samples, the first {self.samples}: keep them the same"
            )
        self.samples = self.samples or samples
        for feature, (values, _, weighted) in bags.items():
            counts = self._features[feature]
            counts.rows = max(counts.rows, int(values.max(initial=-1)) + 1)
            counts.weighted |= weighted
        if samples == self.samples:
            self._count({feature: values for feature, (values, _, _) in bags.items()})

    def features(self) -> dict[str, FeatureProfile]:
        """Lookups of each feature so far."""
        self._check_seen()
        found = {}
        for feature, counts in self._features.items():
            pooling = np.frombuffer(counts.pooling)
            p50, p95 = np.percentile(pooling, [50, 95]).tolist()
            mean, distinct = float(pooling.mean()), counts.distinct / self.batches
            found[feature] = FeatureProfile(counts.rows, mean, p50, p95, distinct, counts.weighted)
        return found

    def pooling(self) -> dict[str, float]:
        """Mean ids a sample of each feature, as `make_task` takes it."""
        return {feature: profile.pooling for feature, profile in self.features().items()}

    def pool(self, configs: Sequence[Any] | None = None, **columns: Any) -> TablePool:
        """The tables as the mean batch uses them.

        Rows, dims and dtypes are those of TorchRec configs, in their order; or `columns` of `make_pool`, and rows the
        ones told to the profiler, else the largest id + 1. A table is weighted if one of its features is.
        """
        self._check_seen()
        if configs is not None:
            columns |= columns_of(configs)
            self._check_configs(configs)
        names = columns.setdefault("name", tuple(self.tables))
        columns.setdefault("bags", [len(self.tables[name]) for name in names])
        columns.setdefault("weighted", [any(self._features[f].weighted for f in self.tables[name]) for name in names])
        columns.setdefault("rows", [self.rows.get(name, self._rows_seen(name)) for name in names])
        return make_pool(**columns, reference_batch=self.samples, **self._statistics(names))

    def _check_configs(self, configs: Sequence[Any]) -> None:
        """Refuse configs of other tables or features than were counted, or with fewer rows."""
        told = {config.name: config for config in configs}
        if different := told.keys() ^ self.tables.keys():
            where = "configs, but not in the profile" if min(different) in told else "profile only"
            raise InvalidPool(f"table {min(different)!r} is in the {where}: profile the tables of these configs")
        for name, config in told.items():
            if sorted(config.feature_names) != sorted(self.tables[name]):
                raise InvalidPool(
                    f"table {name!r} has the features {config.feature_names}, the profile counted "
                    f"{list(self.tables[name])}: profile the tables of these configs"
                )
            if (rows := self._rows_seen(name)) > config.num_embeddings:
                raise InvalidPool(f"table {name!r} has {config.num_embeddings} rows, but row {rows - 1} was looked up")

    def _rows_seen(self, table: str) -> int:
        return max(1, *(self._features[feature].rows for feature in self.tables[table]))

    def _check_seen(self) -> None:
        if not self.batches:
            raise InvalidPool("a profile of no batches: add some first")

    def _check_ids(self, values: Mapping[str, np.ndarray]) -> None:
        for table, features in self.tables.items():
            rows = self.rows.get(table, ROWS_MAX)
            for feature in features:
                ids = values[feature]
                outside = ids[(ids < 0) | (ids >= rows)]
                if len(outside):
                    raise InvalidPool(
                        f"batch {self.batches}, feature {feature!r}: {outside[0]} is no row of {table!r}, "
                        f"which has rows 0 to {rows - 1}"
                    )

    def _count(self, values: Mapping[str, np.ndarray]) -> None:
        self.batches += 1
        used = {}
        for feature, ids in values.items():
            used[feature] = np.unique(ids, return_counts=True)
            counts = self._features[feature]
            counts.distinct += len(used[feature][0])
            counts.pooling.append(len(ids) / self.samples)
        for table, features in self.tables.items():
            uses = _uses([used[feature] for feature in features])
            bins, counted = bin_of(uses), self._tables[table]
            counted.lookups += int(uses.sum())
            counted.touched += np.bincount(bins, minlength=NUM_BINS)
            np.add.at(counted.looked_up, bins, uses)

    def _statistics(self, names: Sequence[str]) -> dict[str, Any]:
        """Columns of the pool: those of a batch that touches, and looks up, as many rows as the mean of all."""
        tables = [self._tables[name] for name in names]
        lookups = np.array([table.lookups for table in tables]) / self.batches
        touched = np.stack([table.touched for table in tables]) / self.batches
        looked_up = np.stack([table.looked_up for table in tables]) / self.batches
        whole = np.rint(lookups).astype(np.int64)
        distinct = np.maximum(np.rint(touched.sum(axis=1)).astype(np.int64), whole > 0)
        # whole numbers: what half of the batches touch is a row or none, and what it is used for goes to its neighbours
        touched, looked_up, _ = fitted_counts(_shares(touched), _shares(looked_up), distinct, whole)
        pooling = lookups / self.samples
        return {"pooling": pooling, "distinct": distinct, "uses": _shares(touched), "accesses": _shares(looked_up)}


def _uses(used: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Count the uses of each row of a table, from the (rows, uses) of its features."""
    if len(used) == 1:
        return used[0][1]
    rows, uses = (np.concatenate(arrays) for arrays in zip(*used, strict=True))
    _, row = np.unique(rows, return_inverse=True)
    return np.bincount(row, weights=uses).astype(np.int64)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)


def batch_bags(batch: Any, features: Mapping[str, Any], what: str) -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """(values, lengths, whether weighted) of each feature."""
    if not isinstance(batch, Mapping):
        if not hasattr(batch, "variable_stride_per_key"):
            raise InvalidPool(f"{what} is no KeyedJaggedTensor and no dict of (values, lengths), but {batch!r:.60}")
        if batch.variable_stride_per_key():
            raise InvalidPool(f"{what} has samples of their own for each feature, which is not modelled")
    there = set(batch.keys())
    found = {}
    for feature in features:
        if feature not in there:
            raise UnknownName(f"feature in {what}", feature, there)
        values, lengths, *weights = batch[feature] if isinstance(batch, Mapping) else _jagged(batch[feature])
        values, lengths = (
            _integers(name, x) for name, x in ((f"{what}, values of {feature!r}", values), (what, lengths))
        )
        if (lengths < 0).any() or lengths.sum() != len(values):
            raise InvalidPool(
                f"{what}, feature {feature!r}: lengths sum to {lengths.sum()}, not to {len(values)} values"
            )
        found[feature] = (values, lengths, any(weight is not None for weight in weights))
    return found


def _jagged(bags: Any) -> tuple[Any, Any, Any]:
    return bags.values().numpy(force=True), bags.lengths().numpy(force=True), bags.weights_or_none()


def _integers(what: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidPool(f"{what}: a flat array of whole numbers is wanted, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64, copy=False)
