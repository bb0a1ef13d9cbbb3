"""Sharding tasks: tables, devices, and the objective to minimise."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidTask, ShardGymError, UnknownName
from shard_gym.records.guard import REFUSALS, expect, guarded, parsed_json, reason
from shard_gym.records.numbers import whole
from shard_gym.tables.pool import EXACT, REFERENCE_BATCH, TablePool
from shard_gym.task import packed
from shard_gym.task.constraints import BY_HOST, KINDS, OF_COLUMNS, OF_ONE, Constraints, in_order, known_kinds
from shard_gym.task.links import LEAST, Links
from shard_gym.task.optimizers import OPTIMIZERS, STATES

OBJECTIVES = ("kernel", "iteration", "torchrec-critical-path")
# what fills a device: weights alone, with the optimizer's state, all that TorchRec's planner counts, all that there is
ACCOUNTINGS = ("weights", "training", "torchrec", "true")
OF_A_BATCH = ("torchrec", "true")  # accountings that count the input and output of a batch
RESIDENCES = ("hbm", "uvm", "cached")  # rows in the device's memory, in its host's, there with a cache of some of them
CACHE_LOAD_FACTOR = 0.2  # torchrec.distributed.planner.constants.UVM_CACHING_RATIO
CACHE_SHARES = (0.1, 0.2, 0.4)  # of the rows of a cached table, that solvers and environments choose from
SCHEMA = "shard-gym/task/1"
SCHEMA_2 = "shard-gym/task/2"  # of tasks that the first schema cannot say
SCHEMA_3 = "shard-gym/task/3"  # of tasks of many tables
_COLUMNS = ("rows", "dim", "pooling", "distinct", "uses", "accesses")


@dataclass(frozen=True, eq=False)
class Task:
    """A sharding task: tables to place on K devices. Tasks of equal content have equal hashes."""

    tables: TablePool
    memory: tuple[int, ...]  # bytes left for tables on each device, reserves already taken off
    objective: str = "kernel"
    batch: int = REFERENCE_BATCH  # samples a step, over all devices
    speed: tuple[float, ...] = ()  # relative compute speed of each device; () means all 1
    links: Links | None = None  # None: those of the simulator's preset
    optimizer: str = "sgd"  # of tables that have none of their own
    accounting: str = "weights"
    splits_allowed: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    name: str = ""
    kinds: tuple[str, ...] = ()  # of sharding that tables may have; () means tw, and cw where splits are allowed
    residences: tuple[str, ...] = ("hbm",)  # where rows may live
    host_memory: int = 0  # bytes of its host's memory that are left for the tables of each device
    host_link: float | None = None  # bytes a millisecond of each device to it; None: that of the simulator's preset

    @guarded("a task", InvalidTask)
    def __post_init__(self) -> None:
        _check_types(self)
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
        _settle_kinds(self)
        _settle_host(self)
        _check(self)

    @property
    def num_tables(self) -> int:
        """Tables to place, before any split."""
        return len(self.tables)

    @property
    def num_devices(self) -> int:
        """Devices to place them on."""
        return len(self.memory)

    @property
    def kinds_allowed(self) -> tuple[str, ...]:
        """Kinds of sharding that tables may have, in the order of KINDS."""
        return self.kinds or OF_ONE[: 1 + self.splits_allowed]

    def kinds_of(self, table: int) -> tuple[str, ...]:
        """Kinds that one table may have: those that constraints leave of the task's."""
        told, whole = dict(self.constraints.kinds).get(table, KINDS), table in self.constraints.no_split
        return tuple(k for k in self.kinds_allowed if k in told and not (whole and k in OF_COLUMNS))

    def residences_of(self, table: int) -> tuple[str, ...]:
        """Residences that one table may have, unless it is copied."""
        told = dict(self.constraints.residences).get(table, RESIDENCES)
        return tuple(r for r in self.residences if r in told)

    @property
    def devices_per_host(self) -> int:
        """Devices of a group of links, where all groups are alike; else all of them are one host's."""
        group = 0 if self.links is None else self.links.group
        return group if group and self.num_devices % group == 0 else self.num_devices

    @cached_property
    def capacity(self) -> np.ndarray:
        """Bytes left for tables on each device, (K,) int64."""
        return np.array(self.memory, np.int64)

    @cached_property
    def optimizers(self) -> np.ndarray:
        """Optimizer of each table, (N,): its own or the task's."""
        return np.array([own or self.optimizer for own in self.tables.optimizer])

    @cached_property
    def state_bytes(self) -> np.ndarray:
        """Bytes of the optimizer's state for each row and for each weight of tables, (2, N) int64."""
        return np.array([STATES[name] for name in self.optimizers.tolist()], np.int64).reshape(-1, 2).T

    @cached_property
    def ms_per_us(self) -> np.ndarray:
        """Milliseconds each device takes for what a device of speed 1 does in a microsecond, (K,)."""
        return 1e-3 / np.array(self.speed)

    @cached_property
    def hash(self) -> str:
        """Content hash, the same on every machine."""
        digest = hashlib.sha256(self._schema.encode())
        for column in _columns(self.tables):
            array = np.asarray(getattr(self.tables, column))
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        scalars = self._scalars() | {"table_names": self.tables.name, "dtype": self.tables.dtype}
        scalars["reference_batch"] = self.tables.reference_batch
        digest.update(json.dumps(scalars, sort_keys=True).encode())
        return digest.hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash, 16)

    @guarded("splits are tables by index", InvalidTask)
    def split(self, splits: Sequence[int]) -> Task:
        """Task after halving columns: each entry halves one table; the new half goes to the end.

        Later entries may name halves. A half's columns must stay a multiple of 4.
        """
        if not len(splits):
            return self
        source, _, dim = self.pieces(splits)
        name = list(self.tables.name)
        for i in splits:
            name[i], half = f"{name[i]}/0", f"{name[i]}/1"
            name.append(half)
        tables = self.tables.take(source).with_(dim=np.array(dim, np.int32), name=tuple(name))
        return replace(self, tables=tables, constraints=Constraints(), splits_allowed=self.splits_allowed)

    @guarded("splits are tables by index", InvalidTask)
    def pieces(self, splits: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Table, first column and number of columns of each piece that splits leave, as `split` takes them."""
        source, first, dim = list(range(self.num_tables)), [0] * self.num_tables, self.tables.dim.tolist()
        for i in splits:
            if not 0 <= i < len(source):
                raise InvalidTask(f"split names table {i}, but there are {len(source)}")
            if dim[i] % 8:
                raise InvalidTask(f"table {i} has {dim[i]} columns: its halves would not be a multiple of 4")
            if source[i] in self.constraints.no_split:
                raise InvalidTask(f"table {source[i]} must not be split")
            dim[i] //= 2
            source.append(source[i])
            first.append(first[i] + dim[i])
            dim.append(dim[i])
        return source, first, dim

    @guarded("a number of devices", InvalidTask)
    def computation(self, devices: int = 1) -> Task:
        """The task of computation alone: on devices of speed 1, whatever their memory and the constraints."""
        k, alone = whole(devices), object.__new__(Task)  # not checked again: with many tables that takes long
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {"kinds": (), "residences": ("hbm",), "constraints": Constraints(), "objective": "kernel"}
        vars(alone).update(values, memory=(1,) * k, speed=(1.0,) * k)
        return alone

    def to_json(self) -> str:
        """The whole task as JSON, schema `shard-gym/task/1`, or `/2` where that cannot say it.

        Of 10,000 tables and more the columns are packed, schema `/3`: numbers one by one would take seconds.
        """
        many = self.num_tables >= packed.MANY
        columns: dict[str, Any] = {c: np.asarray(getattr(self.tables, c)) for c in _columns(self.tables)}
        for name, values in columns.items():
            columns[name] = packed.packed(values) if many and values.dtype.kind in "iufb" else values.tolist()
        columns |= {"name": self.tables.name, "dtype": self.tables.dtype}
        columns["reference_batch"] = self.tables.reference_batch
        schema = SCHEMA_3 if many else self._schema
        return json.dumps({"schema": schema, "hash": self.hash, "tables": columns, **self._scalars()})

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read what `to_json` wrote; refuses text whose hash does not match its content."""
        expect(text, str, CorruptFile)
        try:
            data = parsed_json(text)
            if data.pop("schema") not in (SCHEMA, SCHEMA_2, SCHEMA_3):
                raise CorruptFile(f"not a task of schema {SCHEMA}, {SCHEMA_2} or {SCHEMA_3}")
            written = data.pop("hash")
            data["tables"] = TablePool(**{name: packed.unpacked(told) for name, told in data["tables"].items()})
            data["links"] = None if data["links"] is None else Links(**_finite(data["links"], math.inf))
            data["constraints"] = Constraints(**data["constraints"])
            task = cls(**data)
        except CorruptFile:
            raise
        except (ShardGymError, *REFUSALS) as error:
            raise CorruptFile(f"not a task: {type(error).__name__}: {reason(error)}") from error
        if task.hash != written:
            raise CorruptFile(f"task says it is {written} but its content is {task.hash}")
        return task

    def _scalars(self) -> dict[str, Any]:
        keys = ("objective", "batch", "optimizer", "accounting", "splits_allowed", "name", "memory", "speed")
        links = None if self.links is None else _finite(asdict(self.links), None)
        told = {k: getattr(self, k) for k in keys} | {"links": links, "constraints": self.constraints.to_dict()}
        return told | self._news()

    def _news(self) -> dict[str, Any]:
        """Settings that the first schema did not have, where they are told: they enter hash and JSON only then."""
        unless = {"kinds": (), "residences": ("hbm",), "host_memory": 0, "host_link": None}
        return {name: value for name, usual in unless.items() if (value := getattr(self, name)) != usual}

    @property
    def _schema(self) -> str:
        exact = {self.tables.pooling.dtype, self.tables.bags.dtype} != {np.dtype(np.float32)}
        later = set(self.tables.later) - {"bags"}
        return SCHEMA_2 if exact or later or self.constraints.of_forms or self._news() else SCHEMA


def mixed(task: Task) -> bool:
    """True if tables may be more than whole or cut by columns in the device's memory."""
    expect(task, Task, InvalidTask)
    return task.residences != ("hbm",) or bool(set(task.kinds_allowed) - set(OF_ONE))


def beyond_columns(task: Task) -> bool:
    """True if kinds beyond columns are allowed, or kinds differ by table, or rows may live in host memory."""
    return mixed(task) or bool(task.constraints.of_forms)


def _columns(tables: TablePool) -> tuple[str, ...]:
    """Columns that are hashed and written; those that came later only where a table is not as usual."""
    return *_COLUMNS, *tables.later


def _finite(values: dict[str, Any], unbounded: float | None) -> dict[str, Any]:
    """JSON has no infinity: rates without a bound are written as null."""
    return {k: unbounded if v is None or v == math.inf else v for k, v in values.items()}


def _check_types(task: Task) -> None:
    expect(task.tables, TablePool, InvalidTask)
    expect(task.constraints, Constraints, InvalidTask)
    expect(task.links or Links(1.0), Links, InvalidTask)
    for text in (task.objective, task.optimizer, task.accounting, task.name):
        expect(text, str, InvalidTask)


def _settle_kinds(task: Task) -> None:
    """Allow splits where kinds need them, and the other way round; leave out kinds that say no more than that."""
    kinds = known_kinds(task.kinds)
    if set(kinds) & set(OF_COLUMNS):
        object.__setattr__(task, "splits_allowed", True)
    elif kinds and task.splits_allowed:
        kinds = known_kinds((*kinds, "cw"))
    object.__setattr__(task, "kinds", () if kinds in (OF_ONE[:1], OF_ONE) else kinds)


def _settle_host(task: Task) -> None:
    object.__setattr__(task, "residences", in_order("residence", task.residences, RESIDENCES))
    try:
        object.__setattr__(task, "host_memory", whole(task.host_memory))
        if task.host_link is not None:
            object.__setattr__(task, "host_link", float(task.host_link))
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"host_memory is whole bytes, host_link bytes a millisecond: {error}") from error
    if not 0 <= task.host_memory < 2**63:
        raise InvalidTask(f"host_memory is bytes of each device, below 2**63 and not negative, got {task.host_memory}")
    if task.host_link is not None and not LEAST <= task.host_link < math.inf:
        raise InvalidTask(f"host_link must be a positive number of bytes a millisecond, got {task.host_link}")
    if not task.residences:
        raise InvalidTask(f"rows live somewhere: name one or more of {', '.join(RESIDENCES)}")
    if (there := [r for r in task.residences if r != "hbm"]) and not task.host_memory:
        told = "tell host_memory, bytes a device (--host-memory-gb)"
        raise InvalidTask(f"residence {there[0]} keeps rows in the host's memory: {told}")


