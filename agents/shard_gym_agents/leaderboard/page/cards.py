"""Cards of agents: all that is known of how a row was made, and the command that makes it again."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym_agents
from shard_gym.results import Result
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.page.axes import duration, interval, signed
from shard_gym_agents.leaderboard.page.board import Board, Entrant
from shard_gym_agents.leaderboard.page.markup import Markup, join, short, tag
from shard_gym_agents.leaderboard.ranking import Estimate
from shard_gym_agents.learners.trained import read_card, shipped

BESIDE = "cost-greedy"  # the agent that a command names where it runs one of somebody's own
LONGEST = 600  # characters of a field


def card_id(board: Board, entrant: Entrant) -> str:
    """The element of an agent's card."""
    return f"card-{board.suite.key}-{entrant.index}"


def reproduce(board: Board, entrant: Entrant) -> str:
    """The command that makes an agent's row again."""
    result, suite = entrant.first, board.suite
    words = ["shard-gym", "leaderboard", "--suite", suite.key]
    known = result.agent in shard_gym_agents.names()
    words += ["--agents", result.agent] if known else ["--agents", BESIDE, "--agent", result.agent]
    if "seed" in result.config:
        words += ["--seeds", str(entrant.row.seeds)]
    if result.config.get("budget"):
        words += ["--budget", f"{result.config['budget']:g}s"]
    if len(board.tasks) < suite.num_tasks(board.ranking.split):
        words += ["--tasks", str(len(board.tasks))]
    if board.ranking.split != "test":
        words += ["--split", board.ranking.split]
    if (result.planner, result.judge) != (suite.planner, suite.judge):
        words += ["--simulator", result.judge]
    return shlex.join(words)


def card(board: Board, entrant: Entrant) -> Markup:
    """An agent's card, closed until somebody asks for it."""
    command = reproduce(board, entrant)
    fields = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _fields(board, entrant) if value]
    again = tag("div", tag("dt", "reproduce"), tag("dd", _command(command)), class_="wide")
    return tag(
        "details",
        tag("summary", tag("b", entrant.name), " ", tag("span", f"{entrant.row.track} track", class_="quiet")),
        tag("dl", again, *fields),
        class_="card",
        id=card_id(board, entrant),
        data_a=entrant.index,
    )


def _command(command: str) -> Markup:
    shown = short(command, LONGEST)
    return join(tag("code", shown), " ", tag("button", "Copy", type="button", class_="copy", data_copy=command))


Fields = list[tuple[str, object]]  # a name and what is told of it; nothing where it is not known


def _fields(board: Board, entrant: Entrant) -> Fields:
    """All that is known of an agent and its runs."""
    row, seen = entrant.row, entrant.row.watched
    timed = "" if row.alone else ", timed beside other agents"
    own = board.cards.get(row.agent)
    return [
        ("full name", short(row.agent, LONGEST) if entrant.name != row.agent else None),
        *_of_entry(own),
        *_of_result(entrant.first),
        ("seeds", row.seeds),
        ("hardware", own.hardware if own else (board.host or "not recorded") + timed),
        ("isolation", seen.isolation or "not recorded"),
        ("mean gap", _told(entrant.standing.gap)),
        ("interquartile mean", _told(entrant.standing.iqm)),
        ("speedup over random plans", f"{entrant.standing.speedup.mean:.3f}"),
        ("planner calls a plan", None if math.isnan(row.calls) else f"{row.calls:,.0f}"),
        ("time to build", duration(seen.build) if seen.runs else None),
        ("notes", short("; ".join(filter(None, (row.error, row.note))), LONGEST)),
    ]


def _of_entry(own: Card | None) -> Fields:
    """Words of the authors of an entry on it."""
    if own is None:
        return []
    return [
        ("authors", short(", ".join(own.authors), LONGEST)),
        ("version of the agent", own.version),
        ("licence", own.licence),
        ("code", tag("code", own.link) if own.link else None),
        ("run by", tag("code", short(own.command, LONGEST))),
        ("training", own.training),
    ]


def _of_result(result: Result) -> Fields:
    """Facts of a result on its agent, and of shipped weights on their training."""
    weights, trained = result.config.get("weights"), training(result)
    config = {name: value for name, value in result.config.items() if name not in ("seed", "weights") and value}
    versions = list(result.versions.items())[:8]
    return [
        ("options", tag("code", short(json.dumps(config), LONGEST)) if config else None),
        ("versions", ", ".join(f"{short(name)} {short(version)}" for name, version in versions)),
        ("commit", tag("code", short(result.commit[:12] + result.commit[40:])) if result.commit else "not recorded"),
        ("checkpoint", tag("code", short(str(weights))) if weights else None),
        ("trained by", tag("code", short(str(trained["command"]), LONGEST)) if "command" in trained else None),
        ("training cost", f"{trained['minutes']:g} minutes" if "minutes" in trained else None),
    ]


def _told(found: Estimate) -> str:
    return f"{signed(found.mean)} ({interval(found.low, found.high)} %)"


def training(result: Result) -> dict[str, Any]:
    """The card of the agent's weights, where these are shipped ones; else nothing."""
    learner, weights = result.config.get("learner"), result.config.get("weights")
    if not isinstance(learner, str) or not isinstance(weights, str) or not weights:
        return {}
    return next((read_card(path) for path in shipped(learner).values() if _digest(path) == weights[:12]), {})


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
