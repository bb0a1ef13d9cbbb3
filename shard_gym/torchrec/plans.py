"""Plans to TorchRec's `ShardingPlan`s and back.

    from shard_gym.torchrec.plans import from_torchrec, to_torchrec

    sharding_plan = to_torchrec(plan, task, model, device="cuda")
    model = DistributedModelParallel(model, plan=sharding_plan, ...)

| the table in the plan | TorchRec |
|---|---|
| kind tw, not split | table-wise |
| split, all pieces of kind tw or cw; or kind cw: equal columns, one shard for each of its devices | column-wise |
| kind rw, on all devices in order | row-wise |
| kind twrw, on all devices of one host in order | table-row-wise |
| kind grid, each piece on all devices of one host in order | grid |
| kind dp, on all devices in order | data-parallel |
| residence uvm | kernel `fused_uvm` |
| residence cached | kernel `fused_uvm_caching`, the share is its load factor |

Tables are told by name. Back, column-wise shards become splits where halving makes them, else kind cw where their
widths are equal, and grid's likewise; others are refused, as is what else a plan cannot say (other kernels, uneven
rows).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from shard_gym.errors import InvalidPlan
from shard_gym.plan.plan import Plan, check
from shard_gym.tables.configs import DTYPES, name_of
from shard_gym.task.constraints import BY_HOST, KINDS, OF_COLUMNS
from shard_gym.task.task import Task
from shard_gym.torchrec.layouts import (
    Layout,
    halvings,
    layouts_of,
    read_layout,
    sharding_of,
    shardings_of,
    words_of,
)
from shard_gym.torchrec.modules import Collection, collections_of, configs_of, require_torchrec

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

_Piece = tuple[str, tuple[int, ...], str, float]  # kind, devices, residence, share


def to_torchrec(
    plan: Plan,
    task: Task,
    module: nn.Module,
    *,
    sharders: Sequence[ModuleSharder[Any]] | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
) -> ShardingPlan:
    """The plan as `DistributedModelParallel` takes it, for the unsharded model that the task was made of.

    Device k of the plan is rank k. `local_world_size` is how many ranks a host has: as the task's links have it unless
    told. Tables are looked up by fused kernels, those of kind dp by dense ones, as TorchRec's own planner has it.
    """
    require_torchrec()
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

    check_device(device)
    local = _local_world_size(task, world_size, local_world_size)
    collections = _validated(plan, task, module)
    layouts = layouts_of(plan, task, local)
    _check_collections(collections, layouts, sharders, device)
    return ShardingPlan(
        {
            collection.path: EmbeddingModuleShardingPlan(
                {one.name: sharding_of(words_of(layouts[one.name], local, device)) for one in collection.configs}
            )
            for collection in collections
        }
    )


def named_json(
    plan: Plan,
    task: Task,
    path: str = "",
    *,
    local_world_size: int | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
) -> str:
    """The plan as `stored.to_named_json` writes it, for a model whose one collection is at `path`; needs no TorchRec.

    `stored.from_named_json` reads it where the model is trained. Sequences are refused: they have their own collection.
    """
    check_device(device)
    check(task, plan)
    names = _own_names(task)
    other = ~task.tables.pooled | (task.tables.weighted != task.tables.weighted[0])
    if other.any():
        name = names[int(other.argmax())]
        raise InvalidPlan(f"table {name!r} is of another collection, a sequence or weighted: use to_torchrec")
    local = _local_world_size(task, None, local_world_size)
    layouts = layouts_of(plan, task, local)
    return json.dumps({"plan": {path: {name: words_of(layouts[name], local, device) for name in names}}}, indent=1)


def check_device(device: str) -> None:
    """Refuse devices that no plan is made for."""
    if device not in ("cuda", "cpu"):
        raise InvalidPlan(f"device is cuda or cpu, got {device!r:.40}")


def from_torchrec(sharding_plan: ShardingPlan, task_or_module: Task | nn.Module) -> Plan:
    """A sharding plan as a plan for the tables of a task, or of an unsharded model in the order of `configs_of`.

    Splits come table by table, a piece before its halves, left before right.
    """
    shapes = _shapes(task_or_module)
    shardings = shardings_of(sharding_plan)
    _check_names(set(shardings), set(shapes), "the sharding plan")
    world = task_or_module.num_devices if isinstance(task_or_module, Task) else None
    splits: list[int] = []
    whole: list[_Piece] = []  # of each table, or its leftmost one
    halves: list[_Piece] = []
    for table, (name, (rows, columns)) in enumerate(shapes.items()):
        layout = read_layout(name, shardings[name], rows, columns, world)
        cuts = halvings(layout.shards, columns) if layout.kind in OF_COLUMNS else None
        lives = layout.residence, layout.share
        if not cuts:
            _check_equally_wide(name, layout)
            whole.append((layout.kind, tuple(shard[4] for shard in layout.shards), *lives))
            continue
        kind, blocks = "tw" if layout.kind == "cw" else layout.kind, layout.blocks
        index = {0: table}  # of the piece that begins at a column
        for first, middle in cuts:
            splits.append(index[first])
            index[middle] = len(shapes) + len(splits) - 1
            halves.append((kind, blocks[middle], *lives))
        whole.append((kind, blocks[0], *lives))
    kinds, devices, residence, share = zip(*whole, *halves, strict=True)
    plan = Plan(tuple(d[0] for d in devices), tuple(splits), kinds, devices, residence, share)
    if isinstance(task_or_module, Task):
        check(task_or_module, plan)
    return plan


def validate(plan: Plan, task: Task, module: nn.Module) -> None:
    """Refuse a plan that is not one for the tables of this task, or a task that is not one of this model."""
    _validated(plan, task, module)


def _validated(plan: Plan, task: Task, module: nn.Module) -> tuple[Collection, ...]:
    check(task, plan)
    collections = collections_of(module)
    names = _own_names(task)
    configs = {config.name: config for collection in collections for config in collection.configs}
    _check_names(set(configs), set(names), "the model")
    for t, name in enumerate(names):
        config = configs[name]
        ours = (int(task.tables.rows[t]), int(task.tables.dim[t]), task.tables.dtype[t])
        theirs = (config.num_embeddings, config.embedding_dim, DTYPES.get(name_of(config.data_type)))
        if ours != theirs:
            said = "{} rows x {} columns of {}"
            raise InvalidPlan(
                f"table {name!r} is {said.format(*ours)} in the task, {said.format(*theirs)} in the model"
            )
    return collections


def _check_names(found: set[str], wanted: set[str], where: str) -> None:
    for names, told in ((wanted - found, f"is not in {where}"), (found - wanted, f"of {where} is not in the task")):
        if names:
            more = f", nor are {len(names) - 1} others" if len(names) > 1 else ""
            raise InvalidPlan(f"table {min(names)!r} {told}{more}: is the plan for another model?")


def _shapes(task_or_module: Task | nn.Module) -> dict[str, tuple[int, int]]:
    """Rows and columns of each table, by name."""
    if not isinstance(task_or_module, Task):
        return {c.name: (c.num_embeddings, c.embedding_dim) for c in configs_of(task_or_module)}
    tables = task_or_module.tables
    return dict(
        zip(_own_names(task_or_module), zip(tables.rows.tolist(), tables.dim.tolist(), strict=True), strict=True)
    )


def _own_names(task: Task) -> tuple[str, ...]:
    names = task.tables.name
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidPlan(f"TorchRec tells tables by name, but {twice[0]!r} is the name of several tables of the task")
    return names


def _check_equally_wide(name: str, layout: Layout) -> None:
    if layout.kind in OF_COLUMNS and len(widths := {shard[3] for shard in layout.shards}) > 1:
        raise InvalidPlan(f"table {name!r} has column shards of {sorted(widths)} columns: neither halves nor equal")


def _local_world_size(task: Task, world_size: int | None, local_world_size: int | None) -> int:
    world = task.num_devices if world_size is None else world_size
    if world != task.num_devices:
        raise InvalidPlan(f"the task has {task.num_devices} devices, the world {world} ranks: make a plan for these")
    local = task.devices_per_host if local_world_size is None else local_world_size
    if local < 1 or world % local:
        raise InvalidPlan(f"{world} ranks are no whole number of hosts of local_world_size = {local}")
    return local


def _check_collections(
    collections: Sequence[Collection],
    layouts: dict[str, Layout],
    sharders: Sequence[ModuleSharder[Any]] | None,
    device: str,
) -> None:
    """Refuse what TorchRec would refuse, or do wrong, only when the model runs."""
    for collection in collections:
        what = collection.path or "the model"
        if sharders is not None and type(collection.module) not in {sharder.module_type for sharder in sharders}:
            raise InvalidPlan(f"{what}: no sharder is for {type(collection.module).__name__}; it would not be sharded")
        own = {config.name: layouts[config.name] for config in collection.configs}
        if not collection.pooled:
            _check_sequences(collection, own, device)


def _check_sequences(collection: Collection, layouts: dict[str, Layout], device: str) -> None:
    what = f"{collection.path or 'the model'} does not pool, and TorchRec"
    for name, layout in layouts.items():
        if layout.kind not in kinds_run(collection, device):
            raise InvalidPlan(f"{what} on {device} has no {layout.kind} for that: table {name!r}")
    widths = {shard[3] for layout in layouts.values() if layout.kind == "cw" for shard in layout.shards}
    if len(widths) > 1:
        raise InvalidPlan(
            f"{what} wants all column shards of such a collection equally wide, not {sorted(widths)} columns"
        )


def kinds_run(collection: Collection, device: str) -> tuple[str, ...]:
    """Kinds of sharding that TorchRec runs for a table of a collection."""
    no_kinds = () if collection.pooled else (*BY_HOST, "dp") if device == "cpu" else BY_HOST
    return tuple(kind for kind in KINDS if kind not in no_kinds)
