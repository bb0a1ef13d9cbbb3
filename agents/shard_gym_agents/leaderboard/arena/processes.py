"""Processes as /proc shows them: who descends from whom, and what they use. Empty where there is no /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
REAP_SECONDS = 5.0  # for killed processes to end


@dataclass(frozen=True)
class Process:
    """One process, by its line in /proc."""

    pid: int
    parent: int
    waited_seconds: float  # CPU of the children that it waited for

    @property
    def cpu_seconds(self) -> float:
        """CPU that it used itself, all threads; 0 when it is gone."""
        with suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | 2)  # the kernel's number of another process's clock
        return 0.0

    @property
    def held_bytes(self) -> int:
        """Memory that it holds, without what files stand behind; 0 when it is gone."""
        held = _read(f"/proc/{self.pid}/statm").split()
        return (int(held[1]) - int(held[2])) * PAGE if held else 0

    @property
    def own_bytes(self) -> int:
        """The same, with its share only of what it has in common with others; takes longer to find."""
        lines = _read(f"/proc/{self.pid}/smaps_rollup").splitlines()
        shares = [int(line.split()[1]) for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
        return 1024 * sum(shares) if shares else self.held_bytes


def everyone() -> list[Process]:
    """All processes that /proc shows."""
    with suppress(FileNotFoundError):
        return [found for name in os.listdir("/proc") if name.isdigit() and (found := process(int(name)))]
    return []


def process(pid: int) -> Process | None:
    """The process of that number, if there is one."""
    told = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # after the name, which may hold anything
    return Process(pid, int(told[1]), (int(told[13]) + int(told[14])) / TICKS) if told else None


def newest_process() -> bytes:
    """A mark that changes when a process or thread begins."""
    return _read("/proc/loadavg").rpartition(b" ")[2]


def descendants(pid: int, known: Iterable[Process] | None = None) -> list[Process]:
    """Processes that descend from one, parents first."""
    children: dict[int, list[Process]] = {}
    for other in everyone() if known is None else known:
        children.setdefault(other.parent, []).append(other)
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one.pid, ())
    return found


def children_end() -> int:
    """A descriptor that can be read when a child of this process has ended."""
    wakes, wake = os.pipe()
    for end in (wakes, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wakes


def end_descendants(spare: Container[int] = ()) -> float:
    """Kill what descends from this process, but for children to `spare`; CPU seconds of what it waited for."""
    spent, deadline = 0.0, time.monotonic() + REAP_SECONDS
    while time.monotonic() < deadline:
        known = everyone()
        children = [p for p in known if p.parent == os.getpid() and p.pid not in spare]
        if not children:
            break
        for one in [p for child in children for p in (child, *descendants(child.pid, known))]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                spent += sum(os.wait4(child.pid, os.WNOHANG)[2][:2])
        time.sleep(0.001)
    return spent


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:  # it ended meanwhile
        return b""
    finally:
        os.close(file)
