"""The agent's process: it builds the agent, then answers task by task until its line is closed.

What it sends is a claim: the agent shares its memory. The other end (`answers`) believes a plan, and no score or time.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from shard_gym import simulators
from shard_gym.errors import InvalidPlan, MissingDependency, ShardGymError, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import Solver, Unseen, describe
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import counted
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.frames import Broken, Line
from shard_gym_agents.leaderboard.arena.job import Job, build, describe_solver
from shard_gym_agents.learners.trained import NotTrained

QUESTION = 1_000  # bytes, at most


def serve(end: socket.socket, job: Job, track: str, tasks: Sequence[Task]) -> None:
    """Build the job's agent and have it plan the tasks that it is asked for; `track` is what it said before."""
    line, mine = Line(end), os.getpid()
    solver, planner, about = introduced(job)
    planner = Unseen(planner) if (track or about.get("track")) == "blind" else planner
    _tell(line, about, {"error": "its description is not what JSON can hold"})
    while solver is not None:
        try:
            asked = line.receive(QUESTION)
        except Broken:
            return
        answer = solved(solver, planner, tasks[asked["index"]])
        if os.getpid() != mine:  # the agent forked and forgot who is who
            os._exit(0)
        head = {"nonce": asked["nonce"], "index": asked["index"]}
        _tell(line, head | answer, head | {"plan": None, "calls": 0, "error": "InvalidPlan: not what JSON can hold"})


def introduced(job: Job) -> tuple[Any, Any, dict[str, Any]]:
    """The agent, its planner, and what the agent says of itself; or why there is none."""
    try:
        planner = simulators.make(job.planner)
        solver = build(job)
        return solver, planner, describe_solver(solver)
    except (MissingDependency, NotTrained) as error:
        told = {"missing": describe(error)}
    except UnknownName as error:
        told = {"unknown": describe(error)}
    except BaseException as error:  # a third party's failure, whatever it raises, fails its own row only
        told = {"error": _described(error)}
    return None, None, told


def solved(solver: Solver, planner: Simulator, task: Task) -> dict[str, Any]:
    """Call the solver once: its plan or its error, and how many plans it asked about."""
    asked = planner if isinstance(planner, Unseen) else counted(planner)
    try:
        plan = solver(task, asked)
        if not isinstance(plan, Plan):
            raise InvalidPlan(f"a solver returns a shard_gym.Plan, got {type(plan).__name__}")
        return {"plan": Plan.to_dict(plan), "error": None, "calls": asked.calls}
    except BaseException as error:
        return {"plan": None, "error": _described(error), "calls": asked.calls}


def _tell(line: Line, message: dict[str, Any], instead: dict[str, Any]) -> None:
    try:
        line.send(message)
    except (TypeError, ValueError, RecursionError):
        line.send(instead)


def _described(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"{type(error).__name__}: out of memory{f', {error}' if str(error) else ''}"
    if os.fstat(2).st_rdev != os.stat(os.devnull).st_rdev and not isinstance(error, ShardGymError):  # somebody reads it
        with suppress(BaseException):  # errors may fail to be printed
            traceback.print_exception(error, file=sys.stderr)
    return describe(error)
