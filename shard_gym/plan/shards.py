"""Shards of a plan: smaller tables, each on a device. Costs, memory, moves and reports read nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from shard_gym.errors import InvalidPlan
from shard_gym.memory.shards import Shards, Tables
from shard_gym.plan.plan import Plan, pieces
from shard_gym.task.constraints import BY_HOST, OF_COLUMNS, OF_ONE
from shard_gym.task.task import Task

COLUMNS = 4  # FBGEMM's shards have multiples of it
Made = tuple[list[int], list[int], list[int]]  # table, first column and columns of each piece that splits leave
KERNELS = {"uvm": "_uvm", "cached": "_uvm_caching"}  # how the name of a kernel ends


@dataclass(frozen=True, eq=False)
class Pieces:
    """The P pieces that the splits of a plan make of tables, and the parts that each is cut into, (P,)."""

    table: np.ndarray  # before any split
    column: np.ndarray  # the first
    dim: np.ndarray
    kind: np.ndarray  # cw for tw pieces of a split table
    devices: np.ndarray  # number of them
    by_rows: np.ndarray
    by_columns: np.ndarray

    @classmethod
    def of(cls, plan: Plan, made: Made, devices_per_host: int) -> Pieces:
        """The pieces of a plan, in its order."""
        table, column, dim = map(np.array, made)
        kind, devices = np.array(plan.kind), np.array([len(devices) for devices in plan.devices])
        split = np.bincount(table)[table] > 1
        hosts = -(-devices // devices_per_host)
        return cls(
            table=table,
            column=column,
            dim=dim,
            kind=np.where(split & (kind == "tw"), "cw", kind),
            devices=devices,
            by_rows=np.select(
                [np.isin(kind, ("rw", "twrw")), kind == "grid"], [devices, np.minimum(devices, devices_per_host)], 1
            ),
            by_columns=np.select([kind == "cw", kind == "grid"], [devices, hosts], 1),
        )


def shards(task: Task, plan: Plan, tables: Tables | None = None, devices_per_host: int | None = None) -> Shards:
    """Every shard of a plan: table by table, from the left, blocks of rows from the top, copies by device.

    `tables` describes the task's tables where a task cannot, and `devices_per_host` the hosts where its links do not.
    Pieces that overlap or leave something out, and devices that a kind does not allow, are refused.
    """
    made, tables = pieces(task, plan), Tables.of_task(task) if tables is None else tables
    if plan.table_wise:
        found = _of_columns(plan, made, tables)
    else:
        found = _cut(task, plan, made, tables, devices_per_host or task.devices_per_host)
    return found.take(np.lexsort((found.row, found.column, found.table))) if plan.splits else found


def expanded(task: Task, plan: Plan) -> Shards | None:
    """The `shards` of a plan; None if its tables are whole, table-wise, and the task allows no more than splits.

    Then the shards are the task's tables and `plan.device`, whose costs and bytes need no expansion.
    """
    other = task.kinds or task.constraints.of_forms or task.residences != ("hbm",)
    if other or not isinstance(plan, Plan) or plan.splits or not plan.table_wise:
        return shards(task, plan)
    pieces(task, plan)
    return None


def _of_columns(plan: Plan, made: Made, tables: Tables) -> Shards:
    """The pieces of a table-wise plan, in its order: `_cut` of them, in a third of its time."""
    table, column, dim = map(np.array, made)
    shards = Shards.of_columns(tables, table, dim)
    return replace(shards, device=np.array(plan.device), row=np.zeros_like(table), column=column)


def _cut(task: Task, plan: Plan, made: Made, tables: Tables, host: int) -> Shards:
    """The pieces of a plan, in its order, each cut for its devices."""
    cut = Pieces.of(plan, made, host)
    if wrong := next(_wrong(task, plan, cut, host), None):
        raise InvalidPlan(wrong)
    piece = np.repeat(np.arange(len(cut.table)), cut.devices)
    part = np.arange(len(piece)) - (np.cumsum(cut.devices) - cut.devices)[piece]
    table, by_rows, by_columns = cut.table[piece], cut.by_rows[piece], cut.by_columns[piece]
    all_rows, width = task.tables.rows[table], cut.dim[piece] // by_columns
    block = -(-all_rows // by_rows)  # rounded up, so that the last blocks are shorter or empty
    row = np.minimum(part % by_rows * block, all_rows)
    return Shards(
        table=table,
        kind=cut.kind[piece],
        rows=np.minimum(block, all_rows - row),
        dim=width,
        of=_placed(tables, plan, cut, piece),
        device=np.fromiter(chain.from_iterable(plan.devices), np.int64, len(piece)),
        row=row,
        column=cut.column[piece] + part // by_rows % by_columns * width,
    )


def _placed(tables: Tables, plan: Plan, cut: Pieces, piece: np.ndarray) -> Tables:
    """The table of each shard, its rows where the plan keeps them; copies have the dense kernel."""
    of, outside = tables.take(cut.table[piece]), np.array(plan.residence) != "hbm"
    if not outside.any() and "dp" not in plan.kind:
        return of
    kernels = tables.kernel[cut.table].tolist()
    for i in np.flatnonzero(outside).tolist():
        kernels[i] = kernels[i].partition("_")[0] + KERNELS[plan.residence[i]]
    kernel = np.where(cut.kind == "dp", "dense", np.array(kernels))[piece]
    cached = np.array(plan.residence)[piece] == "cached"
    load = np.where(cached, np.array(plan.share)[piece], of.cache_load_factor)
    return replace(of, kernel=kernel, cache_load_factor=load)


def _wrong(task: Task, plan: Plan, cut: Pieces, host: int) -> Iterator[str]:
    """Faults of the pieces of each table, in words."""
    split = np.bincount(cut.table)[cut.table] > 1
    for i in np.flatnonzero(split | (cut.kind != "tw") | (cut.devices > 1)).tolist():
        table, kind = int(cut.table[i]), plan.kind[i]
        what = f"table {table} ({task.tables.name[table]!r})"
        if split[i] and kind not in ("tw", *OF_COLUMNS):
            yield f"{what} is split, and a piece of it is {kind}: pieces of columns are tw, cw or grid"
        first = (cut.kind[table], plan.residence[table], plan.share[table])  # the first piece has the table's number
        if (cut.kind[i], plan.residence[i], plan.share[i]) != first:
            yield f"{what} is split, and its pieces are not of one kind, residence and share"
        width, rest = divmod(int(cut.dim[i]), int(cut.by_columns[i]))
        if rest or (cut.by_columns[i] > 1 and width % COLUMNS):
            yield (
                f"{what}: {cut.dim[i]} columns do not make {cut.by_columns[i]} equal shards of a multiple of {COLUMNS}"
            )
        if fault := _fault(kind, plan.devices[i], task.num_devices, host):
            yield f"{what} is {kind} on devices {plan.devices[i]!r:.80}: {fault}"
    for i in np.flatnonzero((cut.kind == "dp") & (np.array(plan.residence) != "hbm")).tolist():
        yield f"table {i} ({task.tables.name[i]!r}) is dp and {plan.residence[i]}: copies are in the device's memory"


def _fault(kind: str, devices: tuple[int, ...], world: int, host: int) -> str:
    """Fault of the devices of a piece, in words; empty if there is none."""
    if kind in OF_ONE:
        return "a table-wise table is on one" if kind == "tw" and len(devices) > 1 else ""
    if kind not in BY_HOST:
        return "" if devices == tuple(range(world)) else f"it goes to all, 0 to {world - 1}, in order"
    whole = len(devices) % host == 0 and (kind == "grid" or len(devices) == host)
    for start in range(0, len(devices), host):
        first = devices[start]
        whole &= first % host == 0 and devices[start : start + host] == tuple(range(first, first + host))
    share = "each of its parts" if kind == "grid" else "it"
    return "" if whole else f"{share} goes to all {host} of a host, in order"
