"""Pools from TorchRec's table configs, read by their attributes: TorchRec itself is not needed.

A config has `name`, `num_embeddings`, `embedding_dim`, `data_type` and `feature_names`, as `EmbeddingBagConfig` and
`EmbeddingConfig` do. What they do not say is how many ids a sample has: `pooling` tells the mean of each feature by its
name, or of a whole table by the table's; a name that is both means the feature. Features that are not named have 1
id a sample, as TorchRec's own planner assumes. The ids of a table's features add up.

How a config's weights begin (`init_fn`, `weight_init_min`, `weight_init_max`) costs nothing and is not looked at. Any
other attribute that is set (pruning, virtual tables, position weights, ...) changes what a table costs in ways that we
do not model, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.tables import TablePool, make_pool

IDS_PER_FEATURE = 1.0  # torchrec.distributed.planner.constants.POOLING_FACTOR
DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8"}  # DataType's names, and ours
_TOLD = ("name", "num_embeddings", "embedding_dim", "data_type", "feature_names")
_HARMLESS = {*_TOLD, "pooling", "init_fn", "weight_init_min", "weight_init_max"}


def pool_of_configs(configs: Sequence[Any], pooling: Mapping[str, float] | None = None) -> TablePool:
    """One table a config; lookups are spread evenly over its rows, see `make_pool`."""
    for position, config in enumerate(configs):
        _check(config, position)
    names = [config.name for config in configs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidPool(f"TorchRec tables have names of their own, but {twice[0]!r} is the name of several")
    ids = _ids_by_table(configs, {} if pooling is None else pooling)
    return make_pool(
        [config.num_embeddings for config in configs],
        [config.embedding_dim for config in configs],
        ids,
        dtype=[DTYPES[_name(config.data_type)] for config in configs],
        name=tuple(names),
    )


def returns_every_row(config: Any) -> bool:
    """Whether it looks rows up without pooling them, as `EmbeddingConfig` does and `PoolingType.NONE` says."""
    classes = {parent.__name__ for parent in type(config).__mro__}
    return "EmbeddingConfig" in classes or _name(getattr(config, "pooling", "SUM")) == "NONE"


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
        number = getattr(config, attribute)
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise InvalidPool(f"{what}: {attribute} is a whole number, got {number!r:.60}")
    if _name(config.data_type) not in DTYPES:
        raise InvalidPool(f"{what}: data_type is one of {', '.join(DTYPES)}, not {_name(config.data_type)}")
    _check_nothing_else(config, what)


def _check_nothing_else(config: Any, what: str) -> None:
    """Refuse settings that costs do not follow."""
    for attribute, value in getattr(config, "__dict__", {}).items():
        if attribute not in _HARMLESS and value is not None and value is not False:
            raise InvalidPool(f"{what}: {attribute} = {value!r:.60} changes what a table costs, which is not modelled")


def _ids_by_table(configs: Sequence[Any], pooling: Mapping[str, float]) -> list[float]:
    """Mean ids a sample of each table, all its features together."""
    if not isinstance(pooling, Mapping):
        raise InvalidPool(f"pooling gives mean ids a sample by name, {{'clicks': 12.5}}, got {pooling!r:.80}")
    features = {feature for config in configs for feature in config.feature_names}
    known = features | {config.name for config in configs}
    for name, ids in pooling.items():
        if name not in known:
            raise UnknownName("feature or table in pooling", name, known)
        if not isinstance(ids, Real) or isinstance(ids, bool) or not 0 <= ids < math.inf:
            raise InvalidPool(f"pooling of {name!r} is a number from 0, mean ids a sample, got {ids!r:.60}")
    return [_ids(config, pooling, features) for config in configs]


def _ids(config: Any, pooling: Mapping[str, float], features: set[str]) -> float:
    if config.name not in pooling or config.name in features:
        return float(sum(pooling.get(feature, IDS_PER_FEATURE) for feature in config.feature_names))
    if both := [feature for feature in config.feature_names if feature in pooling]:
        raise InvalidPool(f"pooling names table {config.name!r} and its feature {both[0]!r}: name one of them")
    return float(pooling[config.name])


def _name(value: Any) -> str:
    """The name of an enum's member; text stands for itself."""
    return str(getattr(value, "name", value)).upper()
