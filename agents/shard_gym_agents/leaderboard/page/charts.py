"""Charts of a suite as SVG: gap against plan time, profiles of gaps, planner against judge, tasks by agents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from shard_gym_agents.leaderboard import statistics
from shard_gym_agents.leaderboard.page.axes import (
    Axis,
    duration,
    gap_axis,
    gap_names,
    log_axis,
    percent,
    powers,
    signed,
)
from shard_gym_agents.leaderboard.page.board import TRACKS, Board, Entrant
from shard_gym_agents.leaderboard.page.markup import Markup, join, number, short, tag, void
from shard_gym_agents.leaderboard.page.plans import planned

WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 56, 470, 28, 286  # of the area between the axes
LETTER, LINE = 6.6, 14  # pixels of a letter and of a line of labels
COLOURED = 6  # lines of a profile that have a colour of their own
STEPS = 48  # gaps at which a profile is told
CROSS = "\N{MULTIPLICATION SIGN}"
STEPS_OF_COLOUR = (0.002, 0.01, 0.02, 0.05, 0.1, 0.25)  # gaps at which a strip changes its colour
NAMES, ROW, STRIP = 168, 18, 960  # pixels of a strip: agents' names, height of a row, the width of all


def gap_and_time(board: Board) -> Markup | None:
    """Mean gap over plan time; a line joins the agents of a track that no other one beats in both."""
    shown = [e for e in board.entrants if e.row.plan_seconds > 0]
    if not shown:
        return None
    seconds, gaps = [e.row.plan_seconds for e in shown], [e.standing.gap.mean for e in shown]
    x = log_axis(min(seconds), max(seconds), LEFT, RIGHT)
    y = gap_axis(min(gaps), max(gaps), BOTTOM, TOP)
    fronts = [_front([e for e in shown if e.row.track == track], x, y) for track in TRACKS]
    marks = [_mark(e, x, y) for e in shown]
    return _svg(
        f"Mean gap against plan time on {board.suite.name}",
        _frame(x, y, "plan time, log scale", "mean gap, root scale", [(p, duration(p)) for p in powers(x)]),
        *fronts,
        *marks,
        *_labels(shown, x, y),
    )


def profile(board: Board, track: str) -> Markup | None:
    """Draw for each gap the share of runs that stay within it."""
    shown = board.of_track(track)
    if not shown:
        return None
    low = min(float(e.gaps.min()) for e in shown)
    high = float(np.quantile(np.concatenate([e.gaps.ravel() for e in shown]), 0.95))
    x = gap_axis(low, high, LEFT, RIGHT)
    y = Axis(0.0, 1.0, BOTTOM, TOP)
    bent = np.linspace(x.bend(x.low), x.bend(x.high), STEPS)
    at = np.sign(bent) * bent**2
    lines = [_line(e, place, statistics.profile(e.gaps, at), at, (x, y)) for place, e in enumerate(shown)]
    names = [(g, percent(g)) for g in gap_names(x)]
    return _svg(
        f"Performance profile of the {track} track on {board.suite.name}",
        _frame(x, y, "gap, root scale", "share of runs within the gap", names, [(s, percent(s)) for s in QUARTERS]),
        *reversed(lines),
    )


QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def planner_and_judge(board: Board) -> Markup | None:
    """The gap of each plan as the planner told it, and as it is by the judge; nothing where they are one."""
    if board.planner == board.judge:
        return None
    told = [ms / board.best - 1 for ms in planned(board)]
    seen = [np.where(e.solved(), e.gaps[:, 0], np.nan) for e in board.entrants]
    pairs = [np.array([t, s])[:, np.isfinite(t) & np.isfinite(s)] for t, s in zip(told, seen, strict=True)]
    every = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0))
    if not every.size:
        return None
    low, high = float(every.min()), float(every.max())
    x, y = gap_axis(low, high, LEFT, RIGHT), gap_axis(low, high, BOTTOM, TOP)
    dots = [_dots(e, pair, x, y) for e, pair in zip(board.entrants, pairs, strict=True)]
    diagonal = void("path", class_="even", d=f"M{LEFT} {BOTTOM}L{RIGHT} {TOP}")
    names = [(g, percent(g)) for g in gap_names(x)]
    return _svg(
        f"Gap by the planner and gap by the judge on {board.suite.name}",
        _frame(x, y, f"gap by the planner, {short(board.planner, 40)}", "gap by the judge", names),
        diagonal,
        *dots,
    )


def strip(board: Board) -> Markup:
    """A cell for each agent and task, coloured by the gap; a cross where a seed gave no feasible plan."""
    width = (STRIP - NAMES) / max(len(board.tasks), 1)
    rows, top = [], 0.0
    for track in TRACKS:
        shown = board.of_track(track)
        for place, entrant in enumerate(shown):
            rows.append(_strip_row(entrant, top + place * ROW, width))
        top += len(shown) * ROW + (8 if shown else 0)
    height = top + 18
    ends = [(1, "start")] if len(board.tasks) == 1 else [(1, "start"), (len(board.tasks), "end")]
    marks = [
        tag("text", f"task {n}", class_="name", x=NAMES if side == "start" else STRIP, y=height - 4, text_anchor=side)
        for n, side in ends
    ]
    label = f"Gaps of every agent on every task of {board.suite.name}. Arrow keys move, Enter opens the task."
    return tag(
        "svg",
        *rows,
        *marks,
        class_="strip",
        viewBox=f"0 0 {STRIP} {number(height)}",
        role="img",
        aria_label=label,
        data_left=NAMES,
        data_cell=number(width, 4),
        data_row=ROW,
    )


def colour_of(gap: float) -> int:
    """The step of a strip's colours that a gap takes."""
    return int(np.searchsorted(STEPS_OF_COLOUR, gap))


