"""A task in the words of TorchRec's planner: tables, ranks, what may be chosen, and the bytes that shards take."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from shard_gym.memory.shards import CACHE_LOAD_FACTOR, Shards, Tables
from shard_gym.memory.usage import shard_bytes
from shard_gym.plan.forms import beyond_columns
from shard_gym.task.task import Task
from shard_gym.torchrec.layouts import KERNEL_OF, KINDS_OF

BY_HOST = "table_column_wise"  # column shards on the devices of one host: nothing new where there is one host
TIES = (*KINDS_OF, *KERNEL_OF.values(), "dense")  # the order of a table's options that are worth the same


def model(task: Task) -> Any:
    """A model of the task's tables on the meta device: a collection each of sequences, weighted tables and others."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
    from torchrec.modules.embedding_configs import DataType

    tables, meta = task.tables, torch.device("meta")
    of: dict[str, list[Any]] = {"sequences": [], "weighted": [], "pooled": []}
    for t, name in enumerate(tables.name):
        where = ("weighted" if tables.weighted[t] else "pooled") if tables.pooled[t] else "sequences"
        config = EmbeddingBagConfig if tables.pooled[t] else EmbeddingConfig
        of[where].append(
            config(
                name=name,
                num_embeddings=int(tables.rows[t]),
                embedding_dim=int(tables.dim[t]),
                feature_names=[f"ids_of_{name}"],
                data_type=DataType[tables.dtype[t].upper()],
            )
        )
    modules = {w: EmbeddingBagCollection(of[w], w == "weighted", meta) for w in ("weighted", "pooled") if of[w]}
    modules |= {"sequences": EmbeddingCollection(of["sequences"], meta)} if of["sequences"] else {}
    return torch.nn.ModuleDict(modules)


def constraints(
    task: Task, allowed: bool = True, share: float = CACHE_LOAD_FACTOR, columns: int | None = None
) -> dict[str, Any]:
    """Constraints of each table: how it is looked up, and the ways to shard it that TorchRec may choose from.

    `share` is of the rows of cached tables, in the device's memory. Column shards are at least so many `columns` wide;
    unless told, halves where the task knows splits only, else TorchRec's own 128.
    """
    from torchrec.distributed.planner import ParameterConstraints
    from torchrec.distributed.types import CacheParams

    tables, halves = task.tables, columns is None and task.splits_allowed and not beyond_columns(task)
    bags = tables.bags.astype(np.float64)
    pooling = tables.pooling / np.where(bags > 0, bags, 1.0)  # of one bag
    found, least = {}, dict(task.constraints.least_columns)
    for table, name in enumerate(tables.name):
        dim, load = int(tables.dim[table]), dict(task.constraints.shares).get(table, share)
        types = _types(task, table, whole=halves and dim % 8 > 0) if allowed else None
        found[name] = ParameterConstraints(
            sharding_types=types,
            compute_kernels=[*(KERNEL_OF[r] for r in task.residences_of(table)), "dense"],  # copies have that
            min_partition=dim // 2 if halves and dim % 8 == 0 else least.get(table, columns),
            pooling_factors=[float(pooling[table])],
            num_poolings=[float(bags[table])],
            is_weighted=bool(tables.weighted[table]),
            cache_params=CacheParams(load_factor=load) if "cached" in task.residences else None,
        )
    return found


def _types(task: Task, table: int, whole: bool) -> list[str]:
    kinds = set(task.kinds_of(table)) - ({"cw"} if whole else set())
    several = task.devices_per_host < task.num_devices
    return [name for name, kind in KINDS_OF.items() if kind in kinds and (several or name != BY_HOST)]


class TaskStorage:
    """An estimator of TorchRec's: each shard takes the bytes that the task says it takes."""

    def __init__(self, task: Task) -> None:
        self.task, self.table = task, {name: t for t, name in enumerate(task.tables.name)}

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:
        """Set the storage of every shard, and put options in one order: TorchRec's is that of a set of words."""
        from torchrec.distributed.planner.types import Storage

        sharding_options.sort(
            key=lambda o: (self.table[o.name], TIES.index(o.sharding_type), TIES.index(o.compute_kernel))
        )
        placed = [shard for option in sharding_options for shard in option.shards]
        memory = shard_bytes(self.task, self._shards(sharding_options))
        for shard, hbm, ddr in zip(placed, *(size.tolist() for size in memory), strict=True):
            shard.storage = Storage(hbm=hbm, ddr=ddr)

    def _shards(self, sharding_options: list[Any]) -> Shards:
        counts = [len(option.shards) for option in sharding_options]
        each = [
            (self.table[o.name], KINDS_OF[o.sharding_type], o.compute_kernel, o.cache_load_factor or CACHE_LOAD_FACTOR)
            for o in sharding_options
        ]
        table, kind, kernel, load = (np.repeat(np.array(column), counts) for column in zip(*each, strict=True))
        rows, dim = np.array([shard.size for o in sharding_options for shard in o.shards], np.int64).T
        of, unknown = Tables.of_task(self.task).take(table), np.full(len(table), -1)
        of = Tables(**{**vars(of), "kernel": kernel, "cache_load_factor": load})
        return Shards(table, kind, rows, dim, of, unknown, unknown, unknown)


class Until:
    """A proposer of TorchRec's that proposes nothing more after so many seconds of its thread's CPU time.

    The planner then returns the best plan so far; its own limit counts the time of everybody else, too.
    """

    def __init__(self, proposer: Any, seconds: float) -> None:
        self.proposer, self.end = proposer, time.thread_time() + seconds

    def load(self, search_space: list[Any], enumerator: Any = None) -> None:
        """Take all options."""
        self.proposer.load(search_space, enumerator)

    def propose(self) -> list[Any] | None:
        """An option of each table; None at the end."""
        proposal: list[Any] | None = self.proposer.propose() if time.thread_time() < self.end else None
        return proposal

    def feedback(self, **told: Any) -> None:
        """Tell what became of the last proposal."""
        self.proposer.feedback(**told)


def proposers(name: str) -> list[Any]:
    """Proposers of a name; of `default` all that TorchRec tries by itself, in its order."""
    from torchrec.distributed.planner.proposers import (
        DynamicProgrammingProposer,
        GreedyProposer,
        GridSearchProposer,
        UniformProposer,
    )

    made: dict[str, list[Any]] = {
        "default": [GridSearchProposer(), GreedyProposer(), GreedyProposer(use_depth=False), UniformProposer()],
        "greedy": [GreedyProposer(), GreedyProposer(use_depth=False)],
        "greedy-total": [GreedyProposer(use_depth=False)],
        "uniform": [UniformProposer()],
        "grid": [GridSearchProposer()],
        "dynamic-programming": [DynamicProgrammingProposer()],
    }
    return made[name]


def partitioner(name: str) -> Any:
    """The part of the planner that decides where shards go."""
    from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, MemoryBalancedPartitioner, SortBy

    if name == "memory-balanced":
        return MemoryBalancedPartitioner()
    return GreedyPerfPartitioner(sort_by=SortBy.PERF if name == "greedy-perf" else SortBy.STORAGE)
