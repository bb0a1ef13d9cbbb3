"""How far an episode has come: which devices its tables were put on. With and without split actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.episodes import Episode
from shard_gym.plan import Plan
from shard_gym.room import Room
from shard_gym.simulators import Latency


@dataclass(slots=True)
class State:
    """An episode under way; plain ints and lists, so that a step costs a few microseconds."""

    episode: Episode
    free: list[int]  # bytes left on each device; negative when over
    least: int  # the smallest of them
    placed: list[int]  # device of each step so far
    sums: np.ndarray | None  # (K, H) running sums of embeddings, if each step needs them
    room: Room | None  # what masks follow where the task has constraints

    @classmethod
    def start(cls, episode: Episode, track: bool) -> State:
        """Nothing placed; `track` keeps the running sums."""
        memory, embedding = episode.prepared.task.memory, episode.prepared.embedding
        sums = np.zeros((len(memory), embedding.shape[1])) if track and embedding is not None else None
        return cls(episode, list(memory), min(memory), [], sums, room_of(episode))

    @property
    def done(self) -> bool:
        """Every table is placed."""
        return len(self.placed) == len(self.episode.order)

    @property
    def position(self) -> int:
        """Where in the order the next table is."""
        return len(self.placed)

    @property
    def num_pieces(self) -> int:
        """The tables."""
        return len(self.episode.order)

    def row(self) -> np.ndarray:
        """The next table's features and the share of tables placed, a fresh (22,) float32."""
        return self.episode.rows[len(self.placed)].copy()

    def remaining(self) -> np.ndarray:
        """What is left, see `Episode.remaining`; a fresh (5,) float32."""
        return self.episode.remaining[len(self.placed)].copy()

    def place(self, device: int) -> None:
        """Put the next table on a device, whether it fits or not."""
        position, episode = len(self.placed), self.episode
        self.placed.append(device)
        self.free[device] = room = self.free[device] - episode.sizes[position]
        if room < self.least:
            self.least = room
        if self.sums is not None:
            self.sums[device] += episode.prepared.embedding[episode.order[position]]  # type: ignore[index]
        if self.room is not None:
            self.room.place(episode.order[position], device)

    def mask(self) -> np.ndarray:
        """Where the next table may go, a fresh (K,) int8; all ones where it may go nowhere."""
        position, episode = len(self.placed), self.episode
        if self.room is not None and not self.done:
            legal = self.room.legal(episode.order[position])[0].astype(np.int8)
            return legal if legal.any() else episode.everywhere.copy()
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

    def plan(self) -> Plan:
        """The plan so far."""
        return Plan(tuple(self.placement().tolist()))

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


