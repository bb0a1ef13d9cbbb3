"""The tables of a suite as text and as Markdown, both from the same rows."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence

from shard_gym.records.escape import markdown as markup_free
from shard_gym.records.escape import plain
from shard_gym.results import BENCHMARK_VERSION, commit_here, versions_here
from shard_gym_agents.leaderboard.ranking import Estimate, Standing
from shard_gym_agents.leaderboard.report import Ranking, Row

UNIT = 2  # significant digits of a time; more would not repeat
GAP = "+.1%"
LEAST = 0.001  # p-value that is told
Cell = Callable[[Row], str]
Columns = Mapping[str, Cell]


def text(found: Ranking) -> str:
    """The tables for a terminal."""
    lines = [_title(found)]
    for track, rows in _tracks(found):
        columns = _columns(rows, found.suite.ranked)
        grid = [list(columns), *([plain(cell(row)) for cell in columns.values()] for row in rows)]
        widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
        lines += ["", f"track {track}", ""] if track else [""]
        lines += ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in grid]
    told = [f"{plain(row.agent)}: {plain(_words(row))}" for row in found.rows if _words(row)]
    return "\n".join([*lines, *([""] if told else []), *told, *("", *found.notes)])


def markdown(found: Ranking, command: str, machine: str, workers: int, build_limit: float) -> str:
    """The tables as a page, with what it takes to make it again."""
    packages = ", ".join(f"{name} {version}" for name, version in versions_here())
    made = f"Made by `{command}` with {packages}; commit {commit_here() or 'unknown'}, benchmark version"
    lines = [f"# {found.suite.name}", "", _title(found) + ".", ""]
    for track, rows in _tracks(found):
        lines += [f"## {track.capitalize() or 'Not ranked'}", "", *_table(_columns(rows, found.suite.ranked), rows), ""]
    lines += ["## More figures", "", *_table(DETAILS, found.rows), ""]
    told = [f"- {markup_free(row.agent)}: {markup_free(_words(row))}" for row in found.rows if _words(row)]
    lines += [*told, *([""] if told else []), *found.notes, *([""] if found.notes else [])]
    lines += [
        f"Gap is to {found.gap_to}, speedup over the mean random plan; IQM is the mean of the middle half of runs.",
        "In brackets: 95 % intervals, by resampling tasks and seeds. Agents share a rank that are feasible as often as",
        "the best of them and are not told apart from it: the interval of the mean difference includes zero.",
        "p is of a paired test against the best of the track, by random signs, corrected for the number of agents.",
        "A run without a feasible plan in time counts as the mean random plan. Tracks are ranked apart.",
        _timing(found, machine, workers),
        f"An agent has {build_limit:g} s to be built. Calls of the planner are the agent's claim (`docs/arena.md`).",
        f"Isolation of the agents: {_isolation(found)}.",
        "",
        f"{made} {BENCHMARK_VERSION}.",
    ]
    return "\n".join(lines) + "\n"


def _timing(found: Ranking, machine: str, workers: int) -> str:
    alone = all(row.alone for row in found.rows if row.standing)
    beside = "with nothing else beside them" if alone else f"{workers} at a time"
    told = f"Plan times are medians by the wall clock on {machine}, of runs {beside}, from the question to the answer"
    return f"{told}: good for orders of magnitude. CPU is of the same runs."


def host() -> str:
    """The machine that runs this."""
    return f"{os.cpu_count()} cores ({platform.machine()})"


def _table(columns: Columns, rows: Sequence[Row]) -> list[str]:
    """A table as Markdown."""
    grid = [list(columns), ["---"] * len(columns)]
    grid += [[_safe(name, cell(row)) for name, cell in columns.items()] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in grid]


def _tracks(found: Ranking) -> list[tuple[str, list[Row]]]:
    """The rows of each track; "" are those that were not tried."""
    tracks = dict.fromkeys(row.track if row.standing else "" for row in found.rows)
    return [(t, [row for row in found.rows if (row.track if row.standing else "") == t]) for t in tracks]


def _title(found: Ranking) -> str:
    suite, row = found.suite, found.rows[0]
    size = f"{found.tasks} {found.split} tasks of {suite.num_tables} tables on {suite.num_devices} devices"
    available = len(suite.tasks(found.split))
    only = f" (the first of {available})" if found.tasks < available else ""
    time = f", {_time(found.budget)} a task for searches" if found.budget else ""
    return f"{suite.key}: {size}{only}{time}, objective {suite.objective}, planner {row.planner}, judge {row.judge}"


def _safe(column: str, text: str) -> str:
    """A cell of a page; words of others hold no markup."""
    return markup_free(text) if column == "agent" else text


def _isolation(found: Ranking) -> str:
    return " and ".join(sorted({row.watched.isolation for row in found.rows} - {""})) or "none ran"


def _words(row: Row) -> str:
    """Notes on an agent: what went wrong, or is odd."""
    return "; ".join(filter(None, (row.error, row.note)))


def _cell(found: Estimate, form: str) -> str:
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def _interval(value: Callable[[Standing], Estimate], form: str) -> Cell:
    return lambda row: "-" if row.standing is None else _cell(value(row.standing), form)


def _at(budget: float) -> Cell:
    return lambda row: f"{row.gap_at[budget].mean:{GAP}}" if budget in row.gap_at else "-"


def _chance(p: float) -> str:
    return f"{p:.3f}" if p >= LEAST else f"< {LEAST}"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    digits = UNIT - 1 - math.floor(math.log10(max(value, 1e-9)))
    return f"{round(value, digits):.{max(digits, 0)}f} {unit}"


def _plain(value: Callable[[Row], float], form: str) -> Cell:
    return lambda row: "-" if math.isnan(value(row)) else f"{value(row):{form}}"


def _columns(rows: Sequence[Row], ranked: bool) -> Columns:
    """Columns that everybody looks at; mean gaps of several budgets have one each."""
    budgets = sorted({budget for row in rows for budget in row.gap_at})
    return {
        "rank": lambda row: str(row.standing.rank) if row.standing and ranked else "-",
        "agent": lambda row: row.agent,
        "feasible": lambda row: f"{row.standing.feasible:.1%}" if row.standing else "-",
        "mean gap": _interval(lambda s: s.gap, GAP),
        "IQM of gaps": _interval(lambda s: s.iqm, GAP),
        **{f"gap at {_time(budget)}": _at(budget) for budget in budgets},
        "plan time": lambda row: _time(row.plan_seconds),
    }


DETAILS: Columns = {
    "agent": lambda row: row.agent,
    "p": lambda row: _chance(row.standing.p) if row.standing else "-",
    "makespan ms": _interval(lambda s: s.makespan, ".2f"),
    "speedup": _interval(lambda s: s.speedup, ".3f"),
    "balance": _plain(lambda row: row.balance, ".2f"),
    "CPU": lambda row: _time(row.cpu_seconds),
    "build": lambda row: _time(row.watched.build if row.watched.runs else math.nan),
    "calls": _plain(lambda row: row.calls, ",.0f"),
    "seeds": lambda row: str(row.seeds),
}
