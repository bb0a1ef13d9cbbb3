"""Campaigns that visit each shard several times, far apart in time, while a machine has other things to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool
from shard_gym.measuring.measurements import UNKNOWN, Measurements, groups, mean_times, pool_named

MIN_SIZES = 200  # shards that two campaigns must both hold for their paces to be compared by size
ROUNDS, LEAST_OFF = 30, 1e-3  # of a fit of least absolute deviations
HALF_BYTES, LINE_BYTES, LEAST_POOLING = 2, 64, 1e-3  # of a weight, of a line of memory; ids a sample


def combined(m: Measurements, lowest: int = 3) -> Measurements:
    """Each distinct shard once, at the mean of the lowest runs of all its visits; spreads are between the visits.

    Other work on the machine only ever adds to a time, and comes and goes: the lowest times are nearest the shard's.
    """
    if not m.run_ms.shape[1]:
        raise InvalidPool("these measurements do not tell the time of each run")
    found = groups(m)
    once = m.take([visits[0] for visits in found.values()])
    means, spreads = np.zeros((2, len(once), 2))
    for i, visits in enumerate(found.values()):
        runs = m.run_ms[visits].reshape(-1, 2)
        means[i] = runs[np.argsort(runs.sum(axis=1))[:lowest]].mean(axis=0)
        spreads[i] = m.run_ms[visits].min(axis=1).std(axis=0, ddof=1) if len(visits) > 1 else np.nan
    spreads = np.where(np.isnan(spreads), np.nanmax(spreads / means, initial=0.0) * means, spreads)
    columns: dict[str, Any] = {"forward_ms": means[:, 0], "backward_ms": means[:, 1]}
    columns |= {"forward_spread": spreads[:, 0], "backward_spread": spreads[:, 1]}
    columns |= {name: np.full(len(once), value) for name, value in UNKNOWN.items()}
    card = m.card | {"combined": {"lowest": lowest, "visits": max(map(len, found.values()))}}
    return replace(once, card=card, run_ms=np.zeros(0), **columns)


def pace_by_size(m: Measurements, reference: Measurements) -> np.ndarray:
    """The pace of each shard, (S,): it depends on how long the shard takes and how wide its rows are.

    A machine with busy neighbours is slower for small shards and for wide rows than for others. Least absolute
    deviations of the logarithms, over the shards that both campaigns hold.
    """
    found, known = groups(m), mean_times(reference)
    shared = [key for key in found if key in known]
    if len(shared) < MIN_SIZES:
        raise InvalidPool(f"{len(shared)} shards are in both campaigns, their pace by size needs {MIN_SIZES}")
    total = m.total_ms.astype(np.float64)
    ours = np.array([total[found[key]].mean() for key in shared])
    off = np.log(ours) - np.log([known[key] for key in shared])
    sides = np.column_stack([np.ones(len(m)), np.log(total), np.log(_row_bytes(m))])
    seen = sides[[found[key][0] for key in shared]]
    inside = sides.clip(seen.min(axis=0), seen.max(axis=0))  # of shards unlike all of these, the pace of the nearest
    return np.exp(inside @ _least_deviations(seen, off))


def _row_bytes(m: Measurements) -> np.ndarray:
    """Bytes that a lookup of each shard reads in the mean, whole lines of memory, (S,)."""
    shard = np.repeat(np.arange(len(m)), m.tables_per_shard)
    pooling = np.empty(len(m.table))
    for number, name in enumerate(m.pools):
        mine = m.pool[shard] == number
        pooling[mine] = np.maximum(pool_named(name).pooling[m.table[mine]], LEAST_POOLING)
    read = pooling * np.ceil(m.dim * HALF_BYTES / LINE_BYTES) * LINE_BYTES
    return np.bincount(shard, read) / np.bincount(shard, pooling)


def _least_deviations(sides: np.ndarray, off: np.ndarray) -> np.ndarray:
    """The line with the least absolute deviations, by weighing least squares again and again."""
    weight = np.ones(len(off))
    for _ in range(ROUNDS):
        line = np.linalg.lstsq(sides * weight[:, None], off * weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(abs(off - sides @ line), LEAST_OFF))
    return line
