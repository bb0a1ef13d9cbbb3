"""FlexShard's numbers: nodes of GPUs, and what a table costs there under each way to share out its rows.

Costs are its Tables 1 to 3, per GPU and per pass unless a name says otherwise; an element is one number of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole

# Copies that data-parallel parameters and their gradients take in a framework: TorchRec's dense multiplier.
COPIES = 6.0
BATCH, GPUS = 4096, 32  # samples a GPU, and GPUs, of the paper's models
PASSES = 2  # forward and backward, both move what was looked up
COLLECTIVES = ("a2a_global", "a2a_intra", "ar_global", "ar_cross")
OVERLAPS: Mapping[str, tuple[str, ...]] = {  # collectives behind other work; the paper's Table 6 calls two overlappable
    "none": (),
    "paper": ("a2a_intra", "ar_cross"),
}
TIERS = ("dp", "flex", "rw")
KINDS = ("rw", "cw", "dp", "flex", "twrw", "tw")


@dataclass(frozen=True)
class Network:
    """N nodes of W GPUs, U in all; bandwidths are bytes a millisecond and GPU, latencies are of one collective.

    Collectives of `overlap` take no time of a step: other work hides them, however long they take.
    """

    nodes: int
    gpus_per_node: int
    a2a_global: float  # all-to-all over all GPUs, bytes a ms
    a2a_intra: float  # all-to-all within a node
    ar_global: float  # all-reduce over all GPUs
    ar_cross: float  # all-reduce over the GPUs of one rank in their nodes
    a2a_global_ms: float = 0.0  # latencies
    a2a_intra_ms: float = 0.0
    ar_global_ms: float = 0.0
    ar_cross_ms: float = 0.0
    gpus: int = 0  # 0: nodes times gpus_per_node, which it must be
    overlap: str = "none"  # one of OVERLAPS

    @guarded("a network", InvalidTask)
    def __post_init__(self) -> None:
        try:
            for name in ("nodes", "gpus_per_node", "gpus"):
                object.__setattr__(self, name, whole(getattr(self, name)))
            for name in (f.name for f in fields(self) if f.name.startswith("a")):
                object.__setattr__(self, name, float(getattr(self, name)))
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"a network is whole numbers of nodes and GPUs, and rates: {error}") from error
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise InvalidTask(f"a network needs a node and a GPU, got {self.nodes} x {self.gpus_per_node}")
        if self.gpus not in (0, self.nodes * self.gpus_per_node):
            product = self.nodes * self.gpus_per_node
            raise InvalidTask(f"{self.nodes} nodes of {self.gpus_per_node} GPUs are {product}, not gpus={self.gpus}")
        object.__setattr__(self, "gpus", self.nodes * self.gpus_per_node)
        if self.overlap not in OVERLAPS:
            raise UnknownName("overlap", self.overlap, OVERLAPS)
        for name in COLLECTIVES:
            _check_wire(name, getattr(self, name), getattr(self, f"{name}_ms"))

    def takes(self, collective: str) -> tuple[float, float]:
        """Bytes a millisecond of a collective, and its latency, ms; a hidden one takes no time."""
        hidden = collective in OVERLAPS[self.overlap]
        return (math.inf, 0.0) if hidden else (getattr(self, collective), getattr(self, f"{collective}_ms"))


def _check_wire(collective: str, rate: float, latency: float) -> None:
    if not rate > 0 or not 0 <= latency < math.inf:
        raise InvalidTask(f"{collective} needs a bandwidth above 0 and a latency from 0, got {rate} and {latency}")


# 4 nodes of 8 A100s, 200 Gb/s RoCE a GPU. Straight lines through the sizes and times of FlexShard's Tables 5 and 6:
# bytes of both passes for all-to-alls, of the gradient for all-reduces; least squares, the former within 4.4 %.
_A100 = Network(
    nodes=4,
    gpus_per_node=8,
    a2a_global=25.8e6,
    a2a_intra=84.4e6,
    ar_global=179.5e6,
    ar_cross=12.4e6,
    a2a_global_ms=4.13,
    a2a_intra_ms=0.35,
    ar_global_ms=2.6,
    ar_cross_ms=2.1,
)
# The ratio the paper's break-evens are worked out with, ar_global = 3 * a2a_global, and no latencies.
_PAPER = Network(4, 8, a2a_global=25e6, a2a_intra=250e6, ar_global=75e6, ar_cross=25e6)
NETWORKS: Mapping[str, Network] = {"a100-4x8": _A100, "flexshard-4x8": _PAPER}


def network(name: str) -> Network:
    """A preset by its name."""
    if not isinstance(name, str) or name not in NETWORKS:
        raise UnknownName("network", name, NETWORKS)
    return NETWORKS[name]


@dataclass(frozen=True)
class Rows:
    """A table as far as its uniform costs go: E rows of D elements, of which a sample looks up L on average."""

    rows: float
    dim: int
    length: float
    element_bytes: int = 4
    pooled: bool = False  # the rows of a sample are summed: one is sent for each sample, whatever the length

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * self.element_bytes


@dataclass(frozen=True)
class Costs:
    """Costs of one kind of sharding for the busiest GPU."""

    static_bytes: float  # weights, gradients and state kept
    dynamic_bytes: float  # rows looked up and buffers, while a batch is in flight
    input_ids: float  # ids sent before rows can be looked up
    rows_accessed: float
    accessed_dim: float  # elements of each of those rows
    dynamic_comm_bytes: float  # a pass
    dynamic_comm_ms: float  # both passes
    static_comm_bytes: float  # the backward pass alone
    static_comm_ms: float

    @property
    def memory_bytes(self) -> float:
        """Static and dynamic."""
        return self.static_bytes + self.dynamic_bytes

    @property
    def comm_ms(self) -> float:
        """Communication of a whole step."""
        return self.dynamic_comm_ms + self.static_comm_ms


def costs(table: Rows, kind: str, on: Network, batch: int, copies: float = COPIES) -> Costs:
    """A table under one kind of sharding, `batch` samples a GPU.

    "twrw" and "tw" put the whole table on one node or GPU: what its GPUs cost, in expectation like all others here.
    A GPU that has a share of a pooled table's rows makes and sends its part of each sample that the sharers have, as a
    reduce-scatter does and TorchRec's planner counts; one that has whole rows sends each sample one row.
    """
    if kind not in KINDS:
        raise UnknownName("kind of sharding", kind, KINDS)
    if batch < 1 or not table.rows >= 0 or not table.length >= 0:
        raise InvalidTask(f"costs need a batch from 1 and rows and length from 0, got {batch} and {table}")
    e, w, u, n = table.rows, on.gpus_per_node, on.gpus, on.nodes
    row, ids = table.row_bytes, batch * table.length
    wanted = batch * (1.0 if table.pooled else table.length)  # rows that a GPU needs for its batch
    by_all, by_node = (u, w) if table.pooled else (1, 1)  # GPUs that each send what one needs, if they share the rows
    share = {  # kind: rows kept, ids sent, rows looked up, their elements, rows made, rows sent
        "rw": (e / u, ids, ids, table.dim, wanted * by_all, wanted * by_all),
        "cw": (e / u, u * ids, u * ids, table.dim / u, wanted, wanted),
        "dp": (copies * e, 0.0, ids, table.dim, 0.0, 0.0),
        "flex": (copies * e / w, ids, ids, table.dim, wanted * by_node, wanted * by_node),
        "twrw": (e / w, ids, n * ids, table.dim, wanted * n * by_node, wanted * n),  # parts are summed in the node
        "tw": (e, ids, u * ids, table.dim, wanted * u, wanted * u),
    }
    kept, sent_ids, looked_up, dim, made, sent = share[kind]
    rate, latency = on.takes("a2a_intra" if kind == "flex" else "a2a_global")
    static, static_ms = _all_reduced(kind, e * row, on)
    dynamic_ms = 0.0 if kind == "dp" else PASSES * (sent * row / rate + latency)
    return Costs(
        static_bytes=kept * row,
        dynamic_bytes=(made + wanted) * row,
        input_ids=sent_ids,
        rows_accessed=looked_up,
        accessed_dim=dim,
        dynamic_comm_bytes=sent * row,
        dynamic_comm_ms=dynamic_ms,
        static_comm_bytes=static,
        static_comm_ms=static_ms,
    )


@dataclass(frozen=True)
class Line:
    """Costs of a row of one byte for a GPU in a tier: a constant and a slope in the row's probability."""

    memory: tuple[float, float]  # bytes
    ms: tuple[float, float]  # of communication in a step
    latency_ms: float  # of the collectives of a tier that has any row


