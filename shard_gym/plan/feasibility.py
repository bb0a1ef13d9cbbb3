"""Existence of plans: proofs in words that there is none, and plans by simple rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import device_bytes, piece_bytes, table_bytes
from shard_gym.plan.fitting import evenly, lacking
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import One, Placing, one
from shard_gym.plan.plan import Plan
from shard_gym.task.task import Constraints, Task


@dataclass(frozen=True)
class Verdict:
    """Answer to whether a task has a plan: True comes with one, False with a proof, None with what was tried."""

    feasible: bool | None
    reason: str
    plan: Plan | None = None


def quick(task: Task) -> Verdict:
    """Verdict in milliseconds: a proof that memory does not suffice, or a plan by a simple rule."""
    if why := disproof(task):
        return Verdict(False, why)
    if beyond_columns(task):
        return _shared_out(task)
    if task.constraints != Constraints():
        return Verdict(None, "memory alone rules nothing out; with constraints it takes an exact solver")
    for rule, place in (("first-fit-decreasing", first_fit_decreasing), ("most-room-first", _most_room_first)):
        try:
            placement = place(task)
        except InfeasibleTask:
            continue
        if (device_bytes(task, placement) <= task.capacity).all():
            return Verdict(True, f"{rule} finds a plan", Plan(tuple(placement.tolist())))
    return Verdict(None, "simple rules find no plan, and simple counts rule none out")


def _shared_out(task: Task) -> Verdict:
    if task.constraints.beside_forms != Constraints():
        return Verdict(None, "memory alone rules nothing out; with constraints it takes a search")
    if (plan := evenly(task)) is None:
        return Verdict(None, "a simple rule finds no plan, and simple counts rule none out")
    return Verdict(True, "sharding every table as evenly as may be gives a plan", plan)


def disproof(task: Task) -> str | None:
    """Prove in words that memory or the allowed moves are too few, and by how much; None if there is no proof.

    Allows for splits where the task does, and for its kinds and residences.
    """
    if beyond_columns(task):
        return lacking(task)
    return _too_large(task) or _too_much(task) or _too_many(task) or _too_few_devices(task) or _too_few_moves(task)


def _too_large(task: Task) -> str | None:
    """A table, or tables that must be together, larger than where they must go."""
    size, (parts, smallest) = table_bytes(task), _finest(task)
    room = np.full(task.num_tables, int(task.capacity.max()))
    pinned = dict(task.constraints.pin)
    for table, device in pinned.items():
        room[table], smallest[table] = task.capacity[device], size[table]  # all its pieces, which take no less
    if len(large := np.flatnonzero(smallest > room)):
        t = int(large[0])
        where = f"device {pinned[t]}, where it is pinned," if t in pinned else "the largest device"
        pieces = "" if t in pinned or parts[t] == 1 else f", in pieces of {smallest[t]:,} bytes,"
        return (
            f"table {t} ({task.tables.name[t]!r}, {size[t]:,} bytes){pieces} fits on no device: "
            f"{where} has {room[t]:,} bytes, {smallest[t] - room[t]:,} too few"
        )
    for group in (list(group) for group in task.constraints.together):
        missing = int(size[group].sum() - room[group].min())
        if missing > 0:
            return f"tables {tuple(group)} must be together, but no device has room for them: {missing:,} bytes too few"
    return None


def _too_much(task: Task) -> str | None:
    """More bytes in all than there are, or pinned to one device than it has. Splitting saves none."""
    size, total = table_bytes(task), int(task.capacity.sum())
    if (missing := int(size.sum()) - total) > 0:
        return f"all tables take {size.sum():,} bytes, all devices have {total:,}: {missing:,} bytes too few"
    pinned = np.zeros(task.num_devices, np.int64)
    for table, device in set(task.constraints.pin):
        pinned[device] += size[table]
    over = pinned - task.capacity
    if (d := int(over.argmax())) >= 0 and over[d] > 0:
        return f"tables pinned to device {d} take {pinned[d]:,} bytes: {over[d]:,} bytes too few there"
    return None


def _too_many(task: Task) -> str | None:
    """Pigeonhole: more tables of a size than the devices have places of that size."""
    sizes = _items(task)[::-1]  # largest first
    for size, count in dict(zip(sizes.tolist(), range(1, len(sizes) + 1), strict=True)).items():
        places = int((task.capacity // size).sum())
        if count > places:
            missing = (count - places) * size
            return (
                f"{count} tables (or pieces) take at least {size:,} bytes each, the devices have places for {places} "
                f"of that size: {missing:,} bytes too few"
            )
        if places >= len(sizes):
            return None
    return None


def _too_few_devices(task: Task) -> str | None:
    """Martello and Toth's bound L2 on bin packing, every device taken to be as large as the largest.

    For any p <= C/2, only items of p bytes and more are looked at: one larger than C - p shares its device with none
    of them, one larger than C/2 with none of its kind, and what the others exceed the room left there needs devices
    of its own.
    """
    sizes, largest = _items(task), int(task.capacity.max())
    added = np.concatenate([[0], np.cumsum(sizes)])
    half = int(np.searchsorted(sizes, largest // 2, side="right"))  # items after it are larger than C / 2
    starts = np.unique(np.searchsorted(sizes, sizes[:half], side="left"))  # the first item of p bytes, for each p
    alone = np.searchsorted(sizes, largest - sizes[starts], side="right")  # items after it are larger than C - p
    rest = added[half] - added[starts]
    room = (alone - half) * largest - (added[alone] - added[half])
    needed = len(sizes) - half + np.maximum(-((room - rest) // largest), 0)
    if not len(needed) or needed.max() <= task.num_devices:
        return None
    i = int(needed.argmax())
    return (
        f"tables (or pieces) of at least {sizes[starts[i]]:,} bytes need {needed[i]} devices of {largest:,} bytes, "
        f"there are {task.num_devices}: {len(sizes) - half} take more than half of one; too few"
    )


def _too_few_moves(task: Task) -> str | None:
    """More tables that must leave their device in use than may: pinned elsewhere, or what it takes to end overflows."""
    c = task.constraints
    if c.max_moves is None:
        return None
    size, device = table_bytes(task), np.array(c.base)
    pinned = np.array([table for table, to in c.pin if c.base[table] != to], np.int64)
    device[pinned] = -1  # they leave room
    needed = len(set(pinned.tolist()))
    over = np.bincount(device[device >= 0], size[device >= 0], minlength=task.num_devices) - task.capacity
    for d in np.flatnonzero(over > 0):
        largest_first = np.cumsum(np.sort(size[device == d])[::-1])
        needed += int(np.searchsorted(largest_first, over[d])) + 1
    if needed <= c.max_moves:
        return None
    return f"{needed} tables or more must leave their device in the plan in use, at most {c.max_moves} may"


def _items(task: Task) -> np.ndarray:
    """Sizes that pack at least as well as the tables, in the finest pieces they may be split into; ascending."""
    parts, _ = _finest(task)
    return np.sort(np.repeat(np.maximum(table_bytes(task) // parts, 1), parts))


def _finest(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The most pieces that each table can be split into, and the bytes of one, (N,) each."""
    dim, parts = task.tables.dim.copy(), np.ones(task.num_tables, np.int64)
    may = np.full(task.num_tables, task.splits_allowed)
    may[list(task.constraints.no_split)] = False
    while (may := may & (dim % 8 == 0)).any():
        dim, parts = np.where(may, dim // 2, dim), np.where(may, 2 * parts, parts)
    return parts, piece_bytes(task, np.arange(task.num_tables), dim)


def first_fit_decreasing(task: Task) -> np.ndarray:
    """Largest table first, each on the first device where it may go, (N,)."""
    options = Options.of(task)
    order = np.argsort(-options.rules.merged(options.size[:, 0]), kind="stable")
    placing = one(options)

    def first(table: int) -> int:
        legal = placing.legal(table)[0]
        device = int(legal.argmax())
        return device if legal[device] else -1

    return follow(placing, order, first)


def follow(placing: One | Placing, order: np.ndarray, choose: Callable[[int], int]) -> np.ndarray:
    """A placement, (N,): tables in this order, groups by their leaders, each to the device that is chosen for it.

    `choose` returns -1 where a table may go nowhere: that is an error, which says why.
    """
    rules, device = placing.options.rules, [-1] * len(order)
    for table in rules.by_leader(order):
        device[table] = chosen = choose(table)
        if chosen < 0:
            raise dead_end(placing, table)
        placing.put(table, chosen)
    return np.array(rules.as_leader(device), np.int64)


def no_room(task: Task, table: int, free: np.ndarray) -> InfeasibleTask:
    """The error that says which table fits nowhere, where it nearly did, and how many bytes are missing."""
    size, device = int(table_bytes(task)[table]), int(np.argmax(free))
    return InfeasibleTask(
        f"table {table} ({task.tables.name[table]!r}, {size:,} bytes) fits on no device: "
        f"device {device} has the most room, {int(free[device]):,} bytes, {size - int(free[device]):,} too few"
    )


def dead_end(placing: One | Placing, table: int, plan: int = 0) -> InfeasibleTask:
    """The error that says which table may go nowhere after those that are placed, and what stands in its way."""
    o, task = placing.options, placing.options.tasks[placing.task[plan]]
    if not o.rules.binding:
        return no_room(task, table, placing.free[plan])
    free, size = placing.bytes_for(table, plan), int(o.held[table])
    device = int(free.argmax())
    missing = size - int(free[device])
    others = ", with those that must be with it" if o.rules.group[table] >= 0 else ""
    why = f"{missing:,} too few" if missing > 0 else "but constraints keep it from there"
    proof = disproof(task)
    verdict = f"and there is no plan: {proof}" if proof else "which does not prove that there is no plan"
    return InfeasibleTask(
        f"in the order tried table {table} ({task.tables.name[table]!r}, {size:,} bytes{others}) may go to no device: "
        f"device {device} has the most room not kept for others, {int(free[device]):,} bytes, {why}; {verdict}"
    )


def _most_room_first(task: Task) -> np.ndarray:
    """Largest table first, each where most room is, fit or not, (N,)."""
    placing, device = one(Options.of(task)), np.empty(task.num_tables, np.int64)
    for t in np.argsort(-placing.options.size[:, 0], kind="stable").tolist():
        device[t] = placing.free[0].argmax()
        placing.put(t, int(device[t]))
    return device
