"""TorchRec's `ShardingPlan`s, read by their attributes: what they say of each table, or why no plan can say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shard_gym.bridge.layouts import COLUMNS, Layout, Shard, row_blocks
from shard_gym.errors import InvalidPlan

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

KERNELS = ("fused", "dense")  # the others keep tables elsewhere than in a device's memory, which no plan says
KINDS_OF = {
    "table_wise": "tw",
    "column_wise": "cw",
    "table_column_wise": "cw",  # its shards are on one host, as their ranks say
    "row_wise": "rw",
    "table_row_wise": "twrw",
    "data_parallel": "dp",
}


def shardings_of(sharding_plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """What it says of each table, by name."""
    found: dict[str, Any] = {}
    for path, module_plan in sharding_plan.plan.items():
        if not isinstance(module_plan, dict):
            raise InvalidPlan(f"{path or 'the model'}: a {type(module_plan).__name__} says nothing of single tables")
        for name, sharding in module_plan.items():
            if name in found:
                raise InvalidPlan(f"the sharding plan has two tables {name!r}: plans tell tables by name")
            found[name] = sharding
    return found


def read_layout(name: str, sharding: ParameterSharding, rows: int, columns: int, world: int | None) -> Layout:
    """The shards of a table of that shape, column shards from left to right; refuses what a plan cannot say."""
    what = f"table {name!r}"
    if sharding.sharding_type not in KINDS_OF:
        raise InvalidPlan(f"{what} is {sharding.sharding_type}, which plans cannot say; they can {', '.join(KINDS_OF)}")
    if sharding.compute_kernel not in KERNELS:
        raise InvalidPlan(f"{what} has the kernel {sharding.compute_kernel}, which plans cannot say: {KERNELS} only")
    kind = KINDS_OF[sharding.sharding_type]
    ranks = sharding.ranks
    if kind == "dp":
        ranks = list(range(world)) if not ranks and world else ranks
        shards = [(0, rows, 0, columns, rank) for rank in ranks or ()]
    else:
        shards = _shards(what, sharding)
    if not shards:
        raise InvalidPlan(f"{what} has no ranks")
    shards.sort(key=lambda shard: (shard[2], shard[0]))
    _check_cover(what, kind, shards, rows, columns)
    return Layout(kind, tuple(shards))


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


def _check_cover(what: str, kind: str, shards: list[Shard], rows: int, columns: int) -> None:
    """Whether the shards make the whole table, in the way that the kind means."""
    ranks = [shard[4] for shard in shards]
    if kind in ("rw", "twrw"):
        wanted: list[Shard] = [(first, count, 0, columns, rank) for first, count, rank in row_blocks(rows, ranks)]
    elif kind == "cw":
        wanted, first = [], 0
        for shard in shards:
            wanted.append((0, rows, first, shard[3], shard[4]))
            first += shard[3]
        if first != columns:
            raise InvalidPlan(f"{what} has {columns} columns, its shards {first}: is the plan for another model?")
    else:
        wanted = [(0, rows, 0, columns, rank) for rank in (ranks if kind == "dp" else ranks[:1])]
    if shards != wanted:
        raise InvalidPlan(
            f"{what} of {rows} x {columns} as {kind} has shards {shards!r:.120}, expected {wanted!r:.120}"
        )
