"""TorchRec's own estimate as a simulator: any solver can plan with it, and it can rate any plan.

TorchRec adds up what it expects of each shard of a rank, and the slowest rank is the plan's rating: nothing is fused,
and nobody waits for the longest forward pass. So the makespan of an "iteration" task is that rating, to the grain of
embeddings; of a "kernel" task it is the computation alone; of a "torchrec-critical-path" task it is what TorchRec's
`EmbeddingStats` prints as the critical path. There ranks wait for each other after the computation of either pass, and
after the communication of each kind of sharding: the slowest ranks of all these parts are added up, and a plan of many
kinds pays for it.

The formulas are those of TorchRec 1.8's `EmbeddingPerfEstimator`, for all its kinds of sharding and kernels, with the
bandwidths that its `Topology` assumes; communication is not quantised. Of a table with several features it guesses
feature by feature how many bags are empty; a task's table is taken to have its ids spread evenly over the bags.
Devices of several speeds are ours: TorchRec knows one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.memory.shards import CACHED, ID_BYTES, IN_UVM, Setup, Shards, Tables
from shard_gym.memory.terms import Term, ceil, where
from shard_gym.simulators.base import GRAIN, FastSimulator, Latency
from shard_gym.task.constraints import BY_HOST, KINDS
from shard_gym.task.task import OBJECTIVES, Task

# Bytes a millisecond, as TorchRec's planner/constants.py has them.
HBM = 897 * 2**30 / 1e3
DDR = 51 * 2**30 / 1e3  # of a CPU
HOST_LINK = 32 * 2**30 / 1e3  # from the host's memory to HBM
INSIDE_HOST = 600 * 2**30 / 1e3
BETWEEN_HOSTS = 12.5 * 2**30 / 1e3
FUSED, DENSE = 1.0, 0.5  # rates of kernels, of the memory's; copies are trained by the dense one
IN_HOST = 10.0  # kernels that read the host's memory are slower by this
LEAST_COLUMNS = 32  # narrower rows of whole tables take as long to look up
FULL_BLOCK, FULL_BLOCK_PENALTY = 128, 1.0  # columns that keep a whole GPU block busy
HALF_BLOCK, HALF_BLOCK_PENALTY = 64, 1.15
NARROW_PENALTY = 1.75
BACKWARD = 2.0  # backward computation for one of forward
ID_WEIGHTS = 1.1  # gradient of weighted ids, for one of forward
COPY = 2.455  # bytes moved once more for each that an all-gather brings
UPDATE = 9.22  # bytes moved for each of a copied table by the optimizer, which updates all rows
NODES = 2  # an all-reduce over more hosts takes twice as long

CRITICAL_PATH = "torchrec-critical-path"
PHASES = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms")  # as TorchRec's Perf names them
US = 1e3  # microseconds of a millisecond


class TorchRecPerf(FastSimulator):
    """TorchRec's own estimate; `embed` gives microseconds.

    Columns are the computation of both passes, and the mean communication of the two. For the critical path it is not
    the mean: a column of each kind of sharding, forward and backward.
    """

    id = "torchrec:cuda-v1"
    objectives = OBJECTIVES
    kinds = KINDS

    def embed(self, task: Task) -> np.ndarray:
        """Computation and communication of each table, (N, 2) or (N, 13)."""
        return self._rows(task, whole_tables(task))

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        """Computation and communication of each shard, (S, 2) or (S, 13); a task's caches have no statistics."""
        return self._rows(task, estimate(shards, Setup.of(task)), shards.kind)

    def _rows(self, task: Task, perf: Perf, kind: np.ndarray | str = "tw") -> np.ndarray:
        forward, there, backward, back, _ = perf.phases.T
        if task.objective == CRITICAL_PATH:
            of_kind = np.reshape(kind, (-1, 1)) == np.array(KINDS)
            comm = [of_kind * there[:, None], of_kind * back[:, None]]
        else:
            comm = [(there + back)[:, None] / 2]
        columns = np.concatenate([(forward + backward)[:, None], *comm], axis=1)
        return np.rint(columns * US * GRAIN) / GRAIN

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Forward computation is counted with backward's: there it delays its own device and no other.

        Not on the critical path: forward it is a third, and communication the slowest device's of each kind.
        """
        compute, comm = sums[..., 0] * task.ms_per_us, sums[..., 1] / US
        if task.objective == CRITICAL_PATH:
            parts = sums[..., 1:].reshape(*sums.shape[:-1], 2, len(KINDS)).max(axis=-3, keepdims=True).sum(axis=-1) / US
            there, back = np.moveaxis(np.broadcast_to(parts, (*compute.shape, 2)), -1, 0)
            forward = compute / (1 + BACKWARD)
            return Latency(forward, there, back, forward * BACKWARD)
        if task.objective == "kernel":
            comm = np.zeros_like(comm)
        return Latency(np.zeros_like(compute), comm, comm, compute)

    def rates(self, task: Task) -> np.ndarray | None:
        """The two columns; the critical path is no sum over shards."""
        return None if task.objective == CRITICAL_PATH else self._weights(task, 1)

    def longest(self, task: Task) -> list[np.ndarray]:
        """Parts of the critical path: the computation, and each kind's communication in either pass."""
        if task.objective != CRITICAL_PATH:
            return super().longest(task)
        weights = self._weights(task, 2 * len(KINDS))
        return [np.where(column, weights, 0.0) for column in np.eye(weights.shape[1], dtype=bool)]

    def floors(self, task: Task) -> list[np.ndarray]:
        """All columns: on the critical path the longest of each kind are no less than their means."""
        return [self._weights(task, 2 * len(KINDS) if task.objective == CRITICAL_PATH else 1)]

    @staticmethod
    def _weights(task: Task, columns: int) -> np.ndarray:
        there_and_back = {"kernel": 0, "iteration": 2, CRITICAL_PATH: 1}[task.objective] / US
        comm = np.full((task.num_devices, columns), there_and_back)
        return np.concatenate([task.ms_per_us[:, None], comm], axis=1)


