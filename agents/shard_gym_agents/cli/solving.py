"""Agents on the command line: their options, and their plan of a task."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import shard_gym_agents
from shard_gym.errors import InfeasibleTask, ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.plan.proposals import proposals
from shard_gym.results.evaluate import describe
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.cli.plans import Line
from shard_gym_agents.cli.tasks import add_constraints

SETTINGS = (
    "seed",
    "budget",
    "calls",
    "headroom",
    "checkpoint",
    "horizon",
    "bandwidth_gb_s",
    "in_use",
)  # of agents, as flags


def solved(options: argparse.Namespace, task: Task, planner: Simulator) -> Plan:
    """Let the agent plan, and keep the plan in a file if asked to."""
    given = {name: value for name in SETTINGS if (value := getattr(options, name, None)) is not None}
    with _third_party(options.agent, options.verbose):
        known = shard_gym_agents.options(options.agent)
        if options.suite and "suite" in known:
            given["suite"] = options.suite
        line = Line(sys.stderr.isatty() if options.progress is None else options.progress, options.budget)
        if "progress" in known:  # with it, Ctrl-C makes a search return the best plan so far
            given["progress"] = line
        try:
            plan = shard_gym_agents.make(options.agent, **given)(task, planner)
        except InfeasibleTask as error:
            share = 1 - given.get("headroom", 0.0)
            less = replace(task, memory=tuple(max(1, int(size * share)) for size in task.memory))
            told = [f"  what helps: {said}" for said in proposals(less)]
            raise InfeasibleTask("\n".join([str(error), *told])) from error
        finally:
            line.end()
    if options.out:
        plan.save(options.out)
    return plan


@contextmanager
def _third_party(agent: str, verbose: bool) -> Iterator[None]:
    """An agent's own failure, in one line."""
    try:
        yield
    except ShardGymError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        if verbose:
            traceback.print_exc()
        raise ShardGymError(f"{agent} failed: {describe(error)}") from error


def add_solver(command: argparse.ArgumentParser) -> None:
    """Add the options of any agent."""
    add_constraints(command)
    command.add_argument("--seed", type=int)
    command.add_argument("--budget", type=float, metavar="SECONDS")
    command.add_argument("--calls", type=int, metavar="N", help="plans asked of the planner, instead of seconds")
    command.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="show the best so far; default: on a terminal"
    )
    command.add_argument("--verbose", action="store_true", help="show the traceback of an agent that fails")


def add_out(command: argparse.ArgumentParser) -> None:
    """Add where the plan goes."""
    command.add_argument("--out", type=Path, metavar="FILE", help="where to keep the plan, as JSON")
