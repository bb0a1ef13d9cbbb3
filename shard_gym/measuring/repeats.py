"""Shards that were measured more than once: how far the times lie apart, and what they say of a machine's pace.

A machine that others share is faster on one day than on another (we saw 9 %). What is to be compared or fitted together
is brought to one pace: that of a campaign which measured some shards of every other one again, all mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.measuring.measurements import Measurements

Groups = dict[Any, list[int]]
SETTINGS = ("batch", "dtype", "optimizer", "clock", "statistic")  # that two campaigns must share to have one pace
MIN_SHARED = 20  # shards that two campaigns must both hold for their paces to be compared
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal


def groups(m: Measurements) -> Groups:
    """The measurements of each distinct shard that has a time."""
    found: Groups = {}
    for i in np.flatnonzero(np.isfinite(m.total_ms)).tolist():
        found.setdefault(m.key(i), []).append(i)
    return found


def repeat_noise(m: Measurements) -> dict[str, float]:
    """Differences between measurements of one shard: the noise floor of whatever is fitted to them.

    A pair's difference is |a - b| over its mean, for the total of both passes; `relative_std` is what the median says
    of one measurement (a difference has sqrt(2) times its deviation).
    """
    pairs = [pair for group in groups(m).values() for pair in combinations(group, 2)]
    if not pairs:
        return {"pairs": 0}
    a, b = m.total_ms[np.array(pairs).T].astype(np.float64)
    differences = abs(a - b) / ((a + b) / 2)
    median = float(np.median(differences))
    return {
        "pairs": len(pairs),
        "median_relative_difference": median,
        "mean_relative_difference": float(differences.mean()),
        "relative_std": median / (NORMAL_MEDIAN * 2**0.5),
    }


def merged(m: Measurements) -> Measurements:
    """Each distinct shard that has a time once, at the means of its measurements."""
    found = groups(m)
    once = m.take([group[0] for group in found.values()])
    forward, backward = (
        np.array([times[group].mean() for group in found.values()]) for times in (m.forward_ms, m.backward_ms)
    )
    return replace(once, forward_ms=forward, backward_ms=backward)


def pace(m: Measurements, reference: Measurements) -> float:
    """Time over that of the reference: the median over the shards that both hold."""
    known, ours = (_mean_times(part) for part in (reference, m))
    ratios = [ours[key] / known[key] for key in ours.keys() & known.keys()]
    if len(ratios) < MIN_SHARED:
        raise InvalidPool(
            f"{len(ratios)} shards of {', '.join(m.pools)} are in both campaigns, their paces need {MIN_SHARED} to be "
            "compared: measure some shards of each again in one campaign"
        )
    one, other = (part.card.get("settings", {}) for part in (m, reference))
    if differ := [name for name in SETTINGS if one.get(name) != other.get(name)]:
        told = ", ".join(f"{name} {one.get(name)} and {other.get(name)}" for name in differ)
        raise InvalidPool(f"the campaigns were measured in different ways, so no pace compares them: {told}")
    return float(np.median(ratios))


def at_pace_of(reference: Measurements, parts: Sequence[Measurements]) -> list[Measurements]:
    """The parts with times as the reference would have had them; each card says by what they were divided."""
    found = []
    for m in parts:
        factor = pace(m, reference)
        columns = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
        card = m.card | {"pace": factor, "pace_of": reference.content_hash}
        found.append(replace(m, card=card, **{c: getattr(m, c) / np.float32(factor) for c in columns}))
    return found


def _mean_times(m: Measurements) -> dict[Any, float]:
    total = m.total_ms.astype(np.float64)
    return {key: float(total[group].mean()) for key, group in groups(m).items()}
