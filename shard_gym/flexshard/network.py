"""FlexShard's numbers: nodes of GPUs, what a table costs there under each way to share out its rows, and its models.

Costs are its Tables 1 to 3, per GPU and per pass unless a name says otherwise; an element is one number of a row.
Models are what its Tables 4 to 6 print. Their row frequencies are not published: a fitted curve has power laws between
the ranks that Table 5 tells the coverage of, and meets each; where its 3-tier plan ends DP, a row has the probability
at which DP stops saving memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard.curves import HALVINGS, Curve, ranks
from shard_gym.records.numbers import whole

# Copies that data-parallel parameters and their gradients take in a framework: TorchRec's dense multiplier.
COPIES = 6.0
BATCH, GPUS = 4096, 32  # samples a GPU, and GPUs, of the paper's models
PASSES = 2  # forward and backward, both move what was looked up
COLLECTIVES = ("a2a_global", "a2a_intra", "ar_global", "ar_cross")
TIERS = ("dp", "flex", "rw")
KINDS = ("rw", "cw", "dp", "flex", "twrw", "tw")


@dataclass(frozen=True)
class Network:
    """N nodes of W GPUs, U in all; bandwidths are bytes a millisecond and GPU, latencies are of one collective."""

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
        for name in COLLECTIVES:
            rate, latency = getattr(self, name), getattr(self, f"{name}_ms")
            if not rate > 0 or not 0 <= latency < math.inf:
                raise InvalidTask(f"{name} needs a bandwidth above 0 and a latency from 0, got {rate} and {latency}")


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
    if name not in NETWORKS:
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
    rate, latency = (on.a2a_intra, on.a2a_intra_ms) if kind == "flex" else (on.a2a_global, on.a2a_global_ms)
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
    w = on.gpus_per_node
    dp = Line((copies, batch), (1 / on.ar_global, 0.0), on.ar_global_ms)
    ms, latency = (1 / w / on.ar_cross, PASSES * batch / on.a2a_intra), PASSES * on.a2a_intra_ms + on.ar_cross_ms
    flex = Line((copies / w, 2 * batch), ms, latency)
    rw = Line((1 / on.gpus, 2 * batch), (0.0, PASSES * batch / on.a2a_global), PASSES * on.a2a_global_ms)
    return {"dp": dp, "flex": flex, "rw": rw}


def _all_reduced(kind: str, table_bytes: float, on: Network) -> tuple[float, float]:
    """Bytes of gradient that a GPU all-reduces, and how long it takes."""
    if kind == "dp":
        return table_bytes, table_bytes / on.ar_global + on.ar_global_ms
    if kind == "flex":
        share = table_bytes / on.gpus_per_node
        return share, share / on.ar_cross + on.ar_cross_ms
    return 0.0, 0.0


@dataclass(frozen=True)
class Model:
    """One of the models, and its two plans as Table 5 has them; shares are of all lookups."""

    name: str
    rows: int
    dp2_rows: int  # 2-tier plan
    dp2_share: float
    dp3_rows: int  # 3-tier plan
    dp3_share: float
    flex3_rows: int
    flex3_share: float
    all_to_all: tuple[int, int, int]  # elements a GPU sends in one pass: RW, 2-tier, 3-tier (Table 6)
    reductions: tuple[float, float]  # of these, as printed
    dim: int = 256

    @property
    def length(self) -> float:
        """Mean rows of a sample: that with which the 2-tier plan takes as much memory as RW."""
        return self.dp2_rows * (COPIES - 1 / GPUS) / (BATCH * self.dp2_share)


MODELS: Mapping[str, Model] = {
    m.name: m
    for m in (
        Model(
            "RM-1", 30_000_000, 346_144, 0.525, 100_064, 0.368, 1_184_544, 0.306,
            (972_424_960, 450_510_848, 297_697_024), (0.537, 0.694),
        ),
        Model(
            "RM-2", 30_000_000, 507_072, 0.770, 128_736, 0.639, 2_397_216, 0.217,
            (958_656_768, 220_126_208, 138_198_784), (0.770, 0.856),
        ),
        Model(
            "RM-3", 10_000_000, 115_296, 0.349, 36_704, 0.227, 318_560, 0.259,
            (466_826_496, 311_369_728, 246_077_440), (0.333, 0.473),
        ),
        Model(
            "RM-4", 10_000_000, 184_864, 0.570, 55_040, 0.390, 592_992, 0.360,
            (473_709_312, 201_887_232, 118_944_768), (0.574, 0.748),
        ),
    )
}  # fmt: skip


@cache
def fitted_curve(name: str) -> Curve:
    """A curve through what is printed of a model."""
    if name not in MODELS:
        raise UnknownName("published model", name, MODELS)
    m = MODELS[name]
    edges = np.unique(np.append(ranks(m.rows), [m.dp3_rows + 1, m.dp2_rows + 1, m.dp3_rows + m.flex3_rows + 1]))
    count = np.diff(edges)
    rank = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    p = np.empty(len(count))
    anchor_rank, anchor_p = m.dp3_rows, (COPIES - 1 / GPUS) / BATCH
    head = rank <= anchor_rank
    wanted = m.dp3_share * m.length
    p[head] = _power(rank[head], count[head], anchor_rank, anchor_p, wanted)
    ends = ((m.dp2_rows, m.dp2_share), (m.dp3_rows + m.flex3_rows, m.dp3_share + m.flex3_share), (m.rows, 1.0))
    for end, share in ends:
        part = (rank > anchor_rank) & (rank <= end)
        p[part] = _power(rank[part], count[part], anchor_rank, anchor_p, share * m.length - wanted)
        wanted, anchor_rank, anchor_p = share * m.length, end, float(p[part][-1])
    return Curve(np.minimum.accumulate(p), count, 1e-3)


def _power(rank: np.ndarray, count: np.ndarray, anchor: float, p: float, wanted: float) -> np.ndarray:
    """p * (rank / anchor) ** -exponent, none above 1, with the exponent that makes all rows sum to `wanted`."""

    def law(exponent: float) -> np.ndarray:
        return np.minimum(p * (rank / anchor) ** -exponent, 1.0)

    low, high = 0.0, 30.0
    rising = rank[0] < anchor  # a larger exponent: more before the anchor, less after it
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        more = ((law(middle) * count).sum() < wanted) == rising
        low, high = (middle, high) if more else (low, middle)
    return law(high)
