"""Measured shards laid out for fits, ways to predict what they cost, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import InvalidPool, SimulatorError
from shard_gym.measuring.measurements import BLOCKS, Measurements, pool_named
from shard_gym.simulators import FastSimulator, features
from shard_gym.tables.pool import TablePool
from shard_gym.task.task import Task

FOLDS = 20  # tables are dealt to so many folds; one of them is held out for early stopping
ROOFLINE = "roofline:h100-v1"  # any preset: one factor is fitted, and what counts are the proportions
NORMAL_90 = 1.6449  # standard deviations on either side that hold 90 % of a normal distribution
NOISE = ((0.011, 0.035), (0.02, 0.06))  # spread of a measurement's runs, and how far it is off: from pairs of one shard
SIZES = ((1, 1), (2, 3), (4, 7), (8, 11), (12, 16))  # tables of a shard, both included
COLUMNS = {
    "MAE, ms": ("mae_ms", ".2f"),
    "MAPE": ("mape", ".1%"),
    "bias": ("bias", "+.1%"),
    "Spearman": ("spearman", ".4f"),
    "in 90 % interval": ("coverage", ".1%"),
}


@dataclass(frozen=True, eq=False)
class Shards:
    """S shards over U distinct tables (a table of another dim is another table)."""

    tables: TablePool  # U
    batch: int
    row: np.ndarray  # (M,) which distinct table
    shard: np.ndarray  # (M,) of which shard, ascending
    origin: np.ndarray  # (M,) which table of all pools, whatever its dim
    times: np.ndarray  # (S, 2) forward and backward ms
    noise: np.ndarray  # (S,) relative deviation of a measurement, by the spread of its runs
    card: dict[str, Any]  # of the measurements
    caches: features.Caches  # of the hardware they were made on

    def __len__(self) -> int:
        return len(self.times)

    def sums(self, per_table: np.ndarray) -> np.ndarray:
        """Sum of each shard's tables, (U, H) -> (S, H)."""
        out = np.zeros((len(self), per_table.shape[1]))
        np.add.at(out, self.shard, per_table[self.row])
        return out

    def holding(self, origins: np.ndarray) -> np.ndarray:
        """Shards that hold one of these tables, (S,) bool."""
        out = np.zeros(len(self), bool)
        out[self.shard[np.isin(self.origin, origins)]] = True
        return out

    def folds(self, seed: int) -> list[np.ndarray]:
        """Shards that hold a table of each fold, (S,) bool for every fold."""
        tables = np.unique(self.origin)
        fold = np.random.default_rng(seed).permutation(len(tables)) % FOLDS
        return [self.holding(tables[fold == f]) for f in range(FOLDS)]


def shards_of(measured: Measurements) -> Shards:
    """Lay out measurements; those without a time are left out."""
    m = measured.take(np.isfinite(measured.total_ms) & (measured.total_ms > 0))
    if not len(m):
        raise InvalidPool("none of these shards has a time: measure them first")
    shard = np.repeat(np.arange(len(m)), m.tables_per_shard)
    keys = np.column_stack([m.pool[shard], m.table, m.dim]).astype(np.int64)
    distinct, row = np.unique(keys, axis=0, return_inverse=True)
    origin = _origins(m.pools, keys[:, 0], keys[:, 1])
    times = np.column_stack([m.forward_ms, m.backward_ms]).astype(np.float64)
    return Shards(
        tables=_joined(m.pools, distinct),
        batch=batch_of(m.card),
        row=row.ravel(),
        shard=shard,
        origin=origin,
        times=times,
        noise=noise_of(m),
        card=m.card,
        caches=caches_of(m.card),
    )


def noise_of(measured: Measurements) -> np.ndarray:
    """Relative deviation of each measurement, (S,): the wider its runs are spread, the less it is worth."""
    spread = np.hypot(measured.forward_spread, measured.backward_spread) / measured.total_ms
    return np.interp(spread, *NOISE)


