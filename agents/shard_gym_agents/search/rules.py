"""Counts of what placements under search break of their task's constraints: rivals together, moves too many."""

from __future__ import annotations

from copy import copy

import numpy as np

from shard_gym.plan.rules import Rules
from shard_gym.task.task import Task

FORBIDDEN = 2**40  # rules that count as broken where a pinned table leaves its device


class Standing:
    """Counts of `count` placements side by side; groups of tables go by their leaders."""

    def __init__(self, task: Task, rules: Rules, count: int = 1) -> None:
        self.rules = rules
        self.near = np.zeros((count, rules.apart.shape[1], task.num_devices), np.int64)  # rivals on each device
        self.left = np.full(count, task.constraints.max_moves or 0)  # moves that may still be made

    def copy(self) -> Standing:
        """The same placements, to change apart from these."""
        other = copy(self)
        other.near, other.left = self.near.copy(), self.left.copy()
        return other

    def put(self, each: np.ndarray | int, table: np.ndarray | int, device: np.ndarray | int, times: int = 1) -> None:
        """A table comes to a device in each of some placements, or leaves it; a placement may be named repeatedly."""
        rules = self.rules
        each, table, device = np.broadcast_arrays(each, table, device)
        ruled = rules.rival[table] >= 0
        rows = rules.apart[table[ruled]]
        np.add.at(self.near.swapaxes(1, 2), (each[ruled], device[ruled]), times * rows)  # type: ignore[arg-type]
        if rules.away is not None:
            np.subtract.at(self.left, each, times * rules.away[table, device])

    def breaks(
        self, table: np.ndarray | int, source: np.ndarray | int, target: np.ndarray | int, other: np.ndarray | int = -1
    ) -> np.ndarray:
        """Rules more that the first placement breaks if a table goes from `source` to `target`, where `other` comes
        from (-1: none does); broadcast."""
        rules, near = self.rules, self.near[0]
        mine, theirs = rules.rival[table], rules.rival[other]
        more = near[mine, target] - near[mine, source] + near[theirs, source] - near[theirs, target]
        more = more - 2 * rules.apart[table, theirs]
        if rules.away is not None:
            left = self.left[0]
            more = more + np.maximum(self.spent(table, source, target, other) - left, 0) - max(0, -left)
        return np.where(rules.allowed[table, target] & rules.allowed[other, source], more, FORBIDDEN)

    def spent(
        self, table: np.ndarray | int, source: np.ndarray | int, target: np.ndarray | int, other: np.ndarray | int = -1
    ) -> np.ndarray:
        """Moves that such a change takes, where only so many tables may; below 0 where tables come home; broadcast."""
        away = self.rules.away
        assert away is not None
        return away[table, target] - away[table, source] + away[other, source] - away[other, target]

    def troubled(self, table: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Counts of the rules that each table of the first placement has a part in breaking, (P,)."""
        rules = self.rules
        trouble = self.near[0][rules.rival[table], device]
        if rules.away is not None and self.left[0] < 0:
            trouble = trouble + (rules.away[table, device] > rules.away[table, rules.home[table]])
        return trouble

    def broken(self, table: np.ndarray, device: np.ndarray) -> int:
        """Pairs on one device that must be apart, and moves too many, of the first placement."""
        pairs = self.near[0][self.rules.rival[table], device].sum() // 2
        return int(pairs) + (max(0, -int(self.left[0])) if self.rules.away is not None else 0)
