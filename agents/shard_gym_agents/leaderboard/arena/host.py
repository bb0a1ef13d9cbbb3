"""The leaderboard's end of the arena: it starts the nursery, and asks agents for plans."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.results.evaluate import Run
from shard_gym_agents.leaderboard.arena.answers import (
    ABOUT_BYTES,
    answer_bytes,
    checked_about,
    checked_answer,
    checked_figures,
    line,
)
from shard_gym_agents.leaderboard.arena.frames import Broken, Late, Line
from shard_gym_agents.leaderboard.arena.job import Job, tasks_of
from shard_gym_agents.leaderboard.arena.nursery import needs, remove
from shard_gym_agents.leaderboard.arena.rules import FULL, KEPT, LIMITS, SETTLED, THREADS, Rules, bare, view
from shard_gym_agents.learners import LEARNERS

GRACE_SECONDS = 1.0  # for an answer to come through
START_SECONDS = 120.0  # for the nursery's imports; torch takes its time
END_SECONDS = 6.0  # for a warden to end its agent, before it is ended itself
TOLD_BYTES = 10_000  # of a nursery or a warden
# What modules of ours import when their agent is made; it takes seconds, and once will do.
LATER = {"shard_gym_agents.solvers.torchrec_planner": "torchrec.distributed.planner"}
BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from shard_gym_agents.leaderboard.arena.nursery import main; main(int(sys.argv[2]))"
)


class WorkerLost(ShardGymError):
    """An agent's processes were killed for what they used, or died by themselves."""


@dataclass(frozen=True)
class Turn:
    """One question to an agent: its run, and the CPU seconds of all its processes."""

    run: Run
    cpu_seconds: float  # from the question to the answer
    idle_seconds: float  # before the question, since the agent's last answer


