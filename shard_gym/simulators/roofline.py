"""Analytic costs: bytes over bandwidth, lookups over issue rate, whichever takes longer.

The readable specification of what an embedding shard costs, the oracle of the tests, and the way to ask about
hardware nobody lent us. Formulas follow FBGEMM's fused kernels; rates of the RTX 2080 Ti are calibrated to the
figures DreamShard published for it, the other presets scale them by their data sheets (benchmarks/papers.py
prints ours beside theirs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.links import Links
from shard_gym.simulators.base import GRAIN, FastSimulator, Latency
from shard_gym.tasks import Task

SECTOR = 32  # bytes of the smallest DRAM or L2 access
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
    lookup_ns: float  # to issue one lookup in the forward pass
    element_ns: float  # more for every column of its row
    bag_ns: float  # to begin and end the pooling of one sample
    launch_us: float  # fixed cost of one pass over a shard, however many tables are fused in it
    links: Links


class Roofline(FastSimulator):
    """The analytic simulator; `embed` gives microseconds, so that their grain is well below any table's cost."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.id = f"roofline:{hardware.name}-v1"

    def embed(self, task: Task) -> np.ndarray:
        """Work of each table in a batch: time at the DRAM, at the issue units, in the sort; columns; one."""
        h, tables = self.hardware, task.tables
        scale = task.batch / tables.reference_batch
        lookups = tables.lookups * scale
        distinct = np.minimum(tables.distinct, lookups)
        dim = tables.dim.astype(np.float64)
        row = np.ceil(dim * tables.element_bytes / SECTOR) * SECTOR
        pooled = np.where(lookups > 0, task.batch * 4 * dim, 0.0)  # fp32 output, or its gradient
        offsets = np.where(lookups > 0, task.batch * 8.0, 0.0)
        miss = 1 - hit_share(task, h.l2_bytes)
        passes = np.ceil(np.log2(np.maximum(tables.rows, 2)) / 8)  # radix sort, 8 bits a pass

        forward_l2 = lookups * (8 + row) + offsets + pooled
        forward_dram = lookups * (8 + row * miss) + offsets + pooled
        # the gradient of a sample is read once a lookup but mostly from L2; rows and state are read and written
        backward_dram = lookups * 20 + pooled + distinct * 2 * (row + SECTOR)
        sort = lookups * passes * (2 * 12 + 8)
        bags = np.where(lookups > 0, task.batch, 0)
        issue = (lookups * (h.lookup_ns + h.element_ns * dim) + bags * h.bag_ns) / 1e3
        columns = [
            np.maximum(forward_dram / h.dram, forward_l2 / h.l2),
            issue,
            np.maximum(backward_dram / h.dram, lookups * 4 * dim / h.l2),
            issue * BACKWARD_WORK,
            sort / h.dram,
            dim,
            np.ones(len(tables)),
        ]
        return np.rint(np.stack(columns, axis=1) * GRAIN) / GRAIN

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Passes overlap memory and issue, so a shard takes the longer of the two; then the links."""
        h = self.hardware
        launch = (sums[..., COUNT] > 0) * h.launch_us
        forward = np.maximum(sums[..., FORWARD_DRAM], sums[..., FORWARD_ISSUE]) + launch
        backward = np.maximum(sums[..., BACKWARD_DRAM], sums[..., BACKWARD_ISSUE]) + sums[..., SORT] + launch
        forward *= task.ms_per_us
        backward *= task.ms_per_us
        if task.objective == "kernel":
            comm = np.zeros_like(forward)
        else:
            comm = (task.links or h.links).all_to_all_ms(sums[..., DIM], task.batch)
        return Latency(forward, comm, comm, backward)


def hit_share(task: Task, cache_bytes: float) -> np.ndarray:
    """Share of each table's lookups served by a cache that keeps the most used rows, (N,).

    A fused kernel walks the tables one after the other, so each has the cache to itself. The first touch of a
    row always misses; a bin of uses that fits in part hits in part.
    """
    tables = task.tables
    touched, looked_up = tables.use_counts()
    row = np.ceil(tables.dim * tables.element_bytes / SECTOR) * SECTOR
    hottest_first = (touched * row[:, None])[:, ::-1]
    room = cache_bytes - (np.cumsum(hottest_first, axis=1) - hottest_first)
    kept = np.clip(room / np.maximum(hottest_first, 1), 0, 1)[:, ::-1]
    hits = (kept * np.maximum(looked_up - touched, 0)).sum(axis=1)
    return hits / np.maximum(tables.lookups, 1)


# Bandwidths: data sheets x 0.8, what copies achieve. Issue times, launches and links of the RTX 2080 Ti: fitted to
# DreamShard's Tables 4, 6 and 7 and its Figure 12. Its GPUs have no peer-to-peer: everything passes the PCIe switch
# of a pair and host memory.
_RTX2080TI = Hardware(
    name="rtx2080ti-x4",
    dram=0.8 * 616e3,
    l2_bytes=5.5e6,
    l2=1.8e6,
    lookup_ns=0.168,
    element_ns=0.01575,
    bag_ns=0.954,
    launch_us=550.0,
    links=Links(port=1.592e8, latency_ms=0.3, group=2, uplink=3.025e7, fabric=1.202e8, peer_to_peer=False),
)


def _scaled(name: str, dram: float, l2_bytes: float, l2: float, clocks: float, links: Links) -> Hardware:
    """Other hardware: issue times and launches of the RTX 2080 Ti over the ratio of multiprocessors x clock."""
    faster = clocks / (68 * 1.545)
    base = _RTX2080TI
    times = {t: getattr(base, t) / faster for t in ("lookup_ns", "element_ns", "bag_ns", "launch_us")}
    return Hardware(name=name, dram=dram, l2_bytes=l2_bytes, l2=l2, links=links, **times)


# The RoCE uplink of an 8-GPU node is fitted to the twelve all-to-alls of FlexShard's Table 6 (200 Gbit/s a GPU).
_ROCE = Links(port=2.4e8, latency_ms=4.13, group=8, uplink=1.585e8)
_NVLINK4 = Links(port=3.6e8, latency_ms=0.03)
PRESETS = {
    hardware.name: hardware
    for hardware in (
        _RTX2080TI,
        _scaled("a100-x32-roce", dram=1391e3, l2_bytes=40e6, l2=4.5e6, clocks=108 * 1.41, links=_ROCE),
        _scaled("h100", dram=0.8 * 3352e3, l2_bytes=50e6, l2=5.5e6, clocks=132 * 1.755, links=_NVLINK4),
        _scaled("h200", dram=4300e3, l2_bytes=60e6, l2=5.5e6, clocks=132 * 1.755, links=_NVLINK4),
    )
}
