"""Tables of a suite as HTML: the agents of a track and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shard_gym_agents.leaderboard.page.axes import Axis, duration, gap_axis, gap_names, interval, percent, signed
from shard_gym_agents.leaderboard.page.board import TRACKS, Board, Entrant
from shard_gym_agents.leaderboard.page.cards import card_id
from shard_gym_agents.leaderboard.page.markup import Markup, join, number, short, tag, void
from shard_gym_agents.leaderboard.ranking import Estimate

WHISKER = 150  # pixels of the column that draws intervals
LONGEST_NOTE = 100  # characters


@dataclass(frozen=True)
class Column:
    """A column that can be sorted; those that are `extra` are left out on a narrow screen."""

    name: str
    value: Callable[[Entrant], float | str]  # to sort by; NaN comes last
    cell: Callable[[Entrant], object]
    about: str = ""
    extra: bool = False
    words: bool = False  # text, to the left

    @property
    def classes(self) -> str | None:
        """Classes of the column's cells."""
        return " ".join(["extra"] * self.extra + ["words"] * self.words) or None

    def key(self, entrant: Entrant) -> str:
        """The text of the value that the script sorts by."""
        value = self.value(entrant)
        return short(value) if isinstance(value, str) else f"{math.inf if math.isnan(value) else value:.6g}"


RANKS = (
    Column("rank", lambda e: e.standing.rank, lambda e: e.standing.rank, "Agents of a rank cannot be told apart."),
    Column("agent", lambda e: e.row.agent.lower(), lambda e: e.name, words=True),
    Column(
        "gap", lambda e: e.standing.gap.mean, lambda e: _estimate(e.standing.gap), "Mean gap to the reference plan."
    ),
    Column(
        "IQM",
        lambda e: e.standing.iqm.mean,
        lambda e: signed(e.standing.iqm.mean),
        "Interquartile mean: the mean gap of the middle half of all runs.",
        extra=True,
    ),
)
COSTS = (
    Column(
        "feasible",
        lambda e: e.standing.feasible,
        lambda e: percent(e.standing.feasible, 0),
        "Share of runs with a plan that can be used, in time.",
    ),
    Column(
        "speedup",
        lambda e: e.standing.speedup.mean,
        lambda e: f"{e.standing.speedup.mean:.2f}",
        "Over the mean random plan.",
        extra=True,
    ),
    Column(
        "plan time",
        lambda e: e.row.plan_seconds,
        lambda e: duration(e.row.plan_seconds),
        "By the wall clock, from the question to the answer; the median.",
    ),
    Column(
        "CPU time",
        lambda e: e.row.cpu_seconds,
        lambda e: duration(e.row.cpu_seconds),
        "Of the same plans; the median.",
        extra=True,
    ),
)


def columns(shown: Sequence[Entrant]) -> list[Column]:
    """The columns of a table; gaps in other budgets have one each."""
    budgets = sorted({budget for e in shown for budget in e.row.gap_at})
    costs = [column for column in COSTS if any(column.key(e) != "inf" for e in shown)]  # not all are known of old runs
    if budgets:
        costs = [column for column in costs if column.name != "speedup"]  # cards have it
    return [*RANKS, *map(_at, budgets), *costs]


def _at(budget: float) -> Column:
    """The mean gap of agents that were given so many seconds a task."""

    def gap(entrant: Entrant) -> float:
        found = entrant.row.gap_at.get(budget)
        return math.nan if found is None else found.mean

    name = f"at {duration(budget)}"
    about = f"Mean gap with a budget of {duration(budget)} a task."
    return Column(name, gap, lambda e: "-" if math.isnan(gap(e)) else signed(gap(e)), about, extra=True)


def ranked(board: Board, track: str) -> Markup | None:
    """The table of a track, readable without a script."""
    shown = board.of_track(track)
    if not shown:
        return None
    axis = gap_axis(min(e.standing.gap.low for e in shown), max(e.standing.gap.high for e in shown), 4, WHISKER - 4)
    title = tag("caption", tag("b", f"{track.capitalize()} track"), f" {TRACKS[track]}")
    found = columns(shown)
    body = [_row(board, entrant, found, axis) for entrant in shown]
    table = tag(
        "table", title, tag("thead", _heads(found, axis)), tag("tbody", *body), class_="ranked", data_track=track
    )
    return tag("div", table, class_="scroll")


def _heads(found: Sequence[Column], axis: Axis) -> Markup:
    heads = []
    for column in found:
        button = tag("button", column.name, type="button", title=column.about or None)
        heads.append(tag("th", button, scope="col", data_key=column.name, class_=column.classes))
        if column.name == "gap":
            heads.append(tag("th", _scale(axis), scope="col", class_="whisker"))
    return tag("tr", *heads, tag("th", tag("span", "command", class_="hidden-words"), scope="col", class_="command"))


def _row(board: Board, entrant: Entrant, found: Sequence[Column], axis: Axis) -> Markup:
    cells = []
    for column in found:
        told = {"data_v": column.key(entrant), "class_": column.classes}
        if column.name == "agent":
            link = tag("a", column.cell(entrant), href="#" + card_id(board, entrant))
            cells.append(tag("th", link, _note(entrant), scope="row", **told))
        else:
            cells.append(tag("td", column.cell(entrant), **told))
        if column.name == "gap":
            cells.append(tag("td", _whisker(entrant.standing.gap, axis), class_="whisker"))
    about = f"Reproduce the row of {entrant.name}: copy its command"
    copy = tag("button", "Reproduce", type="button", class_="copy", aria_label=about)
    return tag("tr", *cells, tag("td", copy, class_="command"), data_a=entrant.index)


def _note(entrant: Entrant) -> Markup | None:
    """A few words below the name on what went wrong, or is odd; the card has all of them."""
    told = "; ".join(filter(None, (entrant.row.error, entrant.row.note)))
    return tag("span", short(told, LONGEST_NOTE), class_="note") if told else None


def _estimate(found: Estimate) -> Markup:
    return join(tag("b", signed(found.mean)), " ", tag("span", interval(found.low, found.high), class_="quiet"))


def _whisker(found: Estimate, axis: Axis) -> Markup:
    """An interval with its mean."""
    low, mean, high = (number(axis(v)) for v in (found.low, found.mean, found.high))
    line = void("path", d=f"M{low} 8H{high}")
    return tag("svg", line, void("circle", cx=mean, cy=8, r=3.5), viewBox=f"0 0 {WHISKER} 16", aria_hidden="true")


def _scale(axis: Axis) -> Markup:
    """Names above the intervals."""
    names = [tag("text", percent(g), x=number(axis(g)), y=11, text_anchor=_side(axis(g))) for g in gap_names(axis)]
    label = "mean gap with its 95 % interval"
    return tag("svg", *names, viewBox=f"0 0 {WHISKER} 16", role="img", aria_label=label)


def _side(pixel: float) -> str:
    """The side of a name that stays where its value is, so that the name stays inside."""
    return "start" if pixel < 12 else "end" if pixel > WHISKER - 16 else "middle"
