"""Messages over a socket whose other end is not trusted: each has a length, a cap on it, and a deadline."""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from typing import Any

from shard_gym.errors import CorruptFile, ShardGymError
from shard_gym.records.guard import parsed_json

HEAD = struct.Struct("!I")
PIECE = 1 << 20  # bytes read in one go


class Broken(ShardGymError):
    """The other end is closed, or what came from it is no message."""


class Late(ShardGymError):
    """The other end did not answer, or not to the end, before the deadline."""


class Line:
    """One end of a pair of sockets; deadlines are of `time.monotonic`."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, message: Any, deadline: float = math.inf) -> None:
        """Send what JSON holds."""
        self.pass_on(json.dumps(message, allow_nan=False).encode(), deadline)

    def pass_on(self, payload: bytes | bytearray, deadline: float = math.inf) -> None:
        """Send a message as it came."""
        left = memoryview(HEAD.pack(len(payload)) + payload)
        while left:
            try:
                left = left[self.end.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as error:
                raise Broken("closed its line") from error

    def receive(self, cap: int, deadline: float = math.inf) -> Any:
        """The next message, of at most `cap` bytes."""
        size = length(self._read(HEAD.size, deadline), cap)
        try:
            return parsed_json(bytes(self._read(size, deadline)))
        except CorruptFile as error:
            raise Broken(f"gave an answer that is {error}") from error

    def _read(self, size: int, deadline: float) -> bytearray:
        found = bytearray()
        while len(found) < size:
            try:
                piece = self.end.recv(min(size - len(found), PIECE), socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise Broken("closed its line") from error
            if not piece:
                raise Broken("closed its line")
            found += piece
        return found

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.end, event)
        left = deadline - time.monotonic()
        if not poll.poll(None if left == math.inf else max(left, 0.0) * 1e3):
            raise Late("gave no answer in time")


def length(head: bytes | bytearray, cap: int) -> int:
    """The bytes of a message, by its head; too many are refused before any is read."""
    (size,) = HEAD.unpack(head)
    if size > cap:
        raise Broken(f"promised an answer of {size:,} bytes where {cap:,} are the most")
    return int(size)
