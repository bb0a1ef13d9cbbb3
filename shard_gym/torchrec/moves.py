"""Moves of tables between ranks while a model trains, by TorchRec's `DistributedModelParallel.reshard`.

    from shard_gym.torchrec.moves import reshard

    moved = reshard(model, sharding_plan)  # on every rank, between two steps

TorchRec 1.8 moves tables of an EmbeddingBagCollection without copies that are table-wise or column-wise, and stay so,
all shards to other ranks, with one state of their optimizer. Its messages are told apart by Python's `hash`, which
differs between processes unless PYTHONHASHSEED is set: on gloo the ranks then wait for each other for ever. What it
would do wrong, or break off in the middle of, is refused before anything moves. For the rest save a checkpoint, and
restore it under the new plan, see `shard_gym.torchrec.checkpoints`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidPlan
from shard_gym.torchrec.layouts import check_kernel
from shard_gym.torchrec.modules import require_torchrec

if TYPE_CHECKING:
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

MOVED = ("table_wise", "column_wise")
INSTEAD = "save a checkpoint, and restore it under the new plan"


def reshard(model: DistributedModelParallel, sharding_plan: ShardingPlan) -> dict[str, tuple[str, ...]]:
    """Move what the plan has elsewhere; the names of the tables that moved, by their collection's path.

    Every rank calls it with the same plan, between two steps. Optimizers of what no fused kernel trains stay as they
    are, as do their parameters.
    """
    require_torchrec()
    found = deltas(model, sharding_plan)
    _check_tags()
    for path, delta in found.items():
        model.reshard({path: (0.0, delta)}, sharded_module_fqn=path)
    return {path: tuple(delta) for path, delta in found.items()}


def deltas(model: DistributedModelParallel, sharding_plan: ShardingPlan) -> dict[str, EmbeddingModuleShardingPlan]:
    """Tables that move and their new sharding, by collection, as `DistributedModelParallel.reshard` takes them.

    What it cannot move is refused. TorchRec's own `output_sharding_plans_delta` compares ranks only.
    """
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    old, new = model.plan.plan, sharding_plan.plan
    found = {}
    for path in sorted(old.keys() | new.keys()):
        tables, others = dict(old.get(path, {})), dict(new.get(path, {}))
        if odd := sorted(tables.keys() ^ others.keys()):
            raise InvalidPlan(f"table {odd[0]!r} of {path or 'the model'} is in one plan only: plans are for one model")
        moved = {name: others[name] for name in tables if _shards(tables[name]) != _shards(others[name])}
        if moved:
            _check_collection(path, model)
            if copied := [name for name, sharding in tables.items() if sharding.sharding_type == "data_parallel"]:
                raise InvalidPlan(f"TorchRec moves no tables beside copies, and {copied[0]!r} is copied: {INSTEAD}")
            for name, sharding in moved.items():
                check_kernel(name, sharding)
                _check_table(name, tables[name], sharding)
            found[path] = EmbeddingModuleShardingPlan(moved)
    return found


def _shards(sharding: ParameterSharding) -> list[Any]:
    """Kind, kernel, and place and rank of each shard."""
    spec: Any = sharding.sharding_spec
    shards = [(tuple(s.shard_offsets), tuple(s.shard_sizes)) for s in spec.shards] if spec is not None else []
    return [sharding.sharding_type, sharding.compute_kernel, list(sharding.ranks or ()), shards]


def _check_collection(path: str, model: DistributedModelParallel) -> None:
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    if not hasattr(model._dmp_wrapped_module, "module"):
        raise InvalidPlan(f"no part of the model is data-parallel, and TorchRec's reshard counts on one: {INSTEAD}")
    part = model.module.get_submodule(path)
    if type(part) is not ShardedEmbeddingBagCollection:
        raise InvalidPlan(
            f"{path or 'the model'} is a {type(part).__name__}, and TorchRec moves tables of "
            f"EmbeddingBagCollections only: {INSTEAD}"
        )


def _check_table(name: str, old: ParameterSharding, new: ParameterSharding) -> None:
    if old.sharding_type not in MOVED or _shards(old)[:2] != _shards(new)[:2]:
        raise InvalidPlan(
            f"table {name!r} is {old.sharding_type} ({old.compute_kernel}), in the new plan {new.sharding_type} "
            f"({new.compute_kernel}): TorchRec moves tables that stay table_wise or column_wise; {INSTEAD}"
        )
    *_, old_ranks, old_shards = _shards(old)
    *_, new_ranks, new_shards = _shards(new)
    if old_shards != new_shards:
        raise InvalidPlan(
            f"table {name!r} is cut otherwise in the new plan, TorchRec moves what stays as it is: {INSTEAD}"
        )
    for kept in (rank for rank, other in zip(old_ranks, new_ranks, strict=True) if rank == other):
        raise InvalidPlan(f"table {name!r} moves in part, and TorchRec's rank {kept} would send to itself: {INSTEAD}")
    for sharding in (old, new):
        rank, many = Counter(sharding.ranks or ()).most_common(1)[0]
        if many > 1:
            raise InvalidPlan(f"table {name!r} has {many} shards on rank {rank}, TorchRec moves one: {INSTEAD}")


def _check_tags() -> None:
    """Refuse to wait for messages that never match."""
    from torch import distributed

    told: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, hash("table"))
    if len(set(told)) > 1:
        raise InvalidPlan(
            "ranks hash words differently, and TorchRec's messages would never arrive: set PYTHONHASHSEED=0 for all"
        )
