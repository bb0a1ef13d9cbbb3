"""A solver in a process of its own: it may crash, hang or overrun, and only its own run is lost."""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import MissingDependency, ShardGymError, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import Run, Solver, config, describe, run, track
from shard_gym.task import suites
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.trained import NotTrained, Trained

START_SECONDS = 120.0  # to import and build an agent; torch takes its time
GRACE_SECONDS = 1.0  # for an answer to come through the pipe
_CONTEXT = multiprocessing.get_context("forkserver")


class WorkerLost(ShardGymError):
    """A worker was killed for taking too long, or died by itself."""


@dataclass(frozen=True)
class Job:
    """One agent with one seed on one suite."""

    suite: str
    agent: str  # a registered name, or module:Class
    seed: int
    planner: str
    judge: str
    split: str = "test"
    budget: float | None = None  # seconds, where the agent takes one
    time_limit: float = 60.0  # seconds a task
    verbose: bool = False
    checkpoint: str = ""  # weights instead of those that the agent ships with


def preload(agents: Iterable[str]) -> None:
    """Have workers begin with the imports of these agents done: torch takes seconds, each time."""
    learners = [LEARNERS[agent][0] for agent in agents if agent in LEARNERS]
    _CONTEXT.set_forkserver_preload([__name__, *dict.fromkeys(learners)])


class Worker:
    """The near end of a process that solves a job's tasks, one at a time."""

    def __init__(self, job: Job) -> None:
        self.time_limit = job.time_limit
        self.pipe, far = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=serve, args=(far, job), daemon=True)
        self.process.start()
        far.close()

    def about(self) -> dict[str, Any]:
        """The description of the agent, or why there is none."""
        return self._answer(max(START_SECONDS, self.time_limit), "late: not built")

    def solve(self, index: int) -> Run:
        """The agent's run on the suite's task of that index."""
        with suppress(BrokenPipeError):  # it is dead: the answer says how it died
            self.pipe.send_bytes(json.dumps(index).encode())
        told = self._answer(self.time_limit, "late: no plan")
        plan = None if told["plan"] is None else Plan.from_dict(told["plan"])
        return Run(plan, told["error"], told["wall_seconds"], told["simulator_calls"])

    def kill(self) -> None:
        """End the process and what it started."""
        for end in (lambda: os.killpg(self.process.pid or 0, signal.SIGKILL), self.process.kill):
            with suppress(ProcessLookupError, PermissionError):  # not a group of its own yet, or gone
                end()
        self.process.join()

    def _answer(self, seconds: float, late: str) -> dict[str, Any]:
        try:
            if self.pipe.poll(seconds + GRACE_SECONDS):
                return json.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            self.process.join(GRACE_SECONDS)
            raise WorkerLost(f"died: {_cause(self.process.exitcode)}") from error
        raise WorkerLost(f"{late} within {seconds:g} s, killed")


def serve(pipe: Connection, job: Job) -> None:
    """The far end: build the agent, then answer task by task until the pipe closes."""
    os.setsid()  # a group of its own, so that its children can be killed with it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _keep_quiet(job.verbose)
    try:
        solver = build(job)
        told = describe_solver(solver)
    except (MissingDependency, NotTrained) as error:
        return pipe.send_bytes(json.dumps({"missing": str(error)}).encode())
    except UnknownName as error:
        return pipe.send_bytes(json.dumps({"unknown": str(error)}).encode())
    except Exception as error:  # a third party's failure fails its own row only
        return pipe.send_bytes(json.dumps({"error": describe(error)}).encode())
    planner, tasks = simulators.make(job.planner), suites.get(job.suite).tasks(job.split)
    pipe.send_bytes(json.dumps(told).encode())  # from here on the clock of the first task runs
    while True:
        try:
            index = json.loads(pipe.recv_bytes())
        except EOFError:
            return None
        done = run(solver, planner, tasks[index])
        plan = None if done.plan is None else done.plan.to_dict()
        pipe.send_bytes(json.dumps({**vars(done), "plan": plan}).encode())


def build(job: Job) -> Solver:
    """The job's agent with its seed, suite and what else was asked for, as far as its constructor takes them."""
    offered = {"seed": job.seed, "suite": job.suite, "budget": job.budget, "checkpoint": job.checkpoint or None}
    takes = shard_gym_agents.options(job.agent)
    given = {name: value for name, value in offered.items() if name in takes and value is not None}
    solver = shard_gym_agents.make(job.agent, **given)
    if isinstance(solver, Trained):
        solver.require_planner(job.planner)
    return solver


def describe_solver(solver: Any) -> dict[str, Any]:
    """Describe an agent before it runs: track, configuration, source, and whether it is deterministic."""
    deterministic = bool(getattr(solver, "deterministic", False))
    source = inspect.getsourcefile(type(solver))
    digest = ""
    if source is not None:
        with open(source, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    return {
        "track": track(solver),
        "deterministic": deterministic,
        "config": config(solver),
        "source": digest,
    }


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)


def _keep_quiet(verbose: bool) -> None:
    """An agent's prints must not mix with the table: they go to stderr, or nowhere."""
    sys.stdout.flush()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2 if verbose else quiet, 1)
    if not verbose:
        os.dup2(quiet, 2)


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe"
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
