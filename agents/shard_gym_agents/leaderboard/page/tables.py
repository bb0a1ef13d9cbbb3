"""Tables of a suite as HTML: the agents of a track, and who is better than whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shard_gym_agents.leaderboard import statistics
from shard_gym_agents.leaderboard.page.axes import Axis, duration, gap_axis, gap_names, percent, signed
from shard_gym_agents.leaderboard.page.board import TRACKS, Board, Entrant
from shard_gym_agents.leaderboard.page.cards import card_id, reproduce
from shard_gym_agents.leaderboard.page.markup import Markup, join, number, short, tag, void
from shard_gym_agents.leaderboard.report import Estimate

WHISKER = 150  # pixels of the column that draws intervals
LONGEST_NOTE = 160  # characters
SHADES = 5  # of a probability's colour, to either side of even


@dataclass(frozen=True)
class Column:
    """A column that can be sorted; those that are `extra` are left out on a narrow screen."""

    name: str
    value: Callable[[Entrant], float | str]  # to sort by
    cell: Callable[[Entrant], object]
    about: str = ""
    extra: bool = False
    words: bool = False  # text, to the left


COLUMNS = (
    Column("group", lambda e: e.group, lambda e: e.group, "Agents of a group cannot be told apart."),
    Column("agent", lambda e: e.row.agent.lower(), lambda e: e.name, words=True),
    Column("gap", lambda e: e.mean.mean, lambda e: _estimate(e.mean), "Mean gap to the reference plan."),
    Column(
        "middle gap", lambda e: e.iqm.mean, lambda e: _estimate(e.iqm), "Mean gap of the middle half of all runs.", True
    ),
    Column(
        "feasible",
        lambda e: e.row.standing.feasible if e.row.standing else 0.0,
        lambda e: percent(e.row.standing.feasible if e.row.standing else 0.0, 0),
        "Share of runs with a plan that can be used, in time.",
    ),
    Column(
        "speedup",
        lambda e: e.row.standing.speedup.mean if e.row.standing else 0.0,
        lambda e: f"{e.row.standing.speedup.mean:.2f}" if e.row.standing else "",
        "Over the mean random plan.",
        True,
    ),
    Column(
        "plan time",
        lambda e: _or_last(e.plan_seconds),
        lambda e: duration(e.plan_seconds),
        "Wall-clock time of a plan.",
    ),
    Column(
        "CPU time",
        lambda e: _or_last(cpu_seconds(e)),
        lambda e: duration(cpu_seconds(e)),
        "Processor time of a plan.",
        True,
    ),
    Column("seeds", lambda e: e.row.seeds, lambda e: e.row.seeds, extra=True),
)


def cpu_seconds(entrant: Entrant) -> float:
    """CPU seconds a plan; NaN where nobody looked."""
    seen = entrant.row.watched
    return seen.cpu / seen.runs if seen.runs else math.nan


def ranked(board: Board, track: str) -> Markup | None:
    """The table of a track, readable without a script."""
    shown = board.of_track(track)
    if not shown:
        return None
    low = min(e.mean.low for e in board.entrants)
    high = max(e.mean.high for e in board.entrants)
    axis = gap_axis(low, high, 4, WHISKER - 4)
    title = tag("caption", tag("b", f"{track.capitalize()} track"), f" {TRACKS[track]}")
    body = [_row(board, entrant, axis) for entrant in shown]
    table = tag("table", title, tag("thead", _heads(axis)), tag("tbody", *body), class_="ranked", data_track=track)
    return tag("div", table, class_="scroll")


def _heads(axis: Axis) -> Markup:
    heads = []
    for column in COLUMNS:
        button = tag("button", column.name, type="button", title=column.about or None)
        classes = " ".join(c for c in ("extra" * column.extra, "words" * column.words) if c)
        heads.append(tag("th", button, scope="col", data_key=column.name, class_=classes or None))
        if column.name == "gap":
            heads.append(tag("th", _scale(axis), scope="col", class_="whisker"))
    return tag("tr", *heads, tag("th", tag("span", "notes", class_="quiet"), scope="col", class_="words"))


def _row(board: Board, entrant: Entrant, axis: Axis) -> Markup:
    cells = []
    for column in COLUMNS:
        classes = " ".join(c for c in ("extra" * column.extra, "words" * column.words) if c) or None
        value = column.value(entrant)
        key = f"{value:.6g}" if isinstance(value, float) else short(str(value))
        if column.name == "agent":
            link = tag("a", column.cell(entrant), href="#" + card_id(board, entrant))
            cells.append(tag("th", link, scope="row", data_v=key, class_=classes))
        else:
            cells.append(tag("td", column.cell(entrant), data_v=key, class_=classes))
        if column.name == "gap":
            cells.append(tag("td", _whisker(entrant.mean, axis), class_="whisker"))
    told = "; ".join(filter(None, (entrant.row.error, entrant.row.note)))
    note = tag("span", short(told, LONGEST_NOTE), class_="note") if told else None
    copy = tag(
        "button",
        "Reproduce",
        type="button",
        class_="copy",
        data_copy=reproduce(board, entrant),
        aria_label=f"Copy the command that makes the row of {entrant.name} again",
    )
    return tag("tr", *cells, tag("td", note, copy, class_="words notes"), data_a=entrant.index)


def _estimate(found: Estimate) -> Markup:
    interval = f"{100 * found.low:.1f} to {100 * found.high:.1f}".replace("-", "\N{MINUS SIGN}")
    return join(tag("b", signed(found.mean)), " ", tag("span", interval, class_="quiet"))


def _whisker(found: Estimate, axis: Axis) -> Markup:
    """An interval with its mean."""
    low, mean, high = (number(axis(v)) for v in (found.low, found.mean, found.high))
    line = void("path", d=f"M{low} 8H{high}")
    return tag("svg", line, void("circle", cx=mean, cy=8, r=3.5), viewBox=f"0 0 {WHISKER} 16", aria_hidden="true")


def _scale(axis: Axis) -> Markup:
    """Names above the intervals."""
    names = [
        tag("text", percent(g), x=number(axis(g)), y=11, text_anchor="start" if axis(g) < 12 else "middle")
        for g in gap_names(axis)
    ]
    label = "mean gap with its 95 % interval"
    return tag("svg", *names, viewBox=f"0 0 {WHISKER} 16", role="img", aria_label=label)


def _or_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def improvements(board: Board, track: str) -> Markup | None:
    """How probably the agent of a row gives a better plan than that of a column, in percent."""
    shown = board.of_track(track)
    if len(shown) < 2:
        return None
    numbers = [tag("th", tag("abbr", i, title=e.name), scope="col") for i, e in enumerate(shown, 1)]
    head = tag("tr", tag("th", "better than", scope="col", class_="words"), *numbers)
    found = _pairs(shown)
    rows = [
        tag(
            "tr",
            tag("th", f"{i + 1} {e.name}", scope="row", class_="words"),
            *(_chance(found.get((i, j))) for j in range(len(shown))),
            data_a=e.index,
        )
        for i, e in enumerate(shown)
    ]
    title = tag("caption", tag("b", f"{track.capitalize()} track"))
    table = tag("table", title, tag("thead", head), tag("tbody", *rows), class_="matrix", data_track=track)
    return tag("div", table, class_="scroll")


Chance = tuple[float, float, float]  # with its interval


def _pairs(shown: Sequence[Entrant]) -> dict[tuple[int, int], Chance]:
    """The probability of every ordered pair; that of the other order is what is left of 1."""
    found: dict[tuple[int, int], Chance] = {}
    for i, one in enumerate(shown):
        for j in range(i + 1, len(shown)):
            other = shown[j].gaps
            chance = statistics.improvement(one.gaps, other)
            low, high = statistics.improvement_interval(one.gaps, other)
            found[i, j] = chance, low, high
            found[j, i] = 1 - chance, 1 - high, 1 - low
    return found


def _chance(found: Chance | None) -> Markup:
    """A cell: bold where its interval leaves out an even chance."""
    if found is None:
        return tag("td", "·", class_="self")
    chance, low, high = (round(100 * value) for value in found)
    shade = round((found[0] - 0.5) * 2 * SHADES)
    side = "same" if shade == 0 else f"up{shade}" if shade > 0 else f"down{-shade}"
    sure = " sure" if low > 50 or high < 50 else ""
    return tag("td", chance, class_=side + sure, data_i=f"{low} to {high}")
