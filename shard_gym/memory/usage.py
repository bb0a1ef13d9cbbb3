"""Bytes that tables take on devices, and bytes that are left there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_gym import core
from shard_gym.task.task import OF_A_BATCH, Task

if TYPE_CHECKING:  # imported where bytes are those of shards
    from shard_gym.memory.shards import Shards
    from shard_gym.memory.storage import Storage


def table_bytes(task: Task) -> np.ndarray:
    """Bytes each table takes on the device that holds it, (N,) int64.

    Accounting "weights" counts the weights, as the papers do; "training" adds the optimizer's state. "torchrec" is
    what TorchRec's planner counts by default, input and output of a batch too; "true" is the same corrected, see
    `shard_gym.memory.storage`. Both take ids to be spread evenly over a table's bags, and ranks to have the same
    number of samples each, rounded up.
    """
    if task.accounting == "weights":
        return task.tables.weight_bytes
    return piece_bytes(task, np.arange(task.num_tables), task.tables.dim)


def piece_bytes(task: Task, table: np.ndarray, dim: np.ndarray) -> np.ndarray:
    """Bytes of pieces of tables, each on one device: so many columns of a table, (P,) each -> (P,) int64."""
    dim, tables = dim.astype(np.int64), task.tables
    if task.accounting not in OF_A_BATCH:
        return _held(task, table, tables.rows[table], dim)
    from shard_gym.memory.shards import Shards, Tables

    return shard_storage(task, Shards.of_columns(Tables.of_task(task), table, dim)).hbm.bytes


def _held(task: Task, table: np.ndarray, rows: np.ndarray, dim: np.ndarray) -> np.ndarray:
    """Bytes of weights and states in the device's memory: `shard_storage` of tables there, in a tenth of its time."""
    a_row, a_weight = (0, 0) if task.accounting == "weights" else task.state_bytes[:, table]
    held: np.ndarray = rows * (a_row + (task.tables.element_bytes[table] + a_weight) * dim)
    return held


def optimizer_bytes(task: Task) -> np.ndarray:
    """Bytes of the optimizer's state that FBGEMM keeps beside each table, (N,) int64."""
    a_row, a_weight = task.state_bytes
    return task.tables.rows * (a_row + a_weight * task.tables.dim)


def shard_storage(task: Task, shards: Shards) -> Storage:
    """Bytes of shards in the device's memory and in its host's, by the task's accounting."""
    from shard_gym.memory.shards import Setup
    from shard_gym.memory.storage import storage

    return storage(shards, Setup.of(task), task.accounting)


def bytes_used(task: Task, shards: Shards) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that shards take of each device's memory and of its part of its host's, (K,) int64 both."""
    sums = (np.bincount(shards.device, s, task.num_devices).astype(np.int64) for s in shard_bytes(task, shards))
    return next(sums), next(sums)


def shard_bytes(task: Task, shards: Shards) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of each shard in the device's memory and in its host's, (S,) both."""
    if task.accounting in OF_A_BATCH:
        found = shard_storage(task, shards)
        return found.hbm.bytes, found.ddr.bytes
    of, held = shards.of, _held(task, shards.table, shards.rows, shards.dim)
    if not of.in_host.any():
        return held, np.zeros(len(shards.rows), np.int64)
    weights = shards.rows * shards.dim * task.tables.element_bytes[shards.table]
    a_row = 0 if task.accounting == "weights" else task.state_bytes[0, shards.table]
    cached = np.where(of.cached, np.rint(weights * of.cache_load_factor).astype(np.int64), 0)
    in_host = np.where(of.in_host, held - shards.rows * a_row, 0)  # weights, and the states of each
    return held - in_host + cached, in_host


def device_sums(values: np.ndarray, placements: np.ndarray, num_devices: int) -> np.ndarray:
    """Sum of each device's tables: values (N, H), placements int (..., N) with -1 for none -> (..., K, H).

    Exact, and so independent of order, for whole numbers and multiples of 2**-14 (below 2**53 in units of them).
    """
    placements = np.asarray(placements)
    flat = placements.reshape(-1, placements.shape[-1])
    sums = core.device_sums(values, flat, num_devices)
    if sums is None:
        add = _by_product if num_devices <= max(8, values.shape[1]) else _by_counting
        sums = add(values, flat, num_devices)
    return sums.reshape(*placements.shape[:-1], num_devices, values.shape[1])


def _by_product(values: np.ndarray, flat: np.ndarray, num_devices: int) -> np.ndarray:
    """Each device's indicator times the values: faster for few devices. In parts that stay in the cache."""
    sums = np.empty((len(flat), num_devices, values.shape[1]))
    placed, devices = flat.astype(np.int16), np.arange(num_devices, dtype=np.int16)[:, None]
    indicator = np.empty((min(len(flat), 128), num_devices, flat.shape[1]))
    for start in range(0, len(flat), 128):
        part = placed[start : start + 128, None, :]
        shards = len(part) * num_devices
        holds = np.equal(part, devices, out=indicator[: len(part)]).reshape(shards, flat.shape[1])
        np.matmul(holds, values, out=sums[start : start + 128].reshape(shards, values.shape[1]))
    return sums


def _by_counting(values: np.ndarray, flat: np.ndarray, num_devices: int) -> np.ndarray:
    """One weighted count a column: independent of the number of devices."""
    plans, buckets = len(flat), num_devices + 1  # the last bucket takes what is not placed
    index = (np.where(flat < 0, num_devices, flat) + buckets * np.arange(plans)[:, None]).ravel()
    sums = np.empty((values.shape[1], plans * buckets))
    for h, column in enumerate(values.T):
        weights = np.broadcast_to(column, flat.shape).ravel()
        sums[h] = np.bincount(index, weights, minlength=plans * buckets)
    return sums.reshape(values.shape[1], plans, buckets)[:, :, :num_devices].transpose(1, 2, 0)


def device_bytes(task: Task, placements: np.ndarray) -> np.ndarray:
    """Bytes used on each device; placements int (..., N) -> (..., K) int64."""
    values = table_bytes(task).astype(np.float64)[:, None]
    return device_sums(values, placements, task.num_devices)[..., 0].astype(np.int64)


def overshoot(task: Task, used: np.ndarray) -> np.ndarray:
    """max_k (used_k - capacity_k) / capacity_k; positive when a device is over. (..., K) -> (...)."""
    return ((used - task.capacity) / task.capacity).max(axis=-1)
