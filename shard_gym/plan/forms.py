"""All ways to shard each table of a task, in columns: the bytes and costs of each on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shard_gym.memory.shards import Shards, Tables
from shard_gym.memory.usage import shard_bytes
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.plan.plan import SHARES, Plan
from shard_gym.plan.shards import KERNELS
from shard_gym.plan.violations import rooms
from shard_gym.task.constraints import BY_HOST, OF_COLUMNS, OF_ONE
from shard_gym.task.task import CACHE_SHARES, Task
from shard_gym.task.task import beyond_columns as beyond_columns

# Choices of a form: a device for each piece, a host for each piece, all devices by rows, or a copy on each.
DEVICE, HOST, ALL, COPY = range(4)
KINDS_OF = (OF_ONE, BY_HOST, ("rw",), ("dp",))  # of each choice; the last of two that of pieces of columns


def blocks_of(devices: int, host: int) -> np.ndarray:
    """The block that each choice puts on each device, (4, K), with so many devices in all and in a host."""
    device = np.arange(devices)
    return np.stack([0 * device, device % host, device, 0 * device])


def parts_at(part: np.ndarray, whole: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The parts that blocks are: parts (..., 3) of pieces with so many full blocks (...), blocks (..., K)."""
    shape, each = shape_of(block, np.asarray(whole)[..., None]), np.arange(part.size // 3).reshape(*part.shape[:-1], 1)
    return part.take(3 * each + shape)


def shape_of(block: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Shape of blocks of pieces with so many full ones: 0 a full one, 1 that of the rest, 2 an empty one."""
    shape: np.ndarray = np.minimum(np.maximum(block - whole + 1, 0), 2)
    return shape


@dataclass(frozen=True, eq=False)
class Forms:
    """Form (table, level, residence): the table's columns halved `level` times, its rows living in one place.

    Listed table by table. All pieces of a form are alike, and so are sharded alike: by one choice. A choice cuts a
    piece into blocks: one, one for each of the L devices of a host, one for each of K, or a copy of all. Blocks are
    full, then there may be one of the rest, then they are empty; each of the three is told once, as a part.
    """

    task: Task
    table: np.ndarray  # (R,)
    level: np.ndarray  # (R,)
    residence: np.ndarray  # (R,) index into `residences`
    residences: tuple[tuple[str, float], ...]  # where rows may live, and the share of them in the device's memory
    may: np.ndarray  # (R, 4) bool, the choices that the task leaves
    whole: np.ndarray  # (R, 4) full blocks of a piece, by each choice
    part: np.ndarray  # (R, 4, 3) the part that a full block is, one of the rest, an empty one; the last part is none
    part_size: np.ndarray  # (2, S) int64 bytes of each part in the device's memory, and in its host's
    part_vector: np.ndarray  # (S, H) what each part adds to its device's sum
    first: np.ndarray  # (N + 1,) each table's first form

    @classmethod
    def of(cls, task: Task, embed: Callable[[Shards], np.ndarray]) -> Forms:
        """All forms of a task's tables; `embed` tells the rows (S, H) of shards."""
        residences = _residences(task)
        kinds = _kinds(task)  # (N, 6)
        times = _halvings(task) * kinds[:, :2].any(axis=1)
        counts = (1 + times) * len(residences)
        first = np.concatenate([[0], np.cumsum(counts)])
        table = np.repeat(np.arange(task.num_tables), counts)
        level, residence = np.divmod(np.arange(len(table)) - first[table], len(residences))
        may = np.select(
            [level[:, None] == 0],
            [kinds[table][:, [2, 3, 4, 5]]],
            np.pad(kinds[table][:, :2], ((0, 0), (0, 2))),
        )
        may[:, COPY] &= np.array([name == "hbm" for name, _ in residences])[residence]
        may[:, :COPY] &= (_lives(task, residences)[table, residence] & _wide(task, table, level))[:, None]
        whole, height, told = _blocks(task, task.tables.rows[table], may)
        # side by side parts that are alike but for where they live
        group, choice, shape, home = told.reshape(-1, len(residences), *told.shape[1:]).transpose(0, 2, 3, 1).nonzero()
        form = group * len(residences) + home
        part = np.full(told.shape, len(form))
        part[form, choice, shape] = np.arange(len(form))
        rows = height[form, choice, shape]
        shards = _living(_embedded(task, form, choice, rows, table, level), residence[form], residences)
        size, vector = np.stack(shard_bytes(task, shards)), embed(shards)
        size = np.append(size, np.zeros((2, 1), np.int64), axis=1)
        vector = np.append(vector, np.zeros((1, vector.shape[1])), axis=0)
        return cls(task, table, level, residence, residences, may, whole, part, size, vector, first)

    def pieces_whole(self) -> Shards:
        """Shards of a piece of each form on one device, whether or not the task leaves that; not placed."""
        form, rows = np.arange(len(self.table)), self.task.tables.rows[self.table]
        shards = _embedded(self.task, form, np.full(len(form), DEVICE), rows, self.table, self.level)
        return _living(shards, self.residence, self.residences)

    @cached_property
    def pieces(self) -> np.ndarray:
        """Pieces of each form, (R,)."""
        return 1 << self.level

    @cached_property
    def block(self) -> np.ndarray:
        """The block that each choice puts on each device, (4, K)."""
        return blocks_of(self.task.num_devices, self.task.devices_per_host)

    @cached_property
    def placed(self) -> np.ndarray:
        """The part that each choice puts on each device, (R, 4, K)."""
        return parts_at(self.part, self.whole, self.block)

    def part_of(self, form: int, choice: int) -> np.ndarray:
        """The part that a choice of a form puts on each device, (K,)."""
        return parts_at(self.part[form, choice], self.whole[form, choice], self.block[choice])

    @cached_property
    def column(self) -> np.ndarray:
        """The column of `vector` and `size` that each choice puts on each device, (4, K)."""
        host = self.task.devices_per_host
        return np.array([[0], [1], [1 + host], [1 + host + self.task.num_devices]]) + self.block

    @cached_property
    def _columns(self) -> np.ndarray:
        """The part in each column: a piece, a host's blocks, blocks of all devices, a copy; (R, C)."""
        of, host = self.placed, self.task.devices_per_host
        return np.concatenate([of[:, DEVICE, :1], of[:, HOST, :host], of[:, ALL], of[:, COPY, :1]], axis=1)

    @cached_property
    def size(self) -> np.ndarray:
        """Bytes of each column, there and in the host's memory, (2, R, C)."""
        return self.part_size[:, self._columns]

    @cached_property
    def vector(self) -> np.ndarray:
        """Vectors that columns add to their device's sum, (R, C, H); large where there are many devices."""
        return self.part_vector[self._columns]

    def loads(self, rates: np.ndarray) -> np.ndarray:
        """Costs that each choice adds to each device it puts a shard on, by weights (K, H) of sums; (R, 4, K)."""
        if (rates == rates[0]).all():  # devices are alike
            return np.einsum("sh,h->s", self.part_vector, rates[0]).take(self.placed)
        cost: np.ndarray = np.einsum("sh,kh->sk", self.part_vector, rates)
        return cost.take(self._at)

    @cached_property
    def _at(self) -> np.ndarray:
        """Place of `placed` in numbers of parts and devices, (S, K), row by row; (R, 4, K)."""
        devices = self.block.shape[1]
        at: np.ndarray = self.placed * devices + np.arange(devices)
        return at

    @cached_property
    def grain(self) -> np.ndarray:
        """The mean size of what columns add to each number of a sum, (H,), never 0: steps to tell slopes by."""
        often = np.bincount(self._columns.ravel(), minlength=len(self.part_vector))
        found: np.ndarray = np.maximum(often @ np.abs(self.part_vector) / often.sum(), 1e-9)
        return found

    @cached_property
    def bytes(self) -> np.ndarray:
        """Bytes that each choice takes of each device it puts a shard on, and of its host, (2, R, 4, K)."""
        return self.part_size.take(self.placed, axis=1)

    @cached_property
    def fits(self) -> np.ndarray:
        """True for choices that the task leaves and that empty devices have room for, a piece on each, (R, 4)."""
        room = np.stack(rooms(self.task))[:, None, None]
        fits: np.ndarray = np.all(self.bytes <= room, axis=0)  # (R, 4, K)
        found = self.may.copy()
        found[:, ALL:] &= np.all(fits[:, ALL:], axis=2)
        found[:, DEVICE] &= np.any(fits[:, DEVICE], axis=1)
        found[:, HOST] &= np.any(np.all(self.by_host(fits[:, HOST]), axis=2), axis=1)
        return found

    @cached_property
    def taken(self) -> np.ndarray:
        """Bytes that a table takes in all, there and in hosts' memory, by each choice of each form, (2, R, 4)."""
        size, host = self.bytes, self.task.devices_per_host
        total = size[..., 0] * np.where(np.arange(len(KINDS_OF)) == COPY, self.task.num_devices, self.pieces[:, None])
        total[..., ALL] = size[..., ALL, :].sum(axis=-1)
        total[..., HOST] = size[..., HOST, :host].sum(axis=-1) * self.pieces
        return total

    def by_host(self, values: np.ndarray) -> np.ndarray:
        """Values of devices, (..., K), host by host, (..., hosts, L)."""
        return values.reshape(*values.shape[:-1], -1, self.task.devices_per_host)

    def plan(self, chosen: Sequence[tuple[int, int, Sequence[int]]]) -> Plan:
        """The plan of a form, a choice, and a device or host (0 for others) for each piece, of each table.

        A piece that goes to device or host -1 is not placed.
        """
        task, n = self.task, self.task.num_tables
        host, everywhere = task.devices_per_host, tuple(range(task.num_devices))
        target = [0] * n
        source, splits = list(range(n)), []
        for table, (form, _, targets) in enumerate(chosen):
            waiting = [table]
            for _ in range(int(self.level[form])):
                splits += waiting
                halves = list(range(len(source), len(source) + len(waiting)))
                source += [table] * len(halves)
                target += [0] * len(halves)
                waiting = waiting + halves
            for piece, where in zip(waiting, targets, strict=True):
                target[piece] = int(where)
        kind, devices, residence, share = [], [], [], []
        for table, where in zip(source, target, strict=True):
            form, choice, _ = chosen[table]
            kind.append("grid" if choice == HOST and self.level[form] else KINDS_OF[choice][0])
            block = range(where * host, (where + 1) * host) if choice == HOST and where >= 0 else (where,)
            devices.append(everywhere if choice in (ALL, COPY) else tuple(block))
            name, kept = self.residences[self.residence[form]]
            residence.append(name)
            share.append(kept)
        first = tuple(d[0] for d in devices)
        if set(kind) == {"tw"} and set(residence) == {"hbm"}:
            return Plan(first, tuple(splits))
        return Plan(first, tuple(splits), tuple(kind), tuple(devices), tuple(residence), tuple(share))


def _residences(task: Task) -> tuple[tuple[str, float], ...]:
    found = [(name, SHARES[name]) for name in task.residences if name != "cached"]
    shares = sorted({*CACHE_SHARES, *(share for _, share in task.constraints.shares)})
    return (*found, *(("cached", share) for share in shares if "cached" in task.residences))


def _lives(task: Task, residences: tuple[tuple[str, float], ...]) -> np.ndarray:
    """True where the rows of each table may live, (N, residences)."""
    usual = [name != "cached" or share in CACHE_SHARES for name, share in residences]
    lives = np.repeat([usual], task.num_tables, axis=0)
    for table, told in task.constraints.shares:
        lives[table] = [name != "cached" or share == told for name, share in residences]
    for table, names in task.constraints.residences:
        lives[table] &= [name in names for name, _ in residences]
    return lives


def _wide(task: Task, table: np.ndarray, level: np.ndarray) -> np.ndarray:
    """True for forms whose pieces have the columns that constraints want, (R,)."""
    least = np.zeros(task.num_tables, np.int64)
    for t, columns in task.constraints.least_columns:
        least[t] = columns
    return (level == 0) | (task.tables.dim[table] >> level >= least[table])


def _kinds(task: Task) -> np.ndarray:
    """Kinds that each table may have: cw and grid, then tw, twrw, rw and dp; (N, 6) bool."""
    order = ("cw", "grid", "tw", "twrw", "rw", "dp")
    kinds = np.repeat([[kind in task.kinds_allowed for kind in order]], task.num_tables, axis=0)
    kinds[list(task.constraints.no_split), : len(OF_COLUMNS)] = False
    for table, told in task.constraints.kinds:
        kinds[table] &= [kind in told for kind in order]
    return kinds


def _halvings(task: Task) -> np.ndarray:
    times = np.zeros(task.num_tables, np.int64)
    for level in range(1, MOST_HALVINGS + 1):
        times += task.tables.dim % (4 << level) == 0
    return times


def _blocks(task: Task, rows: np.ndarray, may: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Full blocks by each choice, (R, 4), rows of a full one, of the rest and of none, and which are needed,
    (R, 4, 3)."""
    count = np.array([1, task.devices_per_host, task.num_devices, 1])
    full = -(-rows[:, None] // count)
    whole = rows[:, None] // full
    height = np.stack([full, rows[:, None] - whole * full, 0 * full], axis=2)
    needed = (count - whole)[..., None] > np.array([-1, 0, 1])
    return whole, height, needed & may[..., None]


def _embedded(
    task: Task, form: np.ndarray, choice: np.ndarray, height: np.ndarray, table: np.ndarray, level: np.ndarray
) -> Shards:
    """Shards of forms by choices, rows in the device's memory; not placed."""
    tables, of_form = Tables.of_task(task), table[form]
    halved, unknown = (level[form] > 0).astype(np.int64), np.full(len(form), -1)
    names = np.array([[kinds[0], kinds[-1]] for kinds in KINDS_OF])
    dim = tables.dim[of_form] >> level[form]
    of = tables.take(of_form)
    of = replace(of, kernel=np.where(choice == COPY, "dense", of.kernel))
    return Shards(of_form, names[choice, halved], height, dim, of, unknown, unknown, unknown)


def _living(shards: Shards, residence: np.ndarray, residences: tuple[tuple[str, float], ...]) -> Shards:
    """The shards with their rows where they live."""
    if all(name == "hbm" for name, _ in residences):
        return shards
    here = np.array([name not in KERNELS for name, _ in residences])
    kernels = np.array(["fused" + KERNELS.get(name, "") for name, _ in residences])
    kernel = np.where(here[residence], shards.of.kernel, kernels[residence])
    cached = np.array([share if name == "cached" else 0.0 for name, share in residences])[residence]
    load = np.where(cached > 0, cached, shards.of.cache_load_factor)
    return replace(shards, of=replace(shards.of, kernel=kernel, cache_load_factor=load))
