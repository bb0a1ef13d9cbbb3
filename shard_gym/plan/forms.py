"""All ways to shard each table of a task, in columns: what each puts on which device, for whoever has to choose."""

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

# Choices of a form: a device for each piece, a host for each piece, all devices by rows, or a copy on each.
DEVICE, HOST, ALL, COPY = range(4)
KINDS_OF = (OF_ONE, BY_HOST, ("rw",), ("dp",))  # of each choice; the last of two that of pieces of columns


def beyond_columns(task: Task) -> bool:
    """True if tables may be sharded by more than columns, or some by less than others, or live in host memory."""
    news = set(task.kinds_allowed) - set(OF_ONE) or task.constraints.kinds
    return bool(news) or task.residences != ("hbm",)


@dataclass(frozen=True, eq=False)
class Forms:
    """Form (table, level, residence): the table's columns halved `level` times, its rows living in one place.

    Listed table by table. All pieces of a form are alike, and so are sharded alike: by one choice. Shard columns are
    a whole piece, a host's block of a piece's rows on each of its L devices, the block on each of K, and a copy.
    """

    task: Task
    table: np.ndarray  # (R,)
    level: np.ndarray  # (R,)
    residence: np.ndarray  # (R,) index into `residences`
    residences: tuple[tuple[str, float], ...]  # where rows may live, and the share of them in the device's memory
    may: np.ndarray  # (R, 4) bool, the choices that the task leaves
    size: np.ndarray  # (2, R, C) int64 bytes of each shard in the device's memory, and in its host's
    vector: np.ndarray  # (R, C, H) what each shard adds to its device's sum
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
        size, vector = _shards(task, table, level, residence, residences, may, embed)
        return cls(task, table, level, residence, residences, may, size, vector, first)

    @cached_property
    def pieces(self) -> np.ndarray:
        """Pieces of each form, (R,)."""
        return 1 << self.level

    @cached_property
    def column(self) -> np.ndarray:
        """The shard column that each choice puts on each device, (4, K)."""
        k, host = self.task.num_devices, self.task.devices_per_host
        device, blocks = np.arange(k), 1 + host + np.arange(k)
        return np.stack([0 * device, 1 + device % host, blocks, 0 * device + 1 + host + k])

    def loads(self, rates: np.ndarray) -> np.ndarray:
        """Costs that each choice adds to each device it puts a shard on, by weights (K, H) of sums; (R, 4, K)."""
        return np.stack([np.einsum("rkh,kh->rk", self.vector[:, column], rates) for column in self.column], axis=1)

    @cached_property
    def bytes(self) -> np.ndarray:
        """Bytes that each choice takes of each device it puts a shard on, and of its host, (2, R, 4, K)."""
        return self.size[:, :, self.column]

    @cached_property
    def fits(self) -> np.ndarray:
        """True for choices that the task leaves and that empty devices have room for, a piece on each, (R, 4)."""
        room = np.stack(rooms(self.task))[:, None, None]
        fits: np.ndarray = np.all(self.bytes <= room, axis=0)  # (R, 4, K)
        found: np.ndarray = np.all(fits, axis=2)
        found[:, DEVICE] = np.any(fits[:, DEVICE], axis=1)
        found[:, HOST] = np.any(np.all(self.by_host(fits[:, HOST]), axis=2), axis=1)
        return found & self.may

    @cached_property
    def taken(self) -> np.ndarray:
        """Bytes that a table takes in all, there and in hosts' memory, by each choice of each form, (2, R, 4)."""
        size, host = self.bytes, self.task.devices_per_host
        total = size.sum(axis=-1)
        total[..., DEVICE] = size[..., DEVICE, 0] * self.pieces
        total[..., HOST] = size[..., HOST, :host].sum(axis=-1) * self.pieces
        return total

    def by_host(self, values: np.ndarray) -> np.ndarray:
        """Values of devices, (..., K), host by host, (..., hosts, L)."""
        return values.reshape(*values.shape[:-1], -1, self.task.devices_per_host)

    def plan(self, chosen: Sequence[tuple[int, int, Sequence[int]]]) -> Plan:
        """The plan of a form, a choice, and a device or host (0 for others) for each piece, of each table."""
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
            block = range(where * host, (where + 1) * host) if choice == HOST else (where,)
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
    return (*found, *(("cached", share) for share in CACHE_SHARES if "cached" in task.residences))


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


def _shards(
    task: Task,
    table: np.ndarray,
    level: np.ndarray,
    residence: np.ndarray,
    residences: tuple[tuple[str, float], ...],
    may: np.ndarray,
    embed: Callable[[Shards], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (2, R, C) and vectors (R, C, H) of the shards of forms; each shape of shard is asked about once."""
    rows, parts = task.tables.rows[table], (1, task.devices_per_host, task.num_devices, 1)
    form, choice, height = [], [], []  # of each shape: blocks of full height, one of the rest, empty ones
    where = np.full((len(table), sum(parts)), -1)  # the shape of each shard
    start, count = 0, 0
    for c, part in enumerate(parts):
        asked = np.flatnonzero(may[:, c])
        full = -(-rows[asked] // part)
        whole = rows[asked] // full  # blocks that are full
        number = np.clip(np.arange(part) - whole[:, None] + 1, 0, 2)
        for shape, tall in enumerate((full, rows[asked] - whole * full, 0 * full)):
            held = (number == shape).any(axis=1)
            index = np.full(len(asked), -1)
            index[held] = count + np.arange(int(held.sum()))
            count += int(held.sum())
            form.append(asked[held])
            choice.append(np.full(int(held.sum()), c))
            height.append(tall[held])
            at = np.where(number == shape, index[:, None], where[asked, start : start + part])
            where[asked[:, None], start + np.arange(part)] = at
        start += part
    shapes = _embedded(task, np.concatenate(form), np.concatenate(choice), np.concatenate(height), table, level)
    shards = _living(shapes, residence[np.concatenate(form)], residences)
    size, vector = np.stack(shard_bytes(task, shards)), embed(shards)
    size = np.append(size, np.zeros((2, 1), np.int64), axis=1)[:, where]
    return size, np.append(vector, np.zeros((1, vector.shape[1])), axis=0)[where]


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
    endings = np.array([KERNELS.get(name, "") for name, _ in residences])[residence]
    kernel = np.char.add(np.where(endings == "", shards.of.kernel, "fused"), endings)
    cached = np.array([share if name == "cached" else 0.0 for name, share in residences])[residence]
    load = np.where(cached > 0, cached, shards.of.cache_load_factor)
    return replace(shards, of=replace(shards.of, kernel=kernel, cache_load_factor=load))
