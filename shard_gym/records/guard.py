"""One guard and one set of limits for all that is read: what breaks them is a CorruptFile, soon, in little memory."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from shard_gym.errors import CorruptFile, ShardGymError

MOST_BYTES = 2**30  # of a file that is read whole, and of what is unpacked from one
MOST_JSON_BYTES = 2**28
MOST_JSON_MEMORY = 2**29  # bytes that its values take, about
MOST_DEPTH = 100  # lists and objects inside each other
MOST_DIGITS = 24  # of an integer; what Python writes of a float has fewer in a row
LONGEST = 200  # characters of a reason

# What parsers, numpy and torch raise on content that they do not expect.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError too
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)
# Bytes that values take beside their text: a number and its place, an empty list, an object with a key.
_WEIGHTS = {b",": 60, b"[": 64, b"{": 240}
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG = (b"0" * MOST_DIGITS, b"e000", b"e+000")  # of numbers that may be too large, once their digits are zeros
_FLAT = frozenset({str, int, float, bool, type(None)})


@contextmanager
def guarded(what: Any, kind: type[ShardGymError] = CorruptFile) -> Iterator[None]:
    """Turn whatever odd input makes a reader raise into an error of that kind, which says of what.

    Content that a file should not hold makes the file corrupt; of arguments an error of ours says more already.
    """
    try:
        yield
    except REFUSALS as error:
        if isinstance(error, kind if kind is CorruptFile else ShardGymError):
            raise
        raise kind(f"{what}: {reason(error)}") from error


def expect(value: Any, kind: type, refused: type[ShardGymError]) -> None:
    """Refuse an argument of another type by an error of that kind."""
    if not isinstance(value, kind):
        raise refused(f"expected a {kind.__name__}, got a {type(value).__name__}")


def reason(error: BaseException) -> str:
    """The first line of an error, or its class where it says nothing."""
    told = str(error).strip().partition("\n")[0][:LONGEST]
    if isinstance(error, RecursionError):
        return "lists and objects are nested too deeply"
    if isinstance(error, KeyError) and told.startswith("'"):
        return f"{told} is missing"
    return told or type(error).__name__


def content_of(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file; one that is too large, or a device that never ends, is refused."""
    with Path(path).open("rb") as file:
        found = os.fstat(file.fileno())
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise CorruptFile(f"{path} is no file")
        content = file.read(most + 1) if found.st_size <= most else b""
    if len(content) > most or found.st_size > most:
        raise CorruptFile(f"{path} has more than {most:,} bytes, the most that is read")
    return content


@contextmanager
def opened(path: str | Path, most: int = MOST_BYTES) -> Iterator[IO[bytes]]:
    """A file to read, unpacked if its name ends in .gz; what is damaged, or unpacks to more than `most`, is refused."""
    with Path(path).open("rb") as file:
        if not str(path).endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed:
            yield io.BufferedReader(_Unpacked(path, packed, most))


class _Unpacked(io.RawIOBase):
    """The content of a packed file, as far as it is whole and within limits."""

    def __init__(self, path: str | Path, packed: gzip.GzipFile, left: int) -> None:
        self.path, self.packed, self.left, self.most = path, packed, left, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with guarded(self.path):
            try:
                content = self.packed.read1(len(buffer))
            except gzip.BadGzipFile as error:
                raise CorruptFile(f"{self.path}: {error}") from error
        self.left -= len(content)
        if self.left < 0:
            raise CorruptFile(f"{self.path} unpacks to more than {self.most:,} bytes, the most that is read")
        buffer[: len(content)] = content
        return len(content)


def text_of(path: str | Path, most: int = MOST_JSON_BYTES) -> str:
    """The text of a file, in UTF-8."""
    with guarded(f"{path} is not text in UTF-8"):
        return content_of(path, most).decode()


def parsed_json(text: str | bytes, what: str = "not JSON") -> Any:
    """Content of JSON text; NaN, infinities, endless integers and deep nesting are refused."""
    with guarded(what):
        raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        _check_weight(raw)
        zeros = raw.translate(_DIGITS)
        checked: dict[str, Any] = {"parse_float": _finite, "parse_int": _short}
        hooks = checked if any(long in zeros for long in _LONG) else {}
        found = json.loads(raw.decode() if isinstance(text, bytes) else text, parse_constant=_refuse, **hooks)
        _check_depth(found)
    return found


def arrays_of(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; pickled ones are refused, and more than MOST_BYTES of them."""
    content = content_of(path)
    with guarded(path):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(info.file_size for info in archive.infolist()) > MOST_BYTES:
                    raise CorruptFile(f"{path} unpacks to more than {MOST_BYTES:,} bytes")
                members = {info.filename: archive.read(info) for info in archive.infolist()}
        except OSError as error:  # of bz2
            raise CorruptFile(f"{path}: {error}") from error
        return {name.removesuffix(".npy"): _array(member) for name, member in members.items()}


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _check_weight(raw: bytes) -> None:
    if len(raw) > MOST_JSON_BYTES:
        raise ValueError(f"{len(raw):,} bytes, more than the {MOST_JSON_BYTES:,} that are read")
    if sum(raw.count(mark) * weight for mark, weight in _WEIGHTS.items()) > MOST_JSON_MEMORY:
        raise ValueError("more values than fit in memory")


def _check_depth(found: Any) -> None:
    """Refuse what is nested so deeply that whoever prints, copies or compares it would fail."""
    level = [[found]]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for held in level:
            values = held.values() if isinstance(held, dict) else held
            if not _FLAT.issuperset(map(type, values)):
                inner += [value for value in values if isinstance(value, list | dict)]
        if not inner:
            return
        level = inner
    raise ValueError(f"more than {MOST_DEPTH} lists and objects inside each other")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _short(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{text[:MOST_DIGITS]}... is too large: {len(text)} digits")
    return int(text)
