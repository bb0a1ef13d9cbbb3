"""Changes from one plan to another: bytes to move, and names of equal devices that keep most of them in place."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import optimizer_bytes
from shard_gym.plan.plan import Plan, check
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.task.constraints import BY_HOST, OF_ONE
from shard_gym.task.links import Links
from shard_gym.task.task import Task


@dataclass(frozen=True)
class Move:
    """Columns of one table, or rows of them, that go from a device to another."""

    table: int  # before any split
    name: str
    columns: tuple[int, int]  # the first, and the one after the last
    bytes: int
    source: int
    target: int
    rows: tuple[int, int] | None = None  # the first, and the one after the last; None: all of them


@dataclass(frozen=True)
class Delta:
    """Moves when one plan takes the place of another.

    A device receives the rows and columns that it does not hold yet, in its memory or its host's. They count their
    share of the `moved_bytes` of their shard in the new plan.
    """

    moves: tuple[Move, ...]
    sent: tuple[int, ...]  # bytes, of each device
    received: tuple[int, ...]

    @property
    def tables(self) -> int:
        """Number of tables that move, in part at least."""
        return len({move.table for move in self.moves})

    @property
    def bytes(self) -> int:
        """All that moves."""
        return sum(self.received)

    def seconds(self, bandwidth: float) -> float:
        """Seconds that it takes: devices send and receive at once, each so many bytes a second; the busiest decides."""
        if not bandwidth > 0:
            raise InvalidTask(f"bandwidth is bytes a second of a device, more than 0; got {bandwidth}")
        return max(self.sent + self.received) / bandwidth


def delta(task: Task, old: Plan, new: Plan) -> Delta:
    """Moves from the old plan of a task to the new one, which may shard its tables in other ways."""
    for plan in (old, new):
        check(task, plan)
    gone = _gone(task, old, new)
    sent, received = _counted(task, gone).tolist()
    numbers = np.stack([getattr(gone, name) for name in _OF_A_MOVE], axis=1)
    name, height = task.tables.name, task.tables.rows.tolist()
    moves = tuple(
        Move(t, name[t], (first, last), size, source, target, None if end - top == height[t] else (top, end))
        for t, first, last, size, source, target, top, end in numbers.tolist()
    )
    return Delta(moves, tuple(sent), tuple(received))


def sent_received(task: Task, old: Plan, new: Plan) -> np.ndarray:
    """Bytes that each device sends, and receives, (2, K): those of `delta`, without its moves."""
    return _counted(task, _gone(task, old, new))


def aligned(task: Task, old: Plan, new: Plan, links: Links | None = None) -> Plan:
    """The new plan with its devices renamed so that most bytes stay where they are in the old one.

    Only devices that are alike change names: in memory, speed and place among the links (whole groups, and devices
    within a group), and no device that a pin names. So makespan and bytes of the plan remain what they were. `links`
    are the planner's, for a task that has none of its own; without any, devices are taken to be in one group.

    Tables that are on all devices stay so, and those on a host change it only with its name. Beside them a renamed plan
    may cost a little more or less, as their last shards are smaller: whoever counts that compares both.
    """
    overlaps = _overlaps(task, old, new)
    overlaps = overlaps.take(np.isin(new.kind, (*OF_ONE, *BY_HOST))[overlaps.table])
    stays = np.zeros((task.num_devices,) * 2, np.int64)
    np.add.at(stays, (overlaps.target, overlaps.source), overlaps.bytes)
    wires = task.links or links
    group = 0 if wires is None or task.objective == "kernel" else wires.group
    name = _names(stays, _kinds(task), group or task.num_devices)
    found = _renamed(task, new, name)
    if not new.table_wise and sent_received(task, old, found).sum() >= sent_received(task, old, new).sum():
        return new
    strict = task.constraints.max_moves is not None or not new.table_wise
    if strict and violations(task, found) and not violations(task, new):
        return new  # fewer bytes move, but more tables, or last shards are elsewhere
    return found


def _renamed(task: Task, plan: Plan, name: np.ndarray) -> Plan:
    """The plan with other names of single devices and of hosts; what is on all devices stays."""
    if plan.table_wise:
        return Plan(tuple(name[list(plan.device)].tolist()), plan.splits)
    span = task.devices_per_host
    host = name // span * span + np.arange(task.num_devices) % span  # a device's number in its host stays
    of_kind = dict.fromkeys(OF_ONE, name) | dict.fromkeys(BY_HOST, host)
    devices = tuple(
        tuple(of_kind[kind][list(there)].tolist()) if kind in of_kind else there
        for kind, there in zip(plan.kind, plan.devices, strict=True)
    )
    return replace(plan, device=tuple(there[0] for there in devices), devices=devices)


def moved_bytes(task: Task) -> np.ndarray:
    """Bytes of each table that go where it goes, (N,) int64: weights, and optimizer state where the task counts it."""
    weights = task.tables.weight_bytes
    return weights if task.accounting == "weights" else weights + optimizer_bytes(task)


def moved_bytes_of(task: Task, table: np.ndarray, rows: np.ndarray, dim: np.ndarray) -> np.ndarray:
    """The `moved_bytes` of shards of tables, (S,) int64, by their rows and columns."""
    a_row, a_weight = (0, 0) if task.accounting == "weights" else task.state_bytes[:, table]
    return (rows * (a_row + (task.tables.element_bytes[table] + a_weight) * dim)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Overlaps:
    """Rows and columns that are on one device in the old plan and on one in the new plan, (R,)."""

    table: np.ndarray
    first: np.ndarray  # column
    last: np.ndarray  # after it
    bytes: np.ndarray
    source: np.ndarray
    target: np.ndarray
    top: np.ndarray  # row
    end: np.ndarray  # after it

    def take(self, index: np.ndarray) -> _Overlaps:
        """Some of them."""
        return _Overlaps(**{name: column[index] for name, column in vars(self).items()})


_OF_A_MOVE = tuple(field.name for field in fields(_Overlaps))


def _overlaps(task: Task, old: Plan, new: Plan) -> _Overlaps:
    """All parts of the new plan's shards by where they are in the old plan, columns that stay side by side as one."""
    was, now = (made.take(made.rows > 0) for made in (shards(task, old), shards(task, new)))
    a, b = _pairs(was.table, now.table)
    there = (was.kind[a] != "dp") | (was.device[a] == now.device[b])  # each device has a copy of its own
    top, end = np.maximum(was.row[a], now.row[b]), np.minimum((was.row + was.rows)[a], (now.row + now.rows)[b])
    first = np.maximum(was.column[a], now.column[b])
    last = np.minimum((was.column + was.dim)[a], (now.column + now.dim)[b])
    found = np.flatnonzero(there & (end > top) & (last > first))
    found = found[np.lexsort((first[found], top[found], was.device[a[found]], b[found]))]
    a, b, top, end, first, last = (values[found] for values in (a, b, top, end, first, last))
    key = np.stack([b, was.device[a], top, end], axis=1)
    begins = np.append(True, (key[1:] != key[:-1]).any(axis=1) | (first[1:] != last[:-1]))[: len(b)]
    b, source, top, end, first = (values[begins] for values in (b, was.device[a], top, end, first))
    last = last[np.append(begins[1:], True)[: len(begins)]]
    a_column = moved_bytes_of(task, now.table, now.rows, now.dim) / now.dim
    size = np.rint((last - first) * a_column[b] * ((end - top) / now.rows[b])).astype(np.int64)
    table, target = now.table[b], now.device[b]
    parts = _Overlaps(table, first, last, size, source, target, top, end)
    return parts.take(np.lexsort((target, first, top, table)))


