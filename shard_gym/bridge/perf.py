"""What TorchRec's planner believes a plan takes, as a simulator: any solver can plan by it, any plan be rated by it.

TorchRec adds up what it expects of each shard of a rank, and the slowest rank is the plan's rating: nothing is fused,
and nobody waits for the longest forward pass. So the makespan of an "iteration" task is that rating, to the grain of
embeddings; of a "kernel" task it is the computation alone.

The formulas are those of TorchRec 1.8's `EmbeddingPerfEstimator` for training, table-wise or in columns, fused kernels
and unweighted ids, with the bandwidths that its `Topology` assumes for CUDA devices. Of a table with several features
it guesses feature by feature how many bags are empty, ours takes the ids to be spread evenly over the bags. Devices of
several speeds are ours: TorchRec knows one.
"""

from __future__ import annotations

import math

import numpy as np

from shard_gym.simulators.base import GRAIN, FastSimulator, Latency
from shard_gym.tasks import Task

# Bytes a millisecond, as TorchRec's planner/constants.py has them.
HBM = 897 * 2**30 / 1e3
INSIDE_HOST = 600 * 2**30 / 1e3
BETWEEN_HOSTS = 12.5 * 2**30 / 1e3
ID_BYTES = 8
LEAST_COLUMNS = 32  # narrower rows take as long to look up
FULL_BLOCK, FULL_BLOCK_PENALTY = 128, 1.0  # columns that keep a whole GPU block busy
HALF_BLOCK, HALF_BLOCK_PENALTY = 64, 1.15
NARROW_PENALTY = 1.75
BACKWARD = 2.0  # backward computation for one of forward

PHASES = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms")  # as TorchRec's Perf names them
US = 1e3  # microseconds of a millisecond


class TorchRecPerf(FastSimulator):
    """TorchRec's own estimate; `embed` gives microseconds, computation of both passes and one all-to-all."""

    id = "torchrec:cuda-v1"

    def embed(self, task: Task) -> np.ndarray:
        """Computation and communication of each table, (N, 2)."""
        forward, comm, backward, _ = table_perfs(task).T
        return np.rint(np.stack([forward + backward, comm], axis=1) * US * GRAIN) / GRAIN

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Forward computation is counted with backward's: there it delays its own device and no other."""
        compute, comm = sums[..., 0] * task.ms_per_us, sums[..., 1] / US
        if task.objective == "kernel":
            comm = np.zeros_like(comm)
        return Latency(np.zeros_like(compute), comm, comm, compute)


def table_perfs(task: Task) -> np.ndarray:
    """TorchRec's estimate of each table, or half of one, by PHASES; ms (N, 4)."""
    tables, devices = task.tables, task.num_devices
    dim, pooling = tables.dim.astype(np.float64), tables.pooling.astype(np.float64)
    samples = samples_per_rank(task)
    lookups = pooling * samples * devices  # of all ranks: a table's device does them all
    ids = np.ceil(lookups * ID_BYTES)
    rows = lookups * np.maximum(dim, LEAST_COLUMNS) * tables.element_bytes
    # bags without an id have no output to send; TorchRec sends it in the type of the weights
    output = np.minimum(pooling, tables.bags.astype(np.float64)) * samples * devices * dim * tables.element_bytes
    penalty = np.select(
        [dim >= FULL_BLOCK, dim >= HALF_BLOCK], [FULL_BLOCK_PENALTY, HALF_BLOCK_PENALTY], NARROW_PENALTY
    )
    forward = (ids + rows + output) * penalty / HBM
    comm = output / (INSIDE_HOST if ranks_per_host(task) >= devices else BETWEEN_HOSTS)
    return np.stack([forward, comm, forward * BACKWARD, comm], axis=1)


def samples_per_rank(task: Task) -> int:
    """The batch size that TorchRec is told, which is one rank's."""
    return math.ceil(task.batch / task.num_devices)


def ranks_per_host(task: Task) -> int:
    """The task's groups of devices, where there are several and all alike; else all devices."""
    group = 0 if task.links is None else task.links.group
    return group if group and task.num_devices % group == 0 else task.num_devices
