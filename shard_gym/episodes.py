"""One episode: which task it draws, its tables in their order, and the devices they are put on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from shard_gym.memory import table_bytes
from shard_gym.simulators import FastSimulator, Latency, Simulator, single_costs
from shard_gym.tasks import Task

Whole = TypeVar("Whole", int, np.ndarray)

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def task_index(seed: Whole, episode: Whole, num_tasks: int) -> Whole:
    """Which task an episode draws; ints, or uint64 arrays with the same answers."""
    return hashed(seed, episode) % num_tasks


def hashed(seed: Whole, episode: Whole) -> Whole:
    """64 bits from a seed and a number: splitmix64's stream, its state mixed from the seed."""
    return _mix((_mix(seed & _MASK) + (episode + 1) * _GAMMA) & _MASK)


def _mix(z: Whole) -> Whole:
    # `& _MASK` makes Python's ints wrap as uint64 arrays do
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task with what all its episodes share; arrays are in the order of its tables."""

    task: Task
    simulator: Simulator
    features: np.ndarray  # (N, 21) float32, standardised
    random_makespan: float | None = None  # of a suite's task

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of each table on its device, (N,) int64."""
        return table_bytes(self.task)

    @cached_property
    def embedding(self) -> np.ndarray | None:
        """What each table adds to its device's sum, (N, H); None if the simulator has no embeddings."""
        return self.simulator.embed(self.task) if isinstance(self.simulator, FastSimulator) else None

    @cached_property
    def alone(self) -> np.ndarray:
        """Predicted makespan of each table alone on the first device, ms (N,)."""
        return single_costs(self.simulator, self.task)

    @cached_property
    def worst(self) -> float:
        """Makespan of all tables on one device, whichever device makes it longest, ms."""
        task, devices = self.task, self.task.num_devices
        if self.embedding is None:
            placements = np.repeat(np.arange(devices)[:, None], task.num_tables, axis=1)
            latency = self.simulator.latency(task, placements)
        else:
            latency = self.decode(np.eye(devices)[:, :, None] * self.embedding.sum(axis=0))
        return float(latency.makespan(task.objective).max())

    @cached_property
    def reference(self) -> float:
        """What a makespan is divided by in rewards, ms: the mean random plan's in a suite, else `worst`."""
        reference = self.worst if self.random_makespan is None else self.random_makespan
        return reference if reference > 0 else 1.0

    def decode(self, sums: np.ndarray) -> Latency:
        """Latencies from each device's sum of embeddings, (..., K, H); for fast simulators."""
        assert isinstance(self.simulator, FastSimulator)
        return self.simulator.decode(self.task, sums)


def _by_cost(prepared: Prepared) -> np.ndarray:
    return np.argsort(-prepared.alone, kind="stable")


def _by_size(prepared: Prepared) -> np.ndarray:
    return np.argsort(-prepared.sizes, kind="stable")


def _as_given(prepared: Prepared) -> np.ndarray:
    return np.arange(prepared.task.num_tables)


Order = Callable[[Prepared], np.ndarray]
# "random" is not among them: it differs between episodes (see shuffled)
FIXED_ORDERS: dict[str, Order] = {
    "cost": _by_cost,
    "size": _by_size,
    "given": _as_given,
}
ORDERS = (*FIXED_ORDERS, "random")


def shuffled(num_tables: int, key: int) -> np.ndarray:
    """The random order that belongs to an episode's hash."""
    tables = np.arange(num_tables, dtype=np.uint64)
    return np.argsort(hashed(np.full(num_tables, key, np.uint64), tables), kind="stable")


