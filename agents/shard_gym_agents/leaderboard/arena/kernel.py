"""Calls of the Linux kernel that Python does not have. Elsewhere every one of them raises OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
from functools import cache

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
NEW_NAMESPACES = NEW_MOUNTS | NEW_USER | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mnt uts ipc user pid net
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x80000
MNT_DETACH = 2
MOUNT_SETATTR = 442  # the number of the system call, on all machines
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
ATTR_RDONLY, ATTR_NOSUID = 0x1, 0x2
CAPABILITIES = 0x20080522  # version 3 of capset


def prctl(option: int, value: int) -> None:
    """Set a property of this process."""
    _call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def unshare(namespaces: int = NEW_NAMESPACES) -> None:
    """Leave namespaces for new ones; processes forked from now on are in the new PID namespace."""
    uid, gid = os.getuid(), os.getgid()
    prctl(PR_SET_DUMPABLE, 1)  # or its files in /proc are root's
    _call("unshare", namespaces)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount(source: str, target: str, kind: str = "none", flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does."""
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def pivot_root(new: str, old: str) -> None:
    """Make the mount at `new` the root, and put the old one at `old`."""
    _call("syscall", ctypes.c_long(PIVOT_ROOT.get(platform.machine(), -1)), new.encode(), old.encode())


def unmount(target: str) -> None:
    """Take a mount away, with all that is mounted in it."""
    _call("umount2", target.encode(), MNT_DETACH)


def protect(target: str) -> None:
    """Make a mount and all mounts below it read-only, and its programs run with no rights of their files' owners."""
    _set_attributes(target, AT_RECURSIVE, ATTR_RDONLY | ATTR_NOSUID, 0)


def unprotect(target: str) -> None:
    """Make one mount writable again."""
    _set_attributes(target, 0, 0, ATTR_RDONLY)


def drop_capabilities() -> None:
    """Give up every capability for good."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def _set_attributes(target: str, flags: int, on: int, off: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("syscall", ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, target.encode(), flags, attributes, size)


def _call(name: str, *arguments: object) -> None:
    if not hasattr(_libc(), name) or not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"{name}: not on this system")
    if getattr(_libc(), name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
