"""Layouts: rows, columns and rank of each shard that TorchRec cuts the tables of a plan into; from a plan of ours, and
read from a `ShardingPlan` of its own, by its attributes. Layouts in TorchRec's words need no TorchRec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import InvalidPlan
from shard_gym.memory.shards import QUANTISED, row_blocks
from shard_gym.plan.plan import SHARES, Plan
from shard_gym.plan.shards import COLUMNS, shards
from shard_gym.task.constraints import OF_COLUMNS
from shard_gym.task.task import Task

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

RESIDENCE_OF = {"fused": "hbm", "dense": "hbm", "fused_uvm": "uvm", "fused_uvm_caching": "cached"}  # of kernels
KINDS_OF = {
    "table_wise": "tw",
    "column_wise": "cw",
    "table_column_wise": "cw",  # its shards are on one host, as their ranks say
    "row_wise": "rw",
    "table_row_wise": "twrw",
    "grid_shard": "grid",
    "data_parallel": "dp",
}
SHARDING_TYPES = {kind: name for name, kind in reversed(KINDS_OF.items())}  # of several names the first
KERNEL_OF = {residence: kernel for kernel, residence in reversed(RESIDENCE_OF.items())}
LOAD_FACTOR = "cache_load_factor"  # of cached tables; TorchRec's own text leaves it out
NOT_PLANNED = {  # kernels of TorchRec that no plan can say, and what they are of
    **dict.fromkeys(QUANTISED, "quantised tables, for inference"),
    "key_value": "tables in a key-value store",
    **dict.fromkeys(("ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table"), "virtual tables"),
}

Shard = tuple[int, int, int, int, int]  # first row, rows, first column, columns, rank


@dataclass(frozen=True)
class Layout:
    """The shards of one table, and where its rows live."""

    kind: str  # one of KINDS: cw if there are several pieces
    shards: tuple[Shard, ...]
    residence: str = "hbm"
    share: float = 1.0  # of the rows in HBM

    @property
    def blocks(self) -> dict[int, tuple[int, ...]]:
        """Ranks of each block of columns, by its first column, from left to right."""
        found: dict[int, tuple[int, ...]] = {}
        for _, _, column, _, rank in self.shards:
            found[column] = (*found.get(column, ()), rank)
        return found


def layouts_of(plan: Plan, task: Task, local_world_size: int | None = None) -> dict[str, Layout]:
    """TorchRec's shards of each table, by name, in the order of the task."""
    placed = shards(task, plan, devices_per_host=local_world_size)
    columns = (placed.row, placed.rows, placed.column, placed.dim, placed.device)
    each = list(zip(*(column.tolist() for column in columns), strict=True))
    first = np.searchsorted(placed.table, np.arange(task.num_tables + 1))
    kinds = placed.kind[first[:-1]].tolist()
    found = {}
    for t, name in enumerate(task.tables.name):
        found[name] = Layout(kinds[t], tuple(each[first[t] : first[t + 1]]), plan.residence[t], plan.share[t])
    return found


