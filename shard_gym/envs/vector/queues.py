"""Queues of episodes that have an order of their own, `order="random"`, or pieces that may be halved."""

from __future__ import annotations

import numpy as np

from shard_gym.envs.episodes import hashed
from shard_gym.envs.vector.shelf import Shelf, widened

_LAST = np.uint64(2**64 - 1)


class Orders:
    """Values of the shelf for each position where all episodes of a task share an order; here each environment has
    its own, (n, P + 1)."""

    def __init__(self, shelf: Shelf, num_envs: int) -> None:
        self.shelf = shelf
        self.row = np.zeros((num_envs, 0), np.int64)
        self.halves = np.zeros((num_envs, 0), np.int64)
        self.remaining = np.zeros((num_envs, 0, 5), np.float32)
        self.first = np.zeros(num_envs, np.int64)

    def widen(self) -> None:
        """Make room for the longest queue on the shelf."""
        width = self.shelf.most_positions + 1
        self.row, self.halves, self.remaining = (widened(a, width) for a in (self.row, self.halves, self.remaining))
        self.first = width * np.arange(len(self.row))

    def begin(self, envs: np.ndarray, slots: np.ndarray, keys: np.ndarray) -> None:
        """Shuffle the tables of new episodes by their hashes, as `episodes.shuffled` does."""
        of, rows = self.shelf.slots, self.shelf.rows
        start, length, tables = of.start[slots, None], of.length[slots, None], of.tables[slots, None]
        places = np.arange(self.row.shape[1])
        ranks = hashed(keys[:, None], places[None].astype(np.uint64))
        ranks[places >= tables] = _LAST
        order = np.argsort(ranks, axis=1, kind="stable")
        if self.shelf.settings.bank.split_action:
            rank, last = _inverse(order), np.minimum(places, length)
            after = np.take_along_axis(rank, rows.table[start + last], axis=1)
            after[places > length] = len(places)
            order = np.argsort(after, axis=1, kind="stable")
            self.halves[envs] = self._halves(start + last, order)
        self.row[envs] = ordered = start + np.minimum(order, length)
        if self.shelf.full:
            self.remaining[envs] = self._remaining(ordered)

    def _halves(self, row_of_node: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Positions where the halves of nodes wait: those of the nodes after them."""
        position, halved = _inverse(order), self.shelf.rows.halves[row_of_node] >= 0
        after = np.where(halved, np.roll(position, -1, axis=1), -1)
        return np.take_along_axis(after, order, axis=1)

    def _remaining(self, rows: np.ndarray) -> np.ndarray:
        """Remains like `Episode.remaining`; with split actions only the last column, as `Episode.dearest`."""
        of, left = self.shelf.rows, np.zeros((*rows.shape, 5))
        if self.shelf.settings.bank.split_action:
            alone = of.alone[rows]
            whole = np.where(of.whole[rows] > 0, alone, 0)
            later = np.maximum.accumulate(whole[:, ::-1], axis=1)[:, ::-1]
            left[..., 4], top = np.maximum(alone, later), later[:, :1, None]
        else:
            amounts = of.amounts[rows][:, ::-1]
            left[..., :4] = np.cumsum(amounts, axis=1)[:, ::-1]
            left[..., 4] = np.maximum.accumulate(amounts[..., 1], axis=1)[:, ::-1]
            top = left[:, :1]
        return (left / np.where(top > 0, top, 1)).astype(np.float32)


def _inverse(order: np.ndarray) -> np.ndarray:
    """Positions of the entries of permutations, (c, W)."""
    where = np.empty_like(order)
    np.put_along_axis(where, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    return where


class Pieces:
    """The pieces of each environment's tables, counted; `at` is where an environment is in all positions' columns."""

    def __init__(self, shelf: Shelf, num_envs: int) -> None:
        n = num_envs
        self.shelf = shelf
        self.waiting = np.zeros((n, 0), np.int8)  # at each position; 1 at the end
        self.placed = np.zeros(n, np.int64)
        self.count = np.ones(n, np.int64)  # tables and splits
        self.steps = np.zeros(n, np.int64)
        self.left = np.zeros((n, 4))  # `amounts` that wait; for "full", "ahead" and "flat"
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

    def move(self, position: np.ndarray, halves: np.ndarray, splits: np.ndarray) -> np.ndarray:
        """Take pieces from their positions, put the halves of those that split to theirs; where the next ones wait."""
        waiting, halving = self.waiting.reshape(-1), np.flatnonzero(splits)
        waiting[self._first + position] -= 1
        waiting[self._first[halving] + halves[halving]] += 2
        self.placed += ~splits
        self.count += splits
        self.steps += 1
        return self.waiting.view(bool).argmax(axis=1)
