"""The parent of an agent's process: it passes questions on, takes the time and the CPU of the answers, and ends agents.

Nothing of the agent's runs in it. It ends the agent, with all processes that come of it, when the line to the
leaderboard closes, when the agent ends, speaks out of turn or too much, or when it uses more than it may; then its last
words say which it was.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from shard_gym.records.escape import plain
from shard_gym_agents.leaderboard.arena.answers import ABOUT_BYTES
from shard_gym_agents.leaderboard.arena.frames import HEAD, PIECE, Broken, Late, Line, length
from shard_gym_agents.leaderboard.arena.processes import (
    Process,
    children_end,
    descendants,
    end_descendants,
    newest_process,
    process,
)
from shard_gym_agents.leaderboard.arena.rules import FULL, GB, Rules

QUESTION_BYTES = 10_000
TICK = 0.25  # seconds between two looks at what an agent uses
GRACE = 0.5  # seconds from the end of an agent's line to that of its process
FATAL = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)


class Warden:
    """The watch over one agent: `line` leads to the leaderboard, `channel` to the agent's process and its `far` end."""

    def __init__(self, rules: Rules, line: Line, channel: socket.socket, far: socket.socket) -> None:
        self.rules, self.line, self.channel, self.far = rules, line, Line(channel), far
        self.asked = time.perf_counter()  # NaN while the agent is to be silent; at first it introduces itself
        self.cap, self.heard = ABOUT_BYTES, bytearray()
        self.ended_seconds = 0.0  # CPU of processes that this one waited for
        self.used = self.idle = 0.0  # CPU seconds by the last answer, and from there to the question
        self.family: list[int] = []
        self.newest = b""  # process that there was when they were looked for
        self.looked = self.checked = -TICK
        self.cause = ""

    def run(self, be_agent: Callable[[int], NoReturn]) -> None:
        """Fork the agent, who is to introduce itself; watch until it has to end."""
        heard, output = os.pipe() if self.rules.verbose else (-1, os.open(os.devnull, os.O_WRONLY))
        self.wakes, poll = children_end(), select.poll()
        ends = (self.line.end.fileno(), self.channel.end.fileno(), self.wakes)
        doings = dict(zip(ends, (self._ask, self._hear, self._reap), strict=True))
        self.agent = os.fork()
        if not self.agent:
            be_agent(output)
        self.family = [self.agent]
        os.close(output)
        self.far.close()
        if heard >= 0:
            doings[heard] = lambda: self._relay(heard, poll)
        for end in doings:
            poll.register(end, select.POLLIN)
        while not self.cause:
            for end, _ in poll.poll(TICK * 1e3):
                doings[end]()
            self._check()
        self._end()

    def _ask(self) -> None:
        """Pass a question on."""
        try:
            order = self.line.receive(QUESTION_BYTES)
            self.cap, self.idle = order["cap"], self._cpu(look=False) - self.used
            self.asked = time.perf_counter()
            self.channel.send(order["question"], time.monotonic() + GRACE)
        except (Broken, Late) as closed:
            self.cause = str(closed)

    def _hear(self) -> None:
        """Pass an answer on when it is whole, after the figures that go with it."""
        try:
            piece = self.channel.end.recv(PIECE, socket.MSG_DONTWAIT)
        except OSError:
            piece = b""
        now = time.perf_counter()
        self.heard += piece
        if not piece:
            self.cause = self._died() or "closed its line"
        elif math.isnan(self.asked):
            self.cause = "spoke without being asked"
        elif len(self.heard) >= HEAD.size:
            try:
                missing = HEAD.size + length(self.heard[: HEAD.size], self.cap) - len(self.heard)
            except Broken as broken:
                self.cause = str(broken)
                return
            if missing < 0:
                self.cause = "said more than its answer"
            elif missing == 0:
                self._answer(now - self.asked)

    def _answer(self, wall: float) -> None:
        self.used, before = self._cpu(look=True), self.used
        cpu = self.used - before - self.idle
        with suppress(Broken):
            self.line.send({"wall": wall, "cpu": max(cpu, 0.0), "idle": max(self.idle, 0.0)})
            self.line.pass_on(self.heard[HEAD.size :])
        self.asked, self.heard = math.nan, bytearray()

    def _check(self) -> None:
        """End the agent if it uses more than it may."""
        if (now := time.monotonic()) - self.checked < TICK:
            return
        self.checked = now
        family = self._family(look=True)
        memory, rules = sum(one.held_bytes for one in family), self.rules
        if memory > rules.memory and (memory := sum(one.own_bytes for one in family)) > rules.memory:
            self.cause = f"out of memory: {memory / GB:.3g} GB where {rules.memory / GB:.3g} GB are the most"
        elif len(family) > rules.processes:
            self.cause = f"ran {len(family)} processes where {rules.processes} are the most"

    def _cpu(self, look: bool) -> float:
        """CPU seconds that all processes of the agent have used, of those seen last or, to `look`, of all there are."""
        return self.ended_seconds + sum(one.cpu_seconds + one.waited_seconds for one in self._family(look))

    def _family(self, look: bool) -> list[Process]:
        now = time.monotonic()
        due = look and (self.rules.isolation == FULL or now - self.looked >= TICK)  # at limits /proc is long
        if due and (newest := newest_process()) != self.newest:
            self.newest, self.looked, found = newest, now, descendants(os.getpid())
            self.family = [self.agent, *(one.pid for one in found if one.pid != self.agent)]
            return found
        return [one for pid in self.family if (one := process(pid))]

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.wakes, 4096)
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, used = ended
                self.ended_seconds += used.ru_utime + used.ru_stime
                if pid == self.agent:
                    self.cause = self.cause or _in_words(os.waitstatus_to_exitcode(status))

    def _died(self) -> str:
        """The way that the agent's process ended, if it ends now."""
        deadline = time.monotonic() + GRACE
        while not self.cause and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.002)
        return self.cause

    def _end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.agent, signal.SIGKILL)
        end_descendants()
        with suppress(ChildProcessError):
            os.waitpid(self.agent, 0)
        with suppress(Broken):
            self.line.send({"ended": self.cause})

    def _relay(self, heard: int, poll: select.poll) -> None:
        """Pass on what the agent printed, without what could steer a terminal."""
        text = os.read(heard, 65536).decode(errors="replace")
        os.write(2, plain(text, keep="\n\t").encode())
        if not text:
            poll.unregister(heard)


def _in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    told = f"signal {signal.Signals(-exit_code).name}"
    return told + (", perhaps for want of memory" if -exit_code in FATAL else "")
