"""The pieces that tables can come in when their columns may be halved, and what may be done with a piece."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from shard_gym.memory.usage import piece_bytes, table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules, kept_whole
from shard_gym.task.task import Constraints, Task

Rows: TypeAlias = int | np.ndarray
MOST_HALVINGS = 3  # a table comes in at most 8 pieces


@dataclass(frozen=True, eq=False)
class Nodes:
    """Node (table, level) stands for the table's pieces with its columns halved `level` times.

    Listed table by table, the whole table first: the halves of a node are pieces of the node after it. Without split
    actions, or where a task forbids them, nodes are tables.
    """

    task: Task
    table: np.ndarray  # (M,) index of each node's table
    level: np.ndarray  # (M,) halvings, 0 for the whole table

    @classmethod
    def of(cls, task: Task, split_action: bool, every: bool = False) -> Nodes:
        """The nodes of a task, with or without split actions; `every` as in `halvings`."""
        counts = 1 + (halvings(task, every) if split_action else np.zeros(task.num_tables, np.int64))
        table = np.repeat(np.arange(task.num_tables), counts)
        level = np.arange(len(table)) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(task, table, level)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def whole(self) -> np.ndarray:
        """The nodes of level 0, one for each table in its order, (N,)."""
        return np.flatnonzero(self.level == 0)

    @cached_property
    def may_split(self) -> np.ndarray:
        """True for nodes whose pieces may be halved, (M,) bool."""
        return np.append(self.level[1:] > 0, False)

    @cached_property
    def pieces(self) -> Task:
        """A task that holds one piece of every node, for what depends on a table alone: bytes, features, embeddings."""
        if len(self) == self.task.num_tables:
            return self.task
        tables = self.task.tables.take(self.table)
        halved = tables.with_(dim=tables.dim >> self.level.astype(np.int32))
        return replace(self.task, tables=halved, constraints=Constraints())

    @cached_property
    def size(self) -> np.ndarray:
        """Bytes of a piece of each node on its device, (M,) int64."""
        return piece_bytes(self.task, self.table, self.task.tables.dim[self.table] >> self.level)

    def clamped(self, key: np.ndarray) -> np.ndarray:
        """A key of each node, made no larger than that of the node it is half of, (M,)."""
        key = key.copy()
        for level in range(1, int(self.level.max()) + 1):
            half = np.flatnonzero(self.level == level)
            key[half] = np.minimum(key[half], key[half - 1])
        return key

    def by_table(self, order: np.ndarray) -> np.ndarray:
        """All nodes, (M,), in an order of their tables, (N,); those of one table by level."""
        if len(self) == len(order):
            return order
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return np.argsort(rank[self.table], kind="stable")

    def plan(self, node: np.ndarray, device: np.ndarray) -> Plan:
        """A plan of these nodes' pieces, each on its device: tables are halved until their pieces are there."""
        if len(node) == self.task.num_tables:
            placement = np.empty(len(node), np.int64)
            placement[self.table[node]] = device
            return Plan(tuple(placement.tolist()))
        wanted: dict[int, list[int]] = {}
        for n, d in zip(node.tolist(), device.tolist(), strict=True):
            wanted.setdefault(n, []).append(d)
        placed = [-1] * self.task.num_tables
        splits: list[int] = []
        for table, first in enumerate(self.whole.tolist()):
            waiting, current = [table], first
            while waiting:
                for d in wanted.get(current, ()):
                    placed[waiting.pop()] = d
                splits += waiting
                halves = list(range(len(placed), len(placed) + len(waiting)))
                placed += [-1] * len(halves)
                waiting, current = waiting + halves, current + 1
        return Plan(tuple(placed), tuple(splits))


def halvings(task: Task, every: bool = False) -> np.ndarray:
    """Times that each table's columns may be halved, (N,): a half has a multiple of 4 columns, as Task.split wants.

    Tables whose device is constrained stay whole, unless `every` halving that a plan may make is asked for.
    """
    times = np.zeros(task.num_tables, np.int64)
    if task.splits_allowed:
        for level in range(1, MOST_HALVINGS + 1):
            times += task.tables.dim % (4 << level) == 0
        times[list(task.constraints.no_split) if every else kept_whole(task)] = 0
    return times


@dataclass(eq=False)
class Options:
    """Choices for pieces of tables, of one task or of several side by side; a row for each piece.

    Option d puts a piece on device d. Options after those change the piece, as halving does, and put nothing anywhere:
    `changes` says which a piece has. (Where tables may be of all kinds of sharding, see `shard_gym.plan.ways`.)
    """

    size: np.ndarray  # (R, 1) bytes of a piece
    vector: np.ndarray  # (R, 1, H) what it adds to its device's sum
    table: np.ndarray  # (R,) whose constraints count; -1: no rule speaks of the piece
    changes: np.ndarray  # (R, X)
    tasks: list[Task]
    capacity: np.ndarray  # (T, K) bytes of each task's devices
    rules: Rules  # of all tasks
    held: np.ndarray  # bytes of each table's group, by the rows of `rules`

    @classmethod
    def of(cls, task: Task, vector: np.ndarray | None = None, rules: Rules | None = None) -> Options:
        """The whole tables of a task, each on one device; `vector` (N, H) is what they add to sums."""
        rules = Rules.of(task) if rules is None else rules
        return cls.of_pieces(task, table_bytes(task), np.arange(task.num_tables), vector, rules)

    @classmethod
    def of_pieces(
        cls,
        task: Task,
        size: np.ndarray,
        table: np.ndarray,
        vector: np.ndarray | None,
        rules: Rules,
        changes: np.ndarray | None = None,
    ) -> Options:
        """Pieces of a task's tables, each on one device: bytes (R,), tables (R,), vectors (R, H), changes (R, X)."""
        held, whole = np.zeros(task.num_tables, np.int64), np.flatnonzero(table >= 0)
        held[table[whole]] = size[whole]
        return cls(
            size=size[:, None],
            vector=np.zeros((len(size), 1, 0)) if vector is None else vector[:, None],
            table=table,
            changes=np.zeros((len(size), 0), bool) if changes is None else changes,
            tasks=[task],
            capacity=task.capacity[None],
            rules=rules,
            held=np.append(rules.merged(held), 0)[rules.leader],
        )

    @property
    def count(self) -> int:
        """Options that put a piece somewhere."""
        return self.capacity.shape[1]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each piece."""
        return self.size[:, 0].tolist()

    @cached_property
    def anywhere(self) -> list[np.ndarray]:
        """The mask of each piece if it may go anywhere, int8; copy before you hand it out."""
        masks: dict[bytes, np.ndarray] = {}  # pieces share them: they stay in the cache
        keys = [changes.tobytes() for changes in self.changes] if self.changes.size else [b""] * len(self.changes)
        for key in set(keys):
            masks[key] = np.append(np.ones(self.count, np.int8), np.frombuffer(key, np.int8))
        return [masks[key] for key in keys]
