"""Statistics of gaps, after Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice".

The gaps of an agent are a table (tasks, seeds): how far each run is from the reference, as a share of it; lower is
better. Tasks are the strata: a resample draws tasks, and then seeds within each task drawn. Equal input and equal seed
give equal intervals. Some functions take stacks of tables too, (..., tasks, seeds), and answer (...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from shard_gym.errors import InvalidResult

RESAMPLES = 2_000
LEVEL = 0.95  # of an interval
RNG_SEED = 0
FLIPS = 20_000  # random signs of a paired test
ALL_FLIPS = 14  # tasks up to which every combination of signs is tried
Statistic = Callable[[np.ndarray], np.ndarray]  # of tables (..., tasks, seeds)
Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """The mean difference x - y of two agents over the same tasks, its interval, and the p-value of "none"."""

    difference: float
    low: float
    high: float
    p: float


def mean(g: np.ndarray) -> np.ndarray:
    """Mean over all runs."""
    return np.asarray(g, float).mean(axis=(-2, -1))


def iqm(g: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of all runs but the lowest and the highest quarter of them."""
    g = np.asarray(g, float)
    runs = np.sort(g.reshape(*g.shape[:-2], -1))
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def interval(
    g: np.ndarray, statistic: Statistic, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = RNG_SEED
) -> Interval:
    """The bootstrap interval of a statistic, between percentiles of its value on resamples."""
    (drawn,) = _resampled([_table(g)], resamples, seed)
    return _between(statistic(drawn), level)


def improvement(x: np.ndarray, y: np.ndarray) -> float:
    """Probability that a run of x has a lower gap than one of y on the same task; a tie is half."""
    return float(_improvement(*_same_tasks(x, y)))


def improvement_interval(
    x: np.ndarray, y: np.ndarray, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = RNG_SEED
) -> Interval:
    """The bootstrap interval of `improvement`; both agents get the same tasks in a resample."""
    return _between(_improvement(*_resampled(_same_tasks(x, y), resamples, seed)), level)


def profile(g: np.ndarray, at: Sequence[float] | np.ndarray) -> np.ndarray:
    """Share of runs whose gap is at most each of `at`."""
    runs = np.sort(_table(g), axis=None)
    return np.searchsorted(runs, np.asarray(at, float), side="right") / len(runs)


def paired(x: np.ndarray, y: np.ndarray) -> Paired:
    """Compare two agents task by task, each by the mean of its seeds.

    The interval resamples tasks. The p-value is how often random signs of the differences (all combinations, where
    few tasks differ) give a mean at least as far from zero.
    """
    x, y = _same_tasks(x, y)
    differences = x.mean(axis=1) - y.mean(axis=1)
    found = float(differences.mean())
    means = _task_weights(len(differences)) @ differences
    return Paired(found, *_between(means, LEVEL), _sign_flip(differences))


def holm(ps: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's method, in the given order."""
    p = np.asarray(ps, float)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(one) for one in corrected]


def rank_groups(gaps: Mapping[str, np.ndarray], resolution: float = 0.0) -> list[list[str]]:
    """Groups of agents that the tasks do not tell apart, the lowest mean gap first.

    A group begins with its best agent. The next agents join until one is told apart from that best: the interval of
    their paired difference leaves zero out, and the difference is above the resolution.
    """
    groups: list[list[str]] = []
    for agent in sorted(gaps, key=lambda name: (float(mean(_table(gaps[name]))), name)):
        if groups and not _told_apart(paired(gaps[agent], gaps[groups[-1][0]]), resolution):
            groups[-1].append(agent)
        else:
            groups.append([agent])
    return groups


def _told_apart(found: Paired, resolution: float) -> bool:
    return not found.low <= 0 <= found.high and abs(found.difference) > resolution


def _table(g: np.ndarray) -> np.ndarray:
    g = np.asarray(g, float)
    if g.ndim != 2 or not g.size or not np.isfinite(g).all():
        raise InvalidResult(f"gaps are a table of finite numbers, (tasks, seeds), not one of shape {g.shape}")
    return g


def _same_tasks(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = _table(x), _table(y)
    if len(x) != len(y):
        raise InvalidResult(f"agents are compared on the same tasks, not on {len(x)} and {len(y)}")
    return x, y


def _resampled(tables: Sequence[np.ndarray], resamples: int, seed: int) -> list[np.ndarray]:
    """Resamples of tables over the same tasks: (resamples, tasks, seeds) of each."""
    return [g.ravel()[_drawn(*g.shape, resamples, seed, i)] for i, g in enumerate(tables)]


@lru_cache(maxsize=4)
def _drawn(tasks: int, seeds: int, resamples: int, seed: int, table: int) -> np.ndarray:
    """Places of resampled runs in a flat table: tasks the same for every table, seeds drawn for each."""
    task = np.random.default_rng([seed, 0]).integers(tasks, size=(resamples, tasks))
    which = np.random.default_rng([seed, 1 + table]).integers(seeds, size=(resamples, tasks, seeds))
    return task[..., None] * seeds + which


def _improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    lower = np.sign(y[..., None, :] - x[..., :, None])  # (..., tasks, seeds of x, seeds of y)
    return (lower.mean(axis=(-3, -2, -1)) + 1) / 2


@lru_cache(maxsize=2)
def _task_weights(tasks: int) -> np.ndarray:
    """Shares of the tasks in each resample, (resamples, tasks)."""
    rng = np.random.default_rng(RNG_SEED)
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES) / tasks


def _sign_flip(differences: np.ndarray) -> float:
    """The two-sided p-value of the mean being zero, if every difference were as likely to be its opposite."""
    moved = differences[differences != 0]
    few = len(moved) <= ALL_FLIPS
    sums = np.abs(_all_signs(len(moved)) @ moved if few else _random_signs(len(differences)) @ differences)
    least = np.abs(moved.sum()) - 1e-12 * np.abs(moved).sum()  # sums in another order round otherwise
    extreme = int((sums >= least).sum())
    return extreme / len(sums) if few else (extreme + 1) / (len(sums) + 1)


@cache
def _all_signs(count: int) -> np.ndarray:
    """Every combination of signs, (2 ** count, count)."""
    return 1.0 - 2.0 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)


@lru_cache(maxsize=2)
def _random_signs(count: int) -> np.ndarray:
    return np.random.default_rng(RNG_SEED).choice([-1.0, 1.0], size=(FLIPS, count))


def _between(values: np.ndarray, level: float) -> Interval:
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
