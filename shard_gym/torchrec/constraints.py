"""TorchRec's `ParameterConstraints`, by name of the table, as a task's rules, and what of them goes on into its plan.

| ParameterConstraints | here |
|---|---|
| `sharding_types` | kinds that the table may have |
| `compute_kernels` | residences that it may have, and copies (dp) where `dense` is one of them |
| `min_partition` | columns that its shards of columns have at least |
| `cache_params.load_factor` | share of its cache |
| `pooling_factors`, `num_poolings`, `batch_sizes` (of a rank) | how its features are looked up, in their order |
| `is_weighted` | ids with weights |
| the rest of `cache_params`, `stochastic_rounding`, `bounds_check_mode`, `output_dtype` | go on into the plan |

Refused by name: kernels for inference, key-value and virtual tables, `enforce_hbm`, and devices of other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.memory.shards import CACHE_LOAD_FACTOR
from shard_gym.plan.plan import SHARES
from shard_gym.tables.configs import IDS_PER_FEATURE, Lookup
from shard_gym.task.constraints import KINDS, OF_COLUMNS, Constraints, known_kinds
from shard_gym.torchrec.layouts import KINDS_OF, RESIDENCE_OF, shardings_of, why_not

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

CARRIED = ("stochastic_rounding", "bounds_check_mode", "output_dtype")  # of a plan as they are of constraints
REFUSED = ("enforce_hbm", "key_value_params", "use_virtual_table")
_LOOKED_UP = ("pooling_factors", "num_poolings", "batch_sizes")


def parameter_constraints(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The constraints that settings tell in TorchRec's words, by table; none where they are a task's own."""
    told = settings.get("constraints")
    return {} if told is None or isinstance(told, Constraints) else told


def is_weighted(told: Mapping[str, Any], table: str) -> bool:
    """True if constraints say that the ids of a table have weights."""
    return table in told and bool(told[table].is_weighted)


def lookups_of(told: Mapping[str, Any], configs: Sequence[Any], devices: int) -> dict[str, Lookup]:
    """Lookups of features by name, of the tables whose constraints tell other than TorchRec's defaults."""
    check_known(told, [config.name for config in configs])
    found: dict[str, Lookup] = {}
    for config in configs:
        mine = told.get(config.name)
        if mine is None or _usual(mine):
            continue
        n = len(config.feature_names)
        ids, bags, batches = (getattr(mine, name) or [None] * n for name in _LOOKED_UP)
        if not len(ids) == len(bags) == len(batches) == n:
            raise InvalidPool(
                f"constraints of {config.name!r}: {', '.join(_LOOKED_UP)} are one number for each of its {n} features"
            )
        for feature, *numbers in zip(config.feature_names, ids, bags, batches, strict=True):
            lookup = _lookup(numbers, devices)
            if found.setdefault(feature, lookup) != lookup:
                raise InvalidPool(f"constraints tell feature {feature!r} in two ways, the second of {config.name!r}")
    return found


