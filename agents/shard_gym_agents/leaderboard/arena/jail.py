"""Walls around an agent: namespaces and a root of its own where the kernel allows them, limits everywhere."""

from __future__ import annotations

import os
import resource
import signal
import stat
import tempfile
from contextlib import suppress

from shard_gym_agents.leaderboard.arena import kernel
from shard_gym_agents.leaderboard.arena.rules import FULL, Rules, View

OLD, HOME, SHM = "/old", "/tmp/home", "/dev/shm"
SHM_BYTES = 64 << 20
FILES = 100_000  # that an agent may make
FD_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}


def build_root(view: View, rules: Rules) -> None:
    """Replace everything that this process sees by a root with the view in it; it is process 1 of its namespace."""
    places = sorted(_places(view), key=lambda place: place[0].count("/"))
    base = tempfile.gettempdir()
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    _scratch(base, 0o755, 1 << 20)
    os.mkdir(base + OLD)
    kernel.pivot_root(base, base + OLD)
    os.chdir("/")
    for path, size in (("/tmp", rules.disk), (SHM, SHM_BYTES)):
        os.makedirs(path)
        _scratch(path, 0o1777, int(size))
    os.mkdir("/proc")
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    for target, source in places:
        _show(target, source)
    for name, end in FD_LINKS.items():
        os.symlink(f"/proc/self/fd{end}", f"/dev/{name}")
    os.mkdir(HOME)
    kernel.unmount(OLD)
    os.rmdir(OLD)
    kernel.protect("/")
    kernel.unprotect("/tmp")
    kernel.unprotect(SHM)


def confine(rules: Rules, cpu_seconds: float) -> None:
    """Take from this process, and all that it will start, what agents may not have."""
    address_space = rules.memory + _address_space()
    limits = {
        resource.RLIMIT_AS: int(address_space),
        resource.RLIMIT_FSIZE: int(rules.disk),
        resource.RLIMIT_CPU: int(cpu_seconds),
        resource.RLIMIT_NOFILE: rules.files,
        resource.RLIMIT_CORE: 0,
    }
    if rules.isolation == FULL:  # there it counts this agent's processes only
        limits[resource.RLIMIT_NPROC] = rules.processes
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(OSError, ValueError):  # macOS has no limit of address space
            resource.setrlimit(kind, (value, value))
    with suppress(OSError):
        kernel.drop_capabilities()


def settle(home: str, output: int) -> None:
    """Give this process a folder and a home of its own, no input, and `output` for what it prints."""
    os.chdir(home)
    os.environ.update(HOME=home, TMPDIR=home)
    tempfile.tempdir = None
    nothing = os.open(os.devnull, os.O_RDWR)
    for end, file in enumerate((nothing, output, output)):
        os.dup2(file, end)
    signal.set_wakeup_fd(-1)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)


def close_all_but(*kept: int) -> None:
    """Close every descriptor but these and the first three."""
    low = 3
    for end in sorted(kept):
        os.closerange(low, end)
        low = max(low, end + 1)
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _places(view: View) -> list[tuple[str, str]]:
    """Targets and sources of mounts, "" for nothing: each path by its name, and by its name when links are followed."""
    found = {}
    for paths, shown in ((view.readable, True), (view.secret, False)):
        for path in paths:
            for name in dict.fromkeys((path, os.path.realpath(path))):
                found[name] = os.path.realpath(path) if shown else ""
    return list(found.items())


def _show(target: str, source: str) -> None:
    """Mount one place of a view; "" hides what is there."""
    if not source:
        if not os.path.exists(target):
            return
        if os.path.isdir(target):
            return _scratch(target, 0o555, 0)
        source = os.devnull
    else:
        source = OLD + source
        folder = stat.S_ISDIR(os.stat(source).st_mode)
        os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
        if not folder and not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT))
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _scratch(target: str, mode: int, size: int) -> None:
    options = f"mode={mode:o},size={max(size, 4096)},nr_inodes={FILES}"
    kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _address_space() -> int:
    """Bytes of address space that this process has by now: what is preloaded is not the agent's."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0