class Nursery:
    """The process that agents are forked from; threads may share it."""

    def __init__(self, rules: Rules, agents: Iterable[str] = (), jobs: Iterable[Job] = ()) -> None:
        """Agents to make ready for, and jobs whose suites and simulators it must know."""
        self.rules, self.lock = rules, threading.Lock()
        self.needs = sorted({name for job in jobs for name in needs(job)})
        ours = [agent for agent in agents if agent in shard_gym_agents.AGENTS]
        modules = [shard_gym_agents.AGENTS[agent][0].partition(":")[0] for agent in ours]
        modules += [LEARNERS[agent][0] for agent in ours if agent in LEARNERS]
        modules += [LATER[module] for module in modules if module in LATER]
        self.preload = list(dict.fromkeys(modules))
        self._start()

    def fork(self, job: Job, track: str, others: Iterable[str], watch: socket.socket) -> int:
        """Have an agent's processes begin, with the far end of its warden's line; the warden's number."""
        order = {"job": asdict(anywhere(job)), "view": asdict(view(job, self.rules, others)), "track": track}
        with self.lock:
            try:
                told = self._order(order, watch)
            except (Broken, Late, OSError):  # it was killed
                self.close()
                self._start()
                told = self._order(order, watch)
        if "error" in told:
            raise WorkerLost(f"died: {told['error']}")
        return int(told["pid"])

    def close(self) -> None:
        """End it, and all that it started."""
        self.line.end.close()
        try:
            self.process.wait(2 * END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        remove(self.folder)  # it did, unless it was killed

    def _start(self) -> None:
        near, far = socket.socketpair()
        kept = {
            name: os.environ[name]
            for name in (*KEPT, *SETTLED, *THREADS, "TMPDIR", *self.rules.environment)
            if name in os.environ
        }
        path = [os.path.abspath(folder) for folder in sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, json.dumps(path), str(far.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=kept | {"PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=[far.fileno()],
            start_new_session=True,
        )
        far.close()
        self.line, self.folder = Line(near), ""
        try:
            greeting = {"rules": asdict(self.rules), "preload": self.preload, "needs": self.needs}
            self.line.send(greeting | {"view": asdict(bare())})
            told = self.line.receive(TOLD_BYTES, time.monotonic() + START_SECONDS)
        except (Broken, Late) as error:
            self.close()
            raise ShardGymError(f"the process that agents are forked from did not start: {error}") from error
        if refused := told.get("error"):
            self.close()
            raise ShardGymError(refused)
        self.isolation, self.why, self.folder = told["isolation"], told["why"], told["folder"]
        if (self.rules.isolation, self.isolation) == (FULL, LIMITS):
            self.close()
            raise ShardGymError(f"isolation full is not to be had here ({self.why}): leave it out, or say limits")

    def _order(self, order: dict[str, Any], watch: socket.socket) -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS  # it may have to read a suite
        socket.send_fds(self.line.end, [b"!"], [watch.fileno()])
        self.line.send(order, deadline)
        told: dict[str, Any] = self.line.receive(TOLD_BYTES, deadline)
        return told


class Worker:
    """An agent in processes of its own, which plans a job's tasks, one at a time."""

    def __init__(self, job: Job, nursery: Nursery, track: str = "", others: Iterable[str] = ()) -> None:
        self.job, self.rules, self.lock = job, nursery.rules, threading.Lock()
        near, far = socket.socketpair()
        self.line, self.pid = Line(near), 0
        with far:
            self.pid = nursery.fork(job, track, others, far)
        self.tasks = tasks_of(job)

    def about(self) -> dict[str, Any]:
        """The description of the agent, or why there is none; `build_seconds` is how long it took."""
        figures, told = self._heard(ABOUT_BYTES, self.rules.build_seconds, "late: not built")
        try:
            return checked_about(told) | {"build_seconds": figures["wall"]}
        except Broken as error:
            raise WorkerLost(f"died: {error}") from error

    def solve(self, index: int) -> Turn:
        """The agent's run on the suite's task of that index."""
        question = {"index": index, "nonce": secrets.token_hex(8)}
        cap, limit = answer_bytes(self.tasks[index]), self.job.time_limit
        with suppress(Broken, Late):  # then its last words say why
            self.line.send({"question": question, "cap": cap}, time.monotonic() + GRACE_SECONDS)
        figures, told = self._heard(cap, limit, "late: no plan")
        try:
            plan, error, calls = checked_answer(told, question)
        except Broken as broken:
            raise WorkerLost(f"died: {broken}") from broken
        if figures["wall"] > limit:
            plan, error = None, f"late: {figures['wall']:.3g} s of {limit:g} s"
        return Turn(Run(plan, error, figures["wall"], calls, figures["cpu"]), figures["cpu"], figures["idle"])

    def stop(self) -> None:
        """Have all processes of the agent end; `kill` waits for it."""
        with suppress(OSError):
            self.line.end.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End all processes of the agent."""
        self.stop()
        with suppress(Broken):
            try:
                self._drain(END_SECONDS)
            except Late:  # the agent stopped its warden
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, signal.SIGKILL)
                with suppress(Late):
                    self._drain(END_SECONDS)
        self.line.end.close()

    def _drain(self, seconds: float) -> None:
        """Read until the warden has ended, which closes its line."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.line.receive(1 << 32, deadline)
            except Broken as error:
                if str(error) == "closed its line":
                    raise

    def _heard(self, cap: int, seconds: float, late: str) -> tuple[dict[str, float], Any]:
        """The warden's figures, and the answer that it passes on."""
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            figures = self.line.receive(TOLD_BYTES, deadline)
            if "ended" in figures:
                raise WorkerLost(f"died: {line(str(figures['ended']))}")
            checked_figures(figures)
        except Late as error:
            raise WorkerLost(f"{late} within {seconds:g} s, killed") from error
        except Broken as error:
            raise WorkerLost(f"died: its warden {error}") from error
        try:
            return figures, self.line.receive(cap, deadline)
        except (Broken, Late) as error:
            raise WorkerLost(f"died: {error}") from error


def anywhere(job: Job) -> Job:
    """The job with its files named as they are found from another folder."""
    weights = (job.planner, job.judge)
    planner, judge = (os.path.abspath(one) if one.endswith(simulators.WEIGHTS) else one for one in weights)
    checkpoint, tasks = (path and os.path.abspath(path) for path in (job.checkpoint, job.tasks))
    return replace(job, planner=planner, judge=judge, checkpoint=checkpoint, tasks=tasks)