def _origins(pools: tuple[str, ...], pool: np.ndarray, table: np.ndarray) -> np.ndarray:
    """One number for each table of all pools; a block of rows has that of its table."""
    whole = [name.removesuffix(BLOCKS) for name in pools]
    base = np.array([whole.index(name) for name in whole])[pool]
    tables = np.array([len(pool_named(name)) for name in whole])[pool]
    return base * 2**32 + table % tables


def batch_of(card: dict[str, Any]) -> int:
    """The batch that shards were measured at; joined measurements must agree on it."""
    batches = {part.get("batch") or part.get("settings", {}).get("batch") for part in card.get("parts", [card])}
    batch = batches.pop() if len(batches) == 1 else None
    if not isinstance(batch, int):
        raise InvalidPool('these measurements do not share one batch: their card needs "batch": samples a step')
    return batch


def caches_of(card: dict[str, Any]) -> features.Caches:
    """The caches of the hardware that shards were measured on; joined measurements must agree on them."""
    found = {features.Caches.of(part.get("hardware", {})) for part in card.get("parts", [card])}
    if len(found) > 1:
        raise InvalidPool(f"these measurements are of hardware with different caches: {sorted(map(str, found))}")
    return found.pop()


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
    joined: dict[str, Any] = {c: np.concatenate([getattr(part, c) for part in parts]) for c in columns}
    return TablePool(
        **joined,
        name=tuple(n for part in parts for n in part.name),
        dtype=tuple(d for part in parts for d in part.dtype),
        reference_batch=parts[0].reference_batch,
    )


@dataclass(frozen=True)
class Predicted:
    """Total ms of each shard (S,), and its standard deviation where the predictor knows one."""

    ms: np.ndarray
    spread: np.ndarray | None = None


Predictor = Callable[[Shards], Predicted]


def by_simulator(simulator: FastSimulator) -> Predictor:
    """Predict each shard as on a device of its own."""

    def predict(shards: Shards) -> Predicted:
        task = Task(shards.tables, memory=(2**60,), batch=shards.batch)
        latency = simulator.decode(task, shards.sums(simulator.embed(task))[:, None])
        return Predicted(latency.compute[:, 0], None if latency.spread is None else latency.spread[:, 0])

    return predict


def predicted_by(simulator: simulators.Simulator) -> Callable[[Measurements], np.ndarray]:
    """Predictions of a fast simulator for every shard, measured or not, ms (S,)."""
    if not isinstance(simulator, FastSimulator):
        raise SimulatorError(f"{simulator} does not predict shards from sums: give a fit or a roofline")
    predict = by_simulator(simulator)
    return lambda measured: predict(shards_of(measured)).ms


def of_pools(measured: Measurements, pools: Sequence[str]) -> Measurements:
    """The shards of these pools, and of the blocks of their tables."""
    kept = np.array([name.removesuffix(BLOCKS) in pools for name in measured.pools])
    return measured.take(kept[measured.pool])


def by_single_tables(simulator: FastSimulator) -> Predictor:
    """The sum of what a simulator says of each table alone: what a model of single tables can do at best."""

    def predict(shards: Shards) -> Predicted:
        task = Task(shards.tables, memory=(2**60,), batch=shards.batch)
        alone = simulator.decode(task, simulator.embed(task)[:, None]).compute
        return Predicted(shards.sums(alone)[:, 0])

    return predict


def by_factor(train: Shards, amount: Callable[[Shards], np.ndarray]) -> Predictor:
    """An amount times the one factor that fits the training shards best."""
    factor = np.median(train.times.sum(axis=1) / np.maximum(amount(train), 1e-9))
    return lambda shards: Predicted(amount(shards) * factor)


def by_linear_fit(train: Shards) -> Predictor:
    """Least squares of relative errors on a shard's totals: tables, lookups, lines read, footprint, bytes, dims."""
    amounts, ms = _totals(train), train.times.sum(axis=1)
    scale = amounts.mean(axis=0)
    weight = np.linalg.lstsq(amounts / scale / ms[:, None], np.ones(len(ms)), rcond=None)[0]
    return lambda shards: Predicted(np.maximum(_totals(shards) / scale @ weight, 1e-6))


