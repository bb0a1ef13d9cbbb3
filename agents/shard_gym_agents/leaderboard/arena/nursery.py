"""The process that agents are forked from: it has imported what they need, and knows nothing but this code.

Its line brings a greeting with rules and modules to import, then orders: a job, a view, and the end of a line for the
agent's warden. It ends when its line closes, and with it all that it started.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import shard_gym_agents
from shard_gym import simulators
from shard_gym.results.evaluate import describe
from shard_gym.task import suites
from shard_gym_agents.leaderboard.arena import kernel
from shard_gym_agents.leaderboard.arena.frames import Broken, Line
from shard_gym_agents.leaderboard.arena.guard import Cell, guard
from shard_gym_agents.leaderboard.arena.inside import serve
from shard_gym_agents.leaderboard.arena.jail import build_root
from shard_gym_agents.leaderboard.arena.job import Job, tasks_of
from shard_gym_agents.leaderboard.arena.processes import children_end, end_descendants
from shard_gym_agents.leaderboard.arena.rules import FULL, LIMITS, Rules, View

ORDER = 1 << 20  # bytes, at most
PATIENCE = 5.0  # seconds that wardens have to end their agents


def main(end: int) -> None:
    """Greet, then fork an agent an order."""
    control = socket.socket(fileno=end)
    line = Line(control)
    greeting = line.receive(ORDER)
    rules = Rules(**greeting["rules"])
    for module in greeting["preload"]:
        with suppress(ImportError):  # whoever needs it says so
            import_module(module)
    if refused := cannot_serve(rules.modules, greeting["needs"]):
        return line.send({"error": refused})
    folder = tempfile.mkdtemp(prefix="shard-gym-")
    why = "" if rules.isolation == LIMITS else cannot_confine(View(**greeting["view"]), rules)
    rules = replace(rules, isolation=LIMITS if why or rules.isolation == LIMITS else FULL)
    line.send({"isolation": rules.isolation, "why": why, "folder": folder})
    with suppress(OSError):
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    shard_gym_agents.installed()  # known to all that are forked
    gc.freeze()
    forks = Forks(line, rules, folder)
    try:
        forks.run()
    finally:
        forks.close()


def needs(job: Job) -> tuple[str, ...]:
    """The suite and simulators that a job's process looks up by name."""
    suite = () if job.tasks else (f"suite {job.suite}",)
    return (*suite, f"simulator {job.planner}")


def cannot_serve(modules: Sequence[str], needed: Sequence[str]) -> str:
    """The reason why this process lacks what jobs need, after these modules were imported, or ""."""
    for module in modules:
        try:
            import_module(module)
        except Exception as error:  # a third party's
            return f"{module} cannot be imported where agents run: {describe(error)}"
    known = {f"suite {name}" for name in suites.SUITES} | {f"simulator {name}" for name in simulators.SIMULATORS}
    lacking = [name for name in needed if name not in known and not name.endswith(simulators.WEIGHTS)]
    if not lacking:
        return ""
    return (
        f"{', '.join(lacking)}: known to this process, and not to those of agents; name the module that registers it, "
        "--import MODULE"
    )


class Forks:
    """Forks wardens and ends what they leave."""

    def __init__(self, line: Line, rules: Rules, folder: str) -> None:
        self.line, self.rules, self.folder = line, rules, folder  # of agents' homes
        self.wardens: dict[int, str] = {}  # process -> the agent's home
        self.orders = 0

    def run(self) -> None:
        """Serve orders until the line closes."""
        wakes, poll = children_end(), select.poll()
        for end in (self.line.end.fileno(), wakes):
            poll.register(end, select.POLLIN)
        with suppress(Broken):
            while True:
                for end, _ in poll.poll():
                    if end == wakes:
                        os.read(wakes, 4096)
                        self._reap()
                    else:
                        self._fork()

    def close(self) -> None:
        """End all that is left: wardens do it when their lines close, as that of this process did."""
        deadline = time.monotonic() + PATIENCE
        while self.wardens and time.monotonic() < deadline:
            time.sleep(0.005)
            self._reap()
        end_descendants()
        remove(self.folder)

    def _fork(self) -> None:
        mark, ends, _, _ = socket.recv_fds(self.line.end, 1, 1)
        if not mark:
            raise Broken("closed its line")
        (watch,) = ends
        order = self.line.receive(ORDER)
        try:
            told: dict[str, Any] = {"pid": self._warden(order, watch)}
        except Exception as error:  # no such suite, or no process to be had
            told = {"error": describe(error)}
        os.close(watch)
        self.line.send(told)

    def _warden(self, order: dict[str, Any], watch: int) -> int:
        job, view = Job(**order["job"]), View(**order["view"])
        tasks = tasks_of(job)  # read once, by this process
        cpu_seconds = (self.rules.build_seconds + len(tasks) * job.time_limit) * (os.cpu_count() or 1)
        self.orders += 1
        cell = Cell(self.rules, view, cpu_seconds, home=os.path.join(self.folder, str(self.orders)))
        pid = os.fork()
        if not pid:
            guard(cell, watch, lambda end: serve(end, job, order["track"], tasks))
        self.wardens[pid] = cell.home
        return pid

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if home := self.wardens.pop(pid, ""):
                    remove(home)
        if self.rules.isolation == LIMITS:  # where an agent may have killed its warden
            end_descendants(spare=self.wardens)


def remove(folder: str) -> None:
    """Remove a folder, whatever rights an agent took from what is in it."""
    for parent, inner, _ in os.walk(folder):
        for name in inner:
            if not os.path.islink(path := os.path.join(parent, name)):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def cannot_confine(view: View, rules: Rules) -> str:
    """The reason why this system gives no namespaces, or ""; a child of this process tries."""
    ours, theirs = os.pipe()
    if not (pid := os.fork()):
        try:
            kernel.unshare()
            if inner := os.fork():
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
            build_root(view, rules)
            os._exit(0)
        except OSError as error:
            os.write(theirs, str(error).encode()[:500])
        finally:
            os._exit(1)
    os.close(theirs)
    failed = os.waitpid(pid, 0)[1] != 0
    with os.fdopen(ours, "rb") as told:
        return told.read().decode() or "namespaces: refused" if failed else ""
