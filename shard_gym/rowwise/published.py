"""FlexShard's four production models: what its Tables 4 to 6 print, and row curves that agree with it.

The models' row frequencies are not published. A fitted curve has power laws between the ranks that Table 5 tells the
coverage of, and meets each; where its 3-tier plan ends DP, a row has the probability at which DP stops saving memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.rowwise.curves import HALVINGS, Curve, ranks
from shard_gym.rowwise.network import COPIES

BATCH, GPUS = 4096, 32


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
        ),
        Model(
            "RM-2", 30_000_000, 507_072, 0.770, 128_736, 0.639, 2_397_216, 0.217,
            (958_656_768, 220_126_208, 138_198_784), (0.770, 0.856),
        ),
        Model(
            "RM-3", 10_000_000, 115_296, 0.349, 36_704, 0.227, 318_560, 0.259,
            (466_826_496, 311_369_728, 246_077_440), (0.333, 0.473),
        ),
        Model(
            "RM-4", 10_000_000, 184_864, 0.570, 55_040, 0.390, 592_992, 0.360,
            (473_709_312, 201_887_232, 118_944_768), (0.574, 0.748),
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
