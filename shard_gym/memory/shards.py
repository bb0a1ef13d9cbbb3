"""Tables and what is looked up in them, how TorchRec cuts them into shards, and how the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.memory.terms import Term, each, least
from shard_gym.task import constraints
from shard_gym.task.optimizers import STATES
from shard_gym.task.task import CACHE_LOAD_FACTOR as CACHE_LOAD_FACTOR
from shard_gym.task.task import Task

KINDS = (*constraints.KINDS, "twcw")  # those of a plan, and one that TorchRec has: columns on the devices of one host
CACHED = ("fused_uvm_caching", "quant_uvm_caching")
IN_UVM = ("fused_uvm", "quant_uvm", *CACHED)  # kept in the host's memory, which the device reads
QUANTISED = ("quant", "quant_uvm", "quant_uvm_caching")
PACKED = (0.5, 0.25)  # bytes of a weight of int4 and int2
KERNELS = ("fused", "dense", "fused_uvm", "fused_uvm_caching", *QUANTISED)
PIPELINES = ("none", "train_base", "train_sparse_dist", "train_prefetch_sparse_dist")
DEVICES = ("cuda", "cpu")
ID_BYTES = 8  # 32-bit ids are turned into 64-bit ones
ID_WEIGHT_BYTES = 4  # fp32
ROUNDING = 1e-14  # of a sum of several features in float64, relative
LEAST_COLUMNS = 128  # torchrec.distributed.planner.constants.MIN_CW_DIM


@dataclass(frozen=True)
class Feature:
    """Lookups of one feature in a table, as TorchRec's `ParameterConstraints` tell them."""

    pooling: float = 1.0  # ids of one bag
    poolings: float = 1.0  # bags a sample
    batch: int | None = None  # samples of one rank; those of the setup unless told


@dataclass(frozen=True)
class Table:
    """One table as TorchRec sees it."""

    rows: int
    dim: int  # columns of the parameter; of a quantised one padding, scale and bias among them
    element_bytes: float = 4  # 0.5 and 0.25 of an int4 and an int2 table, which are quantised
    features: tuple[Feature, ...] = (Feature(),)
    pooled: bool = True  # of an EmbeddingBagCollection; an EmbeddingCollection returns every row looked up
    weighted: bool = False  # ids come with weights
    optimizer: str = "none"  # one of STATES; TorchRec counts none unless told which
    kernel: str = "fused"
    cache_load_factor: float = CACHE_LOAD_FACTOR  # share of a cached table that the device holds
    prefetch_passes: int = 1  # TorchRec's multipass_prefetch_config
    fetched: float = 0.0  # rows a cache misses in a batch of all ranks, as TorchRec's CacheStatistics expect them
    output_bytes: float | None = None  # of one element of the output; None: TorchRec's default

    def __post_init__(self) -> None:
        for kind, valid in (("kernel", KERNELS), ("optimizer", STATES)):
            if getattr(self, kind) not in valid:
                raise UnknownName(kind, getattr(self, kind), valid)
        numbers = (self.rows, self.dim, self.element_bytes, self.prefetch_passes, self.cache_load_factor)
        if not all(number > 0 for number in numbers) or not self.features:
            raise InvalidPool(f"a table has rows, columns, a load factor, passes and features: none is 0 in {self}")
        whole = self.element_bytes == int(self.element_bytes)
        if not (whole or (self.kernel in QUANTISED and self.element_bytes in PACKED)):
            raise InvalidPool(
                f"a weight of {self.element_bytes:g} bytes: less than one are {PACKED} of quantised tables, for "
                f"inference, whose kernels are {', '.join(QUANTISED)}; this one's is {self.kernel}"
            )


