"""Tasks from a TorchRec model: the embedding collections of an unsharded module, at any depth.

    from shard_gym.torchrec.modules import task_of_module

    task = task_of_module(model, devices=8, memory_gb=40, pooling={"clicks": 12.5})
    task = task_of_module(model, devices=8, memory_gb=40, profile=profiler)  # see `shard_gym.torchrec.batches`

Only configs and the identity of parameters are read, so a model may be on the meta device, where it takes no memory,
or anywhere else: nothing is copied. `EmbeddingBagCollection`, with feature processors or without, and
`EmbeddingCollection` are understood; other modules with tables (fused, quantised, managed collisions, sharded already)
are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from shard_gym.errors import InvalidPool, MissingDependency, UnknownName
from shard_gym.measuring.operator import DISTRIBUTIONS, imported, require
from shard_gym.tables.configs import Pooling, pool_of_configs
from shard_gym.tables.pool import TablePool
from shard_gym.task.optimizers import OPTIMIZERS
from shard_gym.task.own import TaskSettings, check_modelled, memory_of, refuse_unknown, task_of
from shard_gym.task.task import Task
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.constraints import is_weighted, limits_of, lookups_of, parameter_constraints
from shard_gym.torchrec.topology import reserved

if TYPE_CHECKING:
    from torch import nn

OPTIMIZER_CLASSES = {  # by the name of the class given to `apply_optimizer_in_backward`
    "SGD": "sgd",
    "RowWiseAdagrad": "rowwise_adagrad",
    "Adagrad": "adagrad",
    "Adam": "adam",
    "LAMB": "lamb",
    "LarsSGD": "lars_sgd",
    "PartialRowWiseAdam": "partial_rowwise_adam",
    "PartialRowWiseLAMB": "partial_rowwise_lamb",
    "AdamW": "adamw",
    "RMSprop": "rmsprop",
}


@dataclass(frozen=True, eq=False)
class Collection:
    """One embedding collection of a model: its path, and the configs of its tables."""

    path: str  # as in `named_modules`; "" is the model itself
    module: nn.Module  # that TorchRec shards: of a processed collection, that with the feature processors
    tables: nn.Module  # the collection itself
    configs: tuple[Any, ...]
    pooled: bool  # an EmbeddingBagCollection, not an EmbeddingCollection
    weighted: bool  # ids come with weights

    def weight(self, table: str) -> nn.Parameter:
        """The parameter of a table."""
        tables: Any = self.tables.embedding_bags if self.pooled else self.tables.embeddings
        found: nn.Parameter = tables[table].weight
        return found


def require_torchrec() -> Any:
    """The package `torchrec`, or how to get the one that goes with this torch and FBGEMM.

    Planning needs no GPU: either build of FBGEMM will do, but not both, as they overwrite each other.
    """
    require("cpu")
    fbgemm = next((d.version for name in DISTRIBUTIONS for d in metadata.distributions(name=name)), "")
    minor = ".".join(fbgemm.split(".")[:2])
    # --no-deps: TorchRec asks for the CUDA build of FBGEMM, which would overwrite the CPU build
    command = f"pip install --no-deps torchrec=={minor}.*" if minor else "pip install --no-deps torchrec"
    found = next((d.version for d in metadata.distributions(name="torchrec")), "")
    if found and minor and found.split(".")[:2] != minor.split("."):
        raise MissingDependency(f"torchrec {found} does not go with FBGEMM {fbgemm}; run {command}")
    return imported("torchrec", command)


def collections_of(module: nn.Module) -> tuple[Collection, ...]:
    """The collections of an unsharded model in the order of `named_modules`, each table in one of them only."""
    require_torchrec()
    found = tuple(_walk(module))
    if not found:
        raise InvalidPool(f"{type(module).__name__} has no EmbeddingBagCollection or EmbeddingCollection")
    tables: dict[str, str] = {}
    owners: dict[int, str] = {}
    for collection in found:
        for config in collection.configs:
            here = f"{collection.path or 'the model'}.{config.name}"
            if config.name in tables:
                raise InvalidPool(f"{tables[config.name]} and {here} have one name: plans tell tables by name")
            tables[config.name] = here
            weight = id(collection.weight(config.name))
            if weight in owners:
                raise InvalidPool(f"{owners[weight]} and {here} share one parameter, which is not modelled")
            owners[weight] = here
    return found


def configs_of(module: nn.Module) -> list[Any]:
    """The configs of all tables of an unsharded model, in the order of `collections_of`."""
    return [config for collection in collections_of(module) for config in collection.configs]


def task_of_module(
    module: nn.Module,
    devices: int,
    memory_gb: float | Sequence[float],
    *,
    pooling: Pooling | None = None,
    profile: Profiler | None = None,
    storage_reservation: Any = None,
    **settings: Unpack[TaskSettings],
) -> Task:
    """One step of training this model: `make_task` of its configs, in the order of `configs_of`.

    Either `pooling` says how features are looked up, or a `profile` has measured it, or TorchRec's
    `ParameterConstraints` say it, given as `constraints` by table, which limit plans too. Each table has
    the optimizer that `apply_optimizer_in_backward` gave it, unless `optimizer` is told. `memory_gb` is left for
    tables; with a `storage_reservation` of TorchRec's, it is the device's, and what that reserves is taken off.
    """
    refuse_unknown(settings, TaskSettings.__annotations__)
    collections = collections_of(module)
    configs = [config for collection in collections for config in collection.configs]
    told = parameter_constraints(settings)
    lookups = lookups_of(told, configs, devices)
    if (pooling is not None) + (profile is not None) + bool(lookups) > 1:
        raise InvalidPool(
            "lookups are told or measured: give one of pooling, profile and constraints of them, not both"
        )
    if profile is None:
        pooling = pooling or lookups
        pool = pool_of_configs(configs, pooling, settings.get("batch"))
    else:
        pool, pooling = profile.pool(configs), profile.pooling()
    check_modelled(configs, pooling, settings)
    weighted = [c.weighted or is_weighted(told, config.name) for c in collections for config in c.configs]
    pool = pool.with_(weighted=np.array(weighted) | pool.weighted)
    if "optimizer" not in settings:
        pool = _trained(pool, collections, settings)
    limits: Any = limits_of(told, configs, settings) if told else {}
    task = task_of(pool, memory_of(devices, memory_gb), {**settings, **limits})
    return task if storage_reservation is None else reserved(storage_reservation, task, module, told)


def optimizer_of(weight: Any) -> str:
    """The optimizer that `apply_optimizer_in_backward` gave a parameter, "none" if it gave none."""
    classes = getattr(weight, "_optimizer_classes", None)
    if not classes:
        return "none"
    if classes[0].__name__ not in OPTIMIZER_CLASSES:
        raise UnknownName("optimizer", classes[0].__name__, OPTIMIZER_CLASSES)
    return OPTIMIZER_CLASSES[classes[0].__name__]


def _trained(pool: TablePool, collections: Sequence[Collection], settings: TaskSettings) -> TablePool:
    """The tables with their optimizers: the task's, where all have the same and tasks have it, else each its own."""
    found = [optimizer_of(c.weight(config.name)) for c in collections for config in c.configs]
    if set(found) == {"none"}:
        return pool
    if len(set(found)) > 1 or found[0] not in OPTIMIZERS:
        return pool.with_(optimizer=tuple(found))
    settings["optimizer"] = found[0]
    return pool


