"""How far each of many episodes has come, as arrays with one entry an environment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shard_gym.room import Room
from shard_gym.vector.orders import Orders
from shard_gym.vector.pieces import Pieces
from shard_gym.vector.shelf import Shelf, widened

AT_ONCE = 2**16  # numbers of an indicator matrix made in one go: it stays in the cache


class States:
    """Episodes under way, one of each environment.

    `envs` are always indices of environments. What is between `place` and `look` (or `begin`) is not to be read.
    """

    def __init__(self, shelf: Shelf, num_envs: int, track: bool) -> None:
        n, k = num_envs, shelf.num_devices
        self.shelf, self.num_devices = shelf, k
        self.slot = np.zeros(n, np.int64)
        self.first = np.zeros(n, np.int64)  # where the positions of its queue begin, among all rows or orders
        self.position = np.zeros(n, np.int64)
        self.length = np.zeros(n, np.int64)  # of its queue
        self.at = np.zeros(n, np.int64)  # first + position
        self.row = self.at  # of what waits, on the shelf
        self.size = np.zeros(n, np.int64)  # of what waits, bytes
        self.last_row, self.last_actions = self.row, self.row  # of the step before
        self.free = np.zeros((n, k), np.int64)  # bytes left on each device; negative when over
        self.least = np.zeros(n, np.int64)  # the smallest of them
        self._devices = k * np.arange(n)  # first device of each environment, among all
        self.chosen = self._devices  # that of the last step, among all
        self.room = np.zeros(n, np.int64)  # bytes left on it
        self.changed = np.zeros((n, shelf.width))  # sum on it, if sums are kept
        self.sums = np.zeros((n, k, shelf.width)) if track else None  # of embeddings
        self.log = np.zeros((n, 0), np.uint8 if k < 256 else np.uint16)  # action of each step
        self.orders = Orders(shelf, n) if shelf.env.order == "random" else None
        self.pieces = Pieces(shelf, n) if shelf.env.bank.split_action else None
        self.rooms: dict[int, Room] = {}  # a placement an environment for each slot whose task has constraints
        self.ruled = np.zeros(n, bool)  # whether the task has
        self._log = np.zeros(n, np.int64)
        self.widen()

    def widen(self) -> None:
        """Make room for the longest queue on the shelf."""
        self.log = widened(self.log, self.shelf.most_steps + 1)
        self._log = self.log.shape[1] * np.arange(len(self.log))
        if self.pieces is not None:
            self.pieces.widen()
        if self.orders is not None:
            self.orders.widen()
            self.first = self.orders.first.copy()

    def begin(self, envs: np.ndarray, slots: np.ndarray, keys: np.ndarray | None) -> None:
        """New episodes of the tasks in these slots, in orders of their own where there are keys."""
        of = self.shelf.slots
        self.slot[envs], self.length[envs], self.position[envs] = slots, of.length[slots], 0
        self.free[envs], self.least[envs] = of.capacity[slots], of.least[slots]
        self.room[envs] = self.free.reshape(-1)[self.chosen[envs]]
        if self.sums is not None:
            self.sums[envs] = 0
            self.changed[envs] = 0
        if self.orders is None or keys is None:
            self.first[envs] = of.start[slots]
        else:
            self.orders.begin(envs, slots, keys)
        if self.pieces is not None:
            self.pieces.begin(envs, slots, self.rows(envs))
        self.ruled[envs] = False
        if of.constrained[slots].any():
            self._open_rooms(envs, slots)

    def place(self, actions: np.ndarray) -> None:
        """Do with every next piece as told. What was at its end is garbage now: begin it."""
        pieces, size, steps, splits = self.pieces, self.size, self.position, None
        devices = actions
        if pieces is not None:
            actions, splits = pieces.act(actions, self)
            devices, size, steps = np.where(splits, 0, actions), np.where(splits, 0, size), pieces.steps
        self.log.reshape(-1)[self._log + steps] = actions
        self.last_row, self.last_actions = self.row, actions
        self.chosen = chosen = self._devices + devices
        free = self.free.reshape(-1)
        self.room = free[chosen] - size
        free[chosen] = self.room
        np.minimum(self.least, self.room, out=self.least)
        if self.rooms:
            self._fill_rooms(devices, splits)
        if self.sums is not None:
            self._add(self.shelf.rows.embedding.take(self.row, axis=0), splits)
        if pieces is None or splits is None:
            self.position += 1
        else:
            pieces.move(splits, self)

    def look(self) -> None:
        """Find what waits now."""
        self.at = self.row = self.first + self.position
        if self.orders is not None:
            self.row = self.orders.row.reshape(-1).take(self.at)
        self.size = self.shelf.rows.size.take(self.row)

    def over(self) -> np.ndarray:
        """Whether every piece is placed, (n,)."""
        return self.position == self.length

    def share(self) -> np.ndarray:
        """Share of pieces that are placed, (n,)."""
        if self.pieces is not None:
            return self.pieces.placed / self.pieces.count
        return self.position / self.length

    def masks(self) -> np.ndarray:
        """Where the next piece may go, fresh int8 (n, K), or (n, K + 1) with split actions: see `ShardingEnv`."""
        masks = np.ones((len(self.size), self.num_devices), np.int8)
        close = np.flatnonzero(self.least < self.size)
        nowhere = close[:0]
        if self.rooms:
            close = np.union1d(close, np.flatnonzero(self.ruled))
        if len(close):
            fits = self.free[close] >= self.size[close, None]
            if self.rooms:
                self._look_into_rooms(close, fits)
            nowhere = close[~any_true(fits)]
            masks[close] = fits
            masks[nowhere] = 1
        return masks if self.pieces is None else self.pieces.masks(masks, nowhere, self)

    def final_masks(self, count: int) -> np.ndarray:
        """Masks of so many episodes that are over: every device, no split."""
        masks = np.ones((count, self.num_devices + (self.pieces is not None)), np.int8)
        masks[:, self.num_devices :] = 0
        return masks

    def rows(self, envs: np.ndarray) -> np.ndarray:
        """The row of each position, (c, P + 1); those after the end are the end's."""
        if self.orders is not None:
            return self.orders.row[envs]
        positions = np.arange(self.shelf.most_positions + 1)
        return self.first[envs, None] + np.minimum(positions, self.length[envs, None])

    def placements(self, envs: np.ndarray) -> np.ndarray:
        """Device of each table in the order of the task, (c, N), -1 where it is not placed; without split actions."""
        longest = int(self.length[envs].max())
        nodes = self.shelf.rows.node[self.rows(envs)[:, :longest]]
        device = np.full((len(envs), self.shelf.most_positions + 1), -1)
        placed = np.arange(longest) < self.position[envs, None]
        np.put_along_axis(device, nodes, np.where(placed, self.log[envs, :longest].astype(np.int64), -1), axis=1)
        return device[:, :longest]

    def device_sums(self, envs: np.ndarray) -> np.ndarray:
        """Sum of the embeddings on each device, (c, K, H)."""
        if self.sums is not None:
            return self.sums[envs]
        longest, k = int(self.length[envs].max(initial=1)), self.num_devices
        sums = np.empty((len(envs), k, self.shelf.width))
        count = max(1, AT_ONCE // (longest * k))
        for start in range(0, len(envs), count):
            part = envs[start : start + count]
            # rows past the end count nothing, so what an earlier episode left in the log does not matter
            values = self.shelf.rows.embedding.take(self.rows(part)[:, :longest], axis=0)
            on_device = self.log[part, None, :longest] == np.arange(k, dtype=self.log.dtype)[:, None]
            np.matmul(on_device.astype(np.float64), values, out=sums[start : start + count])
        return sums

    def _open_rooms(self, envs: np.ndarray, slots: np.ndarray) -> None:
        for slot in np.unique(slots[self.shelf.slots.constrained[slots]]).tolist():
            task, these = self.shelf.slots.episode[slot].prepared.task, envs[slots == slot]
            if slot not in self.rooms or self.rooms[slot].task is not task:
                self.rooms[slot] = Room(task, len(self.slot))
            self.rooms[slot].begin(these)
            self.ruled[these] = True

    def _fill_rooms(self, devices: np.ndarray, splits: np.ndarray | None) -> None:
        for room, envs, table, piece in self._entering(self.ruled if splits is None else self.ruled & ~splits):
            room.place(table, devices[envs], piece, envs)

    def _look_into_rooms(self, among: np.ndarray, fits: np.ndarray) -> None:
        """Where constraints leave room, in the rows of `fits` (c, K), which are those of `among`."""
        for room, envs, table, piece in self._entering(self.ruled):
            fits[np.searchsorted(among, envs)] = room.legal(table, piece, envs)

    def _entering(self, chosen: np.ndarray) -> Iterator[tuple[Room, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Rooms with those environments that their next pieces are of, their tables and, of parts, their bytes."""
        envs, rows = np.flatnonzero(chosen & ~self.over()), self.shelf.rows
        kinds = 2 * self.slot[envs] + (rows.whole[self.row[envs]] == 0)
        for kind in np.unique(kinds).tolist():
            these = envs[kinds == kind]
            yield self.rooms[kind // 2], these, rows.table[self.row[these]], self.size[these] if kind % 2 else None

    def _add(self, embeddings: np.ndarray, splits: np.ndarray | None) -> None:
        assert self.sums is not None
        if splits is not None:
            embeddings[splits] = 0
        sums = self.sums.reshape(-1, self.sums.shape[2])
        embeddings += sums.take(self.chosen, axis=0)
        sums[self.chosen] = embeddings
        self.changed = embeddings


def any_true(rows: np.ndarray) -> np.ndarray:
    """Whether any of each row is, (m, K) bool -> (m,). Read in words: several times as fast as `any`."""
    width = rows.shape[1]
    word = next(w for w in (8, 4, 2, 1) if width % w == 0)
    words = rows.view(f"u{word}")
    return words[:, 0] != 0 if width == word else (words != 0).any(axis=1)
