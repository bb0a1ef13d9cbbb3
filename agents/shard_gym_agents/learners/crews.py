"""Crews: who plays AutoShard's episodes, here, in processes of this host, or anywhere (`crew_ray`). Needs torch.

An iteration's episodes come in portions. What a portion holds follows from its seed and from the weights: neither who
plays it nor when matters, nor how often its actor died before. A crew gives portions out and puts answers together.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from shard_gym.envs.episodes import hashed
from shard_gym.errors import ShardGymError
from shard_gym.measuring import cores
from shard_gym.records.processes import end_with_parent
from shard_gym_agents.learners.autoshard_actors import Actor, Answer, Request, Stage

AHEAD = 2  # portions that an actor has, so that it need not wait for the next one
MOST_DEATHS, MOST_UNBORN = 5, 10  # of actors with the same portion, and of those that never began, in a row
UNBORN = (-1, -1)

Key = tuple[int, int]  # number of the request, and of the portion in it


class ActorLost(ShardGymError):
    """Actors fail, or die again and again; the message says how to go on."""


class Order(NamedTuple):
    """One portion to play."""

    key: Key
    seed: int
    version: int  # of the weights
    weights: Any  # what the place's `put` made of them


class Event(NamedTuple):
    """News of an actor: it is ready, it has played the portion of `key`, or it is lost with all that it had."""

    actor: int
    key: Key | None = None
    answer: Answer | None = None
    lost: str = ""


class Place(Protocol):
    """Actors somewhere; one that is lost is replaced by another, with another number."""

    def put(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """Weights as orders hold them."""

    def begin(self, actor: int, order: Order) -> None:
        """Have an actor play a portion, after those that it has."""

    def events(self, waits: bool) -> list[Event]:
        """News since the last call; at least one if it waits."""

    def end(self) -> None:
        """End all actors."""


class Crew:
    """Requests in, answers out, in the same order; each portion is in an answer once, whoever played it."""

    def __init__(self, place: Place, portions: int) -> None:
        self.place, self.portions = place, portions
        self.sent = self.received = 0  # requests
        self.waiting: deque[Order] = deque()
        self.playing: dict[int, list[Order]] = {}  # by actor
        self.free: deque[int] = deque()  # each actor as often as it can take a portion
        self.answers: dict[Key, Answer] = {}
        self.deaths: Counter[Key] = Counter()

    def begin_anew(self) -> None:
        """Forget all requests; what is being played for them comes to nothing."""
        self.received = self.sent
        self.waiting.clear()
        self.answers.clear()

    def send(self, request: Request) -> None:
        """Have one episode played in each environment."""
        weights = self.place.put(request.weights)
        for number in range(self.portions):
            seed = int(hashed(request.seed, number)) % 2**63
            self.waiting.append(Order((self.sent, number), seed, request.version, weights))
        self.sent += 1
        self._give()

    def receive(self) -> Answer:
        """Everything that the oldest request asked for."""
        keys = [(self.received, number) for number in range(self.portions)]
        while not all(key in self.answers for key in keys):
            self.tend(waits=True)
        self.received += 1
        return Answer.together([self.answers.pop(key) for key in keys])

    def tend(self, waits: bool = False) -> None:
        """Take what has been played, and give out what waits."""
        for event in self.place.events(waits):
            if event.lost:
                self._lose(event)
            elif event.key is None:
                self._welcome(event.actor)
            elif event.actor in self.playing:
                self._take(event)
        self._give()

    def _welcome(self, actor: int) -> None:
        self.playing[actor] = []
        self.free.appendleft(actor)
        self.free.extend([actor] * (AHEAD - 1))
        self.deaths.pop(UNBORN, None)

    def _take(self, event: Event) -> None:
        orders = self.playing[event.actor]
        self.playing[event.actor] = [order for order in orders if order.key != event.key]
        if self.playing[event.actor]:
            self.free.append(event.actor)
        else:  # it has nothing to do
            self.free.appendleft(event.actor)
        assert event.key is not None and event.answer is not None
        if event.key[0] >= self.received:
            self.answers.setdefault(event.key, event.answer)

    def _lose(self, event: Event) -> None:
        """Have the portions of a lost actor played by others, before all that waits."""
        held = self.playing.pop(event.actor, None)
        orders = [order for order in held or () if order.key[0] >= self.received]
        self.free = deque(actor for actor in self.free if actor != event.actor)
        self.waiting.extendleft(reversed(orders))
        if held is not None and not orders:
            return
        first = UNBORN if held is None else orders[0].key
        self.deaths[first] += 1
        if self.deaths[first] >= (MOST_UNBORN if held is None else MOST_DEATHS):
            what = "as they began" if held is None else "as they played the same episodes"
            raise ActorLost(
                f"{self.deaths[first]} actors died one after the other {what}, the last one by: {event.lost}; the same "
                "command goes on, with fewer --actors where memory is short"
            )

    def _give(self) -> None:
        while self.waiting and self.free:
            actor, order = self.free.popleft(), self.waiting.popleft()
            self.playing[actor].append(order)
            self.place.begin(actor, order)


class Here:
    """One actor, in this process; it plays when it is asked for what it played."""

    def __init__(self, stage: Stage, each: int, device: str | torch.device = "cpu") -> None:
        self.actor, self.orders = Actor(stage, each, device), deque[Order]()
        self.known = False

    def put(self, weights: Mapping[str, torch.Tensor]) -> Any:
        return weights

    def begin(self, actor: int, order: Order) -> None:
        self.orders.append(order)

    def events(self, waits: bool) -> list[Event]:
        if not self.known:
            self.known = True
            return [Event(0)]
        if not (waits and self.orders):
            return []
        order = self.orders.popleft()
        return [Event(0, order.key, self.actor.play(Request(order.seed, order.version, order.weights)))]

    def end(self) -> None:
        self.orders.clear()


class Processes:
    """Actors that play while the learner learns, each in a process of its own and on the CPU."""

    def __init__(self, stage: Stage, each: int, actors: int) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])  # torch takes seconds to import
        self.stage, self.each, self.actors = stage, each, actors
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        self.begun = 0

    def put(self, weights: Mapping[str, torch.Tensor]) -> Any:
        return arrays_of(weights)

    def begin(self, actor: int, order: Order) -> None:
        try:
            self.pipes[actor].send(order)
        except OSError:  # it is gone, as the next events tell
            return

    def events(self, waits: bool) -> list[Event]:
        while len(self.pipes) < self.actors:
            self._start()
        number = {id(pipe): actor for actor, pipe in self.pipes.items()}
        ready = wait(list(self.pipes.values()), None if waits else 0)
        return [self._news(number[id(pipe)], pipe) for pipe in ready if isinstance(pipe, Connection)]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        self.pipes, self.processes = {}, {}

    def _start(self) -> None:
        near, far = self.context.Pipe()
        process = self.context.Process(target=serve, args=(far, self.stage, self.each), daemon=True)
        process.start()
        far.close()
        self.pipes[self.begun], self.processes[self.begun] = near, process
        self.begun += 1

    def _news(self, actor: int, pipe: Connection) -> Event:
        try:
            told = pipe.recv()
        except (EOFError, OSError):
            self.pipes.pop(actor).close()
            process = self.processes.pop(actor)
            process.join()
            return Event(actor, lost=f"process {process.pid} ended with {process.exitcode}")
        if isinstance(told, ActorLost):
            raise told
        return Event(actor, *told)


def serve(pipe: Connection, stage: Stage, each: int) -> None:
    """An actor's process: orders in, answers out, until the learner is gone."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    orders: SimpleQueue[Order | None] = SimpleQueue()
    Thread(target=_read, args=(pipe, orders), daemon=True).start()
    try:
        actor = alone(stage, each)
        pipe.send((None, None))
        while (order := orders.get()) is not None:
            pipe.send((order.key, actor.play(Request(order.seed, order.version, tensors_of(order.weights)))))
    except OSError:
        return
    except ShardGymError as error:
        pipe.send(ActorLost(f"an actor's process ended: {error}"))


def _read(pipe: Connection, orders: SimpleQueue[Order | None]) -> None:
    """Read orders as they come, so that neither side waits for the other to read what it writes."""
    try:
        while True:
            orders.put(pipe.recv())
    except (EOFError, OSError):
        orders.put(None)


def arrays_of(weights: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Weights as they travel."""
    return {name: value.cpu().numpy() for name, value in weights.items()}


def tensors_of(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Weights as networks take them."""
    return {name: torch.tensor(array) for name, array in arrays.items()}


def alone(stage: Stage, each: int) -> Actor:
    """An actor that has its process to itself, on one thread; if it measures on a CPU, on a core of its own."""
    torch.set_num_threads(1)
    if stage.measured_by:
        cores.take()
    return Actor(stage, each)
