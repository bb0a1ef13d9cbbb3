"""What split actions add to the states of a vector environment: how many pieces wait at each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_gym.vector.shelf import Shelf, widened

if TYPE_CHECKING:
    from shard_gym.vector.states import States


class Pieces:
    """The pieces of each environment's tables, counted. Which number `Task.split` gives them is in the replay only."""

    def __init__(self, shelf: Shelf, num_envs: int) -> None:
        n = num_envs
        self.shelf = shelf
        self.waiting = np.zeros((n, 0), np.int8)  # at each position; 1 at the end
        self.placed = np.zeros(n, np.int64)
        self.count = np.ones(n, np.int64)  # tables and splits
        self.steps = np.zeros(n, np.int64)
        self.left = np.zeros((n, 4))  # `amounts` that wait; for "full" and "ahead"
        self.unit = np.ones((n, 4))  # what was left at the start
        self._first = np.zeros(n, np.int64)

    def widen(self) -> None:
        """Make room for the longest queue on the shelf."""
        self.waiting = widened(self.waiting, self.shelf.most_positions + 1)
        self._first = self.waiting.shape[1] * np.arange(len(self.waiting))

    def begin(self, envs: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> None:
        """Every table waits whole; `rows` are those of the positions, (c, P + 1)."""
        of = self.shelf.slots
        self.waiting[envs, : rows.shape[1]] = self.shelf.rows.whole[rows]
        self.placed[envs], self.count[envs], self.steps[envs] = 0, of.tables[slots], 0
        if self.shelf.full:
            self.left[envs] = total = of.total[slots]
            self.unit[envs] = np.where(total > 0, total, 1)

    def act(self, actions: np.ndarray, states: States) -> tuple[np.ndarray, np.ndarray]:
        """What is really done, and which environments split: a piece that must not be split is placed."""
        asked = actions == states.num_devices
        splits = asked & (self._halves(states) >= 0)
        instead = np.flatnonzero(asked & ~splits)
        if len(instead):
            actions = actions.copy()
            actions[instead] = states.free[instead].argmax(axis=1)
        return actions, splits

    def move(self, splits: np.ndarray, states: States) -> None:
        """Take the piece from its position, put its halves to theirs, and go to where the next one waits."""
        waiting, halving, rows = self.waiting.reshape(-1), np.flatnonzero(splits), self.shelf.rows
        waiting[self._first + states.position] -= 1
        to = self._halves(states)[halving]
        waiting[self._first[halving] + to] += 2
        if self.shelf.full:
            self.left -= rows.amounts.take(states.row, axis=0)
            at = states.first[halving] + to
            self.left[halving] += 2 * rows.amounts[at if states.orders is None else states.orders.row.reshape(-1)[at]]
        self.placed += ~splits
        self.count += splits
        self.steps += 1
        states.position = self.waiting.view(bool).argmax(axis=1)

    def masks(self, devices: np.ndarray, nowhere: np.ndarray, states: States) -> np.ndarray:
        """With a last entry for the split; where a piece that may be split fits nowhere, the only one."""
        halves = self._halves(states) >= 0
        devices[nowhere] = ~halves[nowhere, None]
        return np.concatenate([devices, halves[:, None]], axis=1, dtype=np.int8, casting="unsafe")

    def _halves(self, states: States) -> np.ndarray:
        halves = self.shelf.rows.halves if states.orders is None else states.orders.halves.reshape(-1)
        return halves.take(states.at)
