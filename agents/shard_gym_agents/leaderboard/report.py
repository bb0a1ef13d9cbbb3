"""Ranking of the agents on a suite, as text, as Markdown and as JSON rows, all from the same figures.

Share of feasible tasks first, then mean gap to the best known plan. A run that gave no feasible plan in time counts as
the mean random plan. Seeds are averaged within a task; 95% intervals resample tasks, the same for every agent. The
tracks "search" and "blind" are ranked apart.
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shard_gym.records.escape import markdown as markup_free
from shard_gym.records.escape import plain
from shard_gym.results import BENCHMARK_VERSION, Result, commit_here, versions_here
from shard_gym.task.suite import BEST_KNOWN, GROUPS, Suite
from shard_gym_agents.leaderboard.references import References
from shard_gym_agents.leaderboard.resolution import resolution
from shard_gym_agents.leaderboard.runs import Judged, Watched

RESAMPLES = 2_000
CONFIDENCE = 95  # percent
RNG_SEED = 0
OVERRUN = 1.25  # times the budget that an agent may take before the table says so
IDLE = 0.05  # CPU seconds a run between tasks that the table keeps quiet about
CORES = 1.25  # CPU seconds a second that a run may take before the table says so
UNRANKED = 0
UNIT = 2  # significant digits of a wall-clock time; more would not repeat


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
    """The place of an agent in its track; equals share a rank."""

    agent: str
    track: str
    rank: int
    feasible: float  # share of runs
    makespan: Estimate  # ms
    gap: Estimate  # to the best known, as a share of it
    speedup: Estimate  # over the mean random plan


def standings(samples: Sequence[Sample], random: np.ndarray, best: np.ndarray) -> list[Standing]:
    """Rank the agents, best first within their track; `random` and `best` are ms per task, (T,)."""
    weights = _resamples(len(random))
    unranked = [_standing(s, random, best, weights) for s in samples]
    keys = {s.agent: (-s.feasible, s.gap.mean) for s in unranked}
    ranked = []
    for s in unranked:
        better = sum(keys[o.agent] < keys[s.agent] for o in unranked if o.track == s.track)
        ranked.append(replace(s, rank=1 + better))
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
    """Shares of the tasks in each resample, (RESAMPLES, T)."""
    rng = np.random.default_rng(RNG_SEED)
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES) / tasks


def _estimate(per_task: np.ndarray, weights: np.ndarray) -> Estimate:
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(weights @ per_task, [tail, 100 - tail])
    return Estimate(float(per_task.mean()), float(low), float(high))


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
    balance: float  # mean over feasible plans
    plan_seconds: float  # mean over runs that gave a plan
    calls: float
    error: str | None
    watched: Watched = field(default_factory=Watched)
    note: str = ""


@dataclass(frozen=True)
class Ranking:
    """The rows of a suite, best first, and what a reader has to know about them."""

    suite: Suite
    rows: tuple[Row, ...]
    tasks: int
    split: str
    notes: tuple[str, ...]
    gap_to: str = BEST_KNOWN  # what gaps are to


def ranking(
    suite: Suite,
    split: str,
    runs: dict[str, list[list[Judged]]],
    refs: References,
    unable: Sequence[Row],
    watched: Mapping[str, Watched],
) -> Ranking:
    """Rank the agents by their runs, agent -> seed -> task; `unable` lack something and come last."""
    samples = [_sample(agent, by_seed) for agent, by_seed in runs.items()]
    best = best_of_run(samples, refs.random, refs.best)
    ranked = standings(samples, refs.random, best)
    if suite.group == "scaling":
        ranked = [replace(standing, rank=UNRANKED) for standing in ranked]
    rows = tuple(_row(standing, runs[standing.agent], watched[standing.agent]) for standing in ranked)
    told_by = rows[0].judge if rows else suite.judge
    notes = [*_limits(suite, resolution(suite, split, len(best), told_by)), *([refs.note] if refs.note else [])]
    if unknown := int(np.isnan(refs.best).sum()):
        notes.append(_unknown(unknown, len(best), refs.gap_to))
    if refs.gap_to == BEST_KNOWN and any((s.makespan < refs.best - 1e-9).any() for s in samples):
        notes.append("Some plans beat the best known ones: run with --update-best to keep them.")
    return Ranking(suite, (*rows, *unable), len(best), split, tuple(notes), refs.gap_to)


def _unknown(unknown: int, tasks: int, gap_to: str) -> str:
    """Say what gaps are to where the plan that they should be to is unknown."""
    if gap_to != BEST_KNOWN:
        return f"No frozen reference plan for {unknown} tasks: gaps there are to the best of this run."
    which = "No best known plans yet" if unknown == tasks else f"No best known plan for {unknown} tasks"
    return f"{which}: gaps there are to the best of this run. --update-best keeps its plans."


def _limits(suite: Suite, resolution: float) -> list[str]:
    """Limits of what ranks on a suite tell, in words."""
    told = [f"This suite is {suite.remark}."] if suite.remark else []
    if suite.group == "scaling":
        told.append(f"Not ranked, this suite is for {GROUPS['scaling']}.")
    if resolution:
        told.append(f"Means that differ by less than {resolution:.1%} are within the error of the judge.")
    return told


def unable_row(suite: Suite, agent: str, planner: str, judge: str, why: str) -> Row:
    """An agent that needs something that is not installed, or that is not trained for the suite."""
    return Row(suite.key, agent, "-", planner, judge, 0, None, math.nan, math.nan, math.nan, why)


def json_row(row: Row) -> dict[str, Any]:
    """The row for machines; what is not known is null."""
    s = row.standing
    figures = {
        "feasible": s and s.feasible,
        "latency_ms": s and s.makespan.mean,
        "gap": s and s.gap.mean,
        "speedup": s and s.speedup.mean,
        "balance": None if math.isnan(row.balance) else row.balance,
        "plan_seconds": None if math.isnan(row.plan_seconds) else row.plan_seconds,
    }
    head = ("suite", "agent", "track", "planner", "judge", "seeds")
    seen = row.watched
    watched = {
        "cpu_seconds": seen.cpu / seen.runs if seen.runs else None,
        "build_seconds": seen.build if seen.runs else None,
        "isolation": seen.isolation or None,
    }
    words = {"error": row.error, "note": row.note or None}
    return {key: getattr(row, key) for key in head} | figures | watched | words


def text(found: Ranking) -> str:
    """The table for a terminal."""
    grid = [list(COLUMNS), *([plain(cell(row)) for cell in COLUMNS.values()] for row in found.rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(COLUMNS) - 1)]
    lines = ["  ".join([c.ljust(w) for c, w in zip(line, widths, strict=False)] + line[-1:]) for line in grid]
    return "\n".join([_title(found), "", *(line.rstrip() for line in lines), *("", *found.notes)])


def markdown(found: Ranking, command: str, workers: int, build_limit: float) -> str:
    """The table as a page, with what it takes to make it again."""
    grid = [list(COLUMNS), ["---"] * len(COLUMNS)]
    grid += [[_safe(name, cell(row)) for name, cell in COLUMNS.items()] for row in found.rows]
    packages = ", ".join(f"{name} {version}" for name, version in versions_here())
    made = f"Made by `{command}` with {packages}; commit {commit_here() or 'unknown'}, benchmark version"
    host = f"{os.cpu_count()} cores ({platform.machine()}), {workers} agents at a time"
    lines = [f"# {found.suite.name}", "", _title(found) + ".", ""]
    lines += ["| " + " | ".join(line) + " |" for line in grid]
    lines += [
        "",
        *found.notes,
        "",
        f"Gap is to {found.gap_to}, speedup over the mean random plan, with 95 % intervals over tasks.",
        "A run without a feasible plan in time counts as the mean random plan. Tracks are ranked apart.",
        f"Plan times are wall clock on {host}, from the question to the answer: good for orders of magnitude.",
        f"An agent has {build_limit:g} s to be built. Calls of the planner are the agent's claim (`docs/arena.md`).",
        f"Isolation of the agents: {_isolation(found)}.",
        "",
        f"{made} {BENCHMARK_VERSION}.",
    ]
    return "\n".join(lines) + "\n"


def _title(found: Ranking) -> str:
    suite, row = found.suite, found.rows[0]
    size = f"{found.tasks} {found.split} tasks of {suite.num_tables} tables on {suite.num_devices} devices"
    available = len(suite.tasks(found.split))
    only = f" (the first of {available})" if found.tasks < available else ""
    return f"{suite.key}: {size}{only}, objective {suite.objective}, planner {row.planner}, judge {row.judge}"


def _safe(column: str, text: str) -> str:
    """A cell of a page; words of others hold no markup."""
    return markup_free(text) if column in ("agent", "notes") else text


def _isolation(found: Ranking) -> str:
    return " and ".join(sorted({row.watched.isolation for row in found.rows} - {""})) or "none ran"


def _sample(agent: str, by_seed: list[list[Judged]]) -> Sample:
    makespan = [[s.makespan if s and s.feasible else np.nan for _, s in runs] for runs in by_seed]
    return Sample(agent, by_seed[0][0][0].track, np.array(makespan, float))


def _row(standing: Standing, by_seed: list[list[Judged]], watched: Watched) -> Row:
    judged = [pair for runs in by_seed for pair in runs]
    first = judged[0][0]
    feasible = [score.balance for _, score in judged if score and score.feasible]
    planned = [result for result, _ in judged if result.plan is not None]
    return Row(
        suite=first.suite,
        agent=first.agent,
        track=first.track,
        planner=first.planner,
        judge=first.judge,
        seeds=len(by_seed),
        standing=standing,
        balance=float(np.mean(feasible)) if feasible else math.nan,
        plan_seconds=float(np.mean([r.wall_seconds for r in planned])) if planned else math.nan,
        calls=float(np.mean([r.simulator_calls for r in planned])) if planned else math.nan,
        error=_failures(judged),
        watched=watched,
        note="; ".join(filter(None, (_overrun(planned), *_excess(watched)))),
    )


def _overrun(planned: list[Result]) -> str:
    """A word on an agent that takes clearly longer than the budget it was given."""
    ratios = [r.wall_seconds / r.config["budget"] for r in planned if r.config.get("budget")]
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


def _interval(value: Callable[[Standing], Estimate], form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        if row.standing is None:
            return "-"
        found = value(row.standing)
        return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"

    return cell


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    digits = UNIT - 1 - math.floor(math.log10(max(value, 1e-9)))
    return f"{round(value, digits):.{max(digits, 0)}f} {unit}"


def _plain(value: Callable[[Row], float], form: str) -> Callable[[Row], str]:
    return lambda row: "-" if math.isnan(value(row)) else f"{value(row):{form}}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "rank": lambda row: str(row.standing.rank) if row.standing and row.standing.rank != UNRANKED else "-",
    "agent": lambda row: row.agent,
    "track": lambda row: row.track,
    "feasible": lambda row: f"{row.standing.feasible:.1%}" if row.standing else "-",
    "gap": _interval(lambda s: s.gap, "+.1%"),
    "makespan ms": _interval(lambda s: s.makespan, ".2f"),
    "speedup": _interval(lambda s: s.speedup, ".3f"),
    "balance": _plain(lambda row: row.balance, ".2f"),
    "plan time": lambda row: _time(row.plan_seconds),
    "build": lambda row: _time(row.watched.build if row.watched.runs else math.nan),
    "calls": _plain(lambda row: row.calls, ",.0f"),
    "seeds": lambda row: str(row.seeds),
    "notes": lambda row: "; ".join(filter(None, (row.error, row.note))),
}
