"""Random feasible placements: the denominator of every speedup, and the first thing a solver can do."""

from __future__ import annotations

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.memory import device_bytes, table_bytes
from shard_gym.tasks import Task

TRIES = 1_000  # uniform placements drawn for one feasible one, at most
CHUNK = 4_000_000  # table placements drawn at once, to bound memory


def random_placements(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` feasible placements, int64 (count, N).

    Uniform over devices, infeasible ones drawn again. Where that fails (tight memory), tables go largest first,
    each to a random device with room; where that dead-ends too, first-fit-decreasing, the last resort.
    """
    at_once = max(1, CHUNK // task.num_tables)
    parts = [_drawn(task, min(at_once, count - start), rng) for start in range(0, count, at_once)]
    return np.concatenate(parts) if parts else np.empty((0, task.num_tables), np.int64)


def _drawn(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    found: list[np.ndarray] = []
    missing = count
    for _ in range(10):
        drawn = rng.integers(task.num_devices, size=(missing, task.num_tables))
        feasible = (device_bytes(task, drawn) <= task.capacity).all(axis=1)
        found.append(drawn[feasible])
        missing -= int(feasible.sum())
        if not missing or feasible.mean() < 0.05:
            break
    for _ in range(10):
        if not missing:
            break
        placed = _largest_first(task, missing, rng)
        found.append(placed)
        missing -= len(placed)
    if missing:
        found.append(np.broadcast_to(first_fit_decreasing(task), (missing, task.num_tables)))
    return np.concatenate(found)


def first_fit_decreasing(task: Task) -> np.ndarray:
    """Largest table first, each on the first device with room, (N,)."""
    size = table_bytes(task)
    free = task.capacity.copy()
    placement = np.full(task.num_tables, -1)
    for t in np.argsort(-size, kind="stable"):
        fits = np.flatnonzero(free >= size[t])
        if not len(fits):
            raise no_room(task, int(t), free)
        placement[t] = fits[0]
        free[fits[0]] -= size[t]
    return placement


def no_room(task: Task, table: int, free: np.ndarray) -> InfeasibleTask:
    """The error that says which table fits nowhere, where it nearly did, and how many bytes are missing."""
    size, device = int(table_bytes(task)[table]), int(np.argmax(free))
    return InfeasibleTask(
        f"table {table} ({task.tables.name[table]!r}, {size:,} bytes) fits on no device: "
        f"device {device} has the most room, {int(free[device]):,} bytes, {size - int(free[device]):,} too few"
    )


def _largest_first(task: Task, count: int, rng: np.random.Generator) -> np.ndarray:
    """Placements by random device among those with room; of `count`, those where every table found one."""
    size, k = table_bytes(task), task.num_devices
    free = np.repeat(task.capacity[:, None], count, axis=1)  # (K, P)
    left, plans = free.ravel(), np.arange(count)  # a view
    placements, dead = rng.integers(k, size=(task.num_tables, count)), np.zeros(count, bool)
    for t in np.argsort(-size, kind="stable"):
        index = placements[t] * count + plans
        full = np.flatnonzero(left[index] < size[t])
        if len(full):  # one draw more, among the devices with room: as likely as if only they had been drawn from
            rank = np.add.accumulate(free[:, full] >= size[t], axis=0, dtype=np.int16)  # of each device among those
            wanted = rng.random(len(full)) * rank[-1]
            placements[t, full] = drawn = np.minimum((rank <= wanted).sum(axis=0), k - 1)
            index[full] = drawn * count + full
            dead[full] |= rank[-1] == 0
        left[index] -= size[t]
    return placements.T[~dead]
