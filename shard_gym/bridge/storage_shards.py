"""What memory is counted of: tables and what is looked up in them, how TorchRec cuts them, and how the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName

# The kinds of a plan, and two that only TorchRec has: columns each on a host of their own (twcw), and those shared out
# by rows (grid).
KINDS = ("tw", "cw", "rw", "twrw", "dp", "twcw", "grid")
CACHED = ("fused_uvm_caching", "quant_uvm_caching")
IN_UVM = ("fused_uvm", "quant_uvm", *CACHED)  # kept in the host's memory, which the device reads
QUANTISED = ("quant", "quant_uvm", "quant_uvm_caching")
KERNELS = ("fused", "dense", "fused_uvm", "fused_uvm_caching", *QUANTISED)
PIPELINES = ("none", "train_base", "train_sparse_dist", "train_prefetch_sparse_dist")
DEVICES = ("cuda", "cpu")
OPTIMIZERS = {  # by the name of the class given to `apply_optimizer_in_backward`
    "SGD": "sgd",
    "RowWiseAdagrad": "rowwise_adagrad",
    "Adagrad": "adagrad",
    "Adam": "adam",
    "LAMB": "lamb",
    "LarsSGD": "lars_sgd",
    "PartialRowWiseAdam": "partial_rowwise_adam",
    "PartialRowWiseLAMB": "partial_rowwise_lamb",
}
CACHE_LOAD_FACTOR = 0.2  # torchrec.distributed.planner.constants.UVM_CACHING_RATIO
LEAST_COLUMNS = 128  # torchrec.distributed.planner.constants.MIN_CW_DIM


@dataclass(frozen=True)
class Feature:
    """What samples look up in a table through one feature, as TorchRec's `ParameterConstraints` tell it."""

    pooling: float = 1.0  # ids of one bag
    poolings: float = 1.0  # bags a sample
    batch: int | None = None  # samples of one rank; those of the setup unless told


@dataclass(frozen=True)
class Table:
    """One table as TorchRec sees it."""

    rows: int
    dim: int  # columns of the parameter; of a quantised one its bytes a row, padding, scale and bias among them
    element_bytes: int = 4
    features: tuple[Feature, ...] = (Feature(),)
    pooled: bool = True  # of an EmbeddingBagCollection; an EmbeddingCollection returns every row looked up
    weighted: bool = False  # ids come with weights
    optimizer: str = "none"  # a value of OPTIMIZERS; TorchRec counts none unless told which
    kernel: str = "fused"
    cache_load_factor: float = CACHE_LOAD_FACTOR  # share of a cached table that the device holds
    prefetch_passes: int = 1  # TorchRec's multipass_prefetch_config
    output_bytes: float | None = None  # of one element of the output; None: TorchRec's default

    def __post_init__(self) -> None:
        for kind, valid in (("kernel", KERNELS), ("optimizer", ("none", *OPTIMIZERS.values()))):
            if getattr(self, kind) not in valid:
                raise UnknownName(kind, getattr(self, kind), valid)
        numbers = (self.rows, self.dim, self.element_bytes, self.prefetch_passes, self.cache_load_factor)
        if not all(number > 0 for number in numbers) or not self.features:
            raise InvalidPool(f"a table has rows, columns, a load factor, passes and features: none is 0 in {self}")


@dataclass(frozen=True)
class Setup:
    """How the model runs: what TorchRec's `Topology` and `EmbeddingStorageEstimator` are told."""

    world_size: int
    batch: int = 512  # samples of one rank
    local_world_size: int = 0  # ranks of one host; 0: all
    device: str = "cuda"
    pipeline: str = "none"
    output_at_peak: bool = False  # TorchRec's run_embedding_at_peak_memory: pipelines count the output too
    inference: bool = False

    def __post_init__(self) -> None:
        for kind, valid in (("device", DEVICES), ("pipeline", PIPELINES)):
            if getattr(self, kind) not in valid:
                raise UnknownName(kind, getattr(self, kind), valid)
        local = self.local_world_size or self.world_size
        object.__setattr__(self, "local_world_size", local)
        if self.batch < 1 or local < 1 or self.world_size % local:
            raise InvalidTask(f"a setup needs samples, and hosts with the same number of ranks each, got {self}")


