"""The tasks of a vector environment as arrays, so that episodes of different tasks can be stepped at once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from shard_gym.env import ShardingEnv
from shard_gym.episodes import FIXED_ORDERS, Episode
from shard_gym.nodes import Nodes
from shard_gym.observations import WIDTH
from shard_gym.tasks import Task

ANYWHERE = np.int64(-(2**62))  # bytes of what waits at the end of a queue: fits wherever there is room or none


@dataclass
class Rows:
    """A row for each position of each task's queue and one for its end, task after task."""

    shown: np.ndarray  # (R, 22) float32, the "table" observation
    size: np.ndarray  # (R,) int64 bytes of a piece
    embedding: np.ndarray  # (R, H) float64
    node: np.ndarray  # (R,) int64; at the end the number of nodes
    table: np.ndarray  # (R,) int64 the node's table; at the end the number of tables
    whole: np.ndarray  # (R,) int8, 1 where a table waits when the episode begins, and at the end
    halves: np.ndarray  # (R,) int64 position where the halves of a piece wait; -1: it must not be split
    # for "full" and "ahead" only:
    amounts: np.ndarray  # (R, 4) what a piece counts for in what remains
    alone: np.ndarray  # (R,) single cost, ms
    remaining: np.ndarray  # (R, 5) float32; with split actions its last column only


@dataclass
class Slots:
    """A slot for each task."""

    start: np.ndarray  # its first row
    room: np.ndarray  # rows set aside for it
    length: np.ndarray  # positions of its queue
    tables: np.ndarray
    group: np.ndarray  # of tasks that a simulator decodes alike
    capacity: np.ndarray  # (S, K) bytes
    least: np.ndarray  # bytes of the smallest device
    largest: np.ndarray  # and of the largest
    speed: np.ndarray  # (S, K) over the fastest
    episode: np.ndarray  # in the order that all episodes of the task share, as objects
    hash: np.ndarray  # of the task, as objects
    constrained: np.ndarray  # bool
    # for "latency" and "dense" only:
    worst: np.ndarray  # ms
    reference: np.ndarray  # ms
    # for "full" and "ahead" only:
    even_share: np.ndarray  # (S, H)
    total_cost: np.ndarray  # ms
    total: np.ndarray  # (S, 4) what remains at the start


Columns = TypeVar("Columns", Rows, Slots)


