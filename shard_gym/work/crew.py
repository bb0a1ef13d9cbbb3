"""Workers on the nodes of a cluster, and the loop that gives them pieces and takes their rows.

Nodes and workers may go away and come at any time. What a worker had in hand then is given out again, and `keep` sees
each key once: pieces are in one pair of hands at a time, and a worker that was given up is never listened to again.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shard_gym.errors import ClusterError, NodeRefused
from shard_gym.records.escape import plain
from shard_gym.work.pieces import Pace, Piece
from shard_gym.work.terms import Failed, Hands, Lane, Lost, Node, Slot, Terms, Worker

POLL_SECONDS = 1.0  # between two looks at which nodes there are
DEATHS = 5  # of a node's workers in a row, none of which did anything, until it is left out
CALLS_PER_SECOND = 200  # that the driver answers with ease, of all workers together
IN_HAND = 2  # batches of a worker, so that it need not wait for the driver


@dataclass(eq=False)
class Seat:
    """A worker, and the batches that it has in hand, the oldest first."""

    slot: Slot
    node: Node
    worker: Any
    since: float
    lane: Lane | None = None  # None until it has joined
    hand: dict[Any, list[Piece]] = field(default_factory=dict)  # by ticket
    pace: Pace = field(default_factory=Pace)
    rows: int = 0

    @property
    def wants(self) -> bool:
        """True if it may take another batch; slow pieces wait for whoever is free first."""
        return self.lane is not None and len(self.hand) < (IN_HAND if self.pace.most > 1 else 1)


class Crew:
    """All workers of one list of work."""

    def __init__(self, hands: Hands, make_worker: Callable[[Slot], Worker], terms: Terms, lane: Lane | None) -> None:
        self.hands, self.make_worker, self.terms = hands, make_worker, terms
        self.lanes = [] if lane is None else [lane]
        self.first = {node.id for node in hands.nodes()}  # there at the beginning, and checked
        self.known: dict[str, bool] = dict.fromkeys(self.first, True)  # nodes; False: not checked yet, or left out
        self.seats: list[Seat] = []
        self.waiting: dict[Any, Callable[[Any], None]] = {}  # by ticket; told the answer
        self.deaths: Counter[str] = Counter()  # of workers in a row that did nothing, by node
        self.looked, self.alive = -math.inf, time.monotonic()

    def run(self) -> None:
        """Work until all is done, nobody is left, or the time is over."""
        try:
            while not self._over():
                self._recruit()
                self._feed()
                self._collect()
        finally:
            for seat in self.seats:
                self.hands.fire(seat.worker)

    def _over(self) -> bool:
        now = time.monotonic()
        if any(seat.hand for seat in self.seats):
            return False
        if now >= self.terms.stop_at:
            return True
        if not any(lane.roll for lane in self.lanes) and self.lanes:
            new = [seat for seat in self.seats if seat.lane is None and now - seat.since < self.terms.patience]
            return self.terms.admit is None or not new  # one that joins may bring a list of its own
        if now - self.alive > self.terms.patience:
            raise ClusterError(
                f"no node has done anything for {self.terms.patience:.0f} s: what was done is kept, the same command "
                "goes on when there are nodes with room for workers"
            )
        return False

    def _recruit(self) -> None:
        """Look now and then which nodes there are, and have each take as many workers as it holds."""
        if time.monotonic() - self.looked < POLL_SECONDS:
            return
        self.looked, held = time.monotonic(), Counter(seat.node.id for seat in self.seats)
        for node in self.hands.nodes():
            if node.id not in self.known:
                self.known[node.id] = False
                self.waiting[self.hands.checking(node)] = partial(self._checked, node)
            elif self.known[node.id]:
                for _ in range(self.terms.room(node) - held[node.id]):
                    self._hire(node)

    def _checked(self, node: Node, why: Any) -> None:
        """Let a node take part that came later and is as it should be."""
        if isinstance(why, Lost):
            del self.known[node.id]  # if it comes back it is checked again
        elif isinstance(why, Failed):
            _tell(f"node {node.name}: {why.why}; it is left out")
        elif why:
            _tell(f"node {node.name} {why}; it is left out")
        else:
            self.known[node.id], self.looked = True, -math.inf

    def _hire(self, node: Node) -> None:
        taken = {seat.slot.number for seat in self.seats if seat.slot.host == node.host}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        slot = Slot(node.name, node.host, number)
        seat = Seat(slot, node, self.hands.hired(node, self.terms), time.monotonic())
        self.seats.append(seat)
        begun = self.hands.call(seat.worker, "begin", self.make_worker, slot, self.terms.admit is not None)
        self.waiting[begun] = partial(self._joins, seat)

    def _joins(self, seat: Seat, about: Any) -> None:
        """Give a worker that has begun its list of work, or leave its node out."""
        if seat not in self.seats:
            return
        if isinstance(about, Lost):
            return self._gone(seat, about.died)
        if isinstance(about, Failed):
            error = ClusterError(f"node {seat.node.name}: {about.why}")
            if seat.node.id in self.first:
                raise error
            return self._leave_out(seat.node, error)
        try:
            seat.lane = self.terms.admit(seat.slot, about) if self.terms.admit else self.lanes[0]
        except NodeRefused as error:
            return self._leave_out(seat.node, error)
        if seat.lane not in self.lanes:
            self.lanes.append(seat.lane)
        self.alive = time.monotonic()

    def _gone(self, seat: Seat, died: bool) -> None:
        """Let a worker go that died, or cannot be reached; its node too, where nobody gets anything done."""
        self._dismiss(seat)
        if not died:
            return
        self.looked, node = -math.inf, seat.node
        self.deaths[node.id] += seat.rows == 0
        if self.deaths[node.id] >= DEATHS and self._alive(node):
            self._leave_out(node, ClusterError(f"node {node.name}: {DEATHS} workers died there and did nothing"))

    def _alive(self, node: Node) -> bool:
        return any(other.id == node.id for other in self.hands.nodes())

    def _leave_out(self, node: Node, why: ClusterError) -> None:
        """Go on without a node, if there is another one."""
        self.known[node.id] = False
        for seat in [seat for seat in self.seats if seat.node.id == node.id]:
            self._dismiss(seat)
        if not any(self.known.values()):
            raise why
        _tell(f"{why}; it is left out")

    def _dismiss(self, seat: Seat) -> None:
        """End a worker; what it has in hand is for others."""
        if seat in self.seats:
            self.seats.remove(seat)
            self.hands.fire(seat.worker)
        for ticket, batch in seat.hand.items():
            del self.waiting[ticket]
            assert seat.lane is not None
            seat.lane.roll.back(batch)
        seat.hand.clear()

    def _feed(self) -> None:
        """Give each worker that has nothing in hand a batch, then another one to those that are fast."""
        if time.monotonic() >= self.terms.stop_at:
            return
        for held in range(IN_HAND):
            for seat in [seat for seat in self.seats if seat.wants and len(seat.hand) == held]:
                assert seat.lane is not None
                if batch := seat.lane.roll.batch(seat.pace.most):
                    ticket = self.hands.call(seat.worker, "do", [piece.payload for piece in batch])
                    seat.hand[ticket] = batch
                    self.waiting[ticket] = partial(self._answers, seat, ticket)

    def _collect(self) -> None:
        """Take all answers that are there; wait for one where there is none."""
        if not self.waiting:
            time.sleep(POLL_SECONDS)
        for ticket in self.hands.ready(list(self.waiting), POLL_SECONDS):
            if then := self.waiting.pop(ticket, None):
                then(self.hands.answer(ticket))
        for lane in self.lanes:
            lane.settle()

    def _answers(self, seat: Seat, ticket: Any, told: Any) -> None:
        """Keep the rows of a batch, or take back all that the worker had in hand when it died, of the oldest."""
        if not isinstance(told, Lost):
            return self._keep(seat, seat.hand.pop(ticket), told)
        hand, seat.hand = seat.hand, {}
        died, lane = told.died and self._alive(seat.node), seat.lane
        blames = died
        assert lane is not None
        for other, batch in hand.items():
            self.waiting.pop(other, None)
            told = self.hands.answer(other)
            if not isinstance(told, Lost):
                self._keep(seat, batch, told)
            elif blames:
                blames = False
                for piece in lane.roll.blame(batch):
                    lane.keep(piece.key, self.terms.lost(piece.payload))
            else:
                lane.roll.back(batch)
        self._gone(seat, died)

    def _keep(self, seat: Seat, batch: list[Piece], told: Any) -> None:
        if isinstance(told, Failed):
            raise ClusterError(f"node {seat.node.name}: {told.why}")
        rows, took = told
        seat.pace.saw(len(batch), took, max(self.terms.batch_seconds, len(self.seats) / CALLS_PER_SECOND))
        assert seat.lane is not None
        for piece, row in zip(batch, rows, strict=True):
            seat.lane.keep(piece.key, row)
        seat.rows += len(rows)
        self.deaths[seat.node.id], self.alive = 0, time.monotonic()


def _tell(text: str) -> None:
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()
