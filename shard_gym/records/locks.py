"""Locks: one process at a time writes to a folder, and the others learn which."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from shard_gym.errors import InUse

LOCK = ".lock"  # a file in the folder, gone when nobody writes there


@contextmanager
def held(folder: str | Path, wait: bool = False) -> Iterator[None]:
    """The folder, made where there is none, ours alone until the end of the block or of this process.

    Where another process has it, wait for that one, or raise an InUse that says who it is.
    """
    path = Path(folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with _taken(path, wait) as file:
        try:
            _tell(file)
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def locked(file: IO[bytes], wait: bool) -> bool:
    """Lock an open file until it is closed; False where another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows, where results can still be read
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def _taken(path: Path, wait: bool) -> Iterator[IO[bytes]]:
    """The locked file at `path`: who had it before may have removed it meanwhile, then again."""
    while True:
        with path.open("a+b") as file:
            if not locked(file, wait=False):
                told = f"{path.parent} is in use{_holder(file)}"
                if not wait:
                    raise InUse(f"{told}: wait for it, end it, or name another folder")
                sys.stderr.write(f"{told}: waiting\n")
                locked(file, wait=True)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return


def _tell(file: IO[bytes]) -> None:
    """Write down who has it, for those who come later."""
    who = {"command": shlex.join(sys.argv), "process": os.getpid(), "host": socket.gethostname()}
    file.truncate(0)
    file.write(json.dumps(who | {"since": time.strftime("%H:%M:%S")}).encode())
    file.flush()


def _holder(file: IO[bytes]) -> str:
    try:
        file.seek(0)
        who = json.loads(file.read(4096))
        return f" by process {who['process']} on {who['host']} since {who['since']} ({who['command']})"
    except (ValueError, KeyError, TypeError):  # it is about to write that
        return ""
