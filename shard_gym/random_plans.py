"""Random feasible placements: the denominator of every speedup, and the first thing a solver can do."""

from __future__ import annotations

import numpy as np

from shard_gym.memory import table_bytes
from shard_gym.room import Room, Rules, follow, no_room
from shard_gym.tasks import Task

TRIES = 1_000  # uniform placements drawn for one feasible one, at most
LEAST = 0.05  # share of uniform placements that fit, below which no more are drawn; frozen references depend on it
CHUNK = 4_000_000  # table placements drawn at once, to bound memory


def random_placements(task: Task, count: int, rng: np.random.Generator, least: float = LEAST) -> np.ndarray:
    """`count` feasible placements, int64 (count, N).

    Uniform over devices, infeasible ones drawn again. Where less than `least` of them fit, tables go largest first,
    each to a random device with room; where that dead-ends too, first-fit-decreasing, the last resort.
    Under constraints tables go one by one from the start; in an order of each plan's own where few may move.
    """
    at_once = max(1, CHUNK // task.num_tables)
    parts = [_drawn(task, min(at_once, count - start), rng, least) for start in range(0, count, at_once)]
    return np.concatenate(parts) if parts else np.empty((0, task.num_tables), np.int64)


def _drawn(task: Task, count: int, rng: np.random.Generator, least: float) -> np.ndarray:
    found: list[np.ndarray] = []
    missing, one_by_one = count, _largest_first
    if (rules := Rules.of(task)) is not None:
        one_by_one = _under_rules if rules.away is None else _few_moves
    for _ in range(0 if rules else 10):
        drawn = rng.integers(task.num_devices, size=(missing, task.num_tables))
        feasible = _fit(task, drawn)
        found.append(drawn[feasible])
        missing -= int(feasible.sum())
        if not missing or feasible.mean() < least:
            break
    for _ in range(10):
        if not missing:
            break
        placed = one_by_one(task, missing, rng)
        found.append(placed)
        missing -= len(placed)
    if missing:
        found.append(np.broadcast_to(first_fit_decreasing(task), (missing, task.num_tables)))
    return np.concatenate(found)


def _fit(task: Task, placements: np.ndarray) -> np.ndarray:
    """Which placements, (P, N), keep to memory, (P,): counted, in half the time of `device_bytes`."""
    count, k = len(placements), task.num_devices
    index = (placements + k * np.arange(count)[:, None]).ravel()
    sizes = np.broadcast_to(table_bytes(task).astype(np.float64), placements.shape).ravel()
    used = np.bincount(index, sizes, minlength=count * k).reshape(count, k)
    return np.asarray((used <= task.capacity).all(axis=1))


def first_fit_decreasing(task: Task) -> np.ndarray:
    """Largest table first, each on the first device with room, (N,)."""
    size = table_bytes(task)
    if (rules := Rules.of(task)) is not None:
        return follow(task, np.argsort(-rules.merged(size), kind="stable"), lambda _, legal: int(legal.argmax()))
    free = task.capacity.copy()
    placement = np.full(task.num_tables, -1)
    for t in np.argsort(-size, kind="stable"):
        fits = np.flatnonzero(free >= size[t])
        if not len(fits):
            raise no_room(task, int(t), free)
        placement[t] = fits[0]
        free[fits[0]] -= size[t]
    return placement


def _largest_first(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    """Placements by random device among those with room; of `count`, those where every table found one."""
    size, k = table_bytes(task), task.num_devices
    few = np.int8 if k < 128 else np.int16  # numbers of devices: adding them up is most of the work
    free = np.repeat(task.capacity[:, None], count, axis=1)  # (K, P)
    left, plans = free.reshape(-1), np.arange(count)  # a view
    placements, dead = rng.integers(k, size=(task.num_tables, count)), np.zeros(count, bool)
    for t in np.argsort(-size, kind="stable").tolist():
        index = placements[t] * count + plans
        room = left.take(index) - size[t]
        full = np.flatnonzero(room < 0)
        if len(full):  # one draw more, among the devices with room: as likely as if only they had been drawn from
            rank = np.add.accumulate(free.take(full, axis=1) >= size[t], axis=0, dtype=few)  # of each among those
            wanted = (rng.random(len(full)) * rank[-1]).astype(few)
            drawn = np.add.reduce((rank <= wanted).view(np.int8), axis=0, dtype=few).astype(np.int64)
            placements[t, full] = drawn = np.minimum(drawn, k - 1)
            index[full] = at = drawn * count + full
            room[full] = left.take(at) - size[t]
            dead[full] |= rank[-1] == 0
        left[index] = room
    return placements.T[~dead]


def _under_rules(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    """As `_largest_first`, where there are rules: tables that must be together go as one."""
    room = Room(task, count)
    order = np.argsort(-room.size, kind="stable")
    return _drawn_in(room, np.repeat(order[:, None], count, axis=1), rng)


def _few_moves(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    """As `_under_rules`, in random orders: the first ones would use up the moves."""
    orders = rng.permuted(np.repeat(np.arange(task.num_tables)[:, None], count, axis=1), axis=0)
    return _drawn_in(Room(task, count), orders, rng)


def _drawn_in(room: Room, orders: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Tables in these orders, (N, P), each to a random device where it may go; placements where every one found one."""
    dead = np.zeros(orders.shape[1], bool)
    for tables in orders:
        legal = room.legal(tables)
        dead |= ~legal.any(axis=1)
        room.place(tables, np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1))
    return room.placements()[~dead]
