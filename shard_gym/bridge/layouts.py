"""How TorchRec cuts the tables of a plan into shards: rows and columns of each, and its rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shard_gym.errors import InvalidPlan
from shard_gym.plan import Plan, check
from shard_gym.tasks import Task

COLUMNS = 4  # FBGEMM's shards have multiples of it
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
    return Layout(kind, tuple((first, count, 0, columns, d) for first, count, d in row_blocks(rows, devices)))


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


def row_blocks(rows: int, devices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first row, rows, device): as many rows as are needed for the last blocks to be no longer than the first."""
    block = -(-rows // len(devices))
    for i, device in enumerate(devices):
        first = min(i * block, rows)
        yield first, min(block, rows - first), device


def _check_devices(what: str, kind: str, devices: tuple[int, ...], world: int, local: int) -> None:
    """Whether the devices are those that TorchRec shares such tables out to."""
    host = devices[0] // local if kind == "twrw" else 0
    per_host = local if kind == "twrw" else world
    wanted = range(host * per_host, (host + 1) * per_host)
    if devices != tuple(wanted):
        whose = f"all ranks of a host, {wanted.start} to {wanted.stop - 1}" if kind == "twrw" else "all ranks"
        raise InvalidPlan(f"{what} is {kind} on devices {devices}; TorchRec shares it out to {whose}, in order")