@dataclass(frozen=True, eq=False)
class Perf:
    """TorchRec's estimate of S shards, ms, each a term that tells how it comes about."""

    forward_compute: Term
    forward_comm: Term
    backward_compute: Term
    backward_comm: Term
    prefetch: Term  # of rows into the cache
    bytes: tuple[Term, ...]  # sent, read and copied, and the rate of reading

    @property
    def parts(self) -> tuple[Term, ...]:
        """Terms by PHASES, then prefetch."""
        return self.forward_compute, self.forward_comm, self.backward_compute, self.backward_comm, self.prefetch

    @property
    def phases(self) -> np.ndarray:
        """Values by PHASES, then prefetch, (S, 5)."""
        values = np.empty((len(self.forward_compute.value), 5))
        for phase, part in enumerate(self.parts):
            values[:, phase] = part.value
        return values

    @property
    def steps(self) -> tuple[Term, ...]:
        """Bytes, phases and their sum, which is TorchRec's rating."""
        first, *others = self.parts
        return (*self.bytes, *self.parts, sum(others, first).as_step("TorchRec's perf"))


def estimate(shards: Shards, setup: Setup) -> Perf:
    """TorchRec's estimate of shards; floats are multiplied in its order."""
    return _Estimate(shards, setup).perf()


def whole_tables(task: Task) -> Perf:
    """TorchRec's estimate of each table of a task, whole and in the device's memory."""
    return _Estimate(Shards.whole(Tables.of_task(task)), Setup.of(task), plain=True).perf()


