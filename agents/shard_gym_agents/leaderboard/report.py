"""The rows of a suite's agents: what each of them did, by its runs. `layout` shows them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shard_gym.results import Result
from shard_gym.task.suite import BEST_KNOWN, GROUPS, Suite
from shard_gym_agents.leaderboard.kept import Watched
from shard_gym_agents.leaderboard.ranking import Estimate, Sample, Standing, best_of_run, estimate, standings
from shard_gym_agents.leaderboard.references import References
from shard_gym_agents.leaderboard.resolution import resolution
from shard_gym_agents.leaderboard.runs import Judged

OVERRUN = 1.25  # times the budget that an agent may take before the table says so
IDLE = 0.05  # CPU seconds a run between tasks that the table keeps quiet about
CORES = 1.25  # CPU seconds a second that a run may take before the table says so
Runs = Mapping[str, Sequence[Sequence[Judged]]]  # agent -> seed -> task


@dataclass(frozen=True)
class Row:
    """An agent on a suite; without a standing where it could not even be tried."""

    suite: str
    agent: str
    track: str
    planner: str
    judge: str
    seeds: int
    standing: Standing | None
    balance: float = math.nan  # mean over feasible plans
    plan_seconds: float = math.nan  # median wall-clock time of runs that gave a plan
    cpu_seconds: float = math.nan  # median CPU time of the same runs
    calls: float = math.nan
    error: str | None = None
    watched: Watched = field(default_factory=Watched)
    note: str = ""
    alone: bool = False  # its times are of runs with nothing else beside them
    budget: float | None = None  # seconds a task, where it takes a budget
    gap_at: Mapping[float, Estimate] = field(default_factory=dict)  # by budget, where it was given several


@dataclass(frozen=True)
class Ranking:
    """The rows of a suite, best first, and what a reader has to know about them."""

    suite: Suite
    rows: tuple[Row, ...]
    tasks: int
    split: str
    notes: tuple[str, ...]
    gap_to: str = BEST_KNOWN  # what gaps are to
    resolution: float = 0.0  # means that differ by less cannot be told apart

    @property
    def budget(self) -> float | None:
        """Seconds a task of the agents that take a budget, as they are ranked."""
        return next((row.budget for row in self.rows if row.budget), None)


def ranking(
    suite: Suite,
    split: str,
    runs: Runs,
    refs: References,
    unable: Sequence[Row],
    watched: Mapping[str, Watched],
    budgets: Mapping[float, Runs] | None = None,
) -> Ranking:
    """Rank the agents by their runs; `unable` lack something and come last, `budgets` are runs in other time."""
    samples = [sample_of(agent, by_seed) for agent, by_seed in runs.items()]
    best = best_of_run(samples, refs.random, refs.best)
    gap_at: dict[str, dict[float, Estimate]] = {agent: {} for agent in runs}
    for budget, others in (budgets or {}).items():
        for sample in (sample_of(*one) for one in others.items() if one[0] in runs):
            gap_at[sample.agent][budget] = estimate(sample.gaps(refs.random, best))
    judge = next(iter(runs.values()))[0][0][0].judge if runs else None
    within = resolution(suite, split, len(best), judge)
    ranked = standings(samples, refs.random, best, within)
    rows = tuple(_row(s, runs[s.agent], watched[s.agent], gap_at[s.agent]) for s in ranked)
    notes = [*_limits(suite, within), *([refs.note] if refs.note else [])]
    if unknown := int(np.isnan(refs.best).sum()):
        notes.append(_unknown(unknown, len(best), refs.gap_to))
    if refs.gap_to == BEST_KNOWN and any((s.makespan < refs.best - 1e-9).any() for s in samples):
        notes.append("Some plans beat the best known ones: run with --update-best to keep them.")
    return Ranking(suite, (*rows, *unable), len(best), split, tuple(notes), refs.gap_to, within)


def _unknown(unknown: int, tasks: int, gap_to: str) -> str:
    """Say what gaps are to where the plan that they should be to is unknown."""
    if gap_to != BEST_KNOWN:
        return f"No frozen reference plan for {unknown} tasks: gaps there are to the best of this run."
    which = "No best known plans yet" if unknown == tasks else f"No best known plan for {unknown} tasks"
    return f"{which}: gaps there are to the best of this run. --update-best keeps its plans."


def _limits(suite: Suite, within: float) -> list[str]:
    """Limits of what ranks on a suite tell, in words."""
    told = [f"This suite is {suite.remark}."] if suite.remark else []
    if not suite.ranked:
        told.append(f"Not ranked, this suite is for {GROUPS['scaling']}.")
    if within:
        told.append(f"Means that differ by less than {within:.1%} are within the error of the judge, and share a rank.")
    return told


def unable_row(suite: Suite, agent: str, planner: str, judge: str, why: str) -> Row:
    """An agent that needs something that is not installed, or that is not trained for the suite."""
    return Row(suite.key, agent, "-", planner, judge, 0, None, error=why)


def json_row(row: Row) -> dict[str, Any]:
    """The row for machines; what is not known is null."""
    s = row.standing
    figures = {
        "rank": s and s.rank,
        "feasible": s and s.feasible,
        "latency_ms": s and s.makespan.mean,
        "gap": s and s.gap.mean,
        "gap_interval": s and (s.gap.low, s.gap.high),
        "iqm": s and s.iqm.mean,
        "p": s and s.p,
        "speedup": s and s.speedup.mean,
        **{name: _known(getattr(row, name)) for name in ("balance", "plan_seconds", "cpu_seconds")},
        "gap_at": {f"{budget:g}s": found.mean for budget, found in sorted(row.gap_at.items())} or None,
    }
    head = ("suite", "agent", "track", "planner", "judge", "seeds")
    seen = row.watched
    watched = {
        "build_seconds": seen.build if seen.runs else None,
        "isolation": seen.isolation or None,
    }
    words = {"error": row.error, "note": row.note or None}
    return {key: getattr(row, key) for key in head} | figures | watched | words


def sample_of(agent: str, by_seed: Sequence[Sequence[Judged]]) -> Sample:
    """Makespans of an agent's runs, by seed and task."""
    makespan = [[s.makespan if s and s.feasible else np.nan for _, s in runs] for runs in by_seed]
    return Sample(agent, by_seed[0][0][0].track, np.array(makespan, float))


