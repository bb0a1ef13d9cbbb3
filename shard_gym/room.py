"""Where the next table may go while tables are placed one by one: memory, and the constraints of the task.

What must stay somewhere has its bytes reserved there from the start: a pinned table on its device and, where only so
many tables may move, each table where it is. So a plan in use that keeps to the task can be followed to the end by
whoever keeps to `legal`, in any order. Tables that must be together take their room when the first of them is placed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.memory import table_bytes
from shard_gym.tasks import Constraints, Task


@dataclass(frozen=True, eq=False)
class Rules:
    """Constraints in arrays. Tables that must be together are a group, and go by the first of them, the leader."""

    leader: np.ndarray  # (N,) of each table; itself where it may go alone
    allowed: np.ndarray  # (N, K) devices that pins leave
    rival: np.ndarray  # (N,) row in `rivals`, -1 for tables that need not be apart from any
    rivals: np.ndarray  # (A, A) whether two of those must be apart
    home: np.ndarray  # (N,) device where room is kept for a leader's group; -1: none
    away: np.ndarray | None  # (N, K) tables of a leader's group that are not on that device now; None: any may move
    moves: int  # tables that may move, beside those that must

    @classmethod
    def of(cls, task: Task) -> Rules | None:
        """None where memory is all that counts."""
        c, n, k = task.constraints, task.num_tables, task.num_devices
        if c == Constraints(base=c.base, no_split=c.no_split):
            return None
        leader = _leaders(c, n)
        allowed = np.ones((n, k), bool)
        for table, device in c.pin:
            allowed[leader == leader[table]] &= np.arange(k) == device
        rival, rivals = _rivals(c, leader)
        away, moves = None, 0
        home = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
        if c.max_moves is not None:
            away = np.zeros((n, k), np.int32)
            np.add.at(away, leader, np.array(c.base)[:, None] != np.arange(k))
            home = np.where(allowed, away, n + 1).argmin(axis=1)
            leads = np.flatnonzero(leader == np.arange(n))
            moves = c.max_moves - int(away[leads, home[leads]].sum())
        return cls(leader, allowed, rival, rivals, home, away, moves)

    @property
    def leads(self) -> np.ndarray:
        """Which tables are leaders, (N,) bool."""
        return self.leader == np.arange(len(self.leader))

    def merged(self, values: np.ndarray) -> np.ndarray:
        """Values of tables, (N, ...), summed over each group: in its leader's row, and 0 in the others'."""
        total = np.zeros_like(values)
        np.add.at(total, self.leader, values)
        return total


class Room:
    """What is left on each device in `count` placements of a task under way, and where a table may go in each."""

    def __init__(self, task: Task, count: int = 1) -> None:
        self.rules = rules = Rules.of(task)
        self.free = np.repeat(task.capacity[None], count, axis=0)  # (V, K) bytes, less what is reserved
        self.size = table_bytes(task)
        self._each = np.arange(count)
        if rules is None:
            return
        self.size = rules.merged(self.size)
        self.moves = np.full(count, rules.moves)
        self.device = np.full((count, task.num_tables), -1)  # of leaders
        self._near = np.zeros((count, *rules.rivals.shape[:1], task.num_devices), np.int64)  # rivals on each device
        for table in np.flatnonzero(rules.leads & (rules.home >= 0)).tolist():
            self._put(table, rules.home[table], 1)

    def legal(self, table: int | np.ndarray) -> np.ndarray:
        """Which devices a table, or one in each placement (V,), may go to, (V, K)."""
        rules = self.rules
        if rules is None:
            return self.free >= np.reshape(self.size[table], (-1, 1))
        lead = np.broadcast_to(rules.leader[table], self._each.shape)
        home, size, devices = rules.home[lead], self.size[lead], np.arange(self.free.shape[1])
        at_home = home[:, None] == devices
        legal = (self.free + at_home * size[:, None] >= size[:, None]) & rules.allowed[lead]
        if len(rules.rivals):
            near = self._near[self._each, rules.rival[lead]]
            legal &= (near == 0) | (rules.rival[lead] < 0)[:, None]
        if rules.away is not None:
            spent = rules.away[lead] - rules.away[lead, home][:, None]
            legal &= spent <= self.moves[:, None]
        placed = self.device[self._each, lead]
        return np.where((placed >= 0)[:, None], placed[:, None] == devices, legal)

    def place(self, table: int | np.ndarray, device: int | np.ndarray) -> None:
        """A table, or one in each placement, goes to a device, legal or not."""
        rules, device = self.rules, np.broadcast_to(device, self._each.shape)
        if rules is None:
            self.free[self._each, device] -= self.size[table]
            return
        lead = np.broadcast_to(rules.leader[table], self._each.shape)
        new = np.flatnonzero(self.device[self._each, lead] < 0)
        self.device[new, lead[new]] = device[new]
        for v in new[rules.home[lead[new]] != device[new]].tolist():
            group, home = int(lead[v]), int(rules.home[lead[v]])
            if home >= 0:
                self._put(group, home, -1, v)
            self._put(group, int(device[v]), 1, v)
            if rules.away is not None:
                self.moves[v] -= rules.away[group, device[v]] - rules.away[group, home]

    def _put(self, group: int, device: int, times: int, placement: int | slice = slice(None)) -> None:
        """Take a group's room on a device, or give it back."""
        assert self.rules is not None
        self.free[placement, device] -= times * self.size[group]
        if (rival := self.rules.rival[group]) >= 0:
            self._near[placement, self.rules.rivals[rival], device] += times


def kept_whole(task: Task) -> np.ndarray:
    """Tables that are not to be halved, (N,) bool: those named as such, and those whose device is constrained.

    A plan may keep to its constraints with halves as well, on one device or as a move; solvers do not look for it.
    """
    c = task.constraints
    if c.max_moves is not None:
        return np.ones(task.num_tables, bool)
    whole = np.zeros(task.num_tables, bool)
    whole[[*c.no_split, *(t for t, _ in c.pin), *(t for group in (*c.together, *c.apart) for t in group)]] = True
    return whole


def _leaders(c: Constraints, n: int) -> np.ndarray:
    leader = np.arange(n)
    for group in c.together:
        merged = np.isin(leader, leader[list(group)])
        leader[merged] = leader[merged].min(initial=n)
    return leader


def _rivals(c: Constraints, leader: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each table's row, and which rows must be apart; a group stands in its leader's row."""
    named = sorted({int(leader[t]) for group in c.apart for t in group})
    row = np.full(len(leader), -1)
    row[named] = np.arange(len(named))
    rivals = np.zeros((len(named), len(named)), bool)
    for group in c.apart:
        rows = row[leader[list(group)]]
        rivals[np.ix_(rows, rows)] = True
    np.fill_diagonal(rivals, False)
    return row[leader], rivals
