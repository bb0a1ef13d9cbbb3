"""Pieces of work with keys, in batches that grow with their pace; those of a worker that died come again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shard_gym.records.files import json_sha256
from shard_gym.work.parts import WHOLE, Part

BLAMES = 2  # deaths of workers that a piece was alone with, until nobody tries it again
MOST = 1_000  # pieces of a batch
GROWTH = 4  # times the batch before, at most


@dataclass(frozen=True)
class Piece:
    """What has to be done, under a key of all that decides it."""

    key: str
    payload: Any

    @classmethod
    def of(cls, decides: Any, payload: Any) -> Piece:
        """A piece whose key is the hash of what decides it, as JSON holds it."""
        return cls(json_sha256(decides), payload)


def left(pieces: Iterable[Piece], done: Container[str], part: Part = WHOLE) -> Iterator[Piece]:
    """The pieces of a part that are not done, in their order."""
    return (piece for piece in pieces if piece.key not in done and part.takes(piece.key))


class Roll:
    """Pieces to be done: fresh ones, then those that came back, each of them alone if it may have killed a worker."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._fresh = iter(pieces)
        self._next: deque[Piece] = deque(islice(self._fresh, 1))
        self._again: deque[Piece] = deque()  # of workers that died while they did another piece
        self._suspect: deque[Piece] = deque()
        self._blamed: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True if a batch is to be had."""
        return bool(self._next or self._again or self._suspect)

    def batch(self, most: int) -> list[Piece]:
        """The next pieces, at most so many; none where none is left by now."""
        for waiting, count in ((self._again, most), (self._next, most), (self._suspect, 1)):
            if waiting:
                if waiting is self._next:
                    waiting.extend(islice(self._fresh, most))  # one more than is taken
                return [waiting.popleft() for _ in range(min(count, len(waiting)))]
        return []

    def back(self, batch: list[Piece]) -> None:
        """Take back a batch that nobody began, or whose node went away."""
        self._again.extend(batch)

    def blame(self, batch: list[Piece]) -> list[Piece]:
        """Take back a batch whose worker died of it; the pieces that are given up, if it was one such piece again."""
        if len(batch) == 1:
            self._blamed[batch[0].key] += 1
        given_up = [piece for piece in batch if self._blamed[piece.key] >= BLAMES]
        self._suspect.extend(piece for piece in batch if self._blamed[piece.key] < BLAMES)
        return given_up


class Pace:
    """Size of a worker's batches, so that each takes about so many seconds."""

    def __init__(self) -> None:
        self.most = 1

    def saw(self, pieces: int, took: float, aim: float) -> None:
        """Learn from a batch: how many pieces, how many seconds, and how many they should take."""
        fit = int(aim * pieces / took) if took > 0 else MOST
        self.most = max(1, min(fit, GROWTH * self.most, MOST))
