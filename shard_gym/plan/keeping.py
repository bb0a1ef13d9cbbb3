"""Constraints of partial plans: bytes that are kept for others, where groups are, and what may still move."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from shard_gym.plan.rules import Rules

Rows: TypeAlias = int | np.ndarray


class Asked(NamedTuple):
    """A piece of each of some plans."""

    each: np.ndarray  # (B,) the plans
    rule: np.ndarray  # (B,) row of the piece in the rules
    size: np.ndarray  # (B, C) bytes of its shards; of all of it first


class Ruled(Protocol):
    """Options of pieces, which say which constraints hold."""

    rules: Rules
    held: np.ndarray  # bytes of each table's group, by the rows of `rules`
    capacity: np.ndarray  # (T, K) bytes of each task's devices


class Keeping:
    """State of constraints in partial plans side by side, (B,), beside `Rules`, which are the same for all of them."""

    def __init__(self, options: Ruled, count: int) -> None:
        k = options.capacity.shape[1]
        self.options, self._devices = options, np.arange(k)
        self.room = np.zeros((0, k), np.int64)  # (B, K) bytes left and not kept for others; none before `begin`
        self._near = np.zeros((count, 1, k), np.int64)  # (B, A + 1, K) from which rivals keep away
        self._seat = np.full((count, 1), -1)  # (B, G + 1) device of each group
        self._moves = np.zeros(count, np.int64)  # that may still be made

    def begin(self, of: np.ndarray, tasks: np.ndarray, free: np.ndarray) -> None:
        """Begin some plans anew, of these tasks; `free` (B, K) are bytes left on devices."""
        o, rules = self.options, self.options.rules
        if not len(self.room):
            self.room = free.copy()
        self._near = _of_width(self._near, rules.apart.shape[1], 0)
        self._seat = _of_width(self._seat, rules.groups + 1, -1)
        self._seat[of], self._moves[of] = -1, rules.moves[tasks]
        for task in np.unique(tasks).tolist():
            these, tables = of[tasks == task], np.arange(rules.first[task], rules.first[task + 1])
            kept = tables[(rules.leader[tables] == tables) & (rules.home[tables] >= 0)]
            home, near = rules.home[kept], np.zeros(self._near.shape[:0:-1], np.int64)
            np.add.at(near, home, rules.apart[kept])
            self._near[these] = near.T
            self.room[these] = o.capacity[task] - np.bincount(home, o.held[kept], near.shape[0]).astype(np.int64)

    def found(self, asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes that devices have for a piece, those that its shards ask for, and which devices constraints allow."""
        rules, (each, rule, asks) = self.options.rules, asked
        asks[:, 0] = np.where(rule < 0, asks[:, 0], self.options.held[rule])  # a group goes at once
        home, seat = rules.home[rule], self._seat[each, rules.group[rule]][:, None]
        room = self.room[each] + (home[:, None] == self._devices) * asks[:, :1]  # its own room is kept for it
        allowed = rules.allowed[rule] & (self._near[each, rules.rival[rule]] == 0)
        if rules.away is not None:
            allowed &= rules.away[rule] - rules.away[rule, home][:, None] <= self._moves[each, None]
        seated = seat >= 0
        return np.where(seated, 2**62, room), asks, np.where(seated, seat == self._devices, allowed)

    def keep(self, asked: Asked, device: Rows, changed: np.ndarray | None = None) -> None:
        """Take in where whole pieces go; a group takes its room when the first of it is placed."""
        rules, (each, rule, asks) = self.options.rules, asked
        group, to = rules.group[rule], np.broadcast_to(device, each.shape)
        new = self._seat[each, group] < 0
        if changed is not None:
            new &= ~changed
        each, rule, group, to, asks = each[new], rule[new], group[new], to[new], asks[new]
        home, size = rules.home[rule], np.where(rule < 0, asks[:, 0], self.options.held[rule])
        self._seat[each, group] = np.where(group < 0, -1, to)
        kept, moved = home >= 0, home != to
        self.room[each[kept], home[kept]] += size[kept]
        self.room[each, to] -= size
        left = moved & kept
        self._near[each[left], :, home[left]] -= rules.apart[rule[left]]
        self._near[each[moved], :, to[moved]] += rules.apart[rule[moved]]
        if rules.away is not None:
            self._moves[each] -= rules.away[rule, to] - rules.away[rule, home]


def _of_width(old: np.ndarray, width: int, fill: int) -> np.ndarray:
    """The same array, (B, W, ...), with so many entries a row, the last one always `fill`."""
    if old.shape[1] == width:
        return old
    new = np.full((len(old), width, *old.shape[2:]), fill)
    kept = min(old.shape[1], width) - 1
    new[:, :kept] = old[:, :kept]
    return new
