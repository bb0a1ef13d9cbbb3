"""Models with sequence tables: their rows in FlexShard's tiers, the pooled tables on the same devices.

from shard_gym.flexshard.counts import count_batches
from shard_gym_agents.models import plan_model

counts = count_batches(batches, {"history": ["clicks"]})
told = {"counts": counts, "network": network("a100-4x8"), "batch": 32 * 4096}
planned = plan_model(model, devices=32, memory_gb=40, tiers=True, **told)
planned.place(model)  # in each process of a group; then `planned.sharding_plan` for the pooled tables
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, Unpack

import numpy as np

from shard_gym import simulators
from shard_gym.errors import InvalidPlan, InvalidTask
from shard_gym.flexshard.counts import RowCounter
from shard_gym.flexshard.network import COPIES, Network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan
from shard_gym.plan.plan import Plan
from shard_gym.tables.pool import GB
from shard_gym.task.task import Task
from shard_gym.torchrec.modules import Collection, collections_of
from shard_gym.torchrec.plans import to_torchrec
from shard_gym_agents.model_tasks import ModelSettings, of_first_rank, task_of_model
from shard_gym_agents.solvers.flexshard import Frontier
from shard_gym_agents.together import plan_together

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan


class TierSettings(ModelSettings):
    """Options of `plan_tiers`: how often rows of each sequence table are looked up, and what connects the GPUs."""

    counts: Mapping[str, RowCounter]
    network: Network
    copies: NotRequired[float]


class TieredModel(NamedTuple):
    """Plans of a model: tiers of its sequence tables, and a plan of its pooled ones, if it has any."""

    rows: RowTask
    tiers: TieredPlan
    order: Mapping[str, np.ndarray]  # rows of each sequence table, most frequent first
    task: Task | None  # with the memory that the tiers leave
    plan: Plan | None
    sharding_plan: ShardingPlan | None

    def place(self, model: nn.Module) -> None:
        """Put the tiers into a model, in the place of its sequence tables; each process of a group calls it."""
        import torch

        from shard_gym.flexshard.embedding import TieredEmbedding

        found = {c.name: collection for collection in collections_of(model) for c in collection.configs}
        for table, dp, flex in zip(self.rows.tables, self.tiers.dp_rows, self.tiers.flex_rows, strict=True):
            if table.name not in found or found[table.name].pooled:
                raise InvalidPlan(f"the model has no sequence table {table.name!r}: is the plan for another model?")
            weight, order = found[table.name].weight(table.name), torch.from_numpy(self.order[table.name])
            if weight.is_meta or tuple(weight.shape) != (len(order), table.dim):
                raise InvalidPlan(f"{table.name!r} needs weights of {len(order)} x {table.dim}, not on the meta device")
            per_node = self.rows.network.gpus_per_node
            tiered = TieredEmbedding(weight, order.to(weight.device), dp, flex, per_node)
            tables: Any = found[table.name].module.embeddings
            tables[table.name] = tiered


def plan_tiers(
    model: nn.Module,
    devices: int,
    memory_gb: float,
    *,
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    **settings: Unpack[TierSettings],
) -> TieredModel:
    """Plan an unsharded model for the GPUs of a network, each with so much memory left for tables.

    `batch=` is that of all GPUs. Pooled tables are planned in the memory that the tiers leave, for the shortest step of
    both, as `plan_model` does it otherwise; the rest of `settings` is for them. In a process group every rank calls it,
    rank 0 plans, and all of them get its plan.
    """
    rows, order, rest = _row_task(model, devices, settings)
    pooled = {c.path: c.module for c in collections_of(model) if c.pooled}
    if not pooled:
        return TieredModel(rows, Frontier(rows).best(budget_bytes=memory_gb * GB), order, None, None, None)
    part = _parts(pooled)
    planner = simulators.make(simulator) if isinstance(simulator, str) else simulator
    task = task_of_model(part, devices, memory_gb, simulator=planner, device=device, **rest)
    found = of_first_rank(lambda: plan_together(task, rows, planner))
    task = replace(task, memory=tuple(int(m - found.tiers_bytes) for m in task.memory))
    sharding_plan = to_torchrec(found.plan, task, part, local_world_size=rows.network.gpus_per_node, device=device)
    return TieredModel(rows, found.tiers, order, task, found.plan, _with_paths(sharding_plan, list(pooled)))


def _row_task(model: nn.Module, devices: int, settings: TierSettings) -> tuple[RowTask, dict[str, np.ndarray], Any]:
    """The task of the sequence tables, the order of their rows, and the settings that are for pooled tables."""
    rest: dict[str, Any] = dict(settings)
    counts, network, copies = (rest.pop(name, None) for name in ("counts", "network", "copies"))
    if counts is None or network is None:
        raise InvalidTask("tiers want counts= of the lookups of each sequence table, and the network= of the GPUs")
    if devices != network.gpus:
        raise InvalidTask(f"the network has {network.gpus} GPUs, devices= says {devices}")
    if (batch := rest.get("batch", 0)) < 1 or batch % devices:
        raise InvalidTask(f"batch= is that of all GPUs, a multiple of {devices}, got {batch}")
    tables = tuple(_sequence_tables(collections_of(model), counts))
    rows = RowTask(tables, network, batch // devices, copies=COPIES if copies is None else copies)
    return rows, {table.name: counts[table.name].order(table.curve.num_rows) for table in tables}, rest


def _sequence_tables(collections: tuple[Collection, ...], counts: Mapping[str, RowCounter]) -> list[SequenceTable]:
    configs = [(c, config) for c in collections if not c.pooled for config in c.configs]
    names = {config.name for _, config in configs}
    for missing, told in ((names - counts.keys(), "is not counted"), (counts.keys() - names, "is none of the model's")):
        if missing:
            raise InvalidTask(f"sequence table {min(missing)!r} {told}: counts are of all its sequence tables")
    found = []
    for collection, config in configs:
        curve = counts[config.name].curve(config.num_embeddings)
        size = collection.weight(config.name).element_size()
        found.append(SequenceTable(config.name, curve, config.embedding_dim, size))
    if not found:
        raise InvalidTask("the model has no EmbeddingCollection, and so no sequence tables: use plan_model")
    return found


def _parts(modules: Mapping[str, nn.Module]) -> nn.Module:
    """One module of some parts of a model, which are its "0", "1", ..."""
    from torch import nn

    return nn.ModuleList(modules.values())


def _with_paths(sharding_plan: ShardingPlan, paths: list[str]) -> ShardingPlan:
    """The plan of such parts as one of the model."""
    from torchrec.distributed.types import ShardingPlan

    return ShardingPlan({paths[int(name)]: of for name, of in sharding_plan.plan.items()})
