"""Ledgers: files of JSON lines that only grow, and lose at most their last line in a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from shard_gym.errors import CorruptFile, InUse
from shard_gym.records.guard import REFUSALS, parsed_json, reason
from shard_gym.records.locks import locked

T = TypeVar("T")
MOST_LINE, CHUNK = 2**26, 2**20  # bytes


class Ledger:
    """A file of lines, ours alone while it is open; made by `opened`."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        if self.file.seek(0, os.SEEK_END):
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":
                self._cut()

    def append(self, line: Any, force: bool = True) -> None:
        """Add a line, text or what JSON holds; without `force` the system brings it to disk when it likes."""
        text = line if isinstance(line, str) else json.dumps(line)
        handle, left = self.file.fileno(), text.encode() + b"\n"
        end = os.fstat(handle).st_size
        try:
            while left:
                left = left[os.write(handle, left) :]
            if force:
                os.fsync(handle)
        except OSError:  # a full disk: the part that was written goes, so that the file stays whole
            os.ftruncate(handle, end)
            raise

    def force(self) -> None:
        """Bring to disk what was added without force."""
        os.fsync(self.file.fileno())

    def read(self, parse: Callable[[bytes], T] = parsed_json, kind: str = "") -> list[T]:
        """Every line, parsed; a line that `parse` refuses is named by its number, and by the kind expected there."""
        self.file.seek(0)
        return [parsed(self.path, number, line, parse, kind) for number, line in lines_of(self.path, self.file)]

    def _cut(self) -> None:
        """Remove the last line, which broke off while it was written."""
        kept = end = self.file.seek(0, os.SEEK_END)
        while kept:
            kept = max(0, end - CHUNK)
            self.file.seek(kept)
            if (found := self.file.read(end - kept).rfind(b"\n")) >= 0:
                kept += found + 1
                break
            end = kept
        self.file.truncate(kept)


def lines_of(path: str | Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line of an open file with its number, from 1; one that has no end in sight is refused."""
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise CorruptFile(f"{path}, line {number}: more than {MOST_LINE:,} bytes, the most that is read")
        yield number, line


def parsed(path: str | Path, number: int, line: bytes, parse: Callable[[bytes], T], kind: str = "") -> T:
    """The content of a line; an error names the file and the line."""
    try:
        return parse(line)
    except REFUSALS as error:
        expected = f" is no {kind}" if kind else ""
        told = error if isinstance(error, CorruptFile) else reason(error)
        raise CorruptFile(f"{path}, line {number}{expected}: {told}") from error


@contextmanager
def opened(path: str | Path, wait: bool = True) -> Iterator[Ledger]:
    """The ledger at `path`, made where there is none, locked until it is closed or this process dies.

    Where another process has it, wait for that one, or raise InUse at once.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not locked(file, wait):
            raise InUse(f"{path} is in use by another process")
        yield Ledger(path, file)


def append(path: str | Path, line: Any) -> None:
    """Add one line to the ledger at `path`."""
    with opened(path) as ledger:
        ledger.append(line)


def read(path: str | Path, parse: Callable[[bytes], T] = parsed_json, kind: str = "") -> list[T]:
    """Every line of the ledger at `path`, parsed; none where there is no file."""
    if not Path(path).exists():
        return []
    with opened(path) as ledger:
        return ledger.read(parse, kind)
