"""Agents on the command line: their options, and their plan of a task."""

from __future__ import annotations

import argparse
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import shard_gym_agents
from shard_gym.errors import InfeasibleTask, ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.plan.proposals import proposals
from shard_gym.records import commands
from shard_gym.records.progress import Waiting
from shard_gym.results.evaluate import describe
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.cli.constraints import add_constraints

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


class Stops:
    """Notes Ctrl-C, which a search answers with its best plan so far."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> Stops:
        self.before = signal.getsignal(signal.SIGINT)
        self.watched = (
            self.before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        )
        if self.watched:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *failed: object) -> None:
        if self.watched:
            signal.signal(signal.SIGINT, self.before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def solved(options: argparse.Namespace, task: Task, planner: Simulator) -> tuple[Plan, bool]:
    """The agent's plan, kept in a file if asked to; and True if Ctrl-C cut the search short."""
    given = {name: value for name in SETTINGS if (value := getattr(options, name, None)) is not None}
    with (
        _third_party(options.agent, options.verbose),
        Stops() as stops,
        commands.waiting(options, options.agent, options.budget, options.progress) as line,
    ):
        known = shard_gym_agents.options(options.agent)
        if options.suite and "suite" in known:
            given["suite"] = options.suite
        if "progress" in known:  # with it, Ctrl-C makes a search return the best plan so far
            given["progress"] = partial(_best, line)
        plan = _planned(options.agent, given, task, planner)
    if options.out:
        plan.save(options.out)
    return plan, stops.seen


def _best(line: Waiting, makespan: float, seconds: float) -> None:
    """Note a better plan; the search goes on."""
    line.news = f"best {makespan:.3f} ms after {seconds:.1f} s"


def _planned(agent: str, given: dict[str, Any], task: Task, planner: Simulator) -> Plan:
    """The plan, or why there is none and what helps."""
    try:
        return shard_gym_agents.make(agent, **given)(task, planner)
    except InfeasibleTask as error:
        share = 1 - given.get("headroom", 0.0)
        less = replace(task, memory=tuple(max(1, int(size * share)) for size in task.memory))
        told = [f"  what helps: {said}" for said in proposals(less)]
        raise InfeasibleTask("\n".join([str(error), *told])) from error


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
    group = command.add_argument_group("the agent")
    group.add_argument("--seed", type=int, metavar="N", help="of an agent that draws; default: the agent's own, 0")
    limit = group.add_mutually_exclusive_group()
    seconds = partial(commands.seconds, unit="s", least=0.0)
    told = "time that a search may take, such as 500ms, 10s or 2m; default: the agent's own"
    limit.add_argument("--budget", type=seconds, metavar="TIME", help=told)
    told = "plans that a search may ask about: any machine then finds the same plan; default: as time allows"
    limit.add_argument("--calls", type=int, metavar="N", help=told)
    told = "show time and the best plan so far on stderr; default: on a terminal"
    group.add_argument("--progress", action=argparse.BooleanOptionalAction, help=told)
    group.add_argument("--verbose", action="store_true", help="show the traceback of an agent that fails")


def add_out(command: argparse.ArgumentParser) -> None:
    """Add where the plan goes."""
    command.add_argument("--out", type=Path, metavar="FILE", help="where to keep the plan, as JSON; default: nowhere")
