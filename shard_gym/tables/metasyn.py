"""MetaSyn: a synthetic pool of tables that agrees with all that is published of dlrm_datasets 2021.

Published are totals (`LocalityStats`) and the range of rows and pooling factors (AutoShard, Table 1); single tables
are not. `metasyn` draws rows and pooling per table, then spreads the published histograms over tables by
iterative proportional fitting, in whole numbers, so that every table's index trace exists.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool
from shard_gym.records.files import DATA
from shard_gym.tables.histograms import HIGH, LOW, NUM_BINS, share_out, use_histogram
from shard_gym.tables.pool import REFERENCE_BATCH, TablePool

ROWS_MAX, ROWS_MEAN = 12_543_670, 4_107_458  # AutoShard, Table 1; the minimum is 1
POOLING_MAX = 193  # as there; the minimum is 0, a table nobody looks up
# Shape of the Weibull that pooling is drawn from. Not published. The papers' ratios between plans pull both ways:
# AutoShard's ask for 0.8 or less, DreamShard's for 1.2 or more, and below 0.8 single tables bound the tasks
# (`python -m benchmarks.papers metasyn` prints the ratios of each shape).
POOLING_SHAPE = 0.85
MIN_TABLES = 32  # fewer cannot hold the table at the maximum and keep the mean
TINY_ROWS = 1_000  # tables up to this size are counted row by row
_TITLE = re.compile(r"^(\S*t(\d+)_bs(\d+)\S*)\s*$")
_BIN = re.compile(r"^\((\d+)(?:, (\d+)\]|\+): ([\d.]+)\s*$")


class LocalityStats(NamedTuple):
    """Published totals of a dlrm_datasets file: lookups, rows touched, and both over the 17 bins of uses a batch."""

    indices: int
    distinct: int
    uses: tuple[float, ...]  # share of the rows touched
    accesses: tuple[float, ...]  # share of the lookups
    tables: int = 856
    batch: int = REFERENCE_BATCH


# fbgemm_t856_bs65536 of 2021, the file that AutoShard and DreamShard used.
BASE_2021 = LocalityStats(
    indices=887_017_990,
    distinct=128_435_723,
    uses=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, 0, 0, 0, 0, 0, 0, 0),
    accesses=(
        *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
        *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
    ),
)


def metasyn(
    seed: int, n: int = 856, stats: LocalityStats = BASE_2021, pooling_shape: float = POOLING_SHAPE
) -> TablePool:
    """A pool of n tables with the statistics of `stats`; equal arguments give equal pools."""
    if seed < 0:
        raise InvalidPool(f"a seed is a whole number from 0, got {seed}")
    if n < MIN_TABLES:
        raise InvalidPool(f"a MetaSyn pool needs at least {MIN_TABLES} tables to have the published extremes, got {n}")
    rng = np.random.default_rng([seed, n])
    share = n / stats.tables
    lookups = _draw_lookups(rng, n, round(stats.indices * share), stats.batch, pooling_shape)
    rows = _draw_rows(rng, n)
    while abs(np.corrcoef(rows, lookups)[0, 1]) > 0.05:  # published: no relation
        rng.shuffle(rows)
    touched, looked_up = _spread(rng, rows, lookups, *_bin_totals(stats, share))
    return _pool(rows, lookups, touched, looked_up, prefix=f"metasyn{seed}", batch=stats.batch)


@cache
def load_metasyn(seed: int = 0, n: int = 856) -> TablePool:
    """A frozen pool that comes with the package, the same bit for bit on every machine."""
    path = DATA / f"metasyn_{seed}_{n}.npz"
    if not path.is_file():
        raise InvalidPool(f"no frozen MetaSyn pool of seed {seed} and {n} tables; metasyn({seed}, {n}) builds one")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
        return unpack(data["counts"], f"metasyn{seed}")


def pack(pool: TablePool) -> np.ndarray:
    """A pool of equal dims as whole numbers, (N, 36): rows, lookups, rows touched and lookups by bin."""
    touched, looked_up = pool.use_counts()
    return np.column_stack([pool.rows, pool.lookups, touched, looked_up]).astype(np.int32)


def unpack(counts: np.ndarray, prefix: str) -> TablePool:
    """The pool that `pack` packed, with 16 columns a table."""
    rows, lookups, touched, looked_up = np.split(counts.astype(np.int64), [1, 2, 2 + NUM_BINS], axis=1)
    return _pool(rows.ravel(), lookups.ravel(), touched, looked_up, prefix=prefix, batch=BASE_2021.batch)


def _pool(
    rows: np.ndarray, lookups: np.ndarray, touched: np.ndarray, looked_up: np.ndarray, *, prefix: str, batch: int
) -> TablePool:
    distinct = touched.sum(axis=1)
    return TablePool(
        rows=rows,
        dim=np.full(len(rows), 16),
        pooling=(lookups / batch).astype(np.float32),
        distinct=distinct,
        uses=touched / np.maximum(distinct, 1)[:, None],
        accesses=looked_up / np.maximum(lookups, 1)[:, None],
        name=tuple(f"{prefix}_{i:03d}" for i in range(len(rows))),
        dtype=("fp16",) * len(rows),
        reference_batch=batch,
    )


def _draw_lookups(rng: np.random.Generator, n: int, total: int, batch: int, shape: float) -> np.ndarray:
    """Lookups a batch of each table: stratified Weibull, one table at the maximum, one unused, the exact total."""
    most = POOLING_MAX * batch
    quantile = (np.arange(n - 2) + rng.random(n - 2)) / (n - 2)
    drawn = (-np.log1p(-quantile)) ** (1 / shape)
    low, high = 0.0, total / drawn.sum() * 4
    for _ in range(60):  # the scale at which the capped draws have the published sum
        scale = (low + high) / 2
        low, high = (scale, high) if np.minimum(drawn * scale, most).sum() < total - most else (low, scale)
    lookups = np.array([most, 0, *np.minimum(np.rint(drawn * low), most)], np.int64)
    lookups[np.argsort(lookups)[n // 2]] += total - lookups.sum()
    rng.shuffle(lookups)
    return lookups


def _draw_rows(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows of each table: mostly millions, lognormal below the maximum, a few small tables, one single row."""
    small = np.exp(rng.uniform(np.log(2), np.log(1e6), n // 25))
    spread = rng.standard_normal(n - 2 - len(small)) * 0.6
    wanted = ROWS_MEAN * n - ROWS_MAX - 1 - small.sum()
    low, high = 0.0, float(ROWS_MAX)
    for _ in range(60):
        median = (low + high) / 2
        low, high = (median, high) if np.minimum(np.exp(spread) * median, ROWS_MAX).sum() < wanted else (low, median)
    rows = np.array([ROWS_MAX, 1, *small, *np.minimum(np.exp(spread) * low, ROWS_MAX)])
    rows = np.maximum(np.rint(rows), 1).astype(np.int64)
    rng.shuffle(rows)
    return rows


def _bin_totals(stats: LocalityStats, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Lookups of each bin, and mean uses of its rows, such that both published histograms hold.

    Rows used once or twice make one and two lookups each. Published shares have three digits: where the share of
    rows is too small for them, the mean uses are taken at 0.72 of the bin's upper edge, as in the other bins.
    """
    uses, accesses = np.array(stats.uses, np.float64), np.array(stats.accesses, np.float64)
    mean_uses = stats.indices / stats.distinct
    accesses[:2] = uses[0] / mean_uses, 2 * uses[1] / mean_uses  # the two identities
    accesses[2:] *= (1 - accesses[:2].sum()) / accesses[2:].sum()
    typical = 0.72 * np.minimum(HIGH.astype(np.float64), 2.0**16)
    printed = uses >= 0.01
    uses = np.where(printed, uses, accesses * mean_uses / typical)
    free = printed & (np.arange(NUM_BINS) > 1)
    uses[free] *= (1 - uses[~free].sum()) / uses[free].sum()
    return accesses * stats.indices * share, np.clip(accesses * mean_uses / uses, LOW, HIGH)


def _spread(
    rng: np.random.Generator,
    rows: np.ndarray,
    lookups: np.ndarray,
    bin_lookups: np.ndarray,
    mean_uses: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows touched and lookups of every table and bin, whole numbers (N, 17) each, that add up to both margins."""
    touched, looked_up = np.zeros((2, len(rows), NUM_BINS), np.int64)
    tiny = rows <= TINY_ROWS
    for i in np.flatnonzero(tiny & (lookups > 0)):
        touched[i], looked_up[i] = _count_row_by_row(int(rows[i]), int(lookups[i]))
    rest = ~tiny & (lookups > 0)
    left = np.maximum(bin_lookups - looked_up.sum(axis=0), 0.0)
    expected = _fit_margins(rng, rows[rest], lookups[rest], left, mean_uses)
    touched[rest], looked_up[rest] = _to_whole_numbers(rng, expected, lookups[rest], mean_uses)
    return touched, looked_up


def _count_row_by_row(rows: int, lookups: int) -> tuple[np.ndarray, np.ndarray]:
    """A small table under Zipf's law: row r is used in proportion to 1/r."""
    weight = 1 / np.arange(1, rows + 1)
    counts = np.diff(np.rint(np.cumsum(weight / weight.sum()) * lookups), prepend=0).astype(np.int64)
    distinct, uses, accesses = use_histogram(counts)
    return np.rint(uses.astype(float) * distinct), np.rint(accesses.astype(float) * lookups)


def _fit_margins(
    rng: np.random.Generator,
    rows: np.ndarray,
    lookups: np.ndarray,
    bin_lookups: np.ndarray,
    mean_uses: np.ndarray,
) -> np.ndarray:
    """Expected lookups of every table and bin (N, 17) by iterative proportional fitting of a skew per table."""
    skew = rng.normal(0, 0.25, len(rows))
    cells = np.exp(skew[:, None] * (np.arange(NUM_BINS) - 6)) * bin_lookups
    cells[:, 1:][mean_uses[1:] > 0.25 * lookups[:, None]] = 0  # a row cannot be used more often than its table
    level = np.arange(NUM_BINS)
    for _ in range(60):
        cells *= bin_lookups / np.maximum(cells.sum(axis=0), 1e-9)
        cells *= (lookups / cells.sum(axis=1))[:, None]
        crowded = (cells / mean_uses).sum(axis=1) > 0.8 * rows  # too few rows: use each of them more often
        cells[crowded] *= np.exp(0.2 * level)
        cells *= (lookups / cells.sum(axis=1))[:, None]
    return cells


def _to_whole_numbers(
    rng: np.random.Generator, cells: np.ndarray, lookups: np.ndarray, mean_uses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Round cells so that bins keep their rows and tables their lookups, every row's uses inside its bin."""
    order = rng.permutation(len(cells))
    running = np.cumsum(cells[order] / mean_uses, axis=0) + rng.random(NUM_BINS)
    touched = np.empty(cells.shape, np.int64)
    touched[order] = np.diff(np.floor(running), axis=0, prepend=0)
    low, high = touched * LOW, touched * np.minimum(HIGH, 2**40)
    looked_up = np.clip(np.rint(touched * mean_uses).astype(np.int64), low, high)
    gap = lookups - looked_up.sum(axis=1)
    for bins in (slice(2, 11), slice(2, NUM_BINS)):  # the many rows of the middle absorb the rounding
        looked_up[:, bins] += share_out(gap, looked_up[:, bins], low[:, bins], high[:, bins])
        gap = lookups - looked_up.sum(axis=1)
    # what is left goes to rows used once: add some, or drop some
    once = np.maximum(looked_up[:, 0] + gap, 0)
    touched[:, 0] = looked_up[:, 0] = once
    if (looked_up.sum(axis=1) != lookups).any():
        raise InvalidPool("these statistics leave no whole-number histogram for some table; try another seed")
    return touched, looked_up


def parse_locality_stats(text: str) -> dict[str, LocalityStats]:
    """The statistics of each file that a locality_stats text describes, by file name."""
    found: dict[str, LocalityStats] = {}
    lines = text.splitlines()
    titles = [i for i, line in enumerate(lines) if _TITLE.match(line)]
    if not titles:
        raise CorruptFile("no locality statistics: a block begins with a file name such as fbgemm_t856_bs65536.pt")
    for start, end in zip(titles, [*titles[1:], len(lines)], strict=True):
        match = _TITLE.match(lines[start])
        assert match
        found[match[1]] = _parse_one(lines[start:end], int(match[2]), int(match[3]), start + 1)
    return found


def _parse_one(lines: list[str], tables: int, batch: int, number: int) -> LocalityStats:
    shares = [float(m[3]) for line in lines if (m := _BIN.match(line))]
    totals = {}
    for key, label in (("indices", "# of indices:"), ("distinct", "# of unique cols:")):
        values = [line.rsplit(":", 1)[1] for line in lines if label in line]
        if len(values) != 1 or not values[0].strip().isdigit():
            raise CorruptFile(f"block at line {number}: expected one whole number after {label!r}")
        totals[key] = int(values[0])
    if len(shares) != 2 * NUM_BINS:
        raise CorruptFile(f"block at line {number}: expected 2 histograms of {NUM_BINS} bins, got {len(shares)} lines")
    return LocalityStats(
        **totals, uses=tuple(shares[:NUM_BINS]), accesses=tuple(shares[NUM_BINS:]), tables=tables, batch=batch
    )