class _Estimate:
    """The numbers that several phases of the same shards need; `plain` ones are whole tables of the fused kernel."""

    def __init__(self, shards: Shards, setup: Setup, plain: bool = False) -> None:
        table, kind = shards.of, shards.kind
        self.table, self.setup, self.plain, self.none = table, setup, plain, Term(np.zeros(len(kind)))
        by_ranks, self.by_host, copied = self._are(kind, "rw"), self._are(kind, *BY_HOST), self._are(kind, "dp")
        self.by_rows, self.copied = by_ranks | self.by_host, copied
        self.blocks = self.by_rows | copied  # not all rows for all ranks
        self.dim = Term(shards.dim.astype(np.float64), "columns")
        self.element = Term(table.element_bytes, "bytes of a weight")
        self.ranks = Term(setup.world_size, "ranks")
        sharing = where(by_ranks, self.ranks, Term(setup.local_world_size, "ranks of a host"))
        self.share = where(self.by_rows, sharing, Term(1))  # of the lookups, one in so many
        asking = where(copied, Term(1), self.ranks)
        self.looked_up = table.ids / self.share * asking
        filled = where(table.pooled, table.filled * asking, self.looked_up)
        # bags without an id have no output to send; TorchRec sends it in the type of the weights
        self.sent = (filled * self.dim * self.element).as_step("sent")
        size = Term(shards.rows.astype(np.float64), "rows") * self.dim * self.element
        self.copy = where(copied, size, self.none).as_step("copy")
        self.rate = self._kernel_rate().as_step("rate")

    def _are(self, words: np.ndarray, *chosen: str) -> np.ndarray | bool:
        """True for kinds or kernels among those chosen, (S,); False if none is."""
        return False if self.plain else np.isin(words, chosen)

    def perf(self) -> Perf:
        """All phases."""
        setup, none = self.setup, self.none
        read, forward = self._forward()
        once = forward * BACKWARD + where(self.table.weighted, forward * ID_WEIGHTS, none)
        backward = (none if setup.inference else once).as_step("backward compute")
        there, back = self._comm()
        there, back = there.as_step("forward comm"), (none if setup.inference else back).as_step("backward comm")
        fetched = where(
            self._are(self.table.kernel, "fused_uvm_caching"), Term(self.table.fetched, "rows fetched"), none
        )
        fetched = where(self.copied, none, fetched)
        if fetched is not none:
            fetched = fetched / self.share * self.dim * self.element / _rate("host link", HOST_LINK)
        prefetch = fetched.as_step("prefetch")
        return Perf(forward, there, backward, back, prefetch, (self.sent, read, self.rate, self.copy))

    def _forward(self) -> tuple[Term, Term]:
        """Bytes of a forward pass, and its time: ids, rows and output."""
        table, dim = self.table, self.dim
        widened = where(dim.value < LEAST_COLUMNS, Term(LEAST_COLUMNS, "columns, 32 and more"), dim)
        columns = where(self.blocks, dim, widened)
        rows = self.looked_up * columns * self.element
        ids = ceil(self.looked_up * Term(ID_BYTES, "bytes of an id"))
        ids = where(table.weighted, ids * Term(2, "with their weights"), ids)
        read = (ids + rows + self.sent).as_step("read and written")
        half = where(dim.value >= HALF_BLOCK, Term(HALF_BLOCK_PENALTY), Term(NARROW_PENALTY))
        penalty = where((dim.value >= FULL_BLOCK) | self.blocks, Term(FULL_BLOCK_PENALTY), half)
        return read, (read * penalty / self.rate).as_step("forward compute")

    def _comm(self) -> tuple[Term, Term]:
        """Communication of the forward and of the backward pass.

        All-to-alls of whole tables and columns; reduce-scatters and all-gathers of rows, in the host and then
        between hosts where rows are a host's; nothing and an all-reduce of copies.
        """
        setup, inside, across = self.setup, _rate("inside a host", INSIDE_HOST), _rate("between hosts", BETWEEN_HOSTS)
        hosts = setup.world_size // setup.local_world_size
        over_all = self.sent / (inside if hosts == 1 else across)
        if self.plain:
            return over_all, over_all
        in_host = self.sent / inside
        if hosts > 1:
            bags = where(self.table.pooled, self.table.filled, self.table.ids)
            in_host += bags * Term(hosts, "hosts") * self.dim * self.element / across
        there = where(self.by_host, in_host, over_all)
        back = there + where(self.by_rows, self.sent * Term(COPY, "bytes copied") / self.rate, self.none)
        return where(self.copied, self.none, there), where(self.copied, self._all_reduce(across), back)

    def _all_reduce(self, across: Term) -> Term:
        """Gradients of all rows of a copy, added up over the ranks, and the optimizer's update of all rows."""
        local, hosts = self.setup.local_world_size, self.setup.world_size / self.setup.local_world_size
        nodes = min(hosts, NODES)
        times = (2 if hosts > NODES else 1) * (2 * nodes - 1) / nodes
        added_up = self.copy * Term(times, "all-reduce") / (across * Term(local, "ranks of a host"))
        return added_up + self.copy * Term(UPDATE, "bytes moved") / self.rate

    def _kernel_rate(self) -> Term:
        """Bytes a millisecond of the memory as the kernel of each shard reads it."""
        kernel, setup = self.table.kernel, self.setup
        if setup.device == "cpu":
            if odd := set(kernel.tolist()) & set(IN_UVM):
                raise InvalidTask(f"a CPU has no memory but the host's: TorchRec has no kernel {min(odd)!r} there")
            ddr = _rate("DDR", DDR)
            return where(kernel == "dense", ddr * DENSE, ddr * FUSED)
        hbm, link = _rate("HBM", HBM), _rate("host link", HOST_LINK)
        in_hbm = where(self._are(kernel, "dense"), hbm * DENSE, hbm * FUSED)
        if self.plain:
            return in_hbm
        load = self.table.cache_load_factor
        cached = (Term(load, "load factor") * hbm + Term(1 - load, "rest") * link) / IN_HOST
        fetching = (setup.pipeline == "train_prefetch_sparse_dist") & (kernel == "fused_uvm_caching")
        read = where(np.isin(kernel, CACHED), cached, where(np.isin(kernel, IN_UVM), link / IN_HOST, in_hbm))
        return where(fetching, hbm * FUSED, read)


def _rate(of: str, bytes_a_ms: float) -> Term:
    return Term(bytes_a_ms, f"{of}, bytes a ms")
