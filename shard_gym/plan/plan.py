"""Plans: the device of every table. Solvers return plans, files hold them, and `check` refuses invalid ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPlan, InvalidTask
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import expect, guarded
from shard_gym.records.numbers import whole
from shard_gym.task.constraints import KINDS
from shard_gym.task.task import CACHE_LOAD_FACTOR, RESIDENCES, Task

SCHEMA = "shard-gym/plan/1"
SCHEMA_2 = "shard-gym/plan/2"  # of plans that the first schema cannot say
SHARES = {"hbm": 1.0, "uvm": 0.0, "cached": CACHE_LOAD_FACTOR}  # of the rows in the device's memory, unless told


class _Devices:
    """All devices of each piece; where each has one, they are made when asked for: 100,000 tuples take a while."""

    def __get__(self, plan: Plan | None, owner: type) -> tuple[tuple[int, ...], ...]:
        if plan is None:
            return ()
        if plan.__dict__["_devices"] is None:
            plan.__dict__["_devices"] = tuple(zip(plan.device, strict=True))
        return plan.__dict__["_devices"]  # type: ignore[no-any-return]

    def __set__(self, plan: Plan, devices: Any) -> None:
        plan.__dict__["_devices"] = devices


@dataclass(frozen=True)
class Plan:
    """The device of each table: `device[i]` holds piece i of `task.split(splits)`, -1 while it is not placed.

    `kind` and `devices` are for pieces that several devices share; empty means table-wise everywhere:

    | kind | the piece | its devices |
    |---|---|---|
    | tw | a whole table, or the columns that splits left of it | one |
    | cw | the same, its columns cut once more into equal parts | one for each part |
    | rw | a whole table, its rows in equal blocks | all |
    | twrw | the same | all of one host |
    | grid | a whole table or columns of it, cut into equal parts by columns, each part's rows into blocks | \
all of one host for each part |
    | dp | a whole table, copied | all |

    `residence` and `share` say where the rows of a piece live and which share of them is in the device's memory; empty
    means in the device's memory, all of them.
    """

    device: tuple[int, ...]
    splits: tuple[int, ...] = ()  # tables whose columns are halved, in order, as Task.split takes them
    kind: tuple[str, ...] = ()
    devices: tuple[tuple[int, ...], ...] = _Devices()  # type: ignore[assignment]  # all devices of each piece
    residence: tuple[str, ...] = ()  # of each piece, one of RESIDENCES
    share: tuple[float, ...] = ()  # of each piece; that of a cached one is 0.2 unless told

    @guarded("a plan", InvalidPlan)
    def __post_init__(self) -> None:
        object.__setattr__(self, "device", _ints("device", self.device))
        object.__setattr__(self, "splits", _ints("splits", self.splits))
        n = len(self.device)
        kind, devices = _sequence("kind", self.kind), _sequence("devices", self.devices)
        object.__setattr__(self, "kind", kind or ("tw",) * n)
        object.__setattr__(self, "devices", tuple(_ints("devices", d) for d in devices) if devices else None)
        if kind or devices:
            self._check_kinds(n)
        if self.residence != () or self.share != ():
            self._settle_residence(n)
        else:
            object.__setattr__(self, "residence", ("hbm",) * n)
            object.__setattr__(self, "share", (SHARES["hbm"],) * n)

    def _settle_residence(self, n: int) -> None:
        residence, share = _sequence("residence", self.residence), _sequence("share", self.share)
        object.__setattr__(self, "residence", residence or ("hbm",) * n)
        _known("residence", residence, RESIDENCES)
        usual = tuple(SHARES[r] for r in self.residence)
        object.__setattr__(self, "share", _floats("share", share) or usual)
        if not len(self.residence) == len(self.share) == n:
            raise InvalidPlan(
                f"{n} pieces need {n} residences and shares, got {len(self.residence)}, {len(self.share)}"
            )
        for i, (where, told, needed) in enumerate(zip(self.residence, self.share, usual, strict=True)):
            if not (0 < told <= 1 if where == "cached" else told == needed):
                wanted = "more than 0 and at most 1" if where == "cached" else f"{needed:g}"
                raise InvalidPlan(f"table {i} is {where}: its share of rows in device memory is {wanted}, got {told:g}")

    def _check_kinds(self, n: int) -> None:
        if not len(self.kind) == len(self.devices) == n:
            raise InvalidPlan(f"{n} tables need {n} kinds and device lists, got {len(self.kind)}, {len(self.devices)}")
        _known("kind", self.kind, KINDS)
        for i, (first, all_of_them) in enumerate(zip(self.device, self.devices, strict=True)):
            if not all_of_them or all_of_them[0] != first:
                raise InvalidPlan(f"devices of table {i} must begin with device[{i}] = {first}, got {all_of_them}")

    @classmethod
    @guarded("an empty plan", InvalidPlan)
    def empty(cls, task: Task, splits: tuple[int, ...] = ()) -> Plan:
        """Nothing placed yet."""
        return cls((-1,) * (task.num_tables + len(splits)), splits)

    @guarded("a table and a device", InvalidPlan)
    def place(self, table: int, device: int) -> Plan:
        """Plan with one more table on a device, whole."""
        one = {"device": device, "kind": "tw", "devices": (device,)}
        columns = {name: getattr(self, name) for name in one}
        return replace(self, **{n: (*c[:table], one[n], *c[table + 1 :]) for n, c in columns.items()})

    @property
    def table_wise(self) -> bool:
        """True if every piece is of kind tw on one device, and in its memory."""
        return self._one_device and set(self.residence) <= {"hbm"}

    @property
    def whole_tables(self) -> bool:
        """True if every table is whole in the memory of one device."""
        return self.table_wise and not self.splits

    @property
    def _one_device(self) -> bool:
        return set(self.kind) <= {"tw"} and (self._alone or set(map(len, self.devices)) <= {1})

    @property
    def _alone(self) -> bool:
        """True if nobody told or asked for devices of pieces beside the one of each."""
        return self.__dict__["_devices"] is None

    @property
    def used(self) -> set[int]:
        """Devices of all pieces."""
        return set(self.device) if self._alone else set(chain.from_iterable(self.devices))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, schema `shard-gym/plan/1`, or `/2` where that cannot say it.

        Kinds and devices are written only where they say more than `device`, residences and shares where a piece is
        not in the device's memory.
        """
        outside = set(self.residence) - {"hbm"}
        data: dict[str, Any] = {"schema": SCHEMA_2 if outside or "grid" in self.kind else SCHEMA}
        data["device"] = list(self.device)
        if self.splits:
            data["splits"] = list(self.splits)
        if not self._one_device:
            data |= {"kind": list(self.kind), "devices": [list(d) for d in self.devices]}
        if outside:
            data |= {"residence": list(self.residence), "share": list(self.share)}
        return data

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read what `to_dict` wrote."""
        if not isinstance(data, dict) or data.get("schema") not in (SCHEMA, SCHEMA_2):
            raise CorruptFile(f"not a plan of schema {SCHEMA} or {SCHEMA_2}")
        known = ["device", "splits", "kind", "devices"]
        known += ["residence", "share"] if data["schema"] == SCHEMA_2 else []
        if "device" not in data or data.keys() - {"schema", *known}:
            raise CorruptFile(f"a plan has {', '.join(known)}, got {sorted(data.keys() - {'schema'})}")
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
    pieces(task, plan)
    return task.split(plan.splits)


def pieces(task: Task, plan: Any) -> tuple[list[int], list[int], list[int]]:
    """Table, first column and number of columns of each piece of a plan, if it places all of them on devices."""
    expect(task, Task, InvalidTask)
    if not isinstance(plan, Plan):
        raise InvalidPlan(f"a solver returns a shard_gym.Plan, got {type(plan).__name__}")
    if plan.splits and not task.splits_allowed:
        raise InvalidPlan("this task does not allow splits")
    try:
        found = task.pieces(plan.splits)
    except InvalidTask as error:
        raise InvalidPlan(str(error)) from error
    if len(plan.device) != len(found[0]):
        raise InvalidPlan(f"{len(found[0])} tables need a device each, the plan has {len(plan.device)}")
    if outside := plan.used - set(range(task.num_devices)):
        i, d = next((i, d) for i, devices in enumerate(plan.devices) for d in devices if d in outside)
        where = "is not placed" if d == -1 else f"is on device {d}"
        raise InvalidPlan(f"table {i} {where}; devices are 0..{task.num_devices - 1}")
    return found


def _known(what: str, told: Sequence[Any], known: Sequence[str]) -> None:
    """Refuse a name that is no kind or residence."""
    for table, name in enumerate(told):
        if name not in known:
            raise InvalidPlan(f"table {table} has the unknown {what} {name!r:.40}; choose from {', '.join(known)}")


def _ints(field: str, values: Any) -> tuple[int, ...]:
    if type(values) in (tuple, list) and set(map(type, values)) <= {int}:
        return tuple(values)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        return tuple(values.tolist())
    try:
        return tuple(whole(value) for value in _sequence(field, values))
    except TypeError as error:
        raise InvalidPlan(f"{field} must be a flat sequence of ints, got {values!r:.80}") from error


def _sequence(field: str, values: Any) -> tuple[Any, ...]:
    if type(values) is tuple:
        return values
    array = isinstance(values, np.ndarray) and values.ndim > 0
    if not (array or isinstance(values, Sequence)) or isinstance(values, str | bytes):
        raise InvalidPlan(f"{field} must be a sequence, got {values!r:.80}")
    return tuple(values)


def _floats(field: str, values: tuple[Any, ...]) -> tuple[float, ...]:
    try:
        if any(isinstance(value, bool | str) for value in values):
            raise TypeError
        return tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise InvalidPlan(f"{field} must be a flat sequence of numbers, got {values!r:.80}") from error