def _row(
    standing: Standing, by_seed: Sequence[Sequence[Judged]], watched: Watched, gap_at: Mapping[float, Estimate]
) -> Row:
    judged = [pair for runs in by_seed for pair in runs]
    first = judged[0][0]
    feasible = [score.balance for _, score in judged if score and score.feasible]
    planned = [result for result, _ in judged if result.plan is not None]
    timed = [result for result in planned if result.alone] or planned
    return Row(
        suite=first.suite,
        agent=first.agent,
        track=first.track,
        planner=first.planner,
        judge=first.judge,
        seeds=len(by_seed),
        standing=standing,
        balance=float(np.mean(feasible)) if feasible else math.nan,
        plan_seconds=_median([r.wall_seconds for r in timed]),
        cpu_seconds=_median([r.cpu_seconds for r in timed if r.cpu_seconds is not None]),
        calls=float(np.mean([r.simulator_calls for r in planned])) if planned else math.nan,
        error=_failures(judged),
        watched=watched,
        note="; ".join(filter(None, (_overrun(planned), *_excess(watched)))),
        budget=None if first.config.get("calls") else first.config.get("budget"),
        gap_at=gap_at and {**gap_at, first.config["budget"]: standing.gap},
        alone=all(result.alone for result in timed),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _overrun(planned: list[Result]) -> str:
    """A word on an agent that takes clearly longer than the budget it was given."""
    timed = [r for r in planned if r.config.get("budget") and not r.config.get("calls")]
    ratios = [r.wall_seconds / r.config["budget"] for r in timed]
    over = float(np.mean(ratios)) if ratios else 0.0
    return f"takes {over:.1f} times its budget" if over > OVERRUN else ""


def _excess(watched: Watched) -> list[str]:
    """Words on CPU that an agent uses beside the time that it is given."""
    told = []
    if watched.cpu > CORES * watched.wall and watched.cpu - watched.wall > IDLE * watched.runs:
        told.append(f"uses {watched.cpu / watched.wall:.1f} cores")
    if watched.idle > IDLE * watched.runs:
        told.append(f"computes between tasks, {watched.idle / watched.runs:.2g} s of CPU each time")
    return told


def _failures(judged: list[Judged]) -> str | None:
    """The errors of an agent: the first of each kind, and how often."""
    told = [
        r.error or "" if s is None else f"infeasible: {s.violations[0]}" for r, s in judged if not (s and s.feasible)
    ]
    count = Counter(message.split(":")[0] for message in told)
    first = {message.split(":")[0]: message for message in reversed(told)}
    return "; ".join(f"{first[kind]} ({n} of {len(judged)} runs)" for kind, n in count.items()) or None
