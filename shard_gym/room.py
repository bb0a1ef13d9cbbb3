"""Where the next table may go while tables are placed one by one: memory, and the constraints of the task.

What must stay somewhere has its bytes reserved there from the start: a pinned table on its device and, where only so
many tables may move, each table where it is. So a plan in use that keeps to the task can be followed to the end by
whoever keeps to `legal`, in any order. Tables that must be together take their room when the first of them is placed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InfeasibleTask
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
        allowed, home = np.ones((n, k), bool), np.full(n, -1)
        for table, device in c.pin:
            group = leader == leader[table]
            allowed[group], home[group] = np.arange(k) == device, device
        rival, rivals = _rivals(c, leader)
        away, moves = None, 0
        if c.max_moves is not None:
            away = _merged((np.array(c.base)[:, None] != np.arange(k)).astype(np.int32), leader)
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
        return _merged(values, self.leader)


class Room:
    """What is left on each device in `count` placements of a task under way, and where a table may go in each."""

    def __init__(self, task: Task, count: int = 1) -> None:
        self.task, self.rules = task, (rules := Rules.of(task))
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
            self._put(self._each, table, rules.home[table], 1)
        self._begun = self.free[0].copy(), self._near[0].copy()

    def copy(self) -> Room:
        """The same placements, to go on with apart from these."""
        other = copy(self)
        other.free = self.free.copy()
        if self.rules is not None:
            other.moves, other.device, other._near = self.moves.copy(), self.device.copy(), self._near.copy()
        return other

    def begin(self, of: np.ndarray) -> None:
        """Some placements begin anew; of tasks with rules."""
        assert self.rules is not None
        self.free[of], self._near[of] = self._begun
        self.moves[of], self.device[of] = self.rules.moves, -1

    def legal(
        self, table: int | np.ndarray, piece: int | np.ndarray | None = None, of: np.ndarray | None = None
    ) -> np.ndarray:
        """Which devices a table, or one in each placement (V,), may go to, (V, K).

        `piece` is the bytes of a part of it, where it was halved: then no rule speaks of it, see `kept_whole`.
        `of` names the placements, if not all are asked about; under rules only.
        """
        rules, each, free = self.rules, self._each if of is None else of, self.free if of is None else self.free[of]
        if rules is None or piece is not None:
            return free >= np.reshape(self.size[table] if piece is None else piece, (-1, 1))
        lead = np.broadcast_to(rules.leader[table], each.shape)
        home, size, devices = rules.home[lead], self.size[lead], np.arange(free.shape[1])
        at_home = home[:, None] == devices
        legal = (free + at_home * size[:, None] >= size[:, None]) & rules.allowed[lead]
        if len(rules.rivals):
            near = self._near[each, rules.rival[lead]]
            legal &= (near == 0) | (rules.rival[lead] < 0)[:, None]
        if rules.away is not None:
            spent = rules.away[lead] - rules.away[lead, home][:, None]
            legal &= spent <= self.moves[each, None]
        placed = self.device[each, lead]
        return np.where((placed >= 0)[:, None], placed[:, None] == devices, legal)

    def place(
        self,
        table: int | np.ndarray,
        device: int | np.ndarray,
        piece: int | np.ndarray | None = None,
        of: np.ndarray | None = None,
    ) -> None:
        """A table, or one in each placement, goes to a device, legal or not; or a piece of it, as in `legal`."""
        rules, each = self.rules, self._each if of is None else of
        if rules is None or piece is not None:
            self.free[each, device] -= self.size[table] if piece is None else piece
            return
        device, lead = (np.broadcast_to(values, each.shape) for values in (device, rules.leader[table]))
        new = np.flatnonzero(self.device[each, lead] < 0)
        each, device, lead = each[new], device[new], lead[new]
        self.device[each, lead] = device
        moved = np.flatnonzero(rules.home[lead] != device)
        away, group, goes, home = each[moved], lead[moved], device[moved], rules.home[lead[moved]]
        kept = home >= 0
        self._put(away[kept], group[kept], home[kept], -1)
        self._put(away, group, goes, 1)
        if rules.away is not None:
            self.moves[away] -= rules.away[group, goes] - rules.away[group, home]

    def placements(self) -> np.ndarray:
        """Device of each table, (V, N), -1 where it is not placed; of tasks with rules."""
        assert self.rules is not None
        return self.device[:, self.rules.leader]

    def _put(self, each: np.ndarray, group: int | np.ndarray, device: np.ndarray, times: int) -> None:
        """Take a group's room on a device in each of some placements, or give it back."""
        assert self.rules is not None
        self.free[each, device] -= times * self.size[group]
        if len(self.rules.rivals):
            row = self.rules.rival[group]
            self._near[each, :, device] += times * (self.rules.rivals[row] & (np.reshape(row, (-1, 1)) >= 0))


def follow(task: Task, order: np.ndarray, choose: Callable[[int, np.ndarray], int]) -> np.ndarray:
    """A placement under rules, (N,): groups by their leaders, in this order of tables, each to the device that is
    chosen for it from those where it may go, (K,) bool."""
    room = Room(task)
    assert room.rules is not None
    for table in order[room.rules.leads[order]].tolist():
        legal = room.legal(table)[0]
        if not legal.any():
            raise dead_end(room, table)
        room.place(table, choose(table, legal))
    return room.placements()[0]


def no_room(task: Task, table: int, free: np.ndarray) -> InfeasibleTask:
    """The error that says which table fits nowhere, where it nearly did, and how many bytes are missing."""
    size, device = int(table_bytes(task)[table]), int(np.argmax(free))
    return InfeasibleTask(
        f"table {table} ({task.tables.name[table]!r}, {size:,} bytes) fits on no device: "
        f"device {device} has the most room, {int(free[device]):,} bytes, {size - int(free[device]):,} too few"
    )


def dead_end(room: Room, table: int, placement: int = 0) -> InfeasibleTask:
    """The error that says which table may go nowhere after those that are placed, and what stands in its way."""
    from shard_gym.feasibility import disproof  # it needs this module

    task, rules = room.task, room.rules
    if rules is None:
        return no_room(task, table, room.free[placement])
    lead = int(rules.leader[table])
    size, home = int(room.size[lead]), int(rules.home[lead])
    free = room.free[placement] + size * (np.arange(task.num_devices) == home)  # its own room is kept for it
    device = int(free.argmax())
    missing = size - int(free[device])
    others = ", with those that must be with it" if (rules.leader == lead).sum() > 1 else ""
    why = f"{missing:,} too few" if missing > 0 else "but constraints keep it from there"
    proof = disproof(task)
    verdict = f"and there is no plan: {proof}" if proof else "which does not prove that there is no plan"
    return InfeasibleTask(
        f"in the order tried table {table} ({task.tables.name[table]!r}, {size:,} bytes{others}) may go to no device: "
        f"device {device} has the most room not kept for others, {int(free[device]):,} bytes, {why}; {verdict}"
    )


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


def _merged(values: np.ndarray, leader: np.ndarray) -> np.ndarray:
    total, led = values.copy(), np.flatnonzero(leader != np.arange(len(leader)))
    total[led] = 0
    np.add.at(total, leader[led], values[led])
    return total


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
