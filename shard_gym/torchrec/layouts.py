"""Layouts: rows, columns and rank of each shard that TorchRec cuts the tables of a plan into; from a plan of ours, and
read from a `ShardingPlan` of its own, by its attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidPlan
from shard_gym.memory.shards import row_blocks
from shard_gym.plan.plan import Plan, check
from shard_gym.task.task import Task

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

COLUMNS = 4  # FBGEMM's shards have multiples of it
KERNELS = ("fused", "dense")  # the others keep tables elsewhere than in a device's memory, which no plan says
KINDS_OF = {
    "table_wise": "tw",
    "column_wise": "cw",
    "table_column_wise": "cw",  # its shards are on one host, as their ranks say
    "row_wise": "rw",
    "table_row_wise": "twrw",
    "data_parallel": "dp",
}

Shard = tuple[int, int, int, int, int]  # first row, rows, first column, columns, rank
Piece = tuple[int, int, str, tuple[int, ...]]  # first column, columns, kind, devices


@dataclass(frozen=True)
class Layout:
    """The shards of one table."""

    kind: str  # one of KINDS: cw if there are several pieces
    shards: tuple[Shard, ...]


def layouts_of(plan: Plan, task: Task, local_world_size: int | None = None) -> dict[str, Layout]:
    """TorchRec's shards of each table, by name, in the order of the task."""
    check(task, plan)
    local = task.num_devices if local_world_size is None else local_world_size
    return {task.tables.name[t]: _layout(t, pieces, task, local) for t, pieces in enumerate(_pieces(plan, task))}


def _pieces(plan: Plan, task: Task) -> list[list[Piece]]:
    """(first column, columns, kind, devices) of the pieces that each table is split into, from left to right."""
    n, width = task.num_tables, task.tables.dim.tolist()
    source, first = list(range(n)), [0] * n
    for i in plan.splits:
        width[i] //= 2
        source.append(source[i])
        first.append(first[i] + width[i])
        width.append(width[i])
    found: list[list[Piece]] = [[] for _ in range(n)]
    for table, *piece in sorted(zip(source, first, width, plan.kind, plan.devices, strict=True)):
        found[table].append(tuple(piece))
    return found


def _layout(table: int, pieces: list[Piece], task: Task, local: int) -> Layout:
    what = f"table {task.tables.name[table]!r}"
    rows = int(task.tables.rows[table])
    for _, _, kind, devices in pieces:
        if kind not in ("tw", "cw") and len(pieces) > 1:
            raise InvalidPlan(f"{what} is split, and a piece of it is {kind}: TorchRec's shards are columns or rows")
        if kind == "tw" and len(devices) > 1:
            raise InvalidPlan(f"{what} is table-wise but on devices {devices}: a table-wise table is on one")
    kind = "cw" if len(pieces) > 1 else pieces[0][2]
    if kind in ("tw", "cw"):
        return Layout(kind, tuple(shard for piece in pieces for shard in _column_shards(what, rows, *piece)))
    columns, devices = pieces[0][1], pieces[0][3]
    _check_devices(what, kind, devices, task.num_devices, local)
    if kind == "dp":
        return Layout(kind, tuple((0, rows, 0, columns, d) for d in devices))
    return Layout(kind, tuple(_row_shards(rows, columns, devices)))


def _column_shards(
    what: str, rows: int, first: int, columns: int, kind: str, devices: tuple[int, ...]
) -> Iterator[Shard]:
    """The shards of a piece: itself, or equal parts of its columns if it is of kind cw."""
    width, rest = divmod(columns, len(devices))
    if rest or (len(devices) > 1 and width % COLUMNS):
        parts = f"{len(devices)} equal shards of a multiple of {COLUMNS}"
        raise InvalidPlan(f"{what}: {columns} columns do not make {parts}")
    for i, device in enumerate(devices):
        yield 0, rows, first + i * width, width, device


def _row_shards(rows: int, columns: int, devices: Sequence[int]) -> list[Shard]:
    blocks = zip(row_blocks(rows, len(devices)), devices, strict=True)
    return [(first, count, 0, columns, device) for (first, count), device in blocks]


def _check_devices(what: str, kind: str, devices: tuple[int, ...], world: int, local: int) -> None:
    """Refuse devices that TorchRec does not share such tables out to."""
    host = devices[0] // local if kind == "twrw" else 0
    per_host = local if kind == "twrw" else world
    wanted = range(host * per_host, (host + 1) * per_host)
    if devices != tuple(wanted):
        whose = f"all ranks of a host, {wanted.start} to {wanted.stop - 1}" if kind == "twrw" else "all ranks"
        raise InvalidPlan(f"{what} is {kind} on devices {devices}; TorchRec shares it out to {whose}, in order")


def shardings_of(sharding_plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """Read the sharding of each table, by name."""
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
    """Refuse shards that do not make the whole table, in the way that the kind means."""
    ranks = [shard[4] for shard in shards]
    if kind in ("rw", "twrw"):
        wanted = _row_shards(rows, columns, ranks)
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