def limits_of(told: Mapping[str, Any], configs: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a task that keep to constraints; kinds and residences that they name are allowed unless told."""
    hosts, limits, residences, shares, least = _hosts(settings), [], [], [], []
    for table, config in enumerate(configs):
        if (mine := told.get(config.name)) is None:
            continue
        refuse_odd(config.name, mine)
        kinds, lives = _kinds(config.name, mine, hosts), _residences(mine)
        limits += [(table, kinds)] if kinds != KINDS else []
        residences += [(table, lives)] if lives else []
        share = getattr(mine.cache_params, "load_factor", None)
        shares += [(table, float(share))] if share is not None else []
        least += [(table, int(mine.min_partition))] if mine.min_partition else []
    rules = Constraints(
        kinds=tuple(limits), residences=tuple(residences), shares=tuple(shares), least_columns=tuple(least)
    )
    named = {kind for _, kinds in rules.kinds for kind in kinds}
    where = {residence for _, lives in rules.residences for residence in lives}
    return {
        "constraints": rules,
        "kinds": settings.get("kinds") or (known_kinds({"tw", *named}) if named else ()),
        "residences": settings.get("residences") or tuple(r for r in SHARES if r in {"hbm", *where}),
    }


def constraints_of(sharding_plan: ShardingPlan, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The constraints that leave TorchRec's planner one way to shard each table, that of the plan.

    `told` are those that the planner had: how tables are looked up stays. With them `carry` gives a plan that was read
    back the names and settings that a plan of ours does not hold.
    """
    from torchrec.distributed.planner import ParameterConstraints

    found = {}
    for name, sharding in shardings_of(sharding_plan).items():
        shards = getattr(sharding.sharding_spec, "shards", None) or ()
        of_columns = KINDS_OF.get(sharding.sharding_type) in OF_COLUMNS
        found[name] = replace(
            (told or {}).get(name) or ParameterConstraints(),
            sharding_types=[sharding.sharding_type],
            compute_kernels=[sharding.compute_kernel],
            min_partition=min(shard.shard_sizes[1] for shard in shards) if of_columns else None,
            cache_params=sharding.cache_params,
            **{name: getattr(sharding, name) for name in CARRIED},
        )
    return found


def carry(sharding_plan: ShardingPlan, told: Mapping[str, Any]) -> ShardingPlan:
    """Copy the kernel settings of constraints into a plan, as TorchRec's planner does.

    Column shards are called table_column_wise where that is all that a table may be.
    """
    from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ShardingPlan

    def carried(table: str, sharding: Any) -> Any:
        if (mine := told.get(table)) is None:
            return sharding
        cache, theirs = sharding.cache_params, mine.cache_params
        usual = cache is not None and cache.load_factor == CACHE_LOAD_FACTOR
        if usual and getattr(theirs, "load_factor", None) is None:
            cache = theirs  # TorchRec's default, in its own words
        elif cache is not None:
            cache = replace(theirs or CacheParams(), load_factor=cache.load_factor)
        kept = {name: getattr(mine, name) for name in CARRIED}
        only = mine.sharding_types[0] if len(mine.sharding_types or ()) == 1 else ""
        if KINDS_OF.get(only) == KINDS_OF[sharding.sharding_type]:
            kept["sharding_type"] = only
        return replace(sharding, cache_params=cache, **kept)

    return ShardingPlan(
        {
            path: EmbeddingModuleShardingPlan({table: carried(table, of) for table, of in tables.items()})
            for path, tables in cast(dict[str, EmbeddingModuleShardingPlan], sharding_plan.plan).items()
        }
    )


def check_known(told: Any, names: Sequence[str]) -> None:
    """Refuse constraints that are none, or of tables that are not there."""
    if not isinstance(told, Mapping):
        raise InvalidTask(f"constraints are TorchRec's ParameterConstraints by name of the table, got {told!r:.80}")
    for name, mine in told.items():
        if name not in names:
            raise UnknownName("table in constraints", name, names)
        if not all(hasattr(mine, field) for field in ("sharding_types", "compute_kernels", *_LOOKED_UP)):
            raise InvalidTask(f"constraints of {name!r} are no ParameterConstraints of TorchRec's: {mine!r:.80}")


def refuse_odd(name: str, mine: Any) -> None:
    """Refuse settings that change what a table costs in ways that are not modelled."""
    if odd := [field for field in REFUSED if getattr(mine, field, None)]:
        raise InvalidTask(f"constraints of {name!r}: {odd[0]} = {getattr(mine, odd[0])!r:.60} is not modelled")
    if mine.device_group not in (None, "cuda"):
        raise InvalidTask(f"constraints of {name!r}: device_group {mine.device_group!r} is not planned for, cuda is")
    if unknown := [kernel for kernel in mine.compute_kernels or () if kernel not in RESIDENCE_OF]:
        how = f"no plan can say {unknown[0]}{why_not(unknown[0])}"
        raise UnknownName(f"compute kernel in the constraints of {name!r}", unknown[0], RESIDENCE_OF, how)
    if unknown := [kind for kind in mine.sharding_types or () if kind not in KINDS_OF]:
        raise UnknownName(f"sharding type in the constraints of {name!r}", unknown[0], KINDS_OF)


def _hosts(settings: Mapping[str, Any]) -> bool:
    return bool(getattr(settings.get("links"), "group", 0))


def _kinds(name: str, mine: Any, hosts: bool) -> tuple[str, ...]:
    """Kinds that a table may have, by its sharding types and kernels."""
    types, kernels = mine.sharding_types, mine.compute_kernels
    if hosts and types and "table_column_wise" in types and "column_wise" not in types:
        raise InvalidTask(
            f"constraints of {name!r} keep columns on one host: name column_wise too, plans choose hosts freely"
        )
    kinds = known_kinds({KINDS_OF[kind] for kind in types}) if types else KINDS
    fused = kernels is None or set(kernels) - {"dense"}
    return tuple(k for k in kinds if (kernels is None or "dense" in kernels if k == "dp" else fused))


def _residences(mine: Any) -> tuple[str, ...]:
    """Residences that a table may have unless it is copied; none where nothing is told."""
    named = {RESIDENCE_OF[kernel] for kernel in mine.compute_kernels or () if kernel != "dense"}
    return tuple(residence for residence in SHARES if residence in named)


def _usual(mine: Any) -> bool:
    return list(mine.pooling_factors) == [IDS_PER_FEATURE] and not mine.num_poolings and not mine.batch_sizes


def _lookup(numbers: Sequence[Any], devices: int) -> Lookup:
    ids, bags, batch = numbers
    own = None if batch is None else int(batch) * devices
    return Lookup(IDS_PER_FEATURE if ids is None else float(ids), 1.0 if bags is None else float(bags), own)
