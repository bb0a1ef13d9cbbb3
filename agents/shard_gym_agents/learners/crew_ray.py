"""Actors on the nodes of a Ray cluster, as many as find room at any time. Needs torch, and ray when it is used."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shard_gym.errors import ClusterError
from shard_gym.records.escape import plain
from shard_gym.work.terms import Failed, Hands, Lost, Node, Slot, Terms
from shard_gym_agents.learners.autoshard_actors import Actor, Answer, Request, Stage
from shard_gym_agents.learners.crews import ActorLost, Event, Key, Order, alone, arrays_of, tensors_of

POLL_SECONDS = 1.0  # between two looks at which nodes there are


class Store:
    """Ray's object store, which brings weights to each node once."""

    def put(self, value: Any) -> Any:
        """A token that stands for a value in calls."""
        import ray

        return ray.put(value)

    def get(self, held: Any) -> Any:
        """The value."""
        import ray

        return ray.get(held)


@dataclass(frozen=True)
class Begin:
    """Makes the worker of a slot."""

    store: Store
    stage: Any  # as it is in the store
    each: int

    def __call__(self, slot: Slot) -> Player:
        return Player(self.store, alone(self.store.get(self.stage), self.each))


@dataclass(frozen=True)
class Player:
    """Plays portions on a node."""

    store: Store
    actor: Actor

    def do(self, order: Order) -> Answer:
        """The answer to an order."""
        weights = self.store.get(order.weights)
        return self.actor.play(Request(order.seed, order.version, tensors_of(weights)))


@dataclass(frozen=True)
class Seat:
    """An actor's place: its node, its number among those of the host, and its process."""

    node: Node
    number: int
    worker: Any


class OnRay:
    """Actors on all nodes of a cluster: those that join later take part, those that go are not missed.

    `actors` is the most that there may be; 0: one for each CPU, or for each share of a GPU.
    """

    def __init__(self, hands: Hands, stage: Stage, each: int, actors: int = 0, gpus: float = 0.0) -> None:
        self.hands, self.actors, self.terms, self.store = hands, actors or math.inf, Terms(gpus=gpus), Store()
        self.make = Begin(self.store, self.store.put(stage), each)
        self.first = {node.id for node in hands.nodes()}  # there from the beginning, and checked
        self.known: dict[str, bool] = dict.fromkeys(self.first, True)  # False: not checked yet, or left out
        self.seats: dict[int, Seat] = {}
        self.tickets: dict[Any, tuple[int, Key | None]] = {}  # by ticket: actor and portion, or None as it begins
        self.checks: dict[Any, Node] = {}
        self.hired, self.looked, self.alive = 0, -math.inf, time.monotonic()

    def put(self, weights: Mapping[str, torch.Tensor]) -> Any:
        return self.store.put(arrays_of(weights))

    def begin(self, actor: int, order: Order) -> None:
        self.tickets[self.hands.call(self.seats[actor].worker, "do", [order])] = (actor, order.key)

    def events(self, waits: bool) -> list[Event]:
        while True:
            self._recruit()
            found = self._collected(POLL_SECONDS if waits else 0.0)
            if found or not waits:
                return found
            if self.seats and any(key for _, key in self.tickets.values()):
                self.alive = time.monotonic()
            if time.monotonic() - self.alive > self.terms.patience:
                raise ClusterError(
                    f"for {self.terms.patience:.0f} s no node had an actor: the same command goes on when there is room"
                )

    def end(self) -> None:
        for seat in self.seats.values():
            self.hands.fire(seat.worker)
        self.seats, self.tickets, self.looked = {}, {}, -math.inf

    def _recruit(self) -> None:
        """Look now and then which nodes there are, and have each take as many actors as it holds."""
        if time.monotonic() - self.looked < POLL_SECONDS:
            return
        self.looked, held = time.monotonic(), Counter(seat.node.id for seat in self.seats.values())
        for node in self.hands.nodes():
            if node.id not in self.known:
                self.known[node.id] = False
                self.checks[self.hands.checking(node)] = node
            elif self.known[node.id]:
                for _ in range(int(min(self.terms.room(node) - held[node.id], self.actors - len(self.seats)))):
                    self._hire(node)

    def _hire(self, node: Node) -> None:
        taken = {seat.number for seat in self.seats.values() if seat.node.host == node.host}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        worker = self.hands.hired(node, self.terms)
        self.seats[self.hired] = Seat(node, number, worker)
        begun = self.hands.call(worker, "begin", self.make, Slot(node.name, node.host, number), False)
        self.tickets[begun] = (self.hired, None)
        self.hired += 1

    def _collected(self, seconds: float) -> list[Event]:
        """News of all tickets that have an answer."""
        asked = [*self.tickets, *self.checks]
        if not asked:
            time.sleep(seconds)
        found = []
        for ticket in self.hands.ready(asked, seconds) if asked else ():
            if ticket in self.checks:
                self._checked(self.checks.pop(ticket), self.hands.answer(ticket))
            elif ticket in self.tickets:  # not of an actor that another ticket told to be lost
                found.append(self._news(*self.tickets.pop(ticket), self.hands.answer(ticket)))
        return found

    def _news(self, actor: int, key: Key | None, told: Any) -> Event:
        seat = self.seats[actor]
        if isinstance(told, Failed) and (key or seat.node.id in self.first):
            raise ActorLost(f"an actor on node {seat.node.name} failed: {told.why}")
        if isinstance(told, Failed):
            self._leave_out(seat.node, told.why)
        if isinstance(told, Failed | Lost):
            self.tickets = {ticket: held for ticket, held in self.tickets.items() if held[0] != actor}
            self.hands.fire(self.seats.pop(actor).worker)
            self.looked = -math.inf
            return Event(actor, lost=f"its process on node {seat.node.name}, or the node, is gone")
        self.alive = time.monotonic()
        return Event(actor) if key is None else Event(actor, key, told[0][0])

    def _checked(self, node: Node, why: Any) -> None:
        """Let a node take part that came later and is as it should be."""
        if isinstance(why, Lost):
            del self.known[node.id]  # if it comes back it is checked again
        elif why:
            self._leave_out(node, f"it {why}")
        else:
            self.known[node.id], self.looked = True, -math.inf

    def _leave_out(self, node: Node, why: str) -> None:
        self.known[node.id] = False
        sys.stderr.write(plain(f"node {node.name} is left out: {why}") + "\n")