def legend_of_strip() -> Markup:
    """Words to the colours of a strip."""
    words = ["≤ " + percent(g) for g in STEPS_OF_COLOUR] + ["> " + percent(STEPS_OF_COLOUR[-1])]
    items = [tag("li", tag("i", class_=f"s{i}"), text) for i, text in enumerate(words)]
    return tag("ul", *items, tag("li", tag("i", CROSS, class_="no"), "no feasible plan"), class_="legend")


def legend_of_profile(board: Board, track: str) -> Markup:
    """Names to the lines of a profile; lines of one colour are of the agents that come after."""
    shown = board.of_track(track)
    items = [_swatch(e, f"c{i}") for i, e in enumerate(shown[:COLOURED])]
    items += [_swatch(e, "rest") for e in shown[COLOURED:]]
    return tag("ul", *items, class_="legend")


def _swatch(entrant: Entrant, colour: str) -> Markup:
    return tag("li", tag("i", class_=colour), entrant.name, data_a=entrant.index)


def _svg(label: str, *children: object) -> Markup:
    """A chart that a screen reader names, and whose elements it leaves out: tables tell the same."""
    return tag("svg", *children, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _frame(
    x: Axis,
    y: Axis,
    below: str,
    beside: str,
    across: Sequence[tuple[float, str]],
    up: Sequence[tuple[float, str]] | None = None,
) -> Markup:
    """Lines and names of both axes; of gaps where the upward one is not told."""
    up = [(g, percent(g)) for g in gap_names(y)] if up is None else up
    lines = "".join(f"M{LEFT} {number(y(v))}H{RIGHT}" for v, _ in up)
    names = [tag("text", name, x=LEFT - 7, y=number(y(v) + 4), text_anchor="end") for v, name in up]
    names += [tag("text", name, x=number(x(v)), y=BOTTOM + 18, text_anchor="middle") for v, name in across]
    ticks = "".join(f"M{number(x(v))} {BOTTOM}v5" for v, _ in across)
    return join(
        void("path", class_="grid", d=lines),
        void("path", class_="axis", d=f"M{LEFT} {BOTTOM}H{RIGHT}{ticks}"),
        *names,
        tag("text", below, class_="title", x=RIGHT, y=HEIGHT - 6, text_anchor="end"),
        tag("text", beside, class_="title", x=0, y=11),
    )


def _front(shown: Iterable[Entrant], x: Axis, y: Axis) -> Markup | None:
    """A staircase below which no agent of these lies."""
    best, corners, track = math.inf, [], ""
    for e in sorted(shown, key=lambda e: (e.row.plan_seconds, e.standing.gap.mean)):
        if e.standing.gap.mean < best:
            best, track = e.standing.gap.mean, e.row.track
            corners.append((number(x(e.row.plan_seconds)), number(y(best))))
    if not corners:
        return None
    path = f"M{corners[0][0]} {corners[0][1]}" + "".join(f"H{a}V{b}" for a, b in corners[1:]) + f"H{RIGHT}"
    return void("path", class_=f"front {track}", d=path)


def _mark(entrant: Entrant, x: Axis, y: Axis) -> Markup:
    """A circle for the search track, a square for the blind one."""
    across, up = x(entrant.row.plan_seconds), y(entrant.standing.gap.mean)
    told = tag("title", f"{entrant.name}: {signed(entrant.standing.gap.mean)}, {duration(entrant.row.plan_seconds)}")
    named = {"class_": f"mark {entrant.row.track}", "data_a": entrant.index}
    if entrant.row.track == "search":
        return tag("circle", told, cx=number(across), cy=number(up), r=5, **named)
    return tag("rect", told, x=number(across - 4.5), y=number(up - 4.5), width=9, height=9, **named)


def _labels(shown: Sequence[Entrant], x: Axis, y: Axis) -> list[Markup]:
    """Names beside the marks, best agents first, where they cover neither marks nor each other."""
    marks = [(x(e.row.plan_seconds), y(e.standing.gap.mean)) for e in shown]
    taken = [(a - 6, b - 6, a + 6, b + 6) for a, b in marks]
    labels = []
    for e, (a, b) in sorted(zip(shown, marks, strict=True), key=lambda pair: pair[0].standing.gap.mean):
        name, length = short(e.name, 24), LETTER * min(len(e.name), 24)
        for left, down in ((a + 9, b + 4), (a - 9 - length, b + 4), (a - length / 2, b - 10), (a - length / 2, b + 18)):
            box = (left, down - LINE + 3, left + length, down + 3)
            inside = box[0] >= LEFT and box[2] <= RIGHT + 6 and box[1] >= TOP - 4 and box[3] <= BOTTOM
            if inside and not any(_cover(box, other) for other in taken):
                taken.append(box)
                labels.append(tag("text", name, class_="name", x=number(left), y=number(down), data_a=e.index))
                break
    return labels


def _cover(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """True if two boxes (left, top, right, bottom) share a point."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _line(entrant: Entrant, place: int, shares: np.ndarray, at: np.ndarray, axes: tuple[Axis, Axis]) -> Markup:
    x, y = axes
    points = " ".join(f"{number(x(g), 0)} {number(y(float(s)))}" for g, s in zip(at, shares, strict=True))
    colour = f"c{place}" if place < COLOURED else "rest"
    told = tag("title", entrant.name)
    return tag("path", told, class_=f"line {colour}", d="M" + points, data_a=entrant.index)


def _dots(entrant: Entrant, pair: np.ndarray, x: Axis, y: Axis) -> Markup:
    path = "".join(f"M{number(x(told))} {number(y(seen))}h0" for told, seen in pair.T)
    return tag("path", tag("title", entrant.name), class_=f"dots {entrant.row.track}", d=path, data_a=entrant.index)


def _strip_row(entrant: Entrant, top: float, width: float) -> Markup:
    """The name of an agent and its cells, those of a colour as one path."""
    gaps, solved = entrant.gaps.mean(axis=1), entrant.solved()
    side, high = number(max(width - 1, width * 0.8), 2), ROW - 2
    paths: dict[str, str] = {}
    for task, (gap, fine) in enumerate(zip(gaps, solved, strict=True)):
        left = NAMES + task * width
        colour = f"s{colour_of(gap)}" if fine else "missed"
        paths[colour] = paths.get(colour, "") + f"M{number(left)} 0h{side}v{high}h-{side}z"
        if not fine:
            cross = f"M{number(left + width / 2 - 3)} 5l6 6m0-6l-6 6"
            paths["cross"] = paths.get("cross", "") + cross
    return tag(
        "g",
        tag("text", short(entrant.name, 24), class_="name", x=NAMES - 8, y=12, text_anchor="end"),
        *(void("path", class_=name, d=paths[name]) for name in sorted(paths, key=lambda name: name == "cross")),
        transform=f"translate(0 {number(top)})",
        data_a=entrant.index,
    )
