"""Groups of table features that a learner can be trained without: DreamShard's Table 11."""

from __future__ import annotations

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.tables import FEATURES, NUM_BINS

HIDDEN = 1e30  # finite, as environments want it
GROUPS: dict[str, tuple[str, ...]] = {
    "dim": ("dim",),
    "rows": ("rows",),
    "pooling": ("pooling",),
    "size": ("size_gb",),
    "distribution": tuple(f"uses_{b}" for b in range(NUM_BINS)),
}


def known(group: str) -> str:
    """The group, or "" for none; refuses other names."""
    if group and group not in GROUPS:
        raise UnknownName("group of features", group, GROUPS)
    return group


def without(scaling: np.ndarray, group: str) -> np.ndarray:
    """The scaling (2, 21), means and deviations; those of a group are so large that its features are about 0.

    With "" it is the same scaling. As networks keep their scaling, a trained policy plans as it was trained.
    """
    hidden = np.isin(FEATURES, GROUPS[known(group)] if group else ())
    return np.stack([scaling[0], np.where(hidden, HIDDEN, scaling[1])])
