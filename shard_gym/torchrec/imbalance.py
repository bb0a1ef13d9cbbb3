"""Imbalance of a load that ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Imbalance:
    """Distances of a load's shares p from 1/K each, 0 where even.

    The first four are those of `torchrec.distributed.planner.stats`, 1 at most. They hardly move when one of many
    ranks is slow: 96 ranks, one of which takes 1.3 times the mean, have a total variation of 0.003. A step takes as
    long as its slowest rank, so `max_over_mean` is what to look at.
    """

    total_variation: float  # max |p - 1/K|, as TorchRec names it
    total_distance: float  # sum |p - 1/K|
    chi_divergence: float  # K sum (p - 1/K)^2, over the most it may be
    kl_divergence: float  # sum p log(K p), over log K
    max_over_mean: float


def imbalance(load: Sequence[float]) -> Imbalance | None:
    """Imbalance of one number a rank, none negative; None if no rank has any load."""
    values = np.asarray(load, np.float64)
    if not values.sum() > 0:
        return None
    ranks, share = len(values), values / values.sum()
    off, some = np.abs(share - 1 / ranks), share[share > 0]
    if ranks == 1:
        return Imbalance(0.0, 0.0, 0.0, 0.0, 1.0)
    most_chi = ranks * ((ranks - 1) / ranks) ** 2 + (ranks - 1) / ranks
    return Imbalance(
        total_variation=float(off.max()),
        total_distance=float(off.sum()),
        chi_divergence=float(ranks * (off**2).sum() / most_chi),
        kl_divergence=float((some * np.log(ranks * some)).sum() / np.log(ranks)),
        max_over_mean=float(values.max() / values.mean()),
    )
