"""The tasks of a vector environment as arrays, so that episodes of different tasks can be stepped at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from shard_gym.envs.bank import Settings
from shard_gym.envs.episodes import Episode, Prepared
from shard_gym.envs.observations import LIMIT, STATE, WIDTH, put_next
from shard_gym.plan.nodes import Nodes, Options
from shard_gym.plan.rules import Rules
from shard_gym.task.task import Constraints, Task

ANYWHERE = np.int64(-(2**62))  # bytes of what waits at the end of a queue: fits wherever there is room or none


@dataclass
class Rows:
    """A row for each position of each task's queue and one for its end, task after task."""

    shown: np.ndarray  # (R, 22) float32, the "table" observation
    node: np.ndarray  # (R,) int64; at the end the number of nodes
    table: np.ndarray  # (R,) int64 the node's table; at the end the number of tables
    whole: np.ndarray  # (R,) int8, 1 where a table waits when the episode begins, and at the end
    halves: np.ndarray  # (R,) int64 position where the halves of a piece wait; -1: it must not be split
    form: np.ndarray  # (R,) int64 row of the table's first form, where tables are of all kinds; of any at the end
    # for "full", "ahead" and "flat" only:
    amounts: np.ndarray  # (R, 4) what a piece counts for in what remains
    alone: np.ndarray  # (R,) single cost, ms
    remaining: np.ndarray  # (R, 5) float32; with split actions its last column only
    flat: np.ndarray  # (R, 29) float32, the first columns of "flat", for it only; what queues change is not to be read


@dataclass
class Slots:
    """A slot for each task."""

    start: np.ndarray  # its first row
    room: np.ndarray  # rows set aside for it
    length: np.ndarray  # positions of its queue
    tables: np.ndarray
    group: np.ndarray  # of tasks that a simulator decodes alike
    largest: np.ndarray  # bytes of the largest device
    speed: np.ndarray  # (S, K) over the fastest
    episode: np.ndarray  # in the order that all episodes of the task share, as objects
    hash: np.ndarray  # of the task, as objects
    # for rewards that are `scored` only:
    worst: np.ndarray  # ms
    reference: np.ndarray  # ms
    # for "full", "ahead" and "flat" only:
    even_share: np.ndarray  # (S, H)
    total_cost: np.ndarray  # ms
    total: np.ndarray  # (S, 4) what remains at the start


Columns = TypeVar("Columns", Rows, Slots)


