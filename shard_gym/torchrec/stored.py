"""Sharding plans as TorchRec writes them, by names of modules and tables, and for the loader of its planner.

Path("plan.json").write_text(to_named_json(sharding_plan))
sharding_plan = from_named_json(Path("plan.json").read_text())

constraints = constraints_of(sharding_plan, constraints)  # the planner is left these shards
planner = EmbeddingShardingPlanner(topology, batch_size, constraints=constraints)
planner.plan_loader = plan_loader(sharding_plan, planner, model, sharders)
planner.plan(model, sharders)  # is the sharding plan, checked against topology, batch and constraints by its hash
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidPlan
from shard_gym.memory.shards import CACHE_LOAD_FACTOR
from shard_gym.records.guard import guarded, parsed_json
from shard_gym.torchrec.layouts import LOAD_FACTOR, sharding_of, shardings_of

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.types import PlanLoader
    from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan


def to_named_json(sharding_plan: ShardingPlan) -> str:
    """TorchRec's own text of a plan, its `_serialize`, with the load factors of caches."""
    data = sharding_plan._serialize()
    for path, tables in sharding_plan.plan.items():
        for name, sharding in tables.items():  # type: ignore[attr-defined]  # the plans of modules are dicts
            if (cache := sharding.cache_params) is not None:
                data["plan"][path][name][LOAD_FACTOR] = cache.load_factor
    return json.dumps(data, indent=1)


def from_named_json(text: str) -> ShardingPlan:
    """The plan of such text."""
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

    with guarded("not a sharding plan by name"):
        plan = {
            path: EmbeddingModuleShardingPlan({name: sharding_of(told) for name, told in tables.items()})
            for path, tables in parsed_json(text, "not a sharding plan by name")["plan"].items()
        }
    return ShardingPlan(plan)


def plan_loader(
    sharding_plan: ShardingPlan,
    planner: EmbeddingShardingPlanner,
    module: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
) -> PlanLoader:
    """Loader that makes this planner return this plan, from options of its search space, with the planner's hash."""
    from torchrec.distributed.planner.types import PlanLoader

    space, context = _searched(planner, module, list(sharders))
    options, text = _chosen(sharding_plan, space), to_named_json(sharding_plan)

    class Stored(PlanLoader):
        """A plan that is known already."""

        def load(self) -> dict[int, Any]:
            return options

        def plan_context_hash(self) -> str:
            return context

        def get_plan_id(self) -> str:
            return sha256(text.encode()).hexdigest()[:16]

    return Stored()


def _searched(planner: Any, module: nn.Module, sharders: list[Any]) -> tuple[list[Any], str]:
    """The planner's search space, and the hash of what it plans for, which it knows after that."""
    told = planner._topology, planner._batch_size, module, sharders, planner._constraints
    planner._storage_reservation.reserve(*told)
    space = planner._enumerator.enumerate(module, sharders)
    return space, planner.hash_planner_context_inputs_str()


def _chosen(sharding_plan: ShardingPlan, space: Sequence[Any]) -> dict[int, Any]:
    """The option of each table that has the plan's shards, with their ranks, by the hash that loaders use."""
    left, found = shardings_of(sharding_plan), {}
    for option in space:
        sharding = left.get(option.name)
        if sharding is None or not _is_of(option, sharding):
            continue
        taken, ranks = deepcopy(option), _ranks(sharding)
        for shard in taken.shards:
            shard.rank = ranks.pop(0) if sharding.sharding_spec is None else ranks[tuple(shard.offset)]
        found[option.storage_hash()] = taken
        del left[option.name]
    if left:
        name, sharding = min(left.items())
        raise InvalidPlan(
            f"table {name!r} is {sharding.sharding_type} of {sharding.compute_kernel} in the plan, and the planner "
            "does not look at such shards: give it constraints_of(sharding_plan, constraints)"
        )
    return found


def _is_of(option: Any, sharding: ParameterSharding) -> bool:
    """True if an option cuts its table into the shards of a plan, looked up by the same kernel."""
    same = (option.sharding_type, option.compute_kernel) == (sharding.sharding_type, sharding.compute_kernel)
    if not same or sharding.sharding_spec is None:
        return same
    usual = CACHE_LOAD_FACTOR
    load = (sharding.cache_params.load_factor if sharding.cache_params else None) or usual
    if "caching" in option.compute_kernel and (option.cache_load_factor or usual) != load:
        return False
    mine = {(tuple(shard.offset), tuple(shard.size)) for shard in option.shards}
    return mine == {(tuple(s.shard_offsets), tuple(s.shard_sizes)) for s in sharding.sharding_spec.shards}


def _ranks(sharding: ParameterSharding) -> Any:
    """Ranks of shards by their offsets; a list of those of copies."""
    ranks = list(sharding.ranks or ())
    if sharding.sharding_spec is None:
        return ranks
    offsets = [tuple(shard.shard_offsets) for shard in sharding.sharding_spec.shards]
    return dict(zip(offsets, ranks, strict=True))
