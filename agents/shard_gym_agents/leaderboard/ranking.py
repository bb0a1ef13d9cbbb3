"""Ranks of the agents on a suite, by the makespans of their plans.

Share of feasible tasks first, then mean gap to the best known plan. A run that gave no feasible plan in time counts as
the mean random plan. Agents that are feasible as often, and whose gaps the tasks do not tell apart, share a rank. The
tracks "search" and "blind" are ranked apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym_agents.leaderboard.statistics import Statistic, holm, interval, iqm, mean, paired, rank_groups


@dataclass(frozen=True, eq=False)
class Sample:
    """Makespans of one agent in ms, (seeds, tasks); NaN where a run gave no feasible plan in time."""

    agent: str
    track: str
    makespan: np.ndarray

    @property
    def feasible(self) -> float:
        """Share of its runs that gave a feasible plan."""
        return float(np.isfinite(self.makespan).mean())

    def counted(self, random: np.ndarray) -> np.ndarray:
        """Makespans as they count, (tasks, seeds): of a random plan where there is none."""
        return np.where(np.isfinite(self.makespan), self.makespan, random).T

    def gaps(self, random: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Gaps to `best`, as shares of it, (tasks, seeds)."""
        return self.counted(random) / best[:, None] - 1


@dataclass(frozen=True)
class Estimate:
    """A statistic of all runs with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """The place of an agent in its track; those that cannot be told apart share a rank."""

    agent: str
    track: str
    rank: int  # 1 + the agents of all better groups
    feasible: float  # share of runs
    makespan: Estimate  # ms
    gap: Estimate  # to the best known, as a share of it
    iqm: Estimate  # of the same gaps
    speedup: Estimate  # over the mean random plan
    p: float = 1.0  # of gaps like those of the best in the track, task by task; corrected for the number of agents


def standings(
    samples: Sequence[Sample], random: np.ndarray, best: np.ndarray, resolution: float = 0.0
) -> list[Standing]:
    """Rank the agents, best first within their track; `random` and `best` are ms per task, (T,)."""
    found: list[Standing] = []
    for track in dict.fromkeys(s.track for s in samples):
        ranked = _ranked([s for s in samples if s.track == track], random, best, resolution)
        chances = _corrected([s.gaps(random, best) for s, _ in ranked])
        found += [_standing(s, rank, p, random, best) for (s, rank), p in zip(ranked, chances, strict=True)]
    return sorted(found, key=lambda s: (s.track != "search", s.rank, s.gap.mean, s.agent))


def best_of_run(samples: Sequence[Sample], random: np.ndarray, best: np.ndarray) -> np.ndarray:
    """`best` where it is known; else the best makespan of this run; else that of a random plan. (T,)"""
    found = [np.nanmin(np.vstack([s.makespan, np.full_like(random, np.inf)]), axis=0) for s in samples]
    of_run = np.min([np.full_like(random, np.inf), *found], axis=0)
    return np.where(np.isfinite(best), best, np.where(np.isfinite(of_run), of_run, random))


def estimate(table: np.ndarray, statistic: Statistic = mean) -> Estimate:
    """A statistic of a table (tasks, seeds)."""
    return Estimate(float(statistic(table)), *interval(table, statistic))


def _ranked(
    samples: Sequence[Sample], random: np.ndarray, best: np.ndarray, resolution: float
) -> list[tuple[Sample, int]]:
    """The agents of a track with their ranks, best first."""
    ranked: list[tuple[Sample, int]] = []
    for share in sorted({s.feasible for s in samples}, reverse=True):
        alike = {s.agent: s for s in samples if s.feasible == share}
        for group in rank_groups({agent: s.gaps(random, best) for agent, s in alike.items()}, resolution):
            rank = 1 + len(ranked)
            ranked += [(alike[agent], rank) for agent in group]
    return ranked


def _corrected(gaps: Sequence[np.ndarray]) -> list[float]:
    """P-values of each agent against the first, task by task, corrected for their number."""
    first, *others = gaps
    return [1.0, *holm([paired(one, first).p for one in others])]


def _standing(sample: Sample, rank: int, p: float, random: np.ndarray, best: np.ndarray) -> Standing:
    makespan, gaps = sample.counted(random), sample.gaps(random, best)
    return Standing(
        agent=sample.agent,
        track=sample.track,
        rank=rank,
        feasible=sample.feasible,
        makespan=estimate(makespan),
        gap=estimate(gaps),
        iqm=estimate(gaps, iqm),
        speedup=estimate(random[:, None] / makespan),
        p=p,
    )
