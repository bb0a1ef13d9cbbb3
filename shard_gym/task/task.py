"""A sharding task: which tables, which devices, and what is to be made small."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidTask, ShardGymError, UnknownName
from shard_gym.records.numbers import whole
from shard_gym.tables.pool import EXACT, REFERENCE_BATCH, TablePool
from shard_gym.task.links import Links

OBJECTIVES = ("kernel", "iteration")
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam")
# what fills a device: weights alone, with the optimizer's state, all that TorchRec's planner counts, all that there is
ACCOUNTINGS = ("weights", "training", "torchrec", "true")
OF_A_BATCH = ("torchrec", "true")  # accountings that count the input and output of a batch
SCHEMA = "shard-gym/task/1"
_COLUMNS = ("rows", "dim", "pooling", "distinct", "uses", "accesses")


@dataclass(frozen=True)
class Constraints:
    """Rules that a plan must keep besides memory; tables and devices by index, before any split."""

    pin: tuple[tuple[int, int], ...] = ()  # (table, device)
    together: tuple[tuple[int, ...], ...] = ()  # groups of tables on one device
    apart: tuple[tuple[int, ...], ...] = ()  # groups of tables on different devices
    no_split: tuple[int, ...] = ()
    base: tuple[int, ...] = ()  # the plan in use, one device a table
    max_moves: int | None = None  # tables that may leave their device in `base`

    def __post_init__(self) -> None:
        try:
            for name in ("pin", "together", "apart"):
                object.__setattr__(self, name, tuple(_wholes(group) for group in getattr(self, name)))
            for name in ("no_split", "base"):
                object.__setattr__(self, name, _wholes(getattr(self, name)))
            if self.max_moves is not None:
                object.__setattr__(self, "max_moves", whole(self.max_moves))
        except TypeError as error:
            raise InvalidTask(f"constraints name tables and devices by whole numbers: {error}") from error
        if bad := [pin for pin in self.pin if len(pin) != 2]:
            raise InvalidTask(f"a pin is a table and its device, got {bad[0]}")
        if self.max_moves is not None and self.max_moves < 0:
            raise InvalidTask(f"max_moves must not be negative, got {self.max_moves}")


@dataclass(frozen=True, eq=False)
class Task:
    """Place every table on one of K devices. A value: equal content means equal `hash`."""

    tables: TablePool
    memory: tuple[int, ...]  # bytes left for tables on each device, reserves already taken off
    objective: str = "kernel"
    batch: int = REFERENCE_BATCH  # samples a step, over all devices
    speed: tuple[float, ...] = ()  # relative compute speed of each device; () means all 1
    links: Links | None = None  # None: those of the simulator's preset
    optimizer: str = "sgd"
    accounting: str = "weights"
    splits_allowed: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    name: str = ""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "memory", tuple(math.floor(m) for m in self.memory))
            object.__setattr__(self, "speed", tuple(float(s) for s in self.speed) or (1.0,) * len(self.memory))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidTask(f"memory and speed are one finite number a device: {error}") from error
        try:
            object.__setattr__(self, "batch", whole(self.batch))
        except TypeError as error:
            raise InvalidTask(f"batch must be a positive int: {error}") from error
        if not isinstance(self.splits_allowed, bool | np.bool_):
            raise InvalidTask(f"splits_allowed is True or False, got {self.splits_allowed!r:.80}")
        object.__setattr__(self, "splits_allowed", bool(self.splits_allowed))
        _check(self)

    @property
    def num_tables(self) -> int:
        """Tables to place, before any split."""
        return len(self.tables)

    @property
    def num_devices(self) -> int:
        """Devices to place them on."""
        return len(self.memory)

    @cached_property
    def capacity(self) -> np.ndarray:
        """Bytes left for tables on each device, (K,) int64."""
        return np.array(self.memory, np.int64)

    @cached_property
    def ms_per_us(self) -> np.ndarray:
        """Milliseconds each device takes for what a device of speed 1 does in a microsecond, (K,)."""
        return 1e-3 / np.array(self.speed)

    @cached_property
    def hash(self) -> str:
        """Content hash, the same on every machine."""
        digest = hashlib.sha256(SCHEMA.encode())
        for column in _columns(self.tables):
            array = getattr(self.tables, column)
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        scalars = self._scalars() | {"table_names": self.tables.name, "dtype": self.tables.dtype}
        scalars["reference_batch"] = self.tables.reference_batch
        digest.update(json.dumps(scalars, sort_keys=True).encode())
        return digest.hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def split(self, splits: Sequence[int]) -> Task:
        """Task after halving columns: each entry halves one table; the new half goes to the end.

        Later entries may name halves. A half's columns must stay a multiple of 4.
        """
        if not len(splits):
            return self
        source, dim, name = list(range(self.num_tables)), self.tables.dim.tolist(), list(self.tables.name)
        for i in splits:
            if not 0 <= i < len(source):
                raise InvalidTask(f"split names table {i}, but there are {len(source)}")
            if dim[i] % 8:
                raise InvalidTask(f"table {i} has {dim[i]} columns: its halves would not be a multiple of 4")
            if source[i] in self.constraints.no_split:
                raise InvalidTask(f"table {source[i]} must not be split")
            dim[i] //= 2
            source.append(source[i])
            dim.append(dim[i])
            name[i], half = f"{name[i]}/0", f"{name[i]}/1"
            name.append(half)
        tables = self.tables.take(source).with_(dim=np.array(dim, np.int32), name=tuple(name))
        return replace(self, tables=tables, constraints=Constraints(), splits_allowed=self.splits_allowed)

    def computation(self, devices: int = 1) -> Task:
        """The task of computation alone: on devices of speed 1, whatever their memory and the constraints."""
        return replace(self, memory=(1,) * devices, speed=(), objective="kernel", constraints=Constraints())

    def to_json(self) -> str:
        """The whole task as JSON, schema `shard-gym/task/1`."""
        columns: dict[str, Any] = {c: getattr(self.tables, c).tolist() for c in _columns(self.tables)}
        columns |= {"name": self.tables.name, "dtype": self.tables.dtype}
        columns["reference_batch"] = self.tables.reference_batch
        return json.dumps({"schema": SCHEMA, "hash": self.hash, "tables": columns, **self._scalars()})

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read what `to_json` wrote; refuses text whose hash does not match its content."""
        try:
            data = json.loads(text)
            if data.pop("schema") != SCHEMA:
                raise CorruptFile(f"not a task of schema {SCHEMA}")
            written = data.pop("hash")
            data["tables"] = TablePool(**data["tables"])
            data["links"] = None if data["links"] is None else Links(**_finite(data["links"], math.inf))
            data["constraints"] = Constraints(**data["constraints"])
            task = cls(**data)
        except CorruptFile:
            raise
        except (ShardGymError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(f"not a task: {type(error).__name__}: {error}") from error
        if task.hash != written:
            raise CorruptFile(f"task says it is {written} but its content is {task.hash}")
        return task

    def _scalars(self) -> dict[str, Any]:
        keys = ("objective", "batch", "optimizer", "accounting", "splits_allowed", "name", "memory", "speed")
        links = None if self.links is None else _finite(asdict(self.links), None)
        return {k: getattr(self, k) for k in keys} | {"links": links, "constraints": asdict(self.constraints)}


def _columns(tables: TablePool) -> tuple[str, ...]:
    """Columns that are hashed and written; bags only where a table has more or less than 1, as they came later."""
    return _COLUMNS if (tables.bags == 1).all() else (*_COLUMNS, "bags")


def _finite(values: dict[str, Any], unbounded: float | None) -> dict[str, Any]:
    """JSON has no infinity: rates without a bound are written as null."""
    return {k: unbounded if v is None or v == math.inf else v for k, v in values.items()}


def _wholes(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(whole(value) for value in values)


def _check(task: Task) -> None:
    if not len(task.tables):
        raise InvalidTask("a task needs at least one table")
    _check_memory(task)
    if len(task.speed) != task.num_devices or not all(0 < s < math.inf for s in task.speed):
        raise InvalidTask(f"speed needs {task.num_devices} positive numbers, got {task.speed}")
    if task.batch < 1:
        raise InvalidTask(f"batch must be positive, got {task.batch}")
    for kind, valid in (("objective", OBJECTIVES), ("optimizer", OPTIMIZERS), ("accounting", ACCOUNTINGS)):
        if getattr(task, kind) not in valid:
            raise UnknownName(kind, getattr(task, kind), valid)
    _check_constraints(task)


def _check_memory(task: Task) -> None:
    if not task.memory:
        raise InvalidTask("a task needs at least one device: give memory=(bytes, ...), one number each")
    if min(task.memory) <= 0:
        raise InvalidTask(f"device {task.memory.index(min(task.memory))} has {min(task.memory)} bytes")
    if max(task.memory) >= 2**63:
        raise InvalidTask(f"device {task.memory.index(max(task.memory))} has {max(task.memory)} bytes: not below 2**63")
    if float((task.tables.training_bytes + _buffer_bytes(task)).sum()) >= EXACT:
        raise InvalidTask("all tables together, with optimizer state and buffers, must stay below 2**53 bytes")


def _buffer_bytes(task: Task) -> np.ndarray:
    """Least bytes besides weights and states, (N,) float64: a few numbers a row, id and sample."""
    if task.accounting in ("weights", "training"):
        return np.zeros(task.num_tables)
    tables, samples = task.tables, float(task.batch) + task.num_devices
    bags = np.maximum(tables.bags, 1.0)
    return 16.0 * tables.rows + samples * (16.0 * tables.pooling + bags * (16 + 4.0 * tables.dim))


def _check_constraints(task: Task) -> None:
    c = task.constraints
    named = {t for t, _ in c.pin} | {t for group in (*c.together, *c.apart, c.no_split) for t in group}
    if bad := {t for t in named if not 0 <= t < task.num_tables}:
        raise InvalidTask(f"constraints name tables {sorted(bad)}, but there are {task.num_tables}")
    if bad := ({d for _, d in c.pin} | set(c.base)) - set(range(task.num_devices)):
        raise InvalidTask(f"constraints name devices {sorted(bad)}, but there are {task.num_devices}")
    if (c.max_moves is not None or c.base) and len(c.base) != task.num_tables:
        raise InvalidTask(f"max_moves needs base, one device for each of {task.num_tables} tables")
    _check_contradictions(c, task.num_devices)


def _check_contradictions(c: Constraints, num_devices: int) -> None:
    """Refuse rules that no plan can keep: tables that must be together count as one, wherever one is named."""
    one = {t: t for group in c.together for t in group}
    for group in c.together:
        merged = {one[t] for t in group}
        one |= {t: min(merged) for t in one if one[t] in merged}
    pinned: dict[int, int] = {}
    for table, device in c.pin:
        if pinned.setdefault(one.get(table, table), device) != device:
            raise InvalidTask(f"table {table}, or one that must be with it, is pinned to two devices")
    for group in c.apart:
        apart = {one.get(t, t) for t in group}
        devices = [pinned[t] for t in apart if t in pinned]
        if len(apart) != len(group) or len(devices) != len(set(devices)):
            raise InvalidTask(f"tables {group} must be apart, but other constraints put two of them on one device")
        if len(apart) > num_devices:
            raise InvalidTask(f"{len(apart)} tables must be apart, but there are {num_devices} devices")