def shardings_of(sharding_plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """Read the sharding of each table, by name."""
    found: dict[str, Any] = {}
    for path, module_plan in sharding_plan.plan.items():
        if not isinstance(module_plan, dict):
            raise InvalidPlan(f"{path or 'the model'}: a {type(module_plan).__name__} says nothing of single tables")
        for name, sharding in module_plan.items():
            if name in found:
                raise InvalidPlan(f"the sharding plan has two tables {name!r}: plans tell tables by name")
            check_kernel(name, sharding)
            found[name] = sharding
    return found


def check_kernel(name: str, sharding: ParameterSharding) -> None:
    """Refuse tables whose kernel no plan can say: quantised, key-value and virtual ones, and others."""
    kernel, known = sharding.compute_kernel, ", ".join(RESIDENCE_OF)
    if kernel not in RESIDENCE_OF:
        raise InvalidPlan(
            f"table {name!r} has the kernel {kernel}{why_not(kernel)}, which plans cannot say; they can {known}"
        )
    if getattr(sharding, "key_value_params", None) is not None:
        raise InvalidPlan(f"table {name!r} has key_value_params, of tables in a key-value store: plans cannot say that")


def why_not(kernel: str) -> str:
    """Tell in brackets what a kernel is of, if its tables are none that are planned."""
    return f" (of {NOT_PLANNED[kernel]})" if kernel in NOT_PLANNED else ""


def words_of(layout: Layout, devices_per_host: int, device: str) -> dict[str, Any]:
    """A layout in TorchRec's words, as its `ShardingPlan._serialize` has them, with the load factor of a cache."""
    words: dict[str, Any] = {
        "sharding_type": SHARDING_TYPES[layout.kind],
        "compute_kernel": "dense" if layout.kind == "dp" else KERNEL_OF[layout.residence],
        "ranks": [shard[-1] for shard in layout.shards],
    }
    if layout.kind != "dp":
        words["shards"] = [
            {
                "shard_offsets": [row, column],
                "shard_sizes": [rows, columns],
                "placement": f"rank:{rank}/{device}" + (f":{rank % devices_per_host}" if device == "cuda" else ""),
            }
            for row, rows, column, columns, rank in layout.shards
        ]
    if layout.residence == "cached":
        words[LOAD_FACTOR] = layout.share
    return words


def sharding_of(words: dict[str, Any]) -> ParameterSharding:
    """The sharding of a table that is told in such words. Needs TorchRec."""
    from torchrec.distributed.types import CacheParams, EnumerableShardingSpec, ParameterSharding, ShardMetadata

    spec = None
    if "shards" in words:
        spec = EnumerableShardingSpec(
            [ShardMetadata(one["shard_offsets"], one["shard_sizes"], one["placement"]) for one in words["shards"]]
        )
    return ParameterSharding(
        sharding_type=words["sharding_type"],
        compute_kernel=words["compute_kernel"],
        ranks=words["ranks"],
        sharding_spec=spec,
        cache_params=CacheParams(load_factor=words[LOAD_FACTOR]) if LOAD_FACTOR in words else None,
    )


def read_layout(name: str, sharding: ParameterSharding, rows: int, columns: int, world: int | None) -> Layout:
    """The shards of a table of that shape, column shards from left to right; refuses what a plan cannot say."""
    what = f"table {name!r}"
    if sharding.sharding_type not in KINDS_OF:
        raise InvalidPlan(f"{what} is {sharding.sharding_type}, which plans cannot say; they can {', '.join(KINDS_OF)}")
    residence = RESIDENCE_OF[sharding.compute_kernel]
    told = getattr(getattr(sharding, "cache_params", None), "load_factor", None) if residence == "cached" else None
    kind = KINDS_OF[sharding.sharding_type]
    ranks = sharding.ranks
    if kind == "dp":
        ranks = list(range(world)) if not ranks and world else ranks
        found = [(0, rows, 0, columns, rank) for rank in ranks or ()]
    else:
        found = _shards(what, sharding)
    if not found:
        raise InvalidPlan(f"{what} has no ranks")
    found.sort(key=lambda shard: (shard[2], shard[0]))
    _check_cover(what, kind, found, rows, columns)
    return Layout(kind, tuple(found), residence, SHARES[residence] if told is None else float(told))


def halvings(shards: Sequence[Shard], columns: int) -> list[tuple[int, int]] | None:
    """Cuts that halve a table's columns into these shards, from left to right: where the halved piece begins, and its
    middle. None if halving does not make them."""
    left, begins = [(0, columns)], {shard[2]: shard[3] for shard in shards}
    cuts = []
    while left:
        first, width = left.pop()
        if begins.get(first) == width:
            continue
        if width % (2 * COLUMNS):
            return None
        middle = first + width // 2
        cuts.append((first, middle))
        left += [(middle, width // 2), (first, width // 2)]
    return cuts


def _shards(what: str, sharding: ParameterSharding) -> list[Shard]:
    spec = getattr(sharding.sharding_spec, "shards", None)
    if not spec or len(spec) != len(sharding.ranks or ()):
        raise InvalidPlan(f"{what}: its sharding_spec does not list one shard for each of its ranks")
    found = []
    for shard, rank in zip(spec, sharding.ranks or (), strict=True):
        placed = shard.placement.rank() if shard.placement is not None else rank
        if placed != rank:
            raise InvalidPlan(f"{what}: ranks says {rank}, its sharding_spec {placed}")
        (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
        found.append((row, rows, column, columns, rank))
    return found


def _row_shards(rows: int, first: int, columns: int, ranks: Sequence[int]) -> list[Shard]:
    blocks = zip(row_blocks(rows, len(ranks)), ranks, strict=True)
    return [(row, count, first, columns, rank) for (row, count), rank in blocks]


def _check_cover(what: str, kind: str, shards: list[Shard], rows: int, columns: int) -> None:
    """Refuse shards that do not make the whole table, in the way that the kind means."""
    ranks = [shard[4] for shard in shards]
    if kind in ("rw", "twrw"):
        wanted = _row_shards(rows, 0, columns, ranks)
    elif kind in OF_COLUMNS:
        widths = {column: width for _, _, column, width, _ in shards}
        blocks, wanted, first = Layout(kind, tuple(shards)).blocks, [], 0
        for column, width in widths.items():
            wanted += _row_shards(rows, first, width, blocks[column] if kind == "grid" else blocks[column][:1])
            first += width
        if first != columns:
            raise InvalidPlan(f"{what} has {columns} columns, its shards {first}: is the plan for another model?")
    else:
        wanted = [(0, rows, 0, columns, rank) for rank in (ranks if kind == "dp" else ranks[:1])]
    if shards != wanted:
        raise InvalidPlan(
            f"{what} of {rows} x {columns} as {kind} has shards {shards!r:.120}, expected {wanted!r:.120}"
        )
