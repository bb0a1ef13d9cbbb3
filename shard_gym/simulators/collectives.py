"""Bytes that shards send to other devices and to the host's memory, in columns that add up over a device.

| kind | forward | backward |
|---|---|---|
| tw, cw | all-to-all of pooled rows | the same back |
| rw | reduce-scatter of partial sums, as wide as the table, over all devices | all-gather |
| twrw, grid | reduce-scatter in the host, then all-to-all between hosts | the reverse |
| dp | | all-reduce of the gradients of all rows |

Tables that do not pool have no partial sums: a block of rows sends the rows that are looked up in it, in an all-to-all.

Before all of them but dp, ids travel in an all-to-all. Tasks that know whole tables and columns only are costed without
ids, as they always were. Which collectives there are is TorchRec's choice (its distributed/sharding, a file a kind);
how long one takes is said in `shard_gym.task.links`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shard_gym import core
from shard_gym.memory.shards import ID_BYTES, ID_WEIGHT_BYTES, Shards
from shard_gym.simulators.lookups import Lookups, sectors
from shard_gym.task.constraints import BY_HOST, OF_ONE
from shard_gym.task.links import HOST_LINK as HOST_LINK
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym.task.task import mixed as mixed

LENGTH_BYTES = 4  # of the number of ids in a bag
POOLED_BYTES = 4  # of a pooled number: fp32
MIB = 2.0**20  # columns of bytes are in MiB: their grain is 64 bytes
MIB_BATCH = 2**20 // POOLED_BYTES  # samples of which a column is one MiB
# Columns: of pooled rows, by collective; then MiB of copied tables, of ids, and to and from the host's memory.
MOVED = ROWS, HOST_ROWS, COPIES, IDS, FETCHED, UPDATED = tuple(range(6))


def columns_sent(task: Task, shards: Shards) -> tuple[np.ndarray, np.ndarray]:
    """Columns that a sample gets back from each shard, (S,) each: as they are, and those of partial sums."""
    tables, table = task.tables, shards.table
    sent = tables.columns_sent[table] / tables.dim[table] * shards.dim
    alone, pooled = np.isin(shards.kind, OF_ONE), tables.pooled[table]
    of_block = np.where(pooled | (shards.kind == "dp"), 0, sent * shards.rows / tables.rows[table])
    return np.where(alone, sent, of_block), np.where(pooled, sent, 0)


def traffic(task: Task, shards: Shards, lookups: Lookups, missed: np.ndarray) -> list[np.ndarray]:
    """Columns of the all-to-all of whole tables, then those that S shards move beside it; (S,) each of 7.

    So many rows are `missed`, (S,), and come from the host's memory.
    """
    kind, (alone, sent) = shards.kind, columns_sent(task, shards)
    copies = np.where(kind == "dp", shards.rows * shards.dim * shards.of.element_bytes, 0)
    an_id = ID_BYTES + ID_WEIGHT_BYTES * task.tables.weighted[shards.table]
    ids = lookups.ids * an_id + lookups.bags * LENGTH_BYTES
    row = sectors(shards.dim * shards.of.element_bytes)
    # updated rows go back to the host; without a cache the backward pass reads them once more
    again = np.where(shards.of.cached, 1, 2) * missed * row
    states = (
        task.state_bytes[1, shards.table] // 4 * sectors(4 * shards.dim)
    )  # those of weights are in the host's memory too
    states = np.where(shards.of.in_host, 2 * states * lookups.distinct, 0)
    return [
        alone,
        np.where(kind == "rw", sent, 0),
        np.where(np.isin(kind, BY_HOST), sent, 0),
        copies / MIB,
        np.where(kind == "dp", 0, ids) / MIB,
        missed * row / MIB,
        (again + states) / MIB,
    ]


def host_ms(host_link: float, moved: np.ndarray) -> np.ndarray:
    """Time at the host's memory of the forward and of the backward pass, (2, ..., K), from sums of `traffic`."""
    return np.stack([moved[..., FETCHED], moved[..., UPDATED]]) * (MIB / host_link)


def comm_of(links: Links, batch: int, sums: np.ndarray, dim: int, moved: int) -> tuple[np.ndarray, np.ndarray]:
    """`comm_ms` of sums (..., K, H), with columns of whole tables in one column and those of `traffic` from another."""
    found = core.comm(*wires_of(links, batch, sums.shape[-2]), sums, dim, moved)
    return comm_ms(links, batch, sums[..., dim], sums[..., moved:]) if found is None else (found[0], found[1])


@lru_cache(64)
def wires_of(links: Links, batch: int, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Links as the compiled core knows them: numbers, and the first device and the size of each device's host."""
    starts, sizes = links.groups(devices)
    rates = links.port, links.latency_ms, links.uplink, links.fabric, links.peer_to_peer
    numbers = np.array([*rates, len(starts), POOLED_BYTES * batch, POOLED_BYTES * MIB_BATCH, MIB], np.float64)
    return numbers, starts.repeat(sizes), sizes.repeat(sizes)


def comm_ms(links: Links, batch: int, columns: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Communication of each device in the forward and in the backward pass, (..., K) each.

    `columns` are summed columns of whole tables (..., K), `moved` sums of `traffic`, (..., K, 6).
    """
    pooled = POOLED_BYTES * batch
    rows, in_host = moved[..., ROWS] * pooled, moved[..., HOST_ROWS] * pooled
    both = _exchanged(links, columns, batch) + links.ring_ms(rows)
    both += links.rings_in_groups_ms(in_host) + links.between_groups_ms(in_host)
    ids = _exchanged(links, moved[..., IDS], MIB_BATCH)  # summed in MiB, which is exact in any order
    return both + ids, both + 2 * links.ring_ms(moved[..., COPIES] * MIB)


def least_comm_ms(links: Links, batch: int, devices: int) -> np.ndarray:
    """Communication of both passes that each device has for what it holds itself, (K, 7) ms a unit of each column.

    Columns are those of whole tables, then those of `traffic`. What others hold makes none of it sooner.
    """
    return _comm_of_units(links, batch, np.eye(devices))


def even_comm_ms(links: Links, batch: int, devices: int) -> np.ndarray:
    """The same of devices that hold as much as each other, (K, 7): on average no other way is sooner.

    It takes groups of one size: devices can be exchanged then, and times are convex, so what all have in the mean of
    all exchanges is no more than the mean of what they have.
    """
    return _comm_of_units(links, batch, np.ones((devices, devices)))


def latencies_ms(links: Links, columns: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Time of both passes of `comm_ms` where bytes take none, (..., K)."""
    there, back = comm_ms(endless(links), 1, columns, moved)
    return there + back


def endless(links: Links) -> Links:
    """Links that take any number of bytes at once, after the same latency."""
    return replace(links, port=math.inf, uplink=math.inf, fabric=math.inf)


def _comm_of_units(links: Links, batch: int, held: np.ndarray) -> np.ndarray:
    """Communication of each device in a plan of its own, where devices hold so many units, (K, K), of one column."""
    sooner, columns, found = replace(links, latency_ms=0.0), 1 + len(MOVED), []
    for column in range(columns):
        units = np.zeros((*held.shape, columns))
        units[..., column] = held
        both = comm_ms(sooner, batch, units[..., 0], units[..., 1:])
        found.append(np.diagonal(both[0] + both[1]))
    return np.stack(found, axis=1)


def _exchanged(links: Links, columns: np.ndarray, batch: int) -> np.ndarray:
    """Time of an all-to-all; none where nobody has anything to send."""
    return links.all_to_all_ms(columns, batch) * (columns.sum(axis=-1, keepdims=True) > 0)
