"""Analytic costs: bytes over bandwidth, lookups over issue rate, whichever takes longer.

The readable specification of what an embedding shard costs, the oracle of the tests, and the way to ask about
hardware nobody lent us. Formulas follow FBGEMM's fused kernels; rates of the RTX 2080 Ti are calibrated to the
figures DreamShard published for it, the other presets scale them by their data sheets. Version 2 of those is calibrated
to what narrow rows were measured to take (benchmarks.papers prints ours beside all of these figures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shard_gym import core
from shard_gym.memory.shards import ID_WEIGHT_BYTES, Shards, Tables
from shard_gym.simulators.base import PASSES, FastSimulator, Latency, Maxima, refuse_objective
from shard_gym.simulators.collectives import (
    FETCHED,
    HOST_LINK,
    MIB,
    UPDATED,
    comm_of,
    endless,
    even_comm_ms,
    host_ms,
    latencies_ms,
    least_comm_ms,
    mixed,
    traffic,
    wires_of,
)
from shard_gym.simulators.lookups import Lookups, sectors
from shard_gym.simulators.networks import on_grid
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.task import Task

BACKWARD_WORK = 3.0  # instructions of the backward pass for one of the forward pass: gradient, state, weights
# Columns of an embedding; times are in microseconds.
FORWARD_DRAM, FORWARD_ISSUE, BACKWARD_DRAM, BACKWARD_ISSUE, SORT, DIM, COUNT = range(7)


@dataclass(frozen=True)
class Hardware:
    """One kind of device and the wires between several; rates are achieved, not peak."""

    name: str
    dram: float  # bytes a microsecond
    l2_bytes: float
    l2: float  # bytes a microsecond
    lookup_ns: float  # to issue one lookup in the forward pass, whatever the width of its row
    bag_ns: float  # to begin and end the pooling of one bag
    launch_us: float  # fixed cost of one pass over a shard, however many tables are fused in it
    links: Links
    host_link: float = HOST_LINK  # bytes a millisecond, from and to the host's memory


class Roofline(FastSimulator):
    """The analytic simulator; `embed` gives microseconds, so that their grain is well below any table's cost."""

    kinds = KINDS
    sent = DIM

    def __init__(self, hardware: Hardware, version: int = 1) -> None:
        self.hardware = hardware
        self.id = f"roofline:{hardware.name}-v{version}"
        self.model = np.array([0.0, 0.0, 0.0, 1.0, hardware.launch_us, 0.0])

    def embed(self, task: Task) -> np.ndarray:
        """Work of each table in a batch: time at the memory, at the issue units, in the sort; columns; one."""
        if mixed(task):
            return self.embed_shards(task, Shards.whole(Tables.of_task(task)))
        refuse_objective(self, task)
        tables = task.tables
        sizes = tables.rows, tables.dim, tables.element_bytes
        work = self._work(task, Lookups.of_tables(tables, task.batch), sizes)
        return on_grid(np.stack([*work, tables.columns_sent, np.ones(len(tables))], axis=1))

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        """Work of each shard, and what it moves besides where tables may be more than whole or cut by columns."""
        if not mixed(task):
            return super().embed_shards(task, shards)
        refuse_objective(self, task)
        lookups = Lookups.of(task, shards, task.batch)
        missed = lookups.missed(shards, sectors(shards.dim * shards.of.element_bytes))
        work = self._work(task, lookups, (shards.rows, shards.dim, shards.of.element_bytes), shards, missed)
        sent, *moved = traffic(task, shards, lookups, missed)
        return on_grid(np.stack([*work, sent, shards.rows > 0, *moved], axis=1))

    def _work(
        self,
        task: Task,
        lookups: Lookups,
        sizes: tuple[np.ndarray, ...],
        shards: Shards | None = None,
        missed: np.ndarray | float = 0.0,
    ) -> list[np.ndarray]:
        """Times at the memory, at the issue units and in the sort, from rows, columns and bytes of a weight, (S,) each.

        `shards` are told where some may be copies, or have rows in the host's memory, of which so many are `missed`.
        """
        h, (rows, columns, element) = self.hardware, sizes
        ids, bags = lookups.ids, lookups.rows_out
        table = np.arange(task.num_tables) if shards is None else shards.table
        dim = columns.astype(np.float64)
        row = sectors(dim * element)
        output = bags * 4 * dim  # fp32, or its gradient
        weights = ids * ID_WEIGHT_BYTES * task.tables.weighted[table]
        hits = lookups.hits(row, h.l2_bytes)
        passes = np.ceil(np.log2(np.maximum(rows, 2)) / 8)  # radix sort, 8 bits a pass

        forward_l2 = ids * (8 + row) + bags * 8 + output + weights
        forward_dram = forward_l2 - hits * row
        # the gradient of weights has a kernel of its own, which reads ids, rows and the output's gradient once more
        of_weights = np.where(weights > 0, forward_dram + weights, 0)
        backward_dram = ids * 20 + output + _updates(task, table, lookups.distinct, dim, row, shards) + of_weights
        if shards is not None:  # rows in the host's memory come by its link; a cache takes in, and gives back, misses
            away, cached = shards.of.in_host, shards.of.cached
            taken_in = np.where(cached, missed * row, 0)
            forward_dram = forward_dram + np.where(away & ~cached, hits * row - ids * row, taken_in)
            backward_dram = backward_dram + taken_in
        backward_l2 = backward_dram + ids * 4 * dim  # every lookup reads its bag's gradient
        issue = (ids * h.lookup_ns + bags * h.bag_ns) / 1e3
        return [
            np.maximum(forward_dram / h.dram, forward_l2 / h.l2),
            issue,
            np.maximum(backward_dram / h.dram, backward_l2 / h.l2),
            issue * BACKWARD_WORK,
            ids * passes * (2 * 12 + 8) / h.dram,
        ]

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Passes overlap memory and issue, so a shard takes the longer of the two; then the links.

        Rows from the host's memory come before or after the others, as they have kernels of their own.
        """
        h, times = self.hardware, core.decode(self.model, sums, task.ms_per_us, 2)
        forward, backward = self._both_passes(task, sums) if times is None else times
        links, moved = task.links or h.links, sums[..., COUNT + 1 :]
        if some_moved := bool(moved.shape[-1]):
            fetched, updated = host_ms(task.host_link or h.host_link, moved)
            forward, backward = forward + fetched, backward + updated
        if task.objective == "kernel":
            there = back = np.zeros_like(forward)
        elif some_moved:
            there, back = comm_of(links, task.batch, sums, DIM, COUNT + 1)
        else:
            there = back = links.all_to_all_ms(sums[..., DIM], task.batch)
        return Latency(forward, there, back, backward)

    def cost(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """The costs of `decode`."""
        alone = task.objective == "kernel" and not mixed(task)
        times = core.decode(self.model, sums, task.ms_per_us, 1) if alone else None
        return super().cost(task, sums) if times is None else times[0]

    def _both_passes(self, task: Task, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward ms of shards in the device's memory, (..., K) both."""
        launch = (sums[..., COUNT] > 0) * self.hardware.launch_us
        forward = np.maximum(sums[..., FORWARD_DRAM], sums[..., FORWARD_ISSUE]) + launch
        backward = np.maximum(sums[..., BACKWARD_DRAM], sums[..., BACKWARD_ISSUE]) + sums[..., SORT] + launch
        forward *= task.ms_per_us
        backward *= task.ms_per_us
        return forward, backward

    def all_to_all(self, task: Task) -> tuple[Links, int] | None:
        """The task's wires or the preset's, and the task's batch; None of tasks that have other collectives."""
        return None if mixed(task) else (task.links or self.hardware.links, task.batch)

    def iteration(self, task: Task) -> core.Iteration | None:
        """Costs of iterations with all kinds of sharding."""
        if self.model is None or task.objective != "iteration" or not mixed(task):
            return None
        wires = wires_of(task.links or self.hardware.links, task.batch, task.num_devices)
        ms_per_us = np.broadcast_to(task.ms_per_us, task.num_devices).copy()
        return core.Iteration(self.model, ms_per_us, *wires, MIB / (task.host_link or self.hardware.host_link))

    def floors(self, task: Task) -> list[np.ndarray]:
        """Sums of computation, with rows that come from the host's memory and what a device's own shards send."""
        return self._with_comm(task, least_comm_ms)

    def averages(self, task: Task) -> list[np.ndarray]:
        """The same with what devices send if all hold as much, where they are alike, and so are their groups."""
        group = (task.links or self.hardware.links).group
        alike = len(set(task.speed)) == 1 and not (group and task.num_devices % group)
        return self._with_comm(task, even_comm_ms if alike else least_comm_ms)

    def ahead(self, task: Task) -> list[np.ndarray]:
        """Forward passes, with rows that come from the host's memory."""
        found = FastSimulator.floors(self, task)
        if task.objective == "kernel":
            return [np.zeros_like(floor) for floor in found]
        for weights in found:
            weights[:, [BACKWARD_DRAM, BACKWARD_ISSUE, SORT]] = 0.0
            if mixed(task):
                weights[:, COUNT + 1 + FETCHED] = MIB / (task.host_link or self.hardware.host_link)
        return found

    def least_ms(self, task: Task) -> float:
        """The launch of one forward pass, which all wait for."""
        return 0.0 if task.objective == "kernel" else self.hardware.launch_us * float(task.ms_per_us.min())

    def waits(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """The latencies of collectives."""
        links, moved = task.links or self.hardware.links, sums[..., COUNT + 1 :]
        if task.objective == "kernel":
            return np.zeros(sums.shape[:-1])
        if moved.shape[-1]:
            return latencies_ms(links, sums[..., DIM], moved)
        return 2 * endless(links).all_to_all_ms(sums[..., DIM], task.batch)

    def launch(self, task: Task) -> tuple[int, float]:
        """The launches that only the device itself waits for, where it has any rows: of one pass, or of both."""
        passes = 2 if task.objective == "kernel" else 1
        return COUNT, passes * self.hardware.launch_us * float(task.ms_per_us.min())

    def _with_comm(self, task: Task, least: Callable[[Links, int, int], np.ndarray]) -> list[np.ndarray]:
        """Weights of computation with those of communication, and of the host's memory."""
        found, h = super().floors(task), self.hardware
        rest = np.zeros_like(found[0])
        if task.objective != "kernel":
            sent = least(task.links or h.links, task.batch, task.num_devices)
            columns = [DIM, *range(COUNT + 1, rest.shape[1])]
            rest[:, columns] = sent[:, : len(columns)]
        if mixed(task):
            rest[:, [COUNT + 1 + FETCHED, COUNT + 1 + UPDATED]] += MIB / (task.host_link or h.host_link)
        return [floor + rest for floor in found]

    def maxima(self, phase: str) -> Maxima:
        """Passes as the longer of memory and issue; backward adds the sort to either."""
        forward, backward = PASSES[phase]
        columns = [[FORWARD_DRAM, FORWARD_ISSUE]] * forward + [[BACKWARD_DRAM, BACKWARD_ISSUE]] * backward
        sums = tuple((*chosen, *[SORT] * backward) for chosen in product(*columns))
        return Maxima(sums, self.hardware.launch_us * 1e-3 * (forward + backward))


def _updates(
    task: Task, table: np.ndarray, distinct: np.ndarray, dim: np.ndarray, row: np.ndarray, shards: Shards | None
) -> np.ndarray:
    """Bytes by which the backward pass updates rows and states: those touched, read and written.

    Of a copy the gradient of all rows is cleared, added to and read, then all rows and states are updated. Rows in the
    host's memory are not this memory's, nor are their states a weight.
    """
    a_row, a_weight = task.state_bytes[:, table]
    states = a_weight // 4 * sectors(4 * dim)
    touched = distinct * 2 * (row + (sectors(a_row) + states))
    if shards is None:
        return touched
    element = shards.of.element_bytes
    in_host = np.where(shards.of.cached, row, 0) + sectors(a_row)
    every_row = 2 * dim * element + 2 * (dim * element + a_row + a_weight * dim)
    copied = distinct * 2 * row + shards.rows * every_row
    return np.select([shards.kind == "dp", shards.of.in_host], [copied, distinct * 2 * in_host], touched)


# DRAM: what copies achieved (A100, H200), elsewhere the data sheet x 0.8. L2 sizes: vendors. L2 rates, and that NVLink
# achieves 0.8 of its data sheet: our estimates, without a source. Issue times, launches and links of the RTX 2080 Ti:
# fitted to DreamShard's Tables 4, 6 and 7 and its Figure 12. Its GPUs have no peer-to-peer: everything passes the PCIe
# switch of a pair and host memory. Host links: PCIe 3, 4 and 5, each twice as fast as the one before.
_RTX2080TI = Hardware(
    name="rtx2080ti-x4",
    dram=0.8 * 616e3,
    l2_bytes=5.5e6,
    l2=1.8e6,
    lookup_ns=0.42,
    bag_ns=0.7,
    launch_us=550.0,
    links=Links(port=1.592e8, latency_ms=0.3, group=2, uplink=3.025e7, fabric=1.202e8, peer_to_peer=False),
    host_link=HOST_LINK / 2,
)


def _issuing(hardware: Hardware, lookup_ns: float) -> Hardware:
    """Hardware that issues a lookup in this time; we assume that the fixed costs scale alike."""
    faster = _RTX2080TI.lookup_ns / lookup_ns
    bag_ns, launch_us = _RTX2080TI.bag_ns / faster, _RTX2080TI.launch_us / faster
    return replace(hardware, lookup_ns=lookup_ns, bag_ns=bag_ns, launch_us=launch_us)


def _newer(name: str, dram: float, l2_bytes: float, l2: float, links: Links, host_link: float) -> Hardware:
    """Hardware that is not fitted to anything.

    We assume that rows of 256 bytes saturate the memory (on the RTX 2080 Ti it takes 210).
    """
    like = replace(_RTX2080TI, name=name, dram=dram, l2_bytes=l2_bytes, l2=l2, links=links, host_link=host_link)
    return _issuing(like, 256 / dram * 1e3)


# The RoCE uplink of an 8-GPU node is fitted to the twelve all-to-alls of FlexShard's Table 6 (200 Gbit/s a GPU).
_ROCE = Links(port=2.4e8, latency_ms=4.13, group=8, uplink=1.585e8)
_NVLINK4 = Links(port=3.6e8, latency_ms=0.03)
PRESETS = {
    hardware.name: hardware
    for hardware in (
        _RTX2080TI,
        _newer("a100-x32-roce", dram=1391e3, l2_bytes=40e6, l2=4.5e6, links=_ROCE, host_link=HOST_LINK),
        _newer("h100", dram=0.8 * 3352e3, l2_bytes=50e6, l2=5.5e6, links=_NVLINK4, host_link=2 * HOST_LINK),
        _newer("h200", dram=4300e3, l2_bytes=60e6, l2=5.5e6, links=_NVLINK4, host_link=2 * HOST_LINK),
    )
}

# Version 2: the time to issue a lookup, fitted to the forward passes over rows of 16 to 128 bytes that TorchRec's
# authors published in 2024 (docs/costs.md). Rows of 48 bytes saturate the memory of the A100, not 256. Multiprocessors
# times GHz (data sheets) issue, whatever the memory: hence the other two. Nothing that is published says that the
# RTX 2080 Ti is wrong, so it has no version 2.
_A100_LOOKUP_NS = 48 / PRESETS["a100-x32-roce"].dram * 1e3
_ISSUE_RATES = {"a100-x32-roce": 108 * 1.41, "h100": 132 * 1.98, "h200": 132 * 1.98}
PRESETS_V2 = {
    name: _issuing(PRESETS[name], _A100_LOOKUP_NS * _ISSUE_RATES["a100-x32-roce"] / rate)
    for name, rate in _ISSUE_RATES.items()
}


def make_preset(name: str, version: int) -> Roofline:
    """The simulator of a preset, see PRESETS."""
    return Roofline({1: PRESETS, 2: PRESETS_V2}[version][name], version)
