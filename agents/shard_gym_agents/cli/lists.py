"""Lists of what there is: `shard-gym suites` and `shard-gym agents`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import shard_gym_agents
from shard_gym.errors import ShardGymError
from shard_gym.records import commands
from shard_gym.task import suites
from shard_gym.task.suite import GROUPS
from shard_gym_agents.learners.trained import shipped

SUITES = """List the suites, group by group.

"one binds" is the share of test tasks whose makespan one table sets: no plan can do better there."""
AGENTS = "List the agents: the track of each, or what has to be installed or trained first."


def list_suites(options: argparse.Namespace) -> None:
    """One line a suite, group by group."""
    known = suites.SUITES.values()
    commands.answer(
        options, "suites/1", lambda: {"suites": list(map(_about, known))}, lambda: "\n".join(_suite_lines())
    )


def _suite_lines() -> Iterator[str]:
    splits = "/".join(suites.SPLITS)
    yield f"{'suite':24} {'tables':>6} {'devices':>7} {splits:>14} {'one binds':>9} {'objective':10} planner, judge"
    for group, purpose in GROUPS.items():
        yield f"\n{group}: {purpose}"
        yield from (_suite_line(suite) for suite in suites.SUITES.values() if suite.group == group)


def _suite_line(suite: suites.Suite) -> str:
    counts = "/".join(str(suite.num_tasks(split)) for split in suites.SPLITS)
    simulated = suite.planner if suite.planner == suite.judge else f"{suite.planner}, {suite.judge}"
    size = f"{suite.num_tables:6} {suite.num_devices:7} {counts:>14} {suite.bound_share():9.0%}"
    remark = f"; {suite.remark}" if suite.remark else ""
    return f"{suite.key:24} {size} {suite.objective:10} {simulated}{remark}"


def _about(suite: suites.Suite) -> dict[str, Any]:
    names = ("key", "group", "num_tables", "num_devices", "objective", "planner", "judge", "remark", "env_id")
    told: dict[str, Any] = {name: getattr(suite, name) for name in names}
    told["tasks"] = {split: suite.num_tasks(split) for split in suites.SPLITS}
    return told | {"one_binds": suite.bound_share()}


def list_agents(options: argparse.Namespace) -> None:
    """One line an agent."""
    with commands.waiting(options, "asking agents what they need"):
        found = list(map(_agent, shard_gym_agents.names()))
    commands.answer(options, "agents/1", lambda: {"agents": found}, lambda: "\n".join(map(_agent_line, found)))


def _agent_line(agent: dict[str, Any]) -> str:
    trained = f", trained on {', '.join(agent['trained_on'])}" if agent["trained_on"] else ""
    return f"{agent['name']:24} " + (f"not available: {agent['needs']}" if agent["needs"] else agent["track"] + trained)


def _agent(name: str) -> dict[str, Any]:
    """Track and suites of an agent, or what it needs."""
    try:
        track = str(getattr(shard_gym_agents.make(name), "track", "search"))
    except ShardGymError as error:
        return {"name": name, "track": None, "trained_on": [], "needs": str(error)}
    return {"name": name, "track": track, "trained_on": list(shipped(name)), "needs": None}


def suites_parser() -> commands.Parser:
    """Options of `suites`."""
    examples = ("shard-gym suites", "shard-gym suites --json")
    parser = commands.parser("shard-gym suites", SUITES, examples=examples, answer="the suites")
    parser.set_defaults(run=list_suites)
    return parser


def agents_parser() -> commands.Parser:
    """Options of `agents`."""
    examples = ("shard-gym agents", "shard-gym agents --json")
    parser = commands.parser("shard-gym agents", AGENTS, examples=examples, answer="the agents")
    parser.set_defaults(run=list_agents)
    return parser
