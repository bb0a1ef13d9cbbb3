"""Tasks from a TorchRec model: the embedding collections of an unsharded module, wherever they hang in it.

    from shard_gym.torchrec.modules import task_of_module

    task = task_of_module(model, devices=8, memory_gb=40, pooling={"clicks": 12.5})
    task = task_of_module(model, devices=8, memory_gb=40, profile=profiler)  # see `shard_gym.torchrec.batches`

Only configs and the identity of parameters are read, so a model may be on the meta device, where it takes no memory,
or anywhere else: nothing is copied. `EmbeddingBagCollection` and `EmbeddingCollection` are understood; other modules
with tables (fused, quantised, managed collisions, feature processors, sharded already) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Unpack

from shard_gym.errors import InvalidPool, InvalidTask, MissingDependency, UnknownName
from shard_gym.measuring.operator import DISTRIBUTIONS, imported, require
from shard_gym.tables.configs import Pooling, pool_of_configs
from shard_gym.task.own import TaskSettings, check_modelled, memory_of, refuse_unknown, task_of
from shard_gym.task.task import OPTIMIZERS, Task
from shard_gym.torchrec.batches import Profiler, refuse_weights

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
    """One embedding collection of a model: where it hangs, and the configs of its tables."""

    path: str  # as in `named_modules`; "" is the model itself
    module: nn.Module
    configs: tuple[Any, ...]
    pooled: bool  # an EmbeddingBagCollection, not an EmbeddingCollection
    weighted: bool  # ids come with weights

    def weight(self, table: str) -> nn.Parameter:
        """The parameter of a table."""
        tables: Any = self.module.embedding_bags if self.pooled else self.module.embeddings
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
    ignore_weights: bool = False,
    **settings: Unpack[TaskSettings],
) -> Task:
    """One step of training this model: `make_task` of its configs, in the order of `configs_of`.

    Either `pooling` says how features are looked up, or a `profile` has measured it. What weights of ids cost is not
    modelled: a collection that is weighted is refused, unless told to ignore that. The optimizer is the one that
    `apply_optimizer_in_backward` gave the tables, unless told.
    """
    refuse_unknown(settings, TaskSettings.__annotations__)
    collections = collections_of(module)
    if weighted := [collection.path or "the model" for collection in collections if collection.weighted]:
        refuse_weights(weighted[0], ignore_weights)
    configs = [config for collection in collections for config in collection.configs]
    if profile is None:
        pool = pool_of_configs(configs, pooling, settings.get("batch"))
    elif pooling is None:
        pool, pooling = profile.pool(configs, ignore_weights=ignore_weights), profile.pooling()
    else:
        raise InvalidPool("pooling is told or measured: give pooling or profile, not both")
    check_modelled(configs, pool, pooling, settings)
    if "optimizer" not in settings and (optimizer := _optimizer(collections)):
        settings["optimizer"] = optimizer
    return task_of(pool, memory_of(devices, memory_gb), settings)


def optimizer_of(weight: Any) -> str:
    """The optimizer that `apply_optimizer_in_backward` gave a parameter, "none" if it gave none."""
    classes = getattr(weight, "_optimizer_classes", None)
    if not classes:
        return "none"
    if classes[0].__name__ not in OPTIMIZER_CLASSES:
        raise UnknownName("optimizer", classes[0].__name__, OPTIMIZER_CLASSES)
    return OPTIMIZER_CLASSES[classes[0].__name__]


def _optimizer(collections: Sequence[Collection]) -> str | None:
    """Optimizer that trains the tables as they are looked up; None if none was applied."""
    found = {optimizer_of(c.weight(config.name)) for c in collections for config in c.configs}
    if found == {"none"}:
        return None
    if len(found) > 1 or not found <= set(OPTIMIZERS):
        raise InvalidTask(
            f"tables are trained by {', '.join(sorted(found))}, and a task knows one of {', '.join(OPTIMIZERS)}: "
            "tell optimizer=, the one that keeps as much beside the weights"
        )
    return found.pop()


def _walk(module: nn.Module) -> Iterator[Collection]:
    """Every collection with its path; a module that hangs at two places is refused."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    paths: dict[int, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if type(part) not in (EmbeddingBagCollection, EmbeddingCollection):
            _check_other(path, part)
            continue
        if id(part) in paths:
            raise InvalidPool(
                f"{paths[id(part)]!r} and {path!r} are one collection, whose tables would be counted twice"
            )
        paths[id(part)] = path
        pooled = type(part) is EmbeddingBagCollection
        configs = part.embedding_bag_configs() if pooled else part.embedding_configs()
        yield Collection(path, part, tuple(configs), pooled, pooled and part.is_weighted())


def _check_other(path: str, part: Any) -> None:
    """Refuse modules that hold tables in other ways."""
    from torchrec.distributed.sharding_plan import get_module_to_default_sharders
    from torchrec.distributed.types import ShardedModule

    what = f"{path or 'the model'} is a {type(part).__name__}"
    if isinstance(part, ShardedModule):
        raise InvalidPool(f"{what}: plans are made for a model before it is sharded")
    holds_tables = hasattr(part, "embedding_bag_configs") or hasattr(part, "embedding_configs")
    if holds_tables or type(part) in get_module_to_default_sharders():
        raise InvalidPool(f"{what}; tables of EmbeddingBagCollection and EmbeddingCollection are modelled, no others")