@dataclass(frozen=True, eq=False)
class Episode:
    """The tables of a task in the order they are placed."""

    prepared: Prepared
    order: np.ndarray  # (N,) index of the table placed at each step

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of the table placed at each step."""
        return self.prepared.sizes[self.order].tolist()

    @cached_property
    def everywhere(self) -> np.ndarray:
        """The mask of a table that fits everywhere, (K,) int8; copy before you hand it out."""
        return np.ones(self.prepared.task.num_devices, np.int8)

    @cached_property
    def rows(self) -> np.ndarray:
        """The "table" observation of each step, the last one for the end, (N + 1, 22) float32."""
        n = len(self.order)
        rows = np.zeros((n + 1, self.prepared.features.shape[1] + 1), np.float32)
        rows[:n, :-1] = self.prepared.features[self.order]
        rows[:, -1] = np.arange(n + 1) / n
        return rows

    @cached_property
    def remaining(self) -> np.ndarray:
        """What is left at each step as shares of the task, (N + 1, 5) float32.

        Tables, their summed single cost, bytes and columns; the dearest table left over the dearest of all.
        """
        p, n = self.prepared, len(self.order)
        columns = np.stack([np.ones(n), p.alone, p.sizes, p.task.tables.dim], axis=1)[self.order]
        left = np.zeros((n + 1, 5))
        left[:n, :4] = np.cumsum(columns[::-1], axis=0)[::-1]
        left[:n, 4] = np.maximum.accumulate(columns[::-1, 1])[::-1]
        return (left / np.where(left[0] > 0, left[0], 1)).astype(np.float32)


@dataclass(slots=True)
class State:
    """How far an episode has come; plain ints and lists, so that a step costs a few microseconds."""

    episode: Episode
    free: list[int]  # bytes left on each device; negative when over
    least: int  # the smallest of them
    placed: list[int]  # device of each step so far
    sums: np.ndarray | None  # (K, H) running sums of embeddings, if each step needs them

    @classmethod
    def start(cls, episode: Episode, track: bool) -> State:
        """Nothing placed; `track` keeps the running sums."""
        memory, embedding = episode.prepared.task.memory, episode.prepared.embedding
        sums = np.zeros((len(memory), embedding.shape[1])) if track and embedding is not None else None
        return cls(episode, list(memory), min(memory), [], sums)

    @property
    def done(self) -> bool:
        """Every table is placed."""
        return len(self.placed) == len(self.episode.order)

    def place(self, device: int) -> None:
        """Put the next table on a device, whether it fits or not."""
        position, episode = len(self.placed), self.episode
        self.placed.append(device)
        self.free[device] = room = self.free[device] - episode.sizes[position]
        if room < self.least:
            self.least = room
        if self.sums is not None:
            self.sums[device] += episode.prepared.embedding[episode.order[position]]  # type: ignore[index]

    def mask(self) -> np.ndarray:
        """Where the next table fits, a fresh (K,) int8; all ones when it fits nowhere."""
        position, episode = len(self.placed), self.episode
        if position == len(episode.sizes) or self.least >= episode.sizes[position]:
            return episode.everywhere.copy()
        size = episode.sizes[position]
        fits = [room >= size for room in self.free]
        # through a bytearray: twice as fast as np.array(fits, np.int8), and as writable
        return np.frombuffer(bytearray(fits), np.int8) if True in fits else episode.everywhere.copy()

    def placement(self) -> np.ndarray:
        """Device of each table, in the order of the task; (N,) int64, -1 where not placed."""
        device = np.full(len(self.episode.order), -1)
        device[self.episode.order[: len(self.placed)]] = self.placed
        return device

    def latency(self) -> Latency:
        """What the tables placed so far cost."""
        prepared = self.episode.prepared
        if prepared.embedding is None:
            return prepared.simulator.latency(prepared.task, self.placement())
        return prepared.decode(self._device_sums(prepared.embedding) if self.sums is None else self.sums)

    def _device_sums(self, embedding: np.ndarray) -> np.ndarray:
        # memory.device_sums for one plan, eight times as fast; the sums are exact, so a product will do
        on_device = np.zeros((len(self.free), len(embedding)))
        on_device[self.placed, self.episode.order[: len(self.placed)]] = 1
        return on_device @ embedding
