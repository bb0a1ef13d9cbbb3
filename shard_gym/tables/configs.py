"""Pools from TorchRec's table configs, read by their attributes: TorchRec itself is not needed.

A config has `name`, `num_embeddings`, `embedding_dim`, `data_type` and `feature_names`, as `EmbeddingBagConfig` and
`EmbeddingConfig` do. What they do not say is how many ids a sample has: `pooling` tells the mean of each feature by its
name, or of a whole table by the table's; a name that is both means the feature. Features that are not named have 1
id a sample, as TorchRec's own planner assumes. The ids of a table's features add up, and so do the rows that a sample
gets back, one for each (column `bags` of the pool). A feature with several bags a sample, or with samples of its own,
is told by a `Lookup`, whose batch is a step's as the task's is:

    make_task(configs, 8, 40, batch=4096, pooling={"clicks": 12.5, "views": Lookup(3, num_poolings=2, batch=1024)})

How a config's weights begin (`init_fn`, `weight_init_min`, `weight_init_max`) costs nothing and is not looked at. Any
other attribute that is set (pruning, virtual tables, position weights, ...) changes what a table costs in ways that we
do not model, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from operator import mul
from typing import Any

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.records.guard import guarded
from shard_gym.tables.pool import TablePool, make_pool

IDS_PER_FEATURE = 1.0  # torchrec.distributed.planner.constants.POOLING_FACTOR
DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8"}  # DataType's names, and ours
_TOLD = ("name", "num_embeddings", "embedding_dim", "data_type", "feature_names")
_HARMLESS = {*_TOLD, "pooling", "init_fn", "weight_init_min", "weight_init_max"}


@dataclass(frozen=True)
class Lookup:
    """Lookups of a feature, as TorchRec's `ParameterConstraints` have them, but of a whole step instead of one rank."""

    pooling: float = IDS_PER_FEATURE  # mean ids of a bag
    num_poolings: float = 1.0  # bags a sample
    batch: int | None = None  # its samples a step, of all ranks together; those of the task unless told
    weighted: bool = False  # ids come with weights

    def bags(self, batch: int | None) -> float:
        """Mean bags a sample of the task, whose steps have so many samples."""
        if self.batch is None:
            return self.num_poolings
        if batch is None:
            raise InvalidPool(f"{self} has a batch of its own: the task's must be told too")
        return self.num_poolings * self.batch / batch


Pooling = Mapping[str, float | Lookup]  # by name of feature or table


@guarded("configs of tables", InvalidPool)
def pool_of_configs(configs: Sequence[Any], pooling: Pooling | None = None, batch: int | None = None) -> TablePool:
    """A pool with one table a config; lookups are spread evenly over its rows, see `make_pool`.

    `batch` is the samples of a step, which only features with a batch of their own need.
    """
    columns = columns_of(configs)
    lookups = _lookups_by_table(configs, pooling)
    columns["bags"] = [sum(lookup.bags(batch) for lookup in table) for table in lookups]
    columns["pooling"] = [sum(lookup.pooling * lookup.bags(batch) for lookup in table) for table in lookups]
    columns["weighted"] = [any(lookup.weighted for lookup in table) for table in lookups]
    return make_pool(**columns)


