"""Random feasible placements: the denominator of every speedup, and the first thing a solver can do."""

from __future__ import annotations

import numpy as np

from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import Placing
from shard_gym.task.task import Task

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
    missing, options = count, Options.of(task)
    for _ in range(0 if options.rules.binding else 10):
        drawn = rng.integers(task.num_devices, size=(missing, task.num_tables))
        feasible = _fit(task, drawn)
        found.append(drawn[feasible])
        missing -= int(feasible.sum())
        if not missing or feasible.mean() < least:
            break
    for _ in range(10):
        if not missing:
            break
        placed = _one_by_one(options, missing, rng)
        found.append(placed)
        missing -= len(placed)
    if missing:
        found.append(np.broadcast_to(first_fit_decreasing(task), (missing, task.num_tables)))
    return np.concatenate(found)


def _fit(task: Task, placements: np.ndarray) -> np.ndarray:
    """True for placements, (P, N), that keep to memory, (P,): counted, in half the time of `device_bytes`."""
    count, k = len(placements), task.num_devices
    index = (placements + k * np.arange(count)[:, None]).ravel()
    sizes = np.broadcast_to(table_bytes(task).astype(np.float64), placements.shape).ravel()
    used = np.bincount(index, sizes, minlength=count * k).reshape(count, k)
    return np.asarray((used <= task.capacity).all(axis=1))


def _one_by_one(options: Options, count: int, rng: np.random.Generator) -> np.ndarray:
    """Placements by random device among those where a table may go; of `count`, those where every table found one.

    Largest table first; where few may move in random orders, as the first ones would use up the moves.
    """
    rules, size = options.rules, options.size[:, 0]
    if not rules.binding:
        return _largest_first(options, count, rng)
    order = np.argsort(-rules.merged(size), kind="stable")
    orders = np.repeat(order[:, None], count, axis=1)
    if rules.away is not None:
        tables = np.arange(len(size))
        orders = rng.permuted(np.repeat(tables[:, None], count, axis=1), axis=0)
    placing, device, dead = Placing(options, count), np.empty((len(size), count), np.int64), np.zeros(count, bool)
    for tables in orders:
        legal = placing.legal(tables)
        dead |= ~legal.any(axis=1)
        chosen = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
        placing.place(tables, chosen)
        device[tables, np.arange(count)] = chosen
    return device.T[~dead]


def _largest_first(options: Options, count: int, rng: np.random.Generator) -> np.ndarray:
    """Placements where memory is all that counts: a uniform draw, and only where that does not fit another one."""
    placing, (n, k) = Placing(options, count), (len(options.size), options.capacity.shape[1])
    few = np.int8 if k < 128 else np.int16  # numbers of devices: adding them up is most of the work
    placements, dead = rng.integers(k, size=(n, count)), np.zeros(count, bool)
    for t in np.argsort(-options.size[:, 0], kind="stable").tolist():
        full = placing.full(t, placements[t])
        if len(full):  # one draw more, among the devices with room: as likely as if only they had been drawn from
            rank = np.add.accumulate(placing.legal(t, full).T, axis=0, dtype=few)  # of each among those
            wanted = (rng.random(len(full)) * rank[-1]).astype(few)
            drawn = np.add.reduce((rank <= wanted).view(np.int8), axis=0, dtype=few).astype(np.int64)
            placements[t, full] = np.minimum(drawn, k - 1)
            dead[full] |= rank[-1] == 0
        placing.place(t, placements[t])
    return placements.T[~dead]