@dataclass(frozen=True)
class Setup:
    """Settings a model runs with: what TorchRec's `Topology` and `EmbeddingStorageEstimator` are told."""

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

    @classmethod
    def of(cls, task: Task, pipeline: str = "none") -> Setup:
        """The settings of a task: a rank's samples, rounded up, and as many ranks a host as its links say."""
        batch = -(-task.batch // task.num_devices)
        return cls(task.num_devices, batch, task.devices_per_host, pipeline=pipeline)


@dataclass(frozen=True, eq=False)
class Tables:
    """N tables in columns, (N,) each, in the words of `Table`."""

    rows: np.ndarray
    dim: np.ndarray
    element_bytes: np.ndarray
    ids: Term  # looked up by the samples of one rank
    bags: Term  # pooled rows of the samples of one rank
    filled: Term  # bags that are not empty, as TorchRec guesses them: min(1, pooling) of all
    pooled: np.ndarray
    weighted: np.ndarray
    optimizer: np.ndarray
    kernel: np.ndarray
    cache_load_factor: np.ndarray
    prefetch_passes: np.ndarray
    fetched: np.ndarray
    output_bytes: np.ndarray  # NaN where nothing is told

    @classmethod
    def of(cls, tables: Sequence[Table], setup: Setup) -> Tables:
        """The columns of these tables."""
        ids, bags, filled = zip(*(_looked_up(t, setup.batch) for t in tables), strict=True)
        columns: dict[str, Any] = {
            "ids": each(ids, "ids of a rank"),
            "bags": each(bags, "bags of a rank"),
            "filled": each(filled, "bags of a rank that have ids, by guess"),
            "output_bytes": np.array([t.output_bytes for t in tables], np.float64),
        }
        for name in [f.name for f in fields(cls) if f.name not in columns]:
            columns[name] = np.array([getattr(t, name) for t in tables])
        return cls(**columns)

    @classmethod
    def of_task(cls, task: Task) -> Tables:
        """A task's tables, in the device's memory, their ids spread evenly over the bags."""
        tables, n, batch = task.tables, task.num_tables, Setup.of(task).batch
        pooling, bags = tables.pooling.astype(np.float64), tables.bags.astype(np.float64)
        ids, filled = pooling * batch, np.minimum(bags, pooling) * batch
        if (several := bags != 1).any():
            for looked_up in (ids, filled):  # TorchRec adds up features, products of whole numbers often: so does this
                near = np.rint(looked_up)
                summed = several & (abs(looked_up - near) <= ROUNDING * near)
                looked_up[summed] = near[summed]
        return cls(
            rows=tables.rows,
            dim=tables.dim.astype(np.int64),
            element_bytes=tables.element_bytes,
            ids=Term(ids),
            bags=Term(bags * batch),
            filled=Term(filled),
            pooled=tables.pooled,
            weighted=tables.weighted,
            optimizer=task.optimizers,
            **_usual(n),
        )

    def take(self, table: np.ndarray) -> Tables:
        """The tables at these places, repeats are legal."""
        return Tables(**{column.name: getattr(self, column.name)[table] for column in fields(self)})

    @cached_property
    def in_host(self) -> np.ndarray:
        """True for tables whose rows live in the host's memory, (N,)."""
        return np.isin(self.kernel, IN_UVM)

    @cached_property
    def cached(self) -> np.ndarray:
        """True for those of which the device holds some, (N,)."""
        return np.isin(self.kernel, CACHED)


@dataclass(frozen=True, eq=False)
class Shards:
    """S shards of tables in columns, (S,) each."""

    table: np.ndarray  # index of the table
    kind: np.ndarray  # how the table is sharded, one of KINDS
    rows: np.ndarray  # of the shard
    dim: np.ndarray
    of: Tables  # (S,), the table of each shard
    device: np.ndarray  # that holds the shard; -1 where it is cut, but not placed
    row: np.ndarray  # the shard's first; -1 where only its size is known
    column: np.ndarray

    @classmethod
    def whole(cls, tables: Tables) -> Shards:
        """Every table as one shard, which is all of it; not placed."""
        n = len(tables.rows)
        unknown = np.full(n, -1)
        return cls(np.arange(n), np.full(n, "tw"), tables.rows, tables.dim, tables, unknown, unknown, unknown)

    @classmethod
    def of_columns(cls, tables: Tables, table: np.ndarray, dim: np.ndarray) -> Shards:
        """Shards with all rows and so many columns of tables, (S,) each, not placed: tw, or cw where some are left."""
        of, unknown = tables.take(table), np.full(len(table), -1)
        kind = np.where(dim < of.dim, "cw", "tw")
        return cls(table, kind, of.rows, dim, of, unknown, unknown, unknown)

    def take(self, shards: np.ndarray) -> Shards:
        """The shards at these places, or where a mask is true."""
        columns = {name: column[shards] for name, column in vars(self).items() if name != "of"}
        return Shards(of=self.of.take(shards), **columns)


@lru_cache(64)
def _usual(n: int) -> dict[str, np.ndarray]:
    """Columns of n tables that a task says nothing about, read-only."""
    columns = {
        "kernel": np.full(n, "fused"),
        "cache_load_factor": np.full(n, CACHE_LOAD_FACTOR),
        "prefetch_passes": np.ones(n, np.int64),
        "fetched": np.zeros(n),
        "output_bytes": np.full(n, np.nan),
    }
    for column in columns.values():
        column.setflags(write=False)
    return columns


def cut(
    table: Table, kind: str, world_size: int, local_world_size: int, min_partition: int | None = None
) -> list[tuple[int, int]]:
    """Rows and columns of each of a table's shards, in the order of the ranks, as TorchRec cuts it.

    Rows are cut in `row_blocks`, columns in parts of the least width from `min_partition` on (128 unless told) that
    divides them and is a multiple of 4.
    """
    if kind not in KINDS:
        raise UnknownName("kind of sharding", kind, KINDS)
    rows, dim = table.rows, table.dim
    ranks = {"rw": world_size, "twrw": local_world_size, "grid": local_world_size}.get(kind, 1)
    width = _width(dim, min_partition or LEAST_COLUMNS) if kind in ("cw", "twcw", "grid") else dim
    copies = world_size if kind == "dp" else dim // width
    return [(count, width) for _ in range(copies) for _, count in row_blocks(rows, ranks)]


def row_blocks(rows: int, parts: int) -> list[tuple[int, int]]:
    """First row and number of rows of each block: of one length, rounded up, so the last are shorter or empty."""
    length = -(-rows // parts)
    return [(first, min(length, rows - first)) for first in (min(i * length, rows) for i in range(parts))]


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
    of, unknown = Tables.of(tables, setup).take(table), np.full(len(table), -1)
    return Shards(table, np.repeat(np.array(kinds), counts), rows, dim, of, unknown, unknown, unknown)


def _looked_up(table: Table, batch: int) -> tuple[Term, Term, Term]:
    """Ids, bags and filled bags of one rank's samples, features added up in their order."""
    ids = bags = filled = Term(0)
    for feature in table.features:
        pooling, poolings = Term(feature.pooling, "ids a bag"), Term(feature.poolings, "bags a sample")
        samples = Term(batch if feature.batch is None else feature.batch, "samples")
        ids += pooling * poolings * samples
        bags += poolings * samples
        filled += least(Term(1), pooling) * poolings * samples
    return ids, bags, filled


def _width(dim: int, least: int) -> int:
    return next((width for width in range(least, dim) if dim % width == 0 and width % 4 == 0), dim)
