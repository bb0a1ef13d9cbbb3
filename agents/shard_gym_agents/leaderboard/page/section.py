"""The part of the page that is about one suite, and the figures that its script needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym_agents.leaderboard.page import charts
from shard_gym_agents.leaderboard.page.board import TRACKS, Board
from shard_gym_agents.leaderboard.page.cards import card
from shard_gym_agents.leaderboard.page.markup import Markup, join, short, tag, void
from shard_gym_agents.leaderboard.page.matrix import improvements
from shard_gym_agents.leaderboard.page.plans import drawn, parts_of
from shard_gym_agents.leaderboard.page.tables import ranked

JUDGES = {
    "analytic": "The judge is a formula: plans score the same everywhere.",
    "fitted": "The judge is a network fitted to measurements that the planner was not fitted to.",
    "measured": "The judge runs the operator: scores differ from run to run.",
}


def section(board: Board) -> Markup:
    """All of a suite: tables, charts, tasks and cards."""
    key = board.suite.key
    return tag(
        "section",
        tag("h2", board.suite.name, id=f"title-{key}"),
        _facts(board),
        _filters(key),
        *(ranked(board, track) for track in TRACKS),
        _unable(board),
        *(tag("p", note, class_="note") for note in board.ranking.notes),
        tag("div", *_charts(board), class_="charts"),
        _improvements(board),
        _tasks(board),
        tag("h3", "Agents"),
        tag("div", *(card(board, entrant) for entrant in board.entrants), class_="cards"),
        id=f"suite-{key}",
        class_="suite",
        data_suite=key,
        aria_labelledby=f"title-{key}",
    )


def figures(board: Board, characters: int) -> dict[str, Any]:
    """Figures of a suite that the script needs; gaps are in hundredths of a percent."""
    return {
        "key": board.suite.key,
        "agents": [
            {
                "name": e.name,
                "track": e.row.track,
                "gaps": np.rint(e.gaps.mean(axis=1) * 1e4).astype(int).tolist(),
                "missed": np.flatnonzero(~e.solved()).tolist(),
            }
            for e in board.entrants
        ],
        "tasks": [task.hash for task in board.tasks],
        "best": [float(f"{ms:.6g}") for ms in board.best],
        "known": [int(known) for known in np.isfinite(board.references.best)],
        "devices": board.suite.num_devices,
        "parts": parts_of(board.suite.objective),
        "plans": drawn(board, characters),
    }


def _facts(board: Board) -> Markup:
    suite, ranking = board.suite, board.ranking
    available = suite.num_tasks(ranking.split)
    only = f" (the first of {available})" if ranking.tasks < available else ""
    told = [
        f"{ranking.tasks} {ranking.split} tasks{only}",
        f"up to {suite.num_tables} tables on {suite.num_devices} devices",
        f"objective {suite.objective}",
        f"planner {short(board.planner)}",
        f"judge {short(board.judge)}",
    ]
    if board.planner == board.judge:
        told[-2:] = [f"planner and judge {short(board.judge)}"]
    isolation = sorted({e.row.watched.isolation for e in board.entrants} - {""})
    badges = [_badge(f"judge: {board.judged_by}", JUDGES.get(board.judged_by, ""), board.judged_by)]
    badges += [_badge(f"isolation: {which}", ISOLATION.get(which, ""), which) for which in isolation]
    badges.append(
        _badge(
            "scores from plans",
            "Every makespan here was computed again from its plan; no agent's claim is read.",
            "full",
        )
    )
    return join(tag("p", " · ".join(told), class_="facts"), tag("p", *badges, class_="badges"))


ISOLATION = {
    "full": "Agents saw neither files nor network beside their own.",
    "limits": "Agents had limits of time and memory, and no walls.",
}


def _badge(text: str, about: str, kind: str) -> Markup:
    return tag("span", text, class_=f"badge {kind}", title=about)


def _filters(key: str) -> Markup:
    """Controls that the script works, and shows."""
    name = f"filter-{key}"
    boxes = [
        tag("label", void("input", type="checkbox", data_track=track, checked=True), f" {track}") for track in TRACKS
    ]
    return tag(
        "form",
        tag("label", "Filter agents ", void("input", type="search", id=name, autocomplete="off", spellcheck="false")),
        tag("fieldset", tag("legend", "Tracks"), *boxes),
        tag("output", for_=name, aria_live="polite"),
        class_="filters needs-script",
    )


def _unable(board: Board) -> Markup | None:
    """Agents without a row, and why."""
    if not board.unable:
        return None
    items = [tag("li", tag("b", short(row.agent)), ": ", short(row.error or "", 300)) for row in board.unable]
    return tag(
        "details",
        tag("summary", f"{len(items)} of {len(items) + len(board.entrants)} agents did not run"),
        tag("ul", *items),
        class_="unable",
    )


def _figure(title: str, about: str, *drawn: Markup | None) -> Markup | None:
    if not any(drawn):
        return None
    return tag("figure", tag("h3", title), *drawn, tag("figcaption", about))


def _charts(board: Board) -> list[Markup | None]:
    told = "Lower left is better. Circles search, squares are blind; a line joins those that none beats in both."
    found = [_figure("Gap against plan time", told, charts.gap_and_time(board))]
    for track in TRACKS:
        about = "The share of runs within a gap: higher is better. The first six agents have colours."
        drawn = charts.profile(board, track)
        found.append(
            _figure(f"Profile of gaps, {track}", about, drawn, drawn and charts.legend_of_profile(board, track))
        )
    about = "A dot is a plan, its gaps to the best known makespan. Above the line it is slower than its agent was told."
    return [*found, _figure("Planner against judge", about, charts.planner_and_judge(board))]


def _improvements(board: Board) -> Markup | None:
    tables = [improvements(board, track) for track in TRACKS]
    if not any(tables):
        return None
    about = (
        "Percent of tasks and seeds on which the agent of the row gives a better plan than that of the column. "
        "Bold where the 95 % interval leaves out 50 %."
    )
    return join(
        tag("h3", "Probability of improvement"),
        tag("p", about),
        tag("div", *tables, class_="matrices"),
        tag("p", class_="detail needs-script", aria_live="polite"),
    )


def _tasks(board: Board) -> Markup:
    """The strip, and the place where plans of a task are drawn."""
    strip = tag("div", charts.strip(board), class_="scroll strip-box")
    return join(
        tag("h3", "Tasks"),
        tag(
            "p",
            "Each cell is a task, coloured by the gap.",
            tag("span", " Choose one to see plans.", class_="needs-script"),
        ),
        strip,
        charts.legend_of_strip(),
        tag("p", class_="detail strip-detail needs-script", aria_live="polite"),
        tag("div", class_="task needs-script"),
    )