def _gone(task: Task, old: Plan, new: Plan) -> _Overlaps:
    """The parts that do not stay on their device."""
    overlaps = _overlaps(task, old, new)
    return overlaps.take(overlaps.source != overlaps.target)


def _counted(task: Task, gone: _Overlaps) -> np.ndarray:
    found = np.zeros((2, task.num_devices), np.int64)
    for row, device in zip(found, (gone.source, gone.target), strict=True):
        np.add.at(row, device, gone.bytes)
    return found


def _pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of places where two sorted arrays of numbers have the same one."""
    start, stop = (np.searchsorted(left, right, side=side) for side in ("left", "right"))
    count = stop - start
    b = np.repeat(np.arange(len(right)), count)
    return np.arange(len(b)) - np.repeat(np.cumsum(count) - count - start, count), b


def _kinds(task: Task) -> np.ndarray:
    """Equal numbers for devices that are alike, (K,); a pinned one is like no other."""
    pinned = {device for _, device in task.constraints.pin}
    looks = [(m, s, d if d in pinned else -1) for d, (m, s) in enumerate(zip(task.memory, task.speed, strict=True))]
    number = {look: i for i, look in enumerate(dict.fromkeys(looks))}
    return np.array([number[look] for look in looks])


def _names(stays: np.ndarray, kinds: np.ndarray, group: int) -> np.ndarray:
    """The new name of each device, (K,): groups that are alike change places, and devices of a kind within them."""
    groups = [np.arange(start, min(start + group, len(kinds))) for start in range(0, len(kinds), group)]
    looks = [tuple(sorted(kinds[devices].tolist())) for devices in groups]
    number = {look: i for i, look in enumerate(dict.fromkeys(looks))}
    alike = np.array([number[look] for look in looks])

    def within(here: np.ndarray, there: np.ndarray) -> np.ndarray:
        return there[_matched(stays[np.ix_(here, there)], kinds[here], kinds[there])]

    gain, starts = np.zeros((len(groups),) * 2, np.int64), np.arange(0, len(kinds), group)
    shared = np.add.reduceat(np.add.reduceat(stays, starts, axis=0), starts, axis=1)
    for p, q in np.argwhere((alike[:, None] == alike) & (shared > 0)):
        gain[p, q] = stays[groups[p], within(groups[p], groups[q])].sum()
    name = np.empty(len(kinds), np.int64)
    for here, q in zip(groups, _matched(gain, alike, alike), strict=True):
        name[here] = within(here, groups[q])
    return name


def _matched(gain: np.ndarray, kind: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The column of each row, of the same kind, with the largest sum of gains."""
    column = np.empty(len(kind), np.int64)
    for k in np.unique(kind):
        mine, theirs = np.flatnonzero(kind == k), np.flatnonzero(other == k)
        column[mine] = theirs[best_columns(gain[np.ix_(mine, theirs)])]
    return column