def _check(task: Task) -> None:
    if not len(task.tables):
        raise InvalidTask("a task needs at least one table")
    _check_memory(task)
    if len(task.speed) != task.num_devices or not all(LEAST <= s < 1 / LEAST for s in task.speed):
        raise InvalidTask(f"speed needs {task.num_devices} positive numbers, got {task.speed}")
    if task.batch < 1:
        raise InvalidTask(f"batch must be positive, got {task.batch}")
    for kind, valid in (("objective", OBJECTIVES), ("optimizer", OPTIMIZERS), ("accounting", ACCOUNTINGS)):
        if getattr(task, kind) not in valid:
            raise UnknownName(kind, getattr(task, kind), valid)
    if unknown := set(task.tables.optimizer) - {"", *STATES}:
        raise UnknownName("optimizer of a table", min(unknown), STATES)
    task.constraints.check(task.num_tables, task.num_devices)
    _check_kinds(task)


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
    rows_sent = np.maximum(tables.rows_sent, 1.0)
    return 16.0 * tables.rows + samples * (16.0 * tables.pooling + rows_sent * (16 + 4.0 * tables.dim))


def _check_kinds(task: Task) -> None:
    """Refuse kinds that the objective or the links give no meaning, and tables that are left without any."""
    if task.objective == "kernel" and (shared := [k for k in task.kinds if k not in OF_ONE]):
        raise InvalidTask(
            f"kind {shared[0]} needs objective 'iteration': under 'kernel' communication is free, and rows on "
            "every device would always win"
        )
    group = 0 if task.links is None else task.links.group
    if (by_host := [k for k in task.kinds if k in BY_HOST]) and (not group or task.num_devices % group):
        raise InvalidTask(
            f"kind {by_host[0]} shares rows out to the devices of a host: tell links=Links(..., group=devices a host), "
            f"a number that divides {task.num_devices}; it is {group} (--hosts with --hardware)"
        )
    if task.kinds or task.constraints.of_forms:
        _check_kinds_left(task)


def _check_kinds_left(task: Task) -> None:
    c = task.constraints
    held = {t for t, _ in c.pin} | {t for group in c.together for t in group}
    for table, lives in c.residences:
        in_order(f"residence of table {table}", lives, RESIDENCES)
    for table in sorted({t for t, _ in (*c.kinds, *c.residences)} | set(c.no_split) | held):
        left, what = task.kinds_of(table), f"table {table} ({task.tables.name[table]!r})"
        if not left:
            raise InvalidTask(f"constraints leave {what} none of the task's kinds {', '.join(task.kinds_allowed)}")
        if not task.residences_of(table) and left != ("dp",):
            raise InvalidTask(f"constraints leave {what} none of the task's residences {', '.join(task.residences)}")
        if table in held and not set(left) & set(OF_ONE):
            raise InvalidTask(f"{what} must be on one device, but it may only be {', '.join(left)}")