def _walk(module: nn.Module) -> Iterator[Collection]:
    """Every collection with its path; a module that hangs at two places is refused."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    paths: dict[int, str] = {}
    processed: dict[int, tuple[str, nn.Module]] = {}  # of the collection inside
    for path, part in module.named_modules(remove_duplicate=False):
        if type(part) is FeatureProcessedEmbeddingBagCollection:
            processed[id(part._embedding_bag_collection)] = path, part
            continue
        if type(part) not in (EmbeddingBagCollection, EmbeddingCollection):
            _check_other(path, part)
            continue
        if id(part) in paths:
            raise InvalidPool(
                f"{paths[id(part)]!r} and {path!r} are one collection, whose tables would be counted twice"
            )
        paths[id(part)] = path
        pooled, (path, whole) = type(part) is EmbeddingBagCollection, processed.get(id(part), (path, part))
        configs = part.embedding_bag_configs() if pooled else part.embedding_configs()
        yield Collection(path, whole, part, tuple(configs), pooled, pooled and part.is_weighted())


def _check_other(path: str, part: Any) -> None:
    """Refuse modules that hold tables in other ways."""
    from torchrec.distributed.sharding_plan import get_module_to_default_sharders
    from torchrec.distributed.types import ShardedModule

    what = f"{path or 'the model'} is a"
    if isinstance(part, ShardedModule):
        raise InvalidPool(f"{what} {type(part).__name__}: plans are made for a model before it is sharded")
    holds_tables = hasattr(part, "embedding_bag_configs") or hasattr(part, "embedding_configs")
    if holds_tables or type(part) in get_module_to_default_sharders():
        module = type(part).__module__
        why = ", quantised for inference" if module.startswith("torchrec.quant") else ""
        raise InvalidPool(
            f"{what} {module}.{type(part).__name__}{why}: tables of EmbeddingBagCollection, "  # or a namesake
            "FeatureProcessedEmbeddingBagCollection and EmbeddingCollection are modelled, no others"
        )