def best_columns(gain: np.ndarray) -> np.ndarray:
    """The column of each row, (n,), no column twice, with the largest sum of gains (n, n).

    Shortest augmenting paths (Jonker and Volgenant, 1987), O(n^3) at worst. Exact for whole numbers below 2**53.
    """
    cost = -np.asarray(gain, np.float64)
    columns = cost.min(axis=0, initial=np.inf)  # prices: cost - rows - columns is never negative, and 0 where assigned
    rows = (cost - columns).min(axis=1, initial=np.inf)
    column, row = _where_cheapest(cost - rows[:, None] - columns == 0)
    for free in np.flatnonzero(column < 0).tolist():
        _assign(free, cost, (rows, columns), (column, row))
    return column


def _where_cheapest(tight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows on columns that cost them least, first come, first served: column of each row, row of each; -1: none."""
    column, row = np.full((2, len(tight)), -1)
    for i in range(len(tight)):
        wanted = tight[i] & (row < 0)
        j = int(wanted.argmax()) if len(wanted) else 0
        if wanted[j]:
            column[i], row[j] = j, i
    return column, row


def _assign(
    free: int, cost: np.ndarray, prices: tuple[np.ndarray, np.ndarray], assigned: tuple[np.ndarray, np.ndarray]
) -> None:
    """Give a free row a column: along the cheapest path, on which each row takes over the next one's column."""
    (rows, columns), (column, row) = prices, assigned
    n = len(cost)
    length, before = np.full(n, np.inf), np.full(n, free)  # of the path to each column, and the row it comes from
    waiting, i, end, shortest = np.ones(n, bool), free, -1, 0.0
    while end < 0:
        through = shortest + cost[i] - rows[i] - columns
        closer = waiting & (through < length)
        length[closer], before[closer] = through[closer], i
        far = np.where(waiting, length, np.inf)
        shortest = float(far.min())
        nearest = np.flatnonzero(far == shortest)
        unused = nearest[row[nearest] < 0]
        j = int(unused[0] if len(unused) else nearest[0])
        waiting[j] = False
        i = int(row[j])
        end = j if i < 0 else -1
    passed = ~waiting
    passed[end] = False
    rows[row[passed]] += shortest - length[passed]
    columns[passed] -= shortest - length[passed]
    rows[free] += shortest
    while end >= 0:  # back along the path
        i = int(before[end])
        row[end] = i
        column[i], end = end, (int(column[i]) if i != free else -1)