def grown(columns: Columns, length: int) -> Columns:
    """The same columns with room for at least `length` entries, and for some more."""

    def longer(old: np.ndarray) -> np.ndarray:
        new = np.zeros((max(length, len(old) * 3 // 2), *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        return new

    return replace(columns, **{f.name: longer(getattr(columns, f.name)) for f in fields(columns)})


def widened(old: np.ndarray, width: int) -> np.ndarray:
    """The same array, (n, W, ...), with room for at least `width` entries a row."""
    if old.shape[1] >= width:
        return old
    new = np.zeros((len(old), width, *old.shape[2:]), old.dtype)
    new[:, : old.shape[1]] = old
    return new


class Shelf:
    """The tasks that episodes are on: those of the bank in its order, each prepared when it is first drawn, then
    those that `reset` was given. The latter's slots are used again when no episode needs them."""

    def __init__(self, env: ShardingEnv) -> None:
        self.env, self.num_devices = env, env.num_devices
        self.full, self.scored = env._shown.needs_sums, env.reward != "balance"
        first = self._prepared(env.bank.tasks[0], None)
        self.width = 0 if first.prepared.embedding is None else first.prepared.embedding.shape[1]
        all_nodes = [Nodes.of(task, env.bank.split_action) for task in env.bank.tasks]
        self.most_positions = max(len(nodes) for nodes in all_nodes)
        self.most_steps = max(steps(nodes) for nodes in all_nodes)
        self.rows = self._empty_rows(sum(len(nodes) + 1 for nodes in all_nodes))
        self.slots = self._empty_slots(len(all_nodes))
        self.groups: list[Task] = []
        self.num_slots = len(all_nodes)
        self._used = 0  # rows

    @property
    def num_tasks(self) -> int:
        """Of the bank."""
        return len(self.env.bank.tasks)

    def fill(self, slots: np.ndarray) -> None:
        """Prepare tasks of the bank that were not drawn before."""
        if not (new := self.slots.room[slots] == 0).any():
            return
        for slot in np.unique(slots[new]).tolist():
            self._put(slot, self._prepared(self.env.bank.tasks[slot], slot))

    def given(self, task: Task, in_use: np.ndarray) -> int:
        """The slot of a task of the caller's, found in the bank or put beside it; `in_use`: slots of episodes."""
        index = self.env._find(task)
        if index >= 0:
            self.fill(np.array([index]))
            return index
        outside = range(self.num_tasks, self.num_slots)
        for slot in outside:
            if self.slots.hash[slot] == task.hash:
                return slot
        needed, free = len(Nodes.of(task, self.env.bank.split_action)) + 1, set(outside) - set(in_use.tolist())
        slot = max(free, key=lambda s: self.slots.room[s] >= needed, default=self.num_slots)
        if slot == self.num_slots:
            self.num_slots += 1
            self.slots = grown(self.slots, slot + 1) if slot >= len(self.slots.room) else self.slots
        self._put(slot, self._prepared(task, None))
        return slot

    def _prepared(self, task: Task, index: int | None) -> Episode:
        env = self.env
        prepared = env.bank.prepared(task, env.simulator, index if self.scored else None)
        return Episode(prepared, FIXED_ORDERS["given" if env.order == "random" else env.order](prepared))

    def _put(self, slot: int, episode: Episode) -> None:
        p, length, slots = episode.prepared, len(episode.order), self.slots
        if slots.room[slot] <= length:
            self.rows = grown(self.rows, self._used + length + 1) if self._used + length >= self._rows else self.rows
            slots.start[slot], slots.room[slot] = self._used, length + 1
            self._used += length + 1
        slots.episode[slot], task = episode, p.task
        self.most_positions = max(self.most_positions, length)
        self.most_steps = max(self.most_steps, steps(p.nodes))
        self._put_rows(slice(int(slots.start[slot]), int(slots.start[slot]) + length + 1), episode)
        slots.length[slot], slots.tables[slot] = length, task.num_tables
        slots.group[slot], slots.hash[slot] = self._group(task), task.hash
        slots.constrained[slot] = p.room is not None
        slots.capacity[slot], slots.least[slot], slots.largest[slot] = task.capacity, min(task.memory), max(task.memory)
        slots.speed[slot] = p.speed
        if self.scored:
            slots.worst[slot], slots.reference[slot] = p.worst, p.reference
        if self.full:
            slots.even_share[slot], slots.total_cost[slot] = p.even_share, p.total_cost
            slots.total[slot] = episode.total

    def _put_rows(self, block: slice, episode: Episode) -> None:
        p, order, rows = episode.prepared, episode.order, self.rows
        body, end = slice(block.start, block.stop - 1), block.stop - 1
        rows.shown[block] = episode.rows
        rows.size[body], rows.size[end] = p.sizes[order], ANYWHERE
        rows.node[body], rows.node[end] = order, len(order)
        rows.table[body], rows.table[end] = p.nodes.table[order], p.task.num_tables
        rows.whole[body], rows.whole[end] = p.nodes.level[order] == 0, 1
        rows.halves[body], rows.halves[end] = episode.halves, -1
        rows.embedding[body], rows.embedding[end] = 0 if p.embedding is None else p.embedding[order], 0
        if not self.full:
            return
        rows.alone[body], rows.alone[end] = p.alone[order], 0
        rows.amounts[body], rows.amounts[end] = p.values[order], 0
        if p.split_action:
            rows.remaining[block, 4] = episode.dearest
        else:
            rows.amounts[body, 1] = p.alone[order]  # not rounded: nothing is taken off again
            rows.remaining[block] = episode.remaining

    def _group(self, task: Task) -> int:
        for i, other in enumerate(self.groups):
            if decoded_alike(task, other):
                return i
        self.groups.append(task)
        return len(self.groups) - 1

    @property
    def _rows(self) -> int:
        return len(self.rows.size)

    def _empty_rows(self, count: int) -> Rows:
        few = count if self.full else 0
        return Rows(
            shown=np.zeros((count, WIDTH), np.float32),
            size=np.zeros(count, np.int64),
            embedding=np.zeros((count, self.width)),
            node=np.zeros(count, np.int64),
            table=np.zeros(count, np.int64),
            whole=np.zeros(count, np.int8),
            halves=np.zeros(count, np.int64),
            amounts=np.zeros((few, 4)),
            alone=np.zeros(few),
            remaining=np.zeros((few, 5), np.float32),
        )

    def _empty_slots(self, count: int) -> Slots:
        def zeros(*shape: int, dtype: type = np.int64) -> np.ndarray:
            return np.zeros((count, *shape), dtype)

        devices, width = self.num_devices, self.width
        return Slots(
            start=zeros(),
            room=zeros(),
            length=zeros(),
            tables=zeros(),
            group=zeros(),
            capacity=zeros(devices),
            least=zeros(),
            largest=zeros(),
            episode=zeros(dtype=object),
            hash=zeros(dtype=object),
            constrained=zeros(dtype=bool),
            worst=zeros(dtype=float),
            reference=zeros(dtype=float),
            speed=zeros(devices, dtype=float),
            even_share=zeros(width, dtype=float),
            total_cost=zeros(dtype=float),
            total=zeros(4, dtype=float),
        )


def steps(nodes: Nodes) -> int:
    """The most steps of an episode: every piece that there can be is split or placed once."""
    return int((1 << nodes.level).sum())


def decoded_alike(task: Task, other: Task) -> bool:
    """Whether a simulator decodes sums of both tasks in one call: what it may ask them is the same.

    Tables, memory and constraints are not asked: what they have to do with costs is in the embeddings.
    """
    same = ("objective", "batch", "speed", "links", "optimizer", "accounting")
    return all(getattr(task, name) == getattr(other, name) for name in same)