def lines(on: Network, batch: int, copies: float) -> Mapping[str, Line]:
    """Costs of a row in each tier; from FlexShard's Tables 2 and 3."""
    w, all_to_all, all_reduce = on.gpus_per_node, on.takes("a2a_global"), on.takes("ar_global")
    intra, cross = on.takes("a2a_intra"), on.takes("ar_cross")
    dp = Line((copies, batch), (1 / all_reduce[0], 0.0), all_reduce[1])
    ms, latency = (1 / w / cross[0], PASSES * batch / intra[0]), PASSES * intra[1] + cross[1]
    flex = Line((copies / w, 2 * batch), ms, latency)
    rw = Line((1 / on.gpus, 2 * batch), (0.0, PASSES * batch / all_to_all[0]), PASSES * all_to_all[1])
    return {"dp": dp, "flex": flex, "rw": rw}


def _all_reduced(kind: str, table_bytes: float, on: Network) -> tuple[float, float]:
    """Bytes of gradient that a GPU all-reduces, and how long it takes."""
    if kind not in ("dp", "flex"):
        return 0.0, 0.0
    rate, latency = on.takes("ar_global" if kind == "dp" else "ar_cross")
    size = table_bytes if kind == "dp" else table_bytes / on.gpus_per_node
    return size, size / rate + latency
