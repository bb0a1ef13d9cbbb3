"""Nodes and the workers on them: what they are told, what they answer, and on which terms they work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shard_gym.work.pieces import Piece, Roll

Row = Any


@dataclass(frozen=True)
class Node:
    """A machine of the cluster; `name` tells it from others on one host."""

    id: str
    name: str
    host: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Slot:
    """The place of a worker: its node's name, its host, and a number from 0 that no other worker of the host has."""

    node: str
    host: str
    number: int


class Worker(Protocol):
    """Does pieces on a node; where work is divided by kinds of nodes it has `about()`, too, a dict."""

    def do(self, payload: Any) -> Row:
        """The row of a piece."""
        ...


@dataclass(frozen=True)
class Lost:
    """No answer: the worker died, or cannot be reached."""

    died: bool


@dataclass(frozen=True)
class Failed:
    """The words of an error that a worker met."""

    why: str


@dataclass(eq=False)
class Lane:
    """A list of pieces, and what keeps their rows."""

    roll: Roll
    keep: Callable[[str, Row], None]
    settle: Callable[[], None] = lambda: None  # brings to disk what was kept

    @classmethod
    def of(cls, pieces: Iterable[Piece | None], keep: Callable[[str, Row], None], settle: Callable[[], None]) -> Lane:
        """The lane of pieces that are not done."""
        return cls(Roll(pieces), keep, settle)


@dataclass(frozen=True)
class Terms:
    """Terms of the work: what each worker takes of its node, and when to stop."""

    cpus: float = 1.0
    gpus: float = 0.0
    workers: int = 0  # at most so many a node; 0: all that fit
    batch_seconds: float = 0.2
    patience: float = 300.0  # seconds without any worker; one that begins may have much to import
    stop_at: float = math.inf  # time.monotonic() after which nothing is begun
    settle: Callable[[], None] = lambda: None
    lost: Callable[[Any], Row] = lambda payload: {"error": "the process that did it died, twice"}
    admit: Callable[[Slot, dict[str, Any]], Lane] | None = None  # told what `about()` says; may raise NodeRefused

    def room(self, node: Node) -> int:
        """Workers that the node holds."""
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        fits = [int(node.resources.get(name, 0.0) / each) for name, each in asked.items() if each]
        return min(fits + [self.workers] * bool(self.workers))


class Hands(Protocol):
    """A cluster, as far as the crew needs it."""

    def nodes(self) -> Sequence[Node]:
        """Nodes that are alive."""
        ...

    def checking(self, node: Node) -> Any:
        """A ticket; the answer is words on what is wrong with the node, or none."""
        ...

    def hired(self, node: Node, terms: Terms) -> Any:
        """A new worker's process."""
        ...

    def call(self, worker: Any, method: str, *given: Any) -> Any:
        """A ticket for what the worker answers."""
        ...

    def fire(self, worker: Any) -> None:
        """End a worker."""
        ...

    def ready(self, tickets: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Tickets that have an answer, after so many seconds or as soon as there is one."""
        ...

    def answer(self, ticket: Any) -> Any:
        """The answer, or Lost."""
        ...
