"""Ledgers: files of JSON lines that only grow, and lose at most their last line in a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from shard_gym.errors import CorruptFile

T = TypeVar("T")


class Ledger:
    """A file of lines, ours alone while it is open; made by `opened`."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        if self.file.seek(0, os.SEEK_END):
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":
                self._cut()

    def append(self, line: Any) -> None:
        """Add a line, text or what JSON holds, and force it to disk."""
        text = line if isinstance(line, str) else json.dumps(line)
        self.file.write(text.encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def read(self, parse: Callable[[bytes], T] = json.loads, kind: str = "") -> list[T]:
        """Every line, parsed; a line that `parse` refuses is named by its number, and by the kind expected there."""
        self.file.seek(0)
        return [parsed(self.path, number, line, parse, kind) for number, line in enumerate(self.file, start=1)]

    def _cut(self) -> None:
        """Remove the last line, which broke off while it was written."""
        self.file.seek(0)
        self.file.truncate(self.file.read().rfind(b"\n") + 1)


def parsed(path: str | Path, number: int, line: bytes, parse: Callable[[bytes], T], kind: str = "") -> T:
    """The content of a line; an error names the file and the line."""
    try:
        return parse(line)
    except (KeyError, TypeError, ValueError) as error:
        expected = f" is no {kind}" if kind else ""
        raise CorruptFile(f"{path}, line {number}{expected}: {error}") from error


@contextmanager
def opened(path: str | Path, wait: bool = True) -> Iterator[Ledger]:
    """The ledger at `path`, made where there is none, locked until it is closed or this process dies.

    Where another process has it, wait for that one, or raise BlockingIOError at once.
    """
    import fcntl  # absent on Windows, where results can still be read

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield Ledger(path, file)


def append(path: str | Path, line: Any) -> None:
    """Add one line to the ledger at `path`."""
    with opened(path) as ledger:
        ledger.append(line)


def read(path: str | Path, parse: Callable[[bytes], T] = json.loads, kind: str = "") -> list[T]:
    """Every line of the ledger at `path`, parsed; none where there is no file."""
    if not Path(path).exists():
        return []
    with opened(path) as ledger:
        return ledger.read(parse, kind)
