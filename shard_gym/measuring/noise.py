"""Noise of measurements, as an error that no prediction can be without."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.measuring.measurements import Measurements, groups

DRAWS = 100_000
# Largest median difference of repeats on a machine that may measure. Our campaigns on a shared CPU had 4 to 11 %; five
# pairs drawn from them have a median of more than 30 % once in 250 (the noisiest) to 50,000 times.
LIMITS = {"cpu": 0.3, "cuda": 0.02}


def limit_of(device: str) -> float:
    """The largest median difference of repeats on a device."""
    return LIMITS[device.partition(":")[0]]


def floor_of_means(m: Measurements, of: int = 3) -> float:
    """Mean relative error of a perfect prediction against the mean of so many measurements of a shard.

    The difference of two measurements of a shard, over the root of 2, is as large as the noise of one: means are of
    such differences, drawn over all shards with signs at random.
    """
    ms = m.total_ms.astype(np.float64)
    off = [(ms[a] - ms[b]) / ms[same].mean() for same in groups(m).values() for a, b in combinations(same, 2)]
    if not off:
        raise InvalidPool("no shard was measured twice, so nothing tells the noise")
    rng = np.random.default_rng(0)
    drawn = rng.choice(off, (DRAWS, of)) * rng.choice([-1, 1], (DRAWS, of))
    return float(np.abs(drawn.mean(axis=1)).mean() / np.sqrt(2))
