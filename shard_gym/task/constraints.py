"""Rules that a plan must keep besides memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole

# How a table becomes shards, in TorchRec's words: whole, by columns, by rows over all devices or over those of a host,
# by columns and rows, or copied to all devices.
KINDS = ("tw", "cw", "rw", "twrw", "grid", "dp")
OF_COLUMNS = ("cw", "grid")  # kinds that cut columns
OF_ONE = ("tw", "cw")  # kinds whose shards have all rows and lie on one device each
FORMS = ("kinds", "residences", "shares", "least_columns")  # constraints on how single tables are sharded and kept
BY_HOST = ("twrw", "grid")  # kinds whose rows are shared out to the devices of a host


@dataclass(frozen=True)
class Constraints:
    """Rules that a plan must keep besides memory; tables and devices by index, before any split."""

    pin: tuple[tuple[int, int], ...] = ()  # (table, device)
    together: tuple[tuple[int, ...], ...] = ()  # groups of tables on one device
    apart: tuple[tuple[int, ...], ...] = ()  # groups of tables on different devices
    no_split: tuple[int, ...] = ()
    base: tuple[int, ...] = ()  # the plan in use, one device a table
    max_moves: int | None = None  # tables that may leave their device in `base`
    kinds: tuple[tuple[int, tuple[str, ...]], ...] = ()  # (table, the kinds it may have); others have the task's
    residences: tuple[tuple[int, tuple[str, ...]], ...] = ()  # (table, where its rows may live unless it is copied)
    shares: tuple[tuple[int, float], ...] = ()  # (table, share of its rows that its cache holds)
    least_columns: tuple[tuple[int, int], ...] = ()  # (table, columns that its shards of columns have at least)

    @guarded("constraints", InvalidTask)
    def __post_init__(self) -> None:
        try:
            for name in ("pin", "together", "apart"):
                object.__setattr__(self, name, tuple(_wholes(group) for group in getattr(self, name)))
            for name in ("no_split", "base"):
                object.__setattr__(self, name, _wholes(getattr(self, name)))
            if self.max_moves is not None:
                object.__setattr__(self, "max_moves", whole(self.max_moves))
            object.__setattr__(self, "kinds", tuple((whole(t), known_kinds(kinds)) for t, kinds in self.kinds))
            object.__setattr__(self, "residences", tuple((whole(t), _names(told)) for t, told in self.residences))
            object.__setattr__(self, "shares", tuple((whole(t), float(share)) for t, share in self.shares))
            object.__setattr__(self, "least_columns", tuple((whole(t), whole(n)) for t, n in self.least_columns))
        except (TypeError, ValueError) as error:
            raise InvalidTask(
                f"constraints name tables and devices by whole numbers, kinds as (table, (kind, ...)): {error}"
            ) from error
        if bad := [pin for pin in self.pin if len(pin) != 2]:
            raise InvalidTask(f"a pin is a table and its device, got {bad[0]}")
        if self.max_moves is not None and self.max_moves < 0:
            raise InvalidTask(f"max_moves must not be negative, got {self.max_moves}")
        if odd := {t: share for t, share in self.shares if not 0 < share <= 1}:
            raise InvalidTask(f"the share of a table's cache is above 0 and at most 1, got {odd} by table")

    @property
    def of_forms(self) -> tuple[Any, ...]:
        """Rules on how single tables may be sharded and kept."""
        return tuple(told for name in FORMS for told in getattr(self, name))

    @property
    def beside_forms(self) -> Constraints:
        """The other rules."""
        return replace(self, kinds=(), residences=(), shares=(), least_columns=())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; rules on forms only where there are any, as they came later."""
        return {name: told for name, told in asdict(self).items() if told or name not in FORMS}

    def check(self, num_tables: int, num_devices: int) -> None:
        """Refuse rules that name what is not there, or that no plan can keep."""
        of_forms = {name: [t for t, _ in getattr(self, name)] for name in FORMS}
        groups = (*self.together, *self.apart, self.no_split, *of_forms.values())
        named = {t for t, _ in self.pin} | {t for group in groups for t in group}
        if bad := {t for t in named if not 0 <= t < num_tables}:
            raise InvalidTask(f"constraints name tables {sorted(bad)}, but there are {num_tables}")
        if bad := ({d for _, d in self.pin} | set(self.base)) - set(range(num_devices)):
            raise InvalidTask(f"constraints name devices {sorted(bad)}, but there are {num_devices}")
        if (self.max_moves is not None or self.base) and len(self.base) != num_tables:
            raise InvalidTask(f"max_moves needs base, one device for each of {num_tables} tables")
        for name, tables in of_forms.items():
            if twice := [t for t in tables if tables.count(t) > 1]:
                raise InvalidTask(f"the {name.replace('_', ' ')} of table {twice[0]} are told twice")
        _check_contradictions(self, num_devices)


def known_kinds(kinds: Any) -> tuple[str, ...]:
    """Kinds in the order of KINDS, each once."""
    return in_order("kind of sharding", kinds, KINDS)


def in_order(what: str, told: Any, known: Sequence[str]) -> tuple[str, ...]:
    """Names that are told, in the order of those known, each once."""
    given = (told,) if isinstance(told, str) else told
    if not isinstance(given, Iterable):
        raise InvalidTask(f"a {what} is a name, or several: some of {', '.join(known)}; got {told!r:.40}")
    names = list(given)
    if unknown := [name for name in names if name not in known]:
        raise UnknownName(what, unknown[0], known)
    return tuple(name for name in known if name in names)


def _names(told: Any) -> tuple[str, ...]:
    return (told,) if isinstance(told, str) else tuple(told)


def _wholes(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(whole(value) for value in values)


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
