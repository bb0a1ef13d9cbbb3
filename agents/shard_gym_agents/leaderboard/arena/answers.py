"""Checks of what an agent's process says: of its type and size, and no more is believed."""

from __future__ import annotations

import json
import math
from typing import Any

from shard_gym.errors import ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.records.escape import plain
from shard_gym.results.evaluate import TRACKS
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.frames import Broken

ABOUT_BYTES = 64 << 10
ANSWER_BYTES = 1 << 20
PIECE_BYTES, DEVICE_BYTES = 64, 8  # of a table in a plan, and of each device that holds it
MOST_CALLS = 1 << 53
TEXT = 300  # characters
WORDS = ("missing", "unknown", "error")


def answer_bytes(task: Task) -> int:
    """The most bytes that an answer to a task can need."""
    return max(ANSWER_BYTES, task.num_tables * (PIECE_BYTES + DEVICE_BYTES * task.num_devices))


def checked_about(told: Any) -> dict[str, Any]:
    """An agent's word on its track, configuration, source and whether it is deterministic, or why there is none."""
    if isinstance(told, dict) and len(told) == 1 and isinstance(told.get(word := next(iter(told))), str):
        if word in WORDS:
            return {word: line(told[word])}
    elif isinstance(told, dict) and told.keys() == {"track", "deterministic", "config", "source"}:
        sound = told["track"] in TRACKS if isinstance(told["track"], str) else False
        if sound and type(told["deterministic"]) is bool and isinstance(told["source"], str) and _named(told["config"]):
            return told
    raise Broken("gave a description that is none")


def checked_answer(told: Any, question: dict[str, Any]) -> tuple[Plan | None, str | None, int]:
    """The plan, the error and the calls that an answer to this very question holds."""
    if not isinstance(told, dict) or told.keys() != {"nonce", "index", "plan", "error", "calls"}:
        raise Broken("gave an answer that is none")
    if any(told[key] != question[key] for key in question):
        raise Broken("gave an answer to another question")
    error, calls = told["error"], told["calls"]
    if type(calls) is not int or not 0 <= calls <= MOST_CALLS:
        raise Broken(f"gave a count of calls that is none: {line(repr(calls))}")
    if isinstance(error, str):
        return None, line(error), calls
    if error is not None or told["plan"] is None:
        raise Broken("gave an answer with neither plan nor error")
    try:
        return Plan.from_dict(told["plan"]), None, calls
    except (ShardGymError, TypeError, ValueError, OverflowError, RecursionError) as refused:
        return None, line(f"InvalidPlan: {refused}"), calls


def checked_figures(told: Any) -> dict[str, float]:
    """Seconds by the warden; it is ours, but at limits an agent may have got at it."""
    if not isinstance(told, dict) or told.keys() != {"wall", "cpu", "idle"}:
        raise Broken("gave no figures")
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in told.values()):
        raise Broken("gave no figures")
    return told


def line(text: str) -> str:
    """The first line of a text, not too long, with nothing in it that a terminal would obey."""
    return plain((text[: 2 * TEXT].strip().splitlines() or [""])[0][:TEXT])


def _named(config: Any) -> bool:
    """True for a dict that a result can hold."""
    return isinstance(config, dict) and all(map(str.isprintable, config)) and len(json.dumps(config)) <= ABOUT_BYTES
