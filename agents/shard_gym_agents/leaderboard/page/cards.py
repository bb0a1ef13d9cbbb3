"""Cards of agents: all that is known of how a row was made, and the command that makes it again."""

from __future__ import annotations

import hashlib
import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym_agents
from shard_gym.results import Result
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


def _fields(board: Board, entrant: Entrant) -> list[tuple[str, object]]:
    result, row = entrant.first, entrant.row
    seen, trained = row.watched, training(result)
    timed = "" if row.alone else ", timed beside other agents"
    config = {name: value for name, value in result.config.items() if name not in ("seed", "weights") and value}
    full = short(row.agent, LONGEST) if entrant.name != row.agent else None
    return [
        ("full name", full),
        ("options", tag("code", short(json.dumps(config), LONGEST)) if config else None),
        ("version", _version(result)),
        ("commit", tag("code", result.commit[:12] + result.commit[40:]) if result.commit else "not recorded"),
        ("checkpoint", tag("code", short(str(result.config["weights"]))) if result.config.get("weights") else None),
        ("trained by", tag("code", short(str(trained["command"]), LONGEST)) if "command" in trained else None),
        ("training cost", f"{trained['minutes']:g} minutes" if "minutes" in trained else None),
        ("seeds", row.seeds),
        (
            "mean gap",
            _told(entrant.standing.gap),
        ),
        (
            "interquartile mean",
            _told(entrant.standing.iqm),
        ),
        ("planner calls a plan", f"{row.calls:,.0f}" if row.calls == row.calls else None),
        ("time to build", duration(seen.build) if seen.runs else None),
        ("isolation", seen.isolation or "not recorded"),
        ("hardware", (board.host or "not recorded") + timed),
        ("notes", short("; ".join(filter(None, (row.error, row.note))), LONGEST)),
    ]


def _told(found: Estimate) -> str:
    return f"{signed(found.mean)} ({interval(found.low, found.high)} %)"


def _version(result: Result) -> str:
    """The versions that the result depends on."""
    return ", ".join(f"{short(name)} {short(version)}" for name, version in list(result.versions.items())[:8])


def training(result: Result) -> dict[str, Any]:
    """What the card of the agent's weights tells of their training, where the weights are those that are shipped."""
    learner, weights = result.config.get("learner"), result.config.get("weights")
    if not isinstance(learner, str) or not isinstance(weights, str) or not weights:
        return {}
    return next((read_card(path) for path in shipped(learner).values() if _digest(path) == weights[:12]), {})


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
