"""Costs of single tables: each alone, or one more on each device in turn. What other devices hold stays as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym import core
from shard_gym.memory.usage import table_bytes
from shard_gym.simulators.base import FastSimulator, Latency, Simulator, embedded
from shard_gym.task.constraints import Constraints
from shard_gym.task.links import Links
from shard_gym.task.task import Task

TABLES_AT_ONCE = 64  # costed one by one in one call, to bound memory on many devices
SHARDS_AT_ONCE = 2**14  # decoded in one call where every device is tried in turn
MANY = 32  # devices from where it is faster not to cost those anew that hold what they did


def single_costs(simulator: Simulator, task: Task) -> np.ndarray:
    """Makespan of each table alone on the first device, (N,) ms: what "costliest first" goes by."""
    n = task.num_tables
    if not isinstance(simulator, FastSimulator):
        placements = np.full((n, n), -1)
        np.fill_diagonal(placements, 0)
        return simulator.latency(task, placements).makespan(task.objective)
    return costs_alone(simulator, task, embedded(simulator, task))


def costs_alone(simulator: FastSimulator, task: Task, tables: np.ndarray) -> np.ndarray:
    """Makespan of each of some rows (N, H) alone on the first device, (N,) ms."""
    n, devices = len(tables), task.num_devices
    if task.objective == "kernel" and len(set(task.speed)) == 1:  # devices are alike and do not touch: ask K at once
        dealt = np.pad(tables, ((0, -n % devices), (0, 0))).reshape(-1, devices, tables.shape[1])
        return simulator.cost(task, dealt).ravel()[:n]
    if devices >= MANY and (wires := _wires(simulator, task)):
        simulator.count(n)
        return _alone_of_many(task, simulator.uncounted, tables, wires)
    makespans = []
    for start in range(0, n, TABLES_AT_ONCE):
        part = tables[start : start + TABLES_AT_ONCE]
        sums = np.zeros((len(part), devices, part.shape[1]))
        sums[:, 0] = part
        makespans.append(simulator.cost(task, sums).max(axis=-1))
    return np.concatenate(makespans)


def costs_with(task: Task, simulator: FastSimulator, sums: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The cost of each device if it took one more table: sums (..., K, H), table (..., H) -> (..., K)."""
    if task.objective == "kernel":  # a device's cost depends on nothing but its own tables
        return simulator.cost(task, sums + table[..., None, :])
    if simulator.rates(task) is not None:
        simulator.count(sums[..., 0].size)
        return simulator.uncounted.cost(task, sums + table[..., None, :])
    if task.num_devices >= MANY and (wires := _wires(simulator, task)):
        simulator.count(sums[..., 0].size)
        return _with_on_many(task, simulator.uncounted, sums, table, wires)
    *_, k, width = sums.shape
    plans, tables = sums.reshape(-1, k, width), table.reshape(-1, width)
    cost, count = np.empty(len(plans) * k), max(1, SHARDS_AT_ONCE // k)
    for start in range(0, len(cost), count):
        part = np.arange(start, min(start + count, len(cost)))
        plan, device = np.divmod(part, k)
        tried, each = plans[plan], np.arange(len(part))
        tried[each, device] += tables[plan]
        cost[part] = simulator.cost(task, tried)[each, device]
    return cost.reshape(sums.shape[:-1])


def cheapest_in_turn(task: Task, simulator: FastSimulator, tables: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Devices of tables (N, H), in turn each on the one that then costs least of those with room, (N,).

    Where devices touch, and where the compiled core does not know the simulator or finds no device or no cost: None.
    """
    if task.objective != "kernel":
        return None
    model, size = simulator.uncounted.model, table_bytes(task)
    found = core.greedy(model, tables, order, size, task.capacity, task.ms_per_us)
    if found is not None:
        simulator.count(len(order))
    return found


def _wires(simulator: FastSimulator, task: Task) -> tuple[Links, int, int] | None:
    """Wires, batch and column of what is sent, if devices touch by all-to-alls and the slowest forward pass alone."""
    found = simulator.uncounted
    wires = found.all_to_all(task) if task.objective == "iteration" else None
    return None if wires is None or found.sent is None else (*wires, found.sent)


def _alone_of_many(
    task: Task, simulator: FastSimulator, tables: np.ndarray, wires: tuple[Links, int, int]
) -> np.ndarray:
    """Makespan of each row alone on the first device: the others hold nothing, and are asked about once."""
    links, batch, sent = wires
    only = replace(task, memory=task.memory[:1], speed=task.speed[:1], links=None, constraints=Constraints())
    alone = simulator.decode(only, tables[:, None])  # (N, 1)
    empty = simulator.decode(task, np.zeros((task.num_devices, tables.shape[1])))  # (K,)
    makespans = []
    for start in range(0, len(tables), TABLES_AT_ONCE):
        part = slice(start, start + TABLES_AT_ONCE)
        columns, forward, backward = np.zeros((3, len(tables[part]), task.num_devices))
        forward += empty.forward_compute
        backward += empty.backward_compute
        columns[:, 0] = tables[part, sent]
        forward[:, :1], backward[:, :1] = alone.forward_compute[part], alone.backward_compute[part]
        comm = links.all_to_all_ms(columns, batch)
        makespans.append(Latency(forward, comm, comm, backward).makespan(task.objective))
    return np.concatenate(makespans)


def _with_on_many(
    task: Task, simulator: FastSimulator, sums: np.ndarray, table: np.ndarray, wires: tuple[Links, int, int]
) -> np.ndarray:
    """The cost of each device if it took one more table, (..., K): every device is asked about twice, not K times.

    All wait for the slowest forward pass. Of the others' that is the slowest, or the second for the slowest device.
    """
    links, batch, sent = wires
    latency = simulator.decode(task, np.stack([sums, sums + table[..., None, :]]))
    (before, after), comm = latency.forward_compute, links.one_more_ms(sums[..., sent], table[..., sent], batch)
    largest = np.partition(before, -2, axis=-1)[..., -2:]
    others = np.where(before == largest[..., 1:], largest[..., :1], largest[..., 1:])
    return np.maximum(others, after) + comm + comm + latency.backward_compute[1]