def baselines(train: Shards, shards: Shards) -> dict[str, Predicted]:
    """Predictions that a network has to beat."""
    roofline = simulators.make(ROOFLINE)
    assert isinstance(roofline, FastSimulator)
    lookups = features.TOTALS.index("lookups")
    found = {
        "lookups x factor": by_factor(train, lambda shards: _totals(shards)[:, lookups]),
        "roofline x factor": by_factor(train, lambda shards: by_simulator(roofline)(shards).ms),
        "linear fit": by_linear_fit(train),
    }
    return {name: predict(shards) for name, predict in found.items()}


def _totals(shards: Shards) -> np.ndarray:
    return shards.sums(features.work(shards.tables, shards.batch, shards.caches).totals)


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """MAE and MSE in ms, MAPE, bias (mean of predicted / measured - 1) and Spearman's rank correlation."""
    gap, relative = predicted - measured, predicted / measured - 1
    return {
        "mae_ms": float(abs(gap).mean()),
        "mse_ms2": float((gap**2).mean()),
        "mape": float(abs(relative).mean()),
        "bias": float(relative.mean()),
        "spearman": spearman(predicted, measured),
    }


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def coverage(predicted: np.ndarray, spread: np.ndarray, measured: np.ndarray) -> float:
    """Share of measurements inside the 90 % interval around their prediction."""
    return float((abs(measured - predicted) <= NORMAL_90 * spread).mean())


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


@dataclass(frozen=True)
class Row:
    """One predictor on the unseen tables; several fits of it differ in their seeds only."""

    name: str
    figures: dict[str, float]  # means over the fits
    deviations: dict[str, float]  # over the fits

    def cell(self, key: str, form: str) -> str:
        """The mean, and the deviation where there is one."""
        if key not in self.figures:
            return ""
        plus = f" ± {self.deviations[key]:{form.lstrip('+')}}" if self.deviations.get(key) else ""
        return f"{self.figures[key]:{form}}{plus}"


def row(name: str, predictions: Sequence[Predicted], shards: Shards) -> Row:
    """Mean and deviation of the figures over fits."""
    found = [_figures(p, shards) for p in predictions]
    mean = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    deviation = {k: float(np.std([f[k] for f in found])) for k in found[0]} if len(found) > 1 else {}
    return Row(name, mean, deviation)


def _figures(predicted: Predicted, shards: Shards) -> dict[str, float]:
    """Errors of the total, and how many of the measurements the 90 % interval holds."""
    times = shards.times.sum(axis=1)
    found = errors(predicted.ms, times)
    if predicted.spread is not None:
        found["coverage"] = coverage(predicted.ms, predicted.spread, times)
    return found


def by_size(shown: Mapping[str, Predicted], shards: Shards) -> dict[str, dict[str, dict[str, float]]]:
    """MAPE and bias of predictors against the number of tables."""
    return {name: _by_size(predicted, shards) for name, predicted in shown.items()}


def _by_size(predicted: Predicted, shards: Shards) -> dict[str, dict[str, float]]:
    tables, times = np.bincount(shards.shard), shards.times.sum(axis=1)
    found = {}
    for low, high in SIZES:
        inside = (tables >= low) & (tables <= high)
        if inside.any():
            label = f"{low}" if low == high else f"{low}-{high}"
            found[label] = errors(predicted.ms[inside], times[inside]) | {"shards": int(inside.sum())}
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """A row a predictor."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    return lines + [f"| {r.name} | {' | '.join(r.cell(*column) for column in COLUMNS.values())} |" for r in rows]


def size_table(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """A row a predictor, a column a number of tables."""
    sizes = next(iter(found.values()))
    lines = [f"| tables | {' | '.join(sizes)} |", f"|---|{'---|' * len(sizes)}"]
    for name, cells in found.items():
        lines.append(f"| {name} | " + " | ".join(f"{c['mape']:.1%}, {c['bias']:+.1%}" for c in cells.values()) + " |")
    return lines
