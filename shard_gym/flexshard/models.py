"""The models that FlexShard's Tables 4 to 6 print.

Their row frequencies are not published: a fitted curve has power laws between the ranks that Table 5 tells the coverage
of, and meets each; where its 3-tier plan ends DP, a row has the probability at which DP stops saving memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.flexshard.curves import HALVINGS, Curve, ranks
from shard_gym.flexshard.network import BATCH, COLLECTIVES, COPIES, GPUS, OVERLAPS


@dataclass(frozen=True)
class Times:
    """Times of the collectives of a step, ms; nothing for those that a plan does not have."""

    a2a_global: float
    ar_global: float = 0.0
    a2a_intra: float = 0.0
    ar_cross: float = 0.0

    def added(self, overlap: str = "none") -> float:
        """Sum of the times that nothing hides."""
        return sum(getattr(self, name) for name in COLLECTIVES if name not in OVERLAPS[overlap])


@dataclass(frozen=True)
class Model:
    """One of the models, and its two plans as Table 5 has them; shares are of all lookups."""

    name: str
    rows: int
    dp2_rows: int  # 2-tier plan
    dp2_share: float
    dp3_rows: int  # 3-tier plan
    dp3_share: float
    flex3_rows: int
    flex3_share: float
    all_to_all: tuple[int, int, int]  # elements a GPU sends in one pass: RW, 2-tier, 3-tier (Table 6)
    reductions: tuple[float, float]  # of these, as printed
    ms: tuple[Times, Times, Times]  # of a step's collectives, as observed (Table 6)
    dim: int = 256

    @property
    def length(self) -> float:
        """Mean rows of a sample: that with which the 2-tier plan takes as much memory as RW."""
        return self.dp2_rows * (COPIES - 1 / GPUS) / (BATCH * self.dp2_share)


MODELS: Mapping[str, Model] = {
    m.name: m
    for m in (
        Model(
            "RM-1", 30_000_000, 346_144, 0.525, 100_064, 0.368, 1_184_544, 0.306,
            (972_424_960, 450_510_848, 297_697_024), (0.537, 0.694),
            (Times(307), Times(149, 3), Times(99, 3, 30, 14)),
        ),
        Model(
            "RM-2", 30_000_000, 507_072, 0.770, 128_736, 0.639, 2_397_216, 0.217,
            (958_656_768, 220_126_208, 138_198_784), (0.770, 0.856),
            (Times(308), Times(80, 6), Times(49, 3, 21, 27)),
        ),
        Model(
            "RM-3", 10_000_000, 115_296, 0.349, 36_704, 0.227, 318_560, 0.259,
            (466_826_496, 311_369_728, 246_077_440), (0.333, 0.473),
            (Times(156), Times(101, 4), Times(85, 2, 13, 5)),
        ),
        Model(
            "RM-4", 10_000_000, 184_864, 0.570, 55_040, 0.390, 592_992, 0.360,
            (473_709_312, 201_887_232, 118_944_768), (0.574, 0.748),
            (Times(155), Times(72, 5), Times(45, 3, 18, 9)),
        ),
    )
}  # fmt: skip


@cache
def fitted_curve(name: str) -> Curve:
    """A curve through what is printed of a model."""
    if name not in MODELS:
        raise UnknownName("published model", name, MODELS)
    m = MODELS[name]
    edges = np.unique(np.append(ranks(m.rows), [m.dp3_rows + 1, m.dp2_rows + 1, m.dp3_rows + m.flex3_rows + 1]))
    count = np.diff(edges)
    rank = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    p = np.empty(len(count))
    anchor_rank, anchor_p = m.dp3_rows, (COPIES - 1 / GPUS) / BATCH
    head = rank <= anchor_rank
    wanted = m.dp3_share * m.length
    p[head] = _power(rank[head], count[head], anchor_rank, anchor_p, wanted)
    ends = ((m.dp2_rows, m.dp2_share), (m.dp3_rows + m.flex3_rows, m.dp3_share + m.flex3_share), (m.rows, 1.0))
    for end, share in ends:
        part = (rank > anchor_rank) & (rank <= end)
        p[part] = _power(rank[part], count[part], anchor_rank, anchor_p, share * m.length - wanted)
        wanted, anchor_rank, anchor_p = share * m.length, end, float(p[part][-1])
    return Curve(np.minimum.accumulate(p), count, 1e-3)


def _power(rank: np.ndarray, count: np.ndarray, anchor: float, p: float, wanted: float) -> np.ndarray:
    """p * (rank / anchor) ** -exponent, none above 1, with the exponent that makes all rows sum to `wanted`."""

    def law(exponent: float) -> np.ndarray:
        return np.minimum(p * (rank / anchor) ** -exponent, 1.0)

    low, high = 0.0, 30.0
    rising = rank[0] < anchor  # a larger exponent: more before the anchor, less after it
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        more = ((law(middle) * count).sum() < wanted) == rising
        low, high = (middle, high) if more else (low, middle)
    return law(high)