def columns_of(configs: Sequence[Any]) -> dict[str, Any]:
    """Read configs as columns of `make_pool`; refuses what is not modelled."""
    for position, config in enumerate(configs):
        _check(config, position)
    names = [config.name for config in configs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidPool(f"TorchRec tables have names of their own, but {twice[0]!r} is the name of several")
    return {
        "rows": [config.num_embeddings for config in configs],
        "dim": [config.embedding_dim for config in configs],
        "dtype": [DTYPES[name_of(config.data_type)] for config in configs],
        "name": tuple(names),
        "pooled": [not returns_every_row(config) for config in configs],
    }


def returns_every_row(config: Any) -> bool:
    """True if it looks rows up without pooling them, as `EmbeddingConfig` does and `PoolingType.NONE` says."""
    classes = {parent.__name__ for parent in type(config).__mro__}
    return "EmbeddingConfig" in classes or name_of(getattr(config, "pooling", "SUM")) == "NONE"


def check_empty_bags(configs: Sequence[Any], pooling: Pooling | None = None, batch: int | None = None) -> None:
    """Refuse tables of which accounting "torchrec" guesses other than a task does how many bags are not empty.

    It guesses min(1, ids) for each bag of a feature; a task knows the ids of all features together.
    """
    for config, lookups in zip(configs, _lookups_by_table(configs, pooling), strict=True):
        if returns_every_row(config):
            continue
        bags = [lookup.bags(batch) for lookup in lookups]
        ids = [lookup.pooling for lookup in lookups]
        ours = min(sum(bags), sum(map(mul, ids, bags)))
        theirs = sum(min(1.0, of_bag) * count for of_bag, count in zip(ids, bags, strict=True))
        if not math.isclose(ours, theirs, rel_tol=1e-6):
            raise InvalidTask(
                f"features of {config.name!r} have less and more than 1 id a bag: TorchRec counts an output of "
                f'{theirs:g} rows a sample, a task {ours:g}. Take accounting="true" or "training" for it, or '
                "shard_gym.memory.storage"
            )


def _check(config: Any, position: int) -> None:
    """Refuse what is no config of a table."""
    if missing := [attribute for attribute in _TOLD if not hasattr(config, attribute)]:
        wanted = f"TorchRec configs have {', '.join(_TOLD)}"
        raise InvalidPool(f"{wanted}; number {position}, {config!r:.60}, has no {missing[0]}")
    what = f"table {position} ({config.name!r:.60})"
    features = config.feature_names
    if not isinstance(config.name, str) or not config.name:
        raise InvalidPool(f"{what}: a table needs a name")
    if not isinstance(features, list | tuple) or not features or not all(isinstance(f, str) for f in features):
        raise InvalidPool(f"{what}: feature_names is a list of at least one name, got {features!r:.60}")
    for attribute in ("num_embeddings", "embedding_dim"):
        if not _is_whole(number := getattr(config, attribute)):
            raise InvalidPool(f"{what}: {attribute} is a whole number, got {number!r:.60}")
    if name_of(config.data_type) not in DTYPES:
        raise InvalidPool(f"{what}: data_type is one of {', '.join(DTYPES)}, not {name_of(config.data_type)}")
    _check_nothing_else(config, what)


def _check_nothing_else(config: Any, what: str) -> None:
    """Refuse settings that costs do not follow."""
    for attribute, value in getattr(config, "__dict__", {}).items():
        if attribute not in _HARMLESS and value is not None and value is not False:
            raise InvalidPool(f"{what}: {attribute} = {value!r:.60} changes what a table costs, which is not modelled")


def _lookups_by_table(configs: Sequence[Any], pooling: Pooling | None) -> list[list[Lookup]]:
    """Lookups of each feature of each table."""
    told = {} if pooling is None else pooling
    if not isinstance(told, Mapping):
        raise InvalidPool(f"pooling gives mean ids a sample by name, {{'clicks': 12.5}}, got {told!r:.80}")
    features = {feature for config in configs for feature in config.feature_names}
    known = features | {config.name for config in configs}
    for name, ids in told.items():
        if name not in known:
            raise UnknownName("feature or table in pooling", name, known)
        if isinstance(ids, Lookup) and name in features:
            _check_feature(name, ids)
        elif not _is_mean(ids):
            raise InvalidPool(f"pooling of {name!r} is a number from 0, mean ids a sample, got {ids!r:.60}")
    return [_lookups(config, told, features) for config in configs]


def _check_feature(name: str, feature: Lookup) -> None:
    if not _is_mean(feature.pooling) or not _is_mean(feature.num_poolings):
        raise InvalidPool(f"pooling and num_poolings of {name!r} are numbers from 0, got {feature}")
    if feature.batch is not None and (not _is_whole(feature.batch) or feature.batch < 1):
        raise InvalidPool(f"batch of {name!r} is a whole number from 1, got {feature.batch!r:.60}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_mean(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf


def _feature(told: float | Lookup | None) -> Lookup:
    if isinstance(told, Lookup):
        return told
    return Lookup() if told is None else Lookup(float(told))


def _lookups(config: Any, pooling: Pooling, features: set[str]) -> list[Lookup]:
    """Lookups of a table's features; ids that are told of the whole table are shared out evenly."""
    if config.name not in pooling or config.name in features:
        return [_feature(pooling.get(feature)) for feature in config.feature_names]
    if both := [feature for feature in config.feature_names if feature in pooling]:
        raise InvalidPool(f"pooling names table {config.name!r} and its feature {both[0]!r}: name one of them")
    ids = float(pooling[config.name])  # type: ignore[arg-type]  # a Lookup is for features
    return [Lookup(ids / len(config.feature_names))] * len(config.feature_names)


def name_of(value: Any) -> str:
    """The name of an enum's member; text stands for itself."""
    return str(getattr(value, "name", value)).upper()
