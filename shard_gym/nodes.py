"""The pieces that a task's tables can come in when an episode may halve their columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shard_gym.room import kept_whole
from shard_gym.tasks import Constraints, Task

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
        """Whether a piece of each node may be halved, (M,) bool."""
        return np.append(self.level[1:] > 0, False)

    @cached_property
    def pieces(self) -> Task:
        """A task that holds one piece of every node, for what depends on a table alone: bytes, features, embeddings."""
        if len(self) == self.task.num_tables:
            return self.task
        tables = self.task.tables.take(self.table)
        halved = tables.with_(dim=tables.dim >> self.level.astype(np.int32))
        return replace(self.task, tables=halved, constraints=Constraints())

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


def halvings(task: Task, every: bool = False) -> np.ndarray:
    """How often each table's columns may be halved, (N,): a half has a multiple of 4 columns, as Task.split wants.

    Tables whose device is constrained stay whole, unless `every` halving that a plan may make is asked for.
    """
    times = np.zeros(task.num_tables, np.int64)
    if task.splits_allowed:
        for level in range(1, MOST_HALVINGS + 1):
            times += task.tables.dim % (4 << level) == 0
        times[list(task.constraints.no_split) if every else kept_whole(task)] = 0
    return times
