"""Slow drift of a shared machine, seen in how far predictions are off along each worker's time, and taken out again.

What a worker measured just before and after a shard says how fast its core was then. The shard's own time has no say,
so nothing of what it costs is taken away, and a campaign's level stays: factors are 1 on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.measuring.measurements import UNKNOWN, Measurements, at_pace, at_pace_of
from shard_gym.measuring.shards import order_of_passes
from shard_gym.measuring.visits import combined, pace_by_size

WIDTH = 8.0  # measurements: standard deviation of the weights of a shard's neighbours
REACH = 4  # deviations of the weights that count
FARTHEST = 0.15  # a neighbour further off counts as so far: bursts of other work, and shards that predictions miss
ASSUMED_WORKERS = 2  # of files that do not say


def detrended(m: Measurements, predicted_ms: np.ndarray, width: float = WIDTH) -> Measurements:
    """The measurements of one campaign over the drift of their worker; `predicted_ms` of each, by any fair fit."""
    if len(predicted_ms) != len(m):
        raise InvalidPool(f"a prediction is needed for each of {len(m)} shards, got {len(predicted_ms)}")
    ms = m.total_ms.astype(np.float64)
    known = np.isfinite(ms) & (ms > 0)
    off = np.log(np.where(known, ms, 1) / np.where(known, predicted_ms, 1))
    factor = np.exp(drift(off, [turn[known[turn]] for turn in turns(m)], width)).astype(np.float32)
    card = m.card | {"detrended": {"width": width, "deviation": float(np.log(factor[known]).std())}}
    return replace(at_pace(m, factor), card=card)


def settled(m: Measurements, reference: Measurements, predict: Callable[[Measurements], np.ndarray]) -> Measurements:
    """A campaign without its drift and at the pace of the reference, each shard once where its runs are told."""
    known = m.take(np.isfinite(m.total_ms) & (m.total_ms > 0))
    steady = detrended(known, predict(known))
    if not steady.run_ms.shape[1]:
        return at_pace_of(reference, [steady])[0]
    once = combined(steady)
    pace = pace_by_size(once, reference)
    card = once.card | {"pace": float(np.median(pace)), "pace_of": reference.content_hash}
    return replace(at_pace(once, pace), card=card)


def drift(off: np.ndarray, turns: list[np.ndarray], width: float = WIDTH) -> np.ndarray:
    """Logarithm of the pace at each measurement from what its neighbours are `off` by, (S,); 0 on average."""
    found = np.zeros(len(off))
    reach = int(REACH * width)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    weights[reach] = 0  # its own
    for turn in turns:
        if len(turn) > 1:
            near = np.median(off[turn])
            heard = near + (off[turn] - near).clip(-FARTHEST, FARTHEST)
            inside = slice(reach, reach + len(turn))
            found[turn] = np.convolve(heard, weights)[inside] / np.convolve(np.ones(len(turn)), weights)[inside]
    everything = np.concatenate([np.zeros(0, np.int64), *turns])
    found[everything] -= found[everything].mean() if len(everything) else 0
    return found


def turns(m: Measurements) -> list[np.ndarray]:
    """Indices of what each worker measured, in the order of time.

    Where a file does not say it follows from its card: workers took every second shard each of the order that the seed
    gives. What a killed campaign measured later than that is a little out of order.
    """
    if (m.worker != UNKNOWN["worker"]).any():
        order = np.argsort(m.at, kind="stable")
        return [order[m.worker[order] == worker] for worker in np.unique(m.worker[m.worker >= 0])]
    told = m.card.get("shards", {})
    repeats = told.get("repeats", 0)
    order = order_of_passes(len(m) // repeats, repeats, told["seed"]) if repeats else np.arange(len(m))
    return [order[worker::ASSUMED_WORKERS] for worker in range(ASSUMED_WORKERS)]