def grown(columns: Columns, length: int) -> Columns:
    """The same columns with room for at least `length` entries, and for some more."""

    old = {f.name: getattr(columns, f.name) for f in fields(columns)}
    return replace(columns, **{name: lengthened(c, max(length, len(c) * 3 // 2)) for name, c in old.items()})


def lengthened(old: np.ndarray, length: int) -> np.ndarray:
    """The same array, (L, ...), with so many entries."""
    return np.concatenate([old, np.zeros((length - len(old), *old.shape[1:]), old.dtype)])


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

    def __init__(self, settings: Settings) -> None:
        self.settings, bank = settings, settings.bank
        self.num_devices, self.full = bank.tasks[0].num_devices, settings.shown.needs_sums
        embedding = bank.prepared(bank.tasks[0], settings.simulator).embedding
        self.width = 0 if embedding is None else embedding.shape[1]
        all_nodes = [Nodes.of(task, bank.split_action) for task in bank.tasks]
        self.most_positions = max(len(nodes) for nodes in all_nodes)
        self.most_steps = max(self.steps(nodes) for nodes in all_nodes)
        self.rows = self._empty_rows(sum(len(nodes) + 1 for nodes in all_nodes))
        self.slots = self._empty_slots(len(all_nodes))
        self.options = self._empty_options(bank.tasks)
        self.groups: list[Task] = []
        self.num_slots = len(all_nodes)
        self._used = 0  # rows

    @property
    def num_tasks(self) -> int:
        """Tasks of the bank."""
        return len(self.settings.bank.tasks)

    def fill(self, slots: np.ndarray) -> None:
        """Prepare tasks of the bank that were not drawn before."""
        if not (new := self.slots.room[slots] == 0).any():
            return
        for slot in np.unique(slots[new]).tolist():
            self._put(slot, self.settings.episode(self.settings.bank.tasks[slot], slot))
            if self.options.rules.binding:
                self._hold(slot)

    def given(self, task: Task, in_use: np.ndarray) -> int:
        """The slot of a task of the caller's, found in the bank or put beside it; `in_use`: slots of episodes."""
        index = self.settings.find(task)
        if index is not None:
            self.fill(np.array([index]))
            return index
        outside = range(self.num_tasks, self.num_slots)
        for slot in outside:
            if self.slots.hash[slot] == task.hash:
                return slot
        needed, free = len(Nodes.of(task, self.settings.bank.split_action)) + 1, set(outside) - set(in_use.tolist())
        slot = max(free, key=lambda s: self.slots.room[s] >= needed, default=self.num_slots)
        if slot == self.num_slots:
            self.num_slots += 1
            self.slots = grown(self.slots, slot + 1) if slot >= len(self.slots.room) else self.slots
            self._add_task(task)
        self._set_task(slot, task)
        self._put(slot, self.settings.episode(task, None))
        self._set_rules()
        return slot

    def _put(self, slot: int, episode: Episode) -> None:
        p, length, slots = episode.prepared, len(episode.order), self.slots
        if slots.room[slot] <= length:
            if self._used + length >= len(self.rows.node):
                self._grow(self._used + length + 1)
            slots.start[slot], slots.room[slot] = self._used, length + 1
            self._used += length + 1
        slots.episode[slot], task = episode, p.task
        self.most_positions = max(self.most_positions, length)
        self.most_steps = max(self.most_steps, self.steps(p.nodes))
        self._put_rows(slice(int(slots.start[slot]), int(slots.start[slot]) + length + 1), episode)
        self._put_options(slot, episode)
        slots.length[slot], slots.tables[slot] = length, task.num_tables
        slots.group[slot], slots.hash[slot] = self._group(task), task.hash
        slots.largest[slot], slots.speed[slot] = max(task.memory), p.speed
        if self.settings.paid.scored:
            slots.worst[slot], slots.reference[slot] = p.worst, p.reference
        if self.full:
            slots.even_share[slot], slots.total_cost[slot] = p.even_share, p.total_cost
            slots.total[slot] = episode.total

    def steps(self, nodes: Nodes) -> int:
        """The most steps of an episode: every piece that there can be is split or placed once."""
        return int((1 << nodes.level).sum())

    def _add_task(self, task: Task) -> None:
        """Make room for one more task."""
        self.options.tasks.append(task)
        self.options.capacity = np.append(self.options.capacity, task.capacity[None], axis=0)

    def _set_task(self, slot: int, task: Task) -> None:
        self.options.tasks[slot], self.options.capacity[slot] = task, task.capacity

    def _put_options(self, slot: int, episode: Episode) -> None:
        """Put the options of an episode's pieces to their rows."""
        options, new, order = self.options, episode.prepared.options, episode.order
        start = int(self.slots.start[slot])
        end = start + len(order)
        body = slice(start, end)
        options.size[body], options.size[end] = new.size[order], ANYWHERE
        options.vector[body], options.vector[end] = new.vector[order], 0
        options.table[body], options.table[end] = new.table[order], -1
        options.changes[body], options.changes[end] = new.changes[order], False
        if self.settings.observation == "flat":
            self._put_flat(slice(start, end + 1), episode.prepared)

    def _put_flat(self, block: slice, p: Prepared) -> None:
        """Put what "flat" shows of each next piece to its row."""
        rows, share, size = self.rows, p.total_cost / self.num_devices, np.maximum(self.options.size[block], 0)
        alone, size = rows.alone[block, None] / share, size / max(p.task.memory)
        put_next(rows.flat[block], rows.shown[block], alone, size, rows.remaining[block])
        np.clip(rows.flat[block], -LIMIT, LIMIT, out=rows.flat[block])

    def _put_rows(self, block: slice, episode: Episode) -> None:
        p, order, rows = episode.prepared, episode.order, self.rows
        body, end = slice(block.start, block.stop - 1), block.stop - 1
        rows.shown[block] = episode.rows
        rows.node[body], rows.node[end] = order, len(order)
        rows.table[body], rows.table[end] = p.nodes.table[order], p.task.num_tables
        rows.whole[body], rows.whole[end] = p.nodes.level[order] == 0, 1
        rows.halves[body], rows.halves[end] = episode.halves, -1
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

    def _grow(self, length: int) -> None:
        """Make room for so many rows, and for some more."""
        self.rows = grown(self.rows, length)
        self._grow_options(len(self.rows.node))

    def _grow_options(self, length: int) -> None:
        for name in ("size", "vector", "table", "changes"):
            setattr(self.options, name, lengthened(getattr(self.options, name), length))

    def _set_rules(self) -> None:
        """Take up the constraints of all tasks, if any has some."""
        options, each = self.options, [Rules.of(task) for task in self.options.tasks]
        if any(rules.binding for rules in each) or options.rules.binding:
            options.rules = Rules.side_by_side(each)
            options.held = np.zeros(len(options.rules.leader), np.int64)
            for slot in np.flatnonzero(self.slots.room).tolist():
                self._hold(slot)

    def held(self, prepared: Prepared) -> np.ndarray:
        """Bytes of each table's group, by the rows of its rules."""
        return prepared.options.held

    def _hold(self, slot: int) -> None:
        first, held = self.options.rules.first, self.held(self.slots.episode[slot].prepared)
        self.options.held[first[slot] : first[slot + 1]] = held[:-1]

    def _empty_options(self, tasks: Sequence[Task]) -> Options:
        """Options with as many rows as `rows`, and the tasks' constraints if any has some."""
        count, rules = len(self.rows.node), rules_of(tasks)
        return Options(
            size=np.zeros((count, 1), np.int64),
            vector=np.zeros((count, 1, self.width)),
            table=np.zeros(count, np.int64),
            changes=np.zeros((count, int(self.settings.bank.split_action)), bool),
            tasks=list(tasks),
            capacity=np.stack([task.capacity for task in tasks]),
            rules=rules,
            held=np.zeros(len(rules.leader), np.int64),
        )

    def _empty_rows(self, count: int) -> Rows:
        few = count if self.full else 0
        return Rows(
            shown=np.zeros((count, WIDTH), np.float32),
            node=np.zeros(count, np.int64),
            table=np.zeros(count, np.int64),
            whole=np.zeros(count, np.int8),
            halves=np.zeros(count, np.int64),
            form=np.zeros(count, np.int64),
            amounts=np.zeros((few, 4)),
            alone=np.zeros(few),
            remaining=np.zeros((few, 5), np.float32),
            flat=np.zeros((few if self.settings.observation == "flat" else 0, STATE), np.float32),
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
            largest=zeros(),
            episode=zeros(dtype=object),
            hash=zeros(dtype=object),
            worst=zeros(dtype=float),
            reference=zeros(dtype=float),
            speed=zeros(devices, dtype=float),
            even_share=zeros(width, dtype=float),
            total_cost=zeros(dtype=float),
            total=zeros(4, dtype=float),
        )


def rules_of(tasks: Sequence[Task]) -> Rules:
    """The rules of all tasks, or of the first one if none has any that bind."""
    each = [Rules.of(task) for task in tasks if task.constraints != Constraints()]
    binding = any(rules.binding for rules in each)
    return Rules.side_by_side([Rules.of(task) for task in tasks]) if binding else Rules.of(tasks[0])


def decoded_alike(task: Task, other: Task) -> bool:
    """True if a simulator decodes sums of both tasks in one call: what it may ask them is the same.

    Tables, memory and constraints are not asked: what they have to do with costs is in the embeddings.
    """
    same = ("objective", "batch", "speed", "links", "optimizer", "accounting", "kinds", "residences", "host_link")
    return all(getattr(task, name) == getattr(other, name) for name in same)
