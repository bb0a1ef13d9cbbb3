"""Who is better: share of feasible tasks first, then mean gap to the best known plan.

A run that gave no feasible plan in time counts as the mean random plan. Seeds are averaged within a task; 95%
intervals resample tasks, the same for every agent. The tracks "search" and "blind" are ranked apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2_000
CONFIDENCE = 95  # percent
RNG_SEED = 0


@dataclass(frozen=True, eq=False)
class Sample:
    """Makespans of one agent in ms, (seeds, tasks); NaN where a run gave no feasible plan in time."""

    agent: str
    track: str
    makespan: np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """Where an agent stands in its track; equals share a rank."""

    agent: str
    track: str
    rank: int
    feasible: float  # share of runs
    makespan: Estimate  # ms
    gap: Estimate  # to the best known, as a share of it
    speedup: Estimate  # over the mean random plan


def standings(samples: Sequence[Sample], random: np.ndarray, best: np.ndarray) -> list[Standing]:
    """All agents, best first within their track; `random` and `best` are ms per task, (T,)."""
    weights = _resamples(len(random))
    unranked = [_standing(s, random, best, weights) for s in samples]
    keys = {s.agent: (-s.feasible, s.gap.mean) for s in unranked}
    ranked = []
    for s in unranked:
        better = sum(keys[o.agent] < keys[s.agent] for o in unranked if o.track == s.track)
        ranked.append(Standing(**{**vars(s), "rank": 1 + better}))
    return sorted(ranked, key=lambda s: (s.track != "search", s.rank, s.agent))


def best_of_run(samples: Sequence[Sample], random: np.ndarray, best: np.ndarray) -> np.ndarray:
    """`best` where it is known; else the best makespan of this run; else that of a random plan. (T,)"""
    found = [np.nanmin(np.vstack([s.makespan, np.full_like(random, np.inf)]), axis=0) for s in samples]
    of_run = np.min([np.full_like(random, np.inf), *found], axis=0)
    return np.where(np.isfinite(best), best, np.where(np.isfinite(of_run), of_run, random))


def _standing(sample: Sample, random: np.ndarray, best: np.ndarray, weights: np.ndarray) -> Standing:
    finished = np.isfinite(sample.makespan)
    makespan = np.where(finished, sample.makespan, random)  # (S, T)
    gap, speedup = makespan / best - 1, random / makespan
    estimates = (_estimate(values.mean(axis=0), weights) for values in (makespan, gap, speedup))
    return Standing(sample.agent, sample.track, 0, float(finished.mean()), *estimates)


def _resamples(tasks: int) -> np.ndarray:
    """How often each resample draws each task, as a share, (RESAMPLES, T)."""
    rng = np.random.default_rng(RNG_SEED)
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES) / tasks


def _estimate(per_task: np.ndarray, weights: np.ndarray) -> Estimate:
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(weights @ per_task, [tail, 100 - tail])
    return Estimate(float(per_task.mean()), float(low), float(high))