@dataclass(frozen=True, eq=False)
class Tables:
    """N tables in columns, (N,) each, in the words of `Table`."""

    rows: np.ndarray
    dim: np.ndarray
    element_bytes: np.ndarray
    ids: np.ndarray  # float64, looked up by the samples of one rank
    bags: np.ndarray  # float64, pooled rows of the samples of one rank
    filled: np.ndarray  # float64, bags that are not empty, as TorchRec guesses them: min(1, pooling) of all
    pooled: np.ndarray
    weighted: np.ndarray
    optimizer: np.ndarray
    kernel: np.ndarray
    cache_load_factor: np.ndarray
    prefetch_passes: np.ndarray
    output_bytes: np.ndarray  # NaN where nothing is told

    @classmethod
    def of(cls, tables: Sequence[Table], setup: Setup) -> Tables:
        """The columns of these tables."""
        told = ("rows", "dim", "element_bytes", "pooled", "weighted", "optimizer", "kernel", "cache_load_factor")
        columns: dict[str, Any] = {name: np.array([getattr(t, name) for t in tables]) for name in told}
        ids, bags, filled = np.array([_looked_up(t, setup.batch) for t in tables]).T
        passes = np.array([t.prefetch_passes for t in tables])
        output = np.array([np.nan if t.output_bytes is None else t.output_bytes for t in tables])
        return cls(**columns, ids=ids, bags=bags, filled=filled, prefetch_passes=passes, output_bytes=output)

    def take(self, table: np.ndarray) -> Tables:
        """The tables at these places, repeats are legal."""
        return Tables(**{name: column[table] for name, column in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Shards:
    """S shards of tables in columns, (S,) each."""

    table: np.ndarray  # index of the table
    kind: np.ndarray  # how the table is sharded, one of KINDS
    rows: np.ndarray  # of the shard
    dim: np.ndarray
    of: Tables  # (S,), the table of each shard

    @classmethod
    def whole(cls, tables: Tables) -> Shards:
        """Every table table-wise: one shard, which is all of it."""
        return cls(np.arange(len(tables.rows)), np.full(len(tables.rows), "tw"), tables.rows, tables.dim, tables)


def cut(
    table: Table, kind: str, world_size: int, local_world_size: int, min_partition: int | None = None
) -> list[tuple[int, int]]:
    """Rows and columns of each of a table's shards, in the order of the ranks, as TorchRec cuts it.

    Rows are cut in blocks of one length, rounded up, so the last shards are shorter or empty. Columns are cut in parts
    of the least width from `min_partition` on (128 unless told) that divides them and is a multiple of 4.
    """
    if kind not in KINDS:
        raise UnknownName("kind of sharding", kind, KINDS)
    rows, dim = table.rows, table.dim
    ranks = {"rw": world_size, "twrw": local_world_size, "grid": local_world_size}.get(kind, 1)
    block = -(-rows // ranks)
    blocks = [max(0, min(block, rows - i * block)) for i in range(ranks)]
    width = _width(dim, min_partition or LEAST_COLUMNS) if kind in ("cw", "twcw", "grid") else dim
    copies = world_size if kind == "dp" else dim // width
    return [(rows, width) for _ in range(copies) for rows in blocks]


def shards(
    tables: Sequence[Table], kinds: Sequence[str], setup: Setup, min_partitions: Sequence[int | None] | None = None
) -> Shards:
    """The shards of all tables, table by table; `kinds` and `min_partitions` are one a table."""
    least = min_partitions or (None,) * len(tables)
    of_each = [
        cut(table, kind, setup.world_size, setup.local_world_size, columns)
        for table, kind, columns in zip(tables, kinds, least, strict=True)
    ]
    return shards_of(tables, kinds, of_each, setup)


def shards_of(
    tables: Sequence[Table], kinds: Sequence[str], sizes: Sequence[Sequence[tuple[int, int]]], setup: Setup
) -> Shards:
    """Shards cut by somebody else: for each table, the rows and columns of each of its shards."""
    counts = [len(of_table) for of_table in sizes]
    table = np.repeat(np.arange(len(tables)), counts)
    rows, dim = np.array([size for of_table in sizes for size in of_table], np.int64).reshape(-1, 2).T
    return Shards(table, np.repeat(np.array(kinds), counts), rows, dim, Tables.of(tables, setup).take(table))


def optimizer_of(weight: Any) -> str:
    """The optimizer that `apply_optimizer_in_backward` gave a parameter, "none" if it gave none."""
    classes = getattr(weight, "_optimizer_classes", None)
    if not classes:
        return "none"
    if classes[0].__name__ not in OPTIMIZERS:
        raise UnknownName("optimizer", classes[0].__name__, OPTIMIZERS)
    return OPTIMIZERS[classes[0].__name__]


def _looked_up(table: Table, batch: int) -> tuple[float, float, float]:
    """Ids, bags and filled bags of one rank's samples, features added up in their order."""
    told = [(f.pooling, f.poolings, batch if f.batch is None else f.batch) for f in table.features]
    ids = sum(pooling * poolings * samples for pooling, poolings, samples in told)
    bags = sum(poolings * samples for _, poolings, samples in told)
    return ids, bags, sum(min(1.0, pooling) * poolings * samples for pooling, poolings, samples in told)


def _width(dim: int, least: int) -> int:
    return next((width for width in range(least, dim) if dim % width == 0 and width % 4 == 0), dim)
