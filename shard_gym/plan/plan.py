"""A plan: where every table goes. A value; solvers return it, files hold it, `check` refuses what is not one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPlan, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.numbers import whole
from shard_gym.task.task import Constraints, Task

SCHEMA = "shard-gym/plan/1"
KINDS = ("tw", "cw", "rw", "twrw", "dp")


@dataclass(frozen=True)
class Plan:
    """`device[i]` holds table i of `task.split(splits)`; -1 while it is not placed.

    `kind` and `devices` are for tables that several devices share; empty means table-wise everywhere.
    """

    device: tuple[int, ...]
    splits: tuple[int, ...] = ()  # tables whose columns are halved, in order, as Task.split takes them
    kind: tuple[str, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()  # all devices of each table

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", _ints("device", self.device))
        object.__setattr__(self, "splits", _ints("splits", self.splits))
        n = len(self.device)
        kind, devices = _sequence("kind", self.kind), _sequence("devices", self.devices)
        object.__setattr__(self, "kind", kind or ("tw",) * n)
        each = (_ints("devices", d) for d in devices) if devices else zip(self.device, strict=True)
        object.__setattr__(self, "devices", tuple(each))
        if kind or devices:
            self._check_kinds(n)

    def _check_kinds(self, n: int) -> None:
        if not len(self.kind) == len(self.devices) == n:
            raise InvalidPlan(f"{n} tables need {n} kinds and device lists, got {len(self.kind)}, {len(self.devices)}")
        if bad := [kind for kind in self.kind if kind not in KINDS]:
            raise InvalidPlan(f"unknown kind {bad[0]!r}; choose from {', '.join(KINDS)}")
        for i, (first, all_of_them) in enumerate(zip(self.device, self.devices, strict=True)):
            if not all_of_them or all_of_them[0] != first:
                raise InvalidPlan(f"devices of table {i} must begin with device[{i}] = {first}, got {all_of_them}")

    @classmethod
    def empty(cls, task: Task, splits: tuple[int, ...] = ()) -> Plan:
        """Nothing placed yet."""
        return cls((-1,) * (task.num_tables + len(splits)), splits)

    def place(self, table: int, device: int) -> Plan:
        """Plan with one more table on a device."""
        return Plan((*self.device[:table], device, *self.device[table + 1 :]), self.splits)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, schema `shard-gym/plan/1`; kinds and devices only where they say more than `device`."""
        data: dict[str, Any] = {"schema": SCHEMA, "device": list(self.device)}
        if self.splits:
            data["splits"] = list(self.splits)
        if set(self.kind) - {"tw"} or any(len(d) > 1 for d in self.devices):
            data |= {"kind": list(self.kind), "devices": [list(d) for d in self.devices]}
        return data

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read what `to_dict` wrote."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise CorruptFile(f"not a plan of schema {SCHEMA}")
        unknown = data.keys() - {"schema", "device", "splits", "kind", "devices"}
        if unknown or "device" not in data:
            raise CorruptFile(f"a plan has device, splits, kind and devices, got {sorted(data.keys() - {'schema'})}")
        try:
            return cls(**{key: value for key, value in data.items() if key != "schema"})
        except InvalidPlan as error:
            raise CorruptFile(f"not a plan: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a JSON file that `save` wrote."""
        try:
            return cls.from_dict(read_json(path))
        except CorruptFile as error:
            raise CorruptFile(f"{path}: {error}") from error


def check(task: Task, plan: Any) -> Task:
    """Refuse a plan that does not place every table of `task`; returns the task after the plan's splits."""
    if not isinstance(plan, Plan):
        raise InvalidPlan(f"a solver returns a shard_gym.Plan, got {type(plan).__name__}")
    if plan.splits and not task.splits_allowed:
        raise InvalidPlan("this task does not allow splits")
    try:
        tables = task.split(plan.splits)
    except InvalidTask as error:
        raise InvalidPlan(str(error)) from error
    if len(plan.device) != tables.num_tables:
        raise InvalidPlan(f"{tables.num_tables} tables need a device each, the plan has {len(plan.device)}")
    for i, devices in enumerate(plan.devices):
        for d in devices:
            if not 0 <= d < task.num_devices:
                where = "is not placed" if d == -1 else f"is on device {d}"
                raise InvalidPlan(f"table {i} {where}; devices are 0..{task.num_devices - 1}")
    return tables


def violations(task: Task, plan: Plan, tables: Task | None = None) -> list[str]:
    """Reasons why a valid plan cannot be used, in words: memory, then constraints; empty when it can.

    `tables` is what `check` returned, if it was called already.
    """
    return [*over_memory(task, plan, tables), *broken_constraints(task, plan)]


def over_memory(task: Task, plan: Plan, tables: Task | None = None) -> list[str]:
    """Devices that a valid plan puts more on than they hold, in words; arguments as for `violations`."""
    tables = check(task, plan) if tables is None else tables
    if set(plan.kind) - {"tw"} or any(len(devices) != 1 for devices in plan.devices):
        raise InvalidPlan("only table-wise plans can be judged: one device a table, kind 'tw'")
    used = device_bytes(tables, np.array(plan.device))
    return [
        f"device {d} needs {used[d]:,} bytes of {task.memory[d]:,} ({used[d] - task.memory[d]:,} too many)"
        for d in np.flatnonzero(used > task.capacity)
    ]


def broken_constraints(task: Task, plan: Plan) -> list[str]:
    """Constraints of the task that a valid plan breaks, in words."""
    c = task.constraints
    if c == Constraints():
        return []
    shards: dict[int, set[int]] = {}
    source = list(range(task.num_tables))
    for i in plan.splits:
        source.append(source[i])
    for table, devices in zip(source, plan.devices, strict=True):
        shards.setdefault(table, set()).update(devices)
    broken = [f"table {t} is pinned to device {d}" for t, d in c.pin if shards[t] != {d}]
    broken += [f"tables {g} must be together" for g in c.together if len(set().union(*(shards[t] for t in g))) > 1]
    for group in c.apart:
        placed = [d for t in group for d in shards[t]]
        if len(placed) != len(set(placed)):
            broken.append(f"tables {group} must be apart")
    if c.max_moves is not None:
        moves = sum(shards[t] != {d} for t, d in enumerate(c.base))
        if moves > c.max_moves:
            broken.append(f"{moves} tables move, at most {c.max_moves} may")
    return broken


def _ints(field: str, values: Any) -> tuple[int, ...]:
    if type(values) is tuple and set(map(type, values)) <= {int}:
        return values
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        return tuple(values.tolist())
    try:
        return tuple(whole(value) for value in _sequence(field, values))
    except TypeError as error:
        raise InvalidPlan(f"{field} must be a flat sequence of ints, got {values!r:.80}") from error


def _sequence(field: str, values: Any) -> tuple[Any, ...]:
    array = isinstance(values, np.ndarray) and values.ndim > 0
    if not (array or isinstance(values, Sequence)) or isinstance(values, str | bytes):
        raise InvalidPlan(f"{field} must be a sequence, got {values!r:.80}")
    return tuple(values)
