"""Pieces of work with keys, in batches that grow with their pace; those of a worker that died come again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shard_gym.records.files import json_sha256
from shard_gym.work.parts import WHOLE, Part

BLAMES = 2  # deaths of workers that a piece was alone with, until nobody tries it again
MOST = 1_000  # pieces of a batch
GROWTH = 4  # times the batch before, at most


@dataclass(frozen=True)
class Piece:
    """Something to do, under a key of all that decides it."""

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
    """Pieces to be done: fresh ones, then those that came back, each of them alone if it may have killed a worker.

    A list may give None for "nothing just now": it is asked again when rows have come in.
    """

    def __init__(self, pieces: Iterable[Piece | None]) -> None:
        self._fresh, self._ended = iter(pieces), False
        self._next: deque[Piece] = deque()  # of the fresh ones
        self._again: deque[Piece] = deque()  # of workers that died while they did another piece
        self._suspect: deque[Piece] = deque()
        self._blamed: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True if there are pieces, or may be later."""
        self._fill(1)
        return bool(self._next or self._again or self._suspect) or not self._ended

    def batch(self, most: int) -> list[Piece]:
        """The next pieces, at most so many; none where there is none just now."""
        self._fill(most)
        for waiting, count in ((self._again, most), (self._next, most), (self._suspect, 1)):
            if waiting:
                return [waiting.popleft() for _ in range(min(count, len(waiting)))]
        return []

    def _fill(self, count: int) -> None:
        """Read the list until so many pieces wait, or there is no more just now."""
        while len(self._next) < count and not self._ended:
            try:
                piece = next(self._fresh)
            except StopIteration:
                self._ended = True
                return
            if piece is None:
                return
            self._next.append(piece)

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
