"""Expected makespans of plans whose device times are uncertain: the mean of the largest time.

The largest of several uncertain times is longer than the largest of their means, most of all where a search has made
the means equal.
"""

from __future__ import annotations

import numpy as np

from shard_gym.simulators.base import Latency

STEPS = 96  # of the integral
REACH = 5.0  # deviations around the largest mean that it covers


def expected_max(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Mean of the largest of K independent normals, (..., K) -> (...)."""
    mean, spread = np.asarray(mean, np.float64), np.asarray(spread, np.float64)
    top, widest = mean.max(axis=-1), spread.max(axis=-1)
    low = (mean - REACH * spread).max(axis=-1)  # below it the largest is not
    grid = np.linspace(low, np.maximum(top + REACH * widest, low), STEPS, axis=-1)  # (..., STEPS)
    apart = (grid[..., None] - mean[..., None, :]) / np.maximum(spread, 1e-300)[..., None, :]
    above = 1 - _below(apart).prod(axis=-1)
    return low + np.trapezoid(above, grid, axis=-1)


def expected_makespan(latency: Latency, objective: str) -> np.ndarray:
    """Expected makespan, (...); without a spread of the simulator it is the makespan itself."""
    if latency.spread is None:
        return latency.makespan(objective)
    return expected_max(latency.cost(objective), latency.spread)


def _below(x: np.ndarray) -> np.ndarray:
    """Share of a normal distribution below x (Abramowitz and Stegun, 26.2.17: to 7.5e-8)."""
    x = np.clip(x, -37.0, 37.0)
    t = 1 / (1 + 0.2316419 * abs(x))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-x * x / 2) * series * 0.3989422804014327
    return np.where(x > 0, 1 - tail, tail)
