"""Many episodes under way, as arrays with one entry an environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym import core
from shard_gym.envs.begun import replayed
from shard_gym.envs.episodes import Episode
from shard_gym.envs.states import State
from shard_gym.envs.vector.queues import Orders, Pieces
from shard_gym.envs.vector.shelf import Shelf, widened
from shard_gym.memory.usage import device_sums
from shard_gym.plan.placing import Placing
from shard_gym.plan.plan import Plan

AT_ONCE = 2**16  # numbers of an indicator matrix made in one go: it stays in the cache
TOGETHER = 4  # ends a task from where they are added up task by task


class States:
    """Episodes under way, one of each environment: where each is in its queue, beside the `Placing` of all.

    `envs` are always indices of environments. What is between `place` and `look` (or `begin`) is not to be read.
    """

    def __init__(self, shelf: Shelf, num_envs: int, track: bool) -> None:
        n, k = num_envs, shelf.num_devices
        self.shelf, self.num_envs, self.num_devices = shelf, n, k
        self.placing = self._placing(track)
        self.slot = np.zeros(n, np.int64)
        self.first = np.zeros(n, np.int64)  # where the positions of its queue begin, among all rows or orders
        self.position = np.zeros(n, np.int64)
        self.length = np.zeros(n, np.int64)  # of its queue
        self.at = np.zeros(n, np.int64)  # first + position
        self.row = self.at  # of what waits, on the shelf
        self.last_row, self.last_actions = self.row, self.row  # of the step before
        self.log = np.zeros(
            (n, 0), np.uint8 if shelf.settings.bank.num_actions <= 256 else np.uint16
        )  # action of each step
        self.orders = Orders(shelf, n) if shelf.settings.order == "random" else None
        self.pieces = Pieces(shelf, n) if shelf.settings.bank.split_action else None
        self._log = np.zeros(n, np.int64)
        self.widen()

    def _placing(self, track: bool) -> Placing:
        return Placing(self.shelf.options, self.num_envs, track)

    @property
    def steps(self) -> np.ndarray:
        """Steps of each episode so far, (n,)."""
        return self.position if self.pieces is None else self.pieces.steps

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
        self.placing.begin(envs, slots)
        if self.orders is None or keys is None:
            self.first[envs] = of.start[slots]
        else:
            self.orders.begin(envs, slots, keys)
        if self.pieces is not None:
            self.pieces.begin(envs, slots, self.rows(envs))

    def place(self, actions: np.ndarray) -> None:
        """Do with every next piece as told. What was at its end is garbage now: begin it."""
        if self.pieces is not None:
            self._split(self.pieces, actions)
            return
        self.log.reshape(-1)[self._log + self.position] = actions.astype(self.log.dtype)
        self.last_row, self.last_actions = self.row, actions
        self.placing.place(self.row, actions)
        self.position += 1

    def _split(self, pieces: Pieces, actions: np.ndarray) -> None:
        """Place or halve, with split actions: a piece that must not be split goes where most bytes are free."""
        halves, asked, rows = self._halves(), actions == self.num_devices, self.shelf.rows
        splits = asked & (halves >= 0)
        if (instead := asked & ~splits).any():
            actions = np.where(instead, self.placing.free.argmax(axis=1), actions)
        self.log.reshape(-1)[self._log + pieces.steps] = actions
        self.last_row, self.last_actions = self.row, actions
        self.placing.place(self.row, actions)
        if self.shelf.full:
            pieces.left -= rows.amounts.take(self.row, axis=0)
            at = (self.first + halves)[splits]
            pieces.left[splits] += 2 * rows.amounts[at if self.orders is None else self.orders.row.reshape(-1)[at]]
        self.position = pieces.move(self.position, halves, splits)

    def _halves(self) -> np.ndarray:
        """Positions where the halves of what waits would wait, (n,); -1 where it must not be split."""
        return (self.shelf.rows.halves if self.orders is None else self.orders.halves.reshape(-1)).take(self.at)

    def look(self) -> None:
        """Find what waits now."""
        self.at = self.row = self.first + self.position
        if self.orders is not None:
            self.row = self.orders.row.reshape(-1).take(self.at)

    def over(self) -> np.ndarray:
        """True where every piece is placed, (n,)."""
        return self.position == self.length

    def share(self) -> np.ndarray:
        """Share of pieces that are placed, (n,)."""
        if self.pieces is not None:
            return self.pieces.placed / self.pieces.count
        return self.position / self.length

    def masks(self) -> np.ndarray:
        """Devices where the next pieces may go, a fresh int8 (n, K), or (n, K + 1) with split actions."""
        return self.placing.masks(self.row)

    def final_masks(self, count: int) -> np.ndarray:
        """Masks of so many episodes that are over: every device, no split."""
        masks = np.ones((count, self.shelf.settings.bank.num_actions), np.int8)
        masks[:, self.num_devices :] = 0
        return masks

    def rows(self, envs: np.ndarray) -> np.ndarray:
        """The row of each position, (c, P + 1); those after the end are the end's."""
        if self.orders is not None:
            return self.orders.row[envs]
        positions = np.arange(self.shelf.most_positions + 1)
        return self.first[envs, None] + np.minimum(positions, self.length[envs, None])

    def excess(self, envs: np.ndarray) -> np.ndarray:
        """Excess of bytes, by the formula of `State.excess`, (c,)."""
        excess, over = np.zeros(len(envs)), np.flatnonzero(self.placing.least[envs] < 0)
        free, capacity = self.placing.free[envs[over]], self.shelf.options.capacity[self.slot[envs[over]]]
        excess[over] = (-free / capacity).max(axis=1)
        return excess

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
        if self.placing.tracks:
            return self.placing.sums[envs]
        if self.orders is None:
            vector, first = self.shelf.options.vector[:, 0], self.first[envs]
            if (found := core.device_sums(vector, self._logged(envs), self.num_devices, first)) is not None:
                return found
            slots, counts = np.unique(self.slot[envs], return_counts=True)
            if len(envs) >= TOGETHER * len(slots):
                return self._sums_by_task(envs, slots, counts)
        longest, k = int(self.length[envs].max(initial=1)), self.num_devices
        sums = np.empty((len(envs), k, self.shelf.width))
        count = max(1, AT_ONCE // (longest * k))
        for start in range(0, len(envs), count):
            part = envs[start : start + count]
            # rows past the end count nothing, so what an earlier episode left in the log does not matter
            values = self.shelf.options.vector[:, 0].take(self.rows(part)[:, :longest], axis=0)
            on_device = self.log[part, None, :longest] == np.arange(k, dtype=self.log.dtype)[:, None]
            np.matmul(on_device.astype(np.float64), values, out=sums[start : start + count])
        return sums

    def _logged(self, envs: np.ndarray) -> np.ndarray:
        """Device at each position of episodes that are over, (c, N); -1 after the end of those that are shorter."""
        length = self.length[envs]
        longest = int(length.max(initial=1))
        logged = self.log[envs, :longest].astype(np.int64)
        if (length < longest).any():
            logged[np.arange(longest) >= length[:, None]] = -1
        return logged

    def _sums_by_task(self, envs: np.ndarray, slots: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The same, the episodes of each task together: they place the same rows in one order."""
        by_task, of = np.argsort(self.slot[envs], kind="stable"), self.shelf.slots
        vector, placed = self.shelf.options.vector[:, 0], self.log[envs[by_task]].astype(np.int64)
        found = np.empty((len(envs), self.num_devices, self.shelf.width))
        ends = np.cumsum(counts)
        for first, end, start, length in zip(ends - counts, ends, of.start[slots], of.length[slots], strict=True):
            rows = vector[start : start + length]
            found[first:end] = device_sums(rows, placed[first:end, :length], self.num_devices)
        sums = np.empty_like(found)
        sums[by_task] = found
        return sums


@dataclass(frozen=True, eq=False)
class Record:
    """The actions of some environments in their episodes, (c, ...)."""

    episodes: np.ndarray  # of their tasks, as objects
    nodes: np.ndarray | None  # at each position, where that differs from episode to episode
    actions: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, states: States, envs: np.ndarray) -> Record:
        """The record of some environments so far."""
        nodes = None if states.orders is None else states.shelf.rows.node[states.rows(envs)]
        steps = states.steps[envs]
        actions = states.log[envs, : steps.max(initial=0)]
        return cls(states.shelf.slots.episode[states.slot[envs]], nodes, actions, steps)

    def episode(self, i: int) -> Episode:
        """Episode with the order it was played in."""
        episode: Episode = self.episodes[i]
        return episode if self.nodes is None else Episode(episode.prepared, self.nodes[i, : len(episode.order)])

    def plan(self, i: int) -> Plan:
        """The plan of one of them so far."""
        episode, actions = self.episode(i), self.actions[i, : self.steps[i]]
        if not episode.prepared.one_step_a_table:
            return replayed(episode, actions.tolist()).plan()
        device = np.full(len(episode.order), -1)
        device[episode.order[: len(actions)]] = actions
        return Plan(tuple(device.tolist()))

    def state(self, i: int) -> State:
        """The state of one of them, as a `ShardingEnv` would have it."""
        return replayed(self.episode(i), self.actions[i, : self.steps[i]].tolist())

    def plans(self) -> list[Plan]:
        """All plans."""
        return [self.plan(i) for i in range(len(self.steps))]
