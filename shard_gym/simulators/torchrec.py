"""TorchRec's own estimate of a plan, as a simulator: any solver can plan by it, any plan be rated by it.

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

from shard_gym.memory.terms import Term, ceil, least, where
from shard_gym.simulators.base import GRAIN, FastSimulator, Latency
from shard_gym.task.task import Task

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
    pooling, bags = tables.pooling.astype(np.float64), tables.bags.astype(np.float64)
    dim, element = Term(tables.dim.astype(np.float64)), Term(tables.element_bytes)
    inside = ranks_per_host(task) >= devices
    found = estimate((Term(pooling), Term(bags)), dim, element, (samples_per_rank(task), devices), inside)
    forward, comm, _ = (step.value for step in found[-3:])
    return np.stack([forward, comm, forward * BACKWARD, comm], axis=1)


def estimate(lookup: tuple[Term, Term], dim: Term, element: Term, batch: tuple[int, int], inside: bool) -> list[Term]:
    """TorchRec's estimate of shards with all rows, step by step: the last three are forward, communication and all, ms.

    `lookup` is ids and bags of a sample, `batch` samples of a rank and ranks, `inside` one host.
    """
    ids, bags = lookup
    samples, ranks = Term(batch[0], "samples of a rank"), Term(batch[1], "ranks")
    looked_up = ids * samples * ranks  # a table's device does those of all ranks
    # bags without an id have no output to send; TorchRec sends it in the type of the weights
    sent = (least(bags, ids) * samples * ranks * dim * element).as_step("sent")
    rows = looked_up * where(dim.value < LEAST_COLUMNS, Term(LEAST_COLUMNS, "columns, 32 and more"), dim) * element
    read = (ceil(looked_up * Term(ID_BYTES, "bytes of an id")) + rows + sent).as_step("read and written")
    narrow = where(dim.value >= HALF_BLOCK, Term(HALF_BLOCK_PENALTY), Term(NARROW_PENALTY))
    penalty = where(dim.value >= FULL_BLOCK, Term(FULL_BLOCK_PENALTY), narrow)
    forward = (read * penalty / Term(HBM, "HBM's bytes a ms")).as_step("forward compute")
    link = Term(INSIDE_HOST, "bytes a ms inside a host") if inside else Term(BETWEEN_HOSTS, "bytes a ms between hosts")
    comm = (sent / link).as_step("forward comm")
    return [sent, read, forward, comm, (forward * (1 + BACKWARD) + comm * 2).as_step("TorchRec's perf")]


def samples_per_rank(task: Task) -> int:
    """The batch size that TorchRec is told, which is one rank's."""
    return math.ceil(task.batch / task.num_devices)


def ranks_per_host(task: Task) -> int:
    """The task's groups of devices, where there are several and all alike; else all devices."""
    group = 0 if task.links is None else task.links.group
    return group if group and task.num_devices % group == 0 else task.num_devices