@dataclass(slots=True)
class SplitState:
    """An episode with split actions under way.

    `waiting` holds the pieces at each position, first in, first out, by the number that `Task.split` gives them. The
    next piece is the first one at the first position where any waits. Halves go to a later position, so the queue is
    walked once.
    """

    episode: Episode
    free: list[int]  # bytes left on each device; negative when over
    least: int  # the smallest of them
    waiting: list[list[int]]
    position: int  # of the next piece; the number of positions at the end
    device: list[int]  # of each piece so far, by its number; -1 while it waits
    splits: list[int]  # the pieces that were halved
    placed: list[int]  # device of each piece placed, in the order they were
    nodes: list[int]  # node of each of these
    left: np.ndarray  # (4,) summed `values` of what waits
    sums: np.ndarray | None  # (K, H) running sums of embeddings, if each step needs them
    room: Room | None  # what masks follow where the task has constraints

    @classmethod
    def start(cls, episode: Episode, track: bool) -> SplitState:
        """Nothing placed; `track` keeps the running sums."""
        p = episode.prepared
        sums = np.zeros((p.task.num_devices, p.embedding.shape[1])) if track and p.embedding is not None else None
        waiting = [[table] if table >= 0 else [] for table in episode.tables]
        device, left = [-1] * p.task.num_tables, episode.total.copy()
        free = list(p.task.memory)
        return cls(episode, free, min(free), waiting, 0, device, [], [], [], left, sums, room_of(episode))

    @classmethod
    def replayed(cls, episode: Episode, actions: list[int]) -> SplitState:
        """Where these actions lead."""
        state = cls.start(episode, track=False)
        for action in actions:
            state.place(action)
        return state

    @property
    def done(self) -> bool:
        """Every piece is placed."""
        return self.position == len(self.waiting)

    @property
    def num_pieces(self) -> int:
        """The tables, and one more for each split so far."""
        return len(self.device)

    def row(self) -> np.ndarray:
        """The next piece's features and the share of pieces placed, a fresh (22,) float32."""
        row = self.episode.rows[self.position].copy()
        row[-1] = len(self.placed) / len(self.device)
        return row

    def remaining(self) -> np.ndarray:
        """What is left as shares of the task before any split, a fresh (5,) float32.

        Pieces, their summed single cost, bytes and columns, which splits add to; the larger single cost of the next
        piece and the dearest table still whole, over the dearest of all.
        """
        episode, shown = self.episode, np.empty(5, np.float32)
        shown[:4] = self.left / np.where(episode.total > 0, episode.total, 1)
        shown[4] = episode.dearest[self.position]
        return shown

    def place(self, action: int) -> None:
        """Put the next piece on a device, whether it fits or not, or halve it (action K).

        A piece that must not be halved goes to the device with the most room instead.
        """
        episode, position = self.episode, self.position
        piece = self.waiting[position].pop(0)
        halves = episode.halves[position]
        if action == len(self.free) and halves >= 0:
            self._split(piece, halves)
        else:
            if action == len(self.free):
                action = self.free.index(max(self.free))
            self._place(piece, action)
        while position < len(self.waiting) and not self.waiting[position]:
            position += 1
        self.position = position

    def _split(self, piece: int, halves: int) -> None:
        p, order = self.episode.prepared, self.episode.order
        self.splits.append(piece)
        self.waiting[halves] += (piece, len(self.device))
        self.device.append(-1)
        self.left += 2 * p.values[order[halves]] - p.values[order[self.position]]

    def _place(self, piece: int, device: int) -> None:
        p, node = self.episode.prepared, self.episode.order[self.position]
        self.device[piece] = device
        self.placed.append(device)
        self.nodes.append(node)
        self.free[device] = room = self.free[device] - self.episode.sizes[self.position]
        if room < self.least:
            self.least = room
        self.left -= p.values[node]
        if self.sums is not None:
            self.sums[device] += p.embedding[node]  # type: ignore[index]
        if self.room is not None:
            table, part = self._part()
            self.room.place(table, device, part)

    def _part(self) -> tuple[int, int | None]:
        """The next piece's table and, if it is not the whole of it, its bytes, as a room wants to know them."""
        nodes, node = self.episode.prepared.nodes, self.episode.order[self.position]
        return nodes.table[node], self.episode.sizes[self.position] if nodes.level[node] else None

    def mask(self) -> np.ndarray:
        """Where the next piece may go, and last whether it may be halved, a fresh (K + 1,) int8.

        Where it may go nowhere: the split alone if it may be halved, else every device.
        """
        position, episode = self.position, self.episode
        if self.done:
            return np.append(episode.everywhere, np.int8(0))
        fits, may_split = self._fits(), episode.halves[position] >= 0
        if True not in fits:
            fits = [not may_split] * len(fits)
        return np.frombuffer(bytearray((*fits, may_split)), np.int8)

    def _fits(self) -> list[bool]:
        if self.room is not None:
            return self.room.legal(*self._part())[0].tolist()
        size = self.episode.sizes[self.position]
        return [room >= size for room in self.free]

    def plan(self) -> Plan:
        """The plan so far."""
        return Plan(tuple(self.device), tuple(self.splits))

    def latency(self) -> Latency:
        """What the pieces placed so far cost."""
        p = self.episode.prepared
        if p.embedding is None:
            return p.simulator.latency(p.task.split(self.splits), np.array(self.device))
        sums = self.sums
        if sums is None:
            sums = np.zeros((len(self.free), p.embedding.shape[1]))
            np.add.at(sums, self.placed, p.embedding[self.nodes])
        return p.decode(sums)


def room_of(episode: Episode) -> Room | None:
    """A room of its own for an episode of a task with constraints."""
    room = episode.prepared.room
    return None if room is None else room.copy()


AnyState = State | SplitState
