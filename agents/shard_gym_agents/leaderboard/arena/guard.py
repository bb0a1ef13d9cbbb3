"""Walls first, then a warden, then the agent: what becomes of a process that the nursery forked."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import invalidate_caches
from typing import NoReturn

from shard_gym_agents.leaderboard.arena import kernel
from shard_gym_agents.leaderboard.arena.frames import Broken, Line
from shard_gym_agents.leaderboard.arena.jail import HOME, build_root, close_all_but, confine, settle
from shard_gym_agents.leaderboard.arena.rules import FULL, Rules, View
from shard_gym_agents.leaderboard.arena.warden import Warden


@dataclass(frozen=True)
class Cell:
    """One agent's place: what it may use and see, and its folder where it has none of its own world."""

    rules: Rules
    view: View
    cpu_seconds: float
    home: str


def guard(cell: Cell, watch: int, serve: Callable[[socket.socket], None]) -> NoReturn:
    """Be the warden, whose line is `watch`, of a process that calls `serve` with its end of another line."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but(watch)
        line = Line(socket.socket(fileno=watch))
        near, far = socket.socketpair()
        with suppress(Broken):
            try:
                home = _wall_in(cell, (watch, near.fileno(), far.fileno()))
                Warden(cell.rules, line, near, far).run(lambda output: _be_agent(cell, home, far, output, serve))
            except OSError as error:
                line.send({"ended": f"could not be confined: {error}"})
    finally:
        os._exit(0)


def _wall_in(cell: Cell, ends: tuple[int, ...]) -> str:
    """Go where the agent is to be, and take charge of all processes there; the agent's home."""
    home = cell.home
    if cell.rules.isolation == FULL:
        kernel.unshare()
        if inner := os.fork():  # process 1 of the new namespace, whose end is the end of all in it
            for end in ends:
                os.close(end)
            kernel.die_with_parent()
            os.waitpid(inner, 0)
            os._exit(0)
        kernel.die_with_parent()
        build_root(cell.view, cell.rules)
        home = HOME
    else:
        os.mkdir(home, 0o700)
        with suppress(OSError):  # no Linux: the agent's process group is all that is ended
            kernel.die_with_parent()
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    with suppress(OSError):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # no agent may look into this process
    return home


def _be_agent(
    cell: Cell, home: str, channel: socket.socket, output: int, serve: Callable[[socket.socket], None]
) -> NoReturn:
    try:
        os.setsid()
        settle(home, output)
        close_all_but(channel.fileno())
        confine(cell.rules, cell.cpu_seconds)
        with suppress(OSError):
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
            kernel.die_with_parent()
        invalidate_caches()  # other files are there now
        serve(channel)
    finally:
        os._exit(1)
