"""Measured shards as columns: which tables ran together, and how long they took.

Some shards were measured more than once: how far their times lie apart, and what they say of a machine's pace. One that
others share is faster on one day than on another (we saw 9 %), so what is to be compared or fitted together is brought
to one pace: that of a campaign which measured some shards of every other one again, all mixed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool, UnknownName
from shard_gym.records.files import write_whole
from shard_gym.records.guard import arrays_of, guarded, parsed_json
from shard_gym.simulators.lookups import blocks
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import TablePool

SCHEMA = "shard-gym/measurements/1"
SCHEMA_2 = "shard-gym/measurements/2"  # of those that say who measured each shard, and when
SCHEMA_3 = "shard-gym/measurements/3"  # and how long each run took
KINDS = ("single", "random", "light", "heavy", "searched", "repeat")
_PER_SHARD = {
    "pool": np.uint8,
    "forward_ms": np.float32,
    "backward_ms": np.float32,
    "forward_spread": np.float32,
    "backward_spread": np.float32,
    "kind": np.uint8,
    "round": np.uint8,
}
_PER_TABLE = {"table": np.int32, "dim": np.int16}
COLUMNS = {"offsets": np.int64, **_PER_TABLE, **_PER_SHARD}
WHEN = {"worker": np.int16, "at": np.float64}
RUNS = {"run_ms": np.float32}
_COLUMNS_OF = {SCHEMA: COLUMNS, SCHEMA_2: COLUMNS | WHEN, SCHEMA_3: COLUMNS | WHEN | RUNS}
UNKNOWN = {"worker": -1, "at": np.nan}
SETTINGS = ("batch", "dtype", "optimizer", "clock", "statistic")  # that two campaigns must share to have one pace
MIN_SHARED = 20  # shards that two campaigns must both hold for their paces to be compared
CUTS = (1, 2, 4, 8)  # blocks that the rows of a table are cut into, in pools whose names end on BLOCKS
BLOCKS = "_rows"
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal


@dataclass(frozen=True, eq=False)
class Measurements:
    """S measured shards of M tables in all: shard i holds `table[offsets[i]:offsets[i + 1]]`, with those `dim`s."""

    offsets: np.ndarray  # (S + 1,) int64
    pool: np.ndarray  # (S,) uint8, index into `pools`
    table: np.ndarray  # (M,) int32, index into the shard's pool
    dim: np.ndarray  # (M,) int16
    forward_ms: np.ndarray  # (S,) float32, NaN where nobody measured yet
    backward_ms: np.ndarray  # (S,) float32
    forward_spread: np.ndarray  # (S,) float32, standard deviation over the runs that were kept
    backward_spread: np.ndarray  # (S,) float32
    kind: np.ndarray  # (S,) uint8, index into KINDS
    round: np.ndarray  # (S,) uint8: 0 drawn at random; 1, 2, ... built by search on the fit of the round before
    pools: tuple[str, ...]  # names such as "metasyn_0_856"
    card: dict[str, Any] = field(default_factory=dict)
    worker: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (S,) int16, process that measured it; -1: unknown
    at: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (S,) float64, seconds since the first; NaN: unknown
    run_ms: np.ndarray = field(
        default_factory=lambda: np.zeros(0)
    )  # (S, R, 2) float32, passes of each run; R 0: unknown

    @guarded("measurements", InvalidPool)
    def __post_init__(self) -> None:
        for column, unknown in UNKNOWN.items():
            if not len(getattr(self, column)):
                object.__setattr__(self, column, np.full(len(self), unknown))
        if not self.run_ms.size:
            object.__setattr__(self, "run_ms", np.zeros((len(self), 0, 2)))
        for column, dtype in _COLUMNS_OF[SCHEMA_3].items():
            array = np.array(getattr(self, column), dtype)
            array.setflags(write=False)
            object.__setattr__(self, column, array)
        object.__setattr__(self, "pools", tuple(self.pools))
        _check(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Measurements):
            return NotImplemented
        columns = all(
            np.array_equal(getattr(self, c), getattr(other, c), equal_nan=True) for c in _COLUMNS_OF[SCHEMA_3]
        )
        return columns and self.pools == other.pools and self.card == other.card

    __hash__ = None  # type: ignore[assignment]  # data, not a key; `content_hash` names it

    @property
    def total_ms(self) -> np.ndarray:
        """Forward and backward of each shard, (S,)."""
        return self.forward_ms + self.backward_ms

    @property
    def tables_per_shard(self) -> np.ndarray:
        """Number of tables of each shard, (S,)."""
        return np.diff(self.offsets)

    @property
    def content_hash(self) -> str:
        """Hash of columns, pools and card; the same on every machine."""
        digest = hashlib.sha256(self._schema.encode())
        for column in self.columns:
            array = getattr(self, column)
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        digest.update(_card_json(self).encode())
        return digest.hexdigest()[:16]

    @property
    def _schema(self) -> str:
        if self.run_ms.shape[1]:
            return SCHEMA_3
        return SCHEMA if (self.worker == UNKNOWN["worker"]).all() else SCHEMA_2

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a file of these measurements has."""
        return tuple(_COLUMNS_OF[self._schema])

    def tables(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Tables and dims of shard i."""
        inside = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return self.table[inside], self.dim[inside]

    def key(self, i: int) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Pool, tables and dims of shard i: equal for two measurements of one shard."""
        table, dim = self.tables(i)
        return self.pools[self.pool[i]], tuple(table.tolist()), tuple(dim.tolist())

    def shard_tables(self, i: int) -> TablePool:
        """The tables of shard i, with the columns they were measured at."""
        table, dim = self.tables(i)
        return pool_named(self.pools[self.pool[i]]).take(table).with_(dim=dim.astype(np.int32))

    @guarded("shards are picked by index or by a mask", InvalidPool)
    def take(self, indices: Sequence[int] | np.ndarray) -> Measurements:
        """The shards at `indices` (or where a mask is True), in that order."""
        picked = np.asarray(indices)
        picked = np.flatnonzero(picked) if picked.dtype == bool else picked.astype(np.int64)
        sizes = self.tables_per_shard[picked]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[picked], sizes)
        columns: dict[str, Any] = {c: getattr(self, c)[picked] for c in _PER_SHARD | WHEN | RUNS}
        columns |= {c: getattr(self, c)[inside] for c in _PER_TABLE}
        return Measurements(offsets, **columns, pools=self.pools, card=self.card)

    @classmethod
    def concat(cls, parts: Sequence[Measurements]) -> Measurements:
        """All shards of `parts`; cards that differ are kept side by side under "parts"."""
        if not parts:
            raise InvalidPool("nothing to concatenate: give at least one set of measurements")
        pools = tuple(dict.fromkeys(name for part in parts for name in part.pools))
        columns: dict[str, Any] = {
            c: np.concatenate([getattr(part, c) for part in parts]) for c in (*_PER_SHARD, *WHEN, *_PER_TABLE)
        }
        if len({part.run_ms.shape[1] for part in parts}) == 1:  # runs are kept where all have as many
            columns["run_ms"] = np.concatenate([part.run_ms for part in parts])
        renumbered = [np.array([pools.index(n) for n in part.pools], np.uint8)[part.pool] for part in parts]
        columns["pool"] = np.concatenate(renumbered)
        sizes = np.concatenate([part.tables_per_shard for part in parts])
        cards = [part.card for part in parts]
        card = cards[0] if all(c == cards[0] for c in cards) else {"parts": cards}
        return cls(np.concatenate([[0], np.cumsum(sizes)]), **columns, pools=pools, card=card)

    @classmethod
    @guarded("shards to be measured", InvalidPool)
    def unmeasured(
        cls, pool: str, shards: Sequence[tuple[Any, Any]], kind: str = "searched", round: int = 0
    ) -> Measurements:
        """Shards to be measured, each (tables, dims) of the pool of that name; times are NaN."""
        if kind not in KINDS:
            raise UnknownName("kind of shard", kind, KINDS)
        n = len(shards)
        empty = np.full(n, np.nan)
        tables, dims = ([np.atleast_1d(np.asarray(s[j])) for s in shards] for j in (0, 1))
        return cls(
            offsets=np.cumsum([0, *(len(t) for t in tables)]),
            table=np.concatenate([np.zeros(0, np.int32), *tables]),
            dim=np.concatenate([np.zeros(0, np.int16), *dims]),
            forward_ms=empty,
            backward_ms=empty,
            forward_spread=empty,
            backward_spread=empty,
            pool=np.zeros(n),
            kind=np.full(n, KINDS.index(kind)),
            round=np.full(n, round),
            pools=(pool,),
        )

    def save(self, path: str | Path) -> None:
        """Write a compressed .npz, whole or not at all; the card is JSON inside."""
        buffer = io.BytesIO()
        columns = {c: getattr(self, c) for c in self.columns}
        np.savez_compressed(buffer, **columns, card=np.array(_card_json(self)), hash=np.array(self.content_hash))
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Measurements:
        """Read what `save` wrote; refuses a file that is cut short or does not match its hash."""
        with guarded(f"{path} is not a whole file of measurements"):
            data = arrays_of(path)
            head = parsed_json(str(data["card"]), f"{path}: its card is not JSON")
            if head["schema"] not in _COLUMNS_OF:
                raise CorruptFile(f"{path} has schema {head['schema']}, expected {' or '.join(_COLUMNS_OF)}")
            columns = {c: data[c] for c in _COLUMNS_OF[head["schema"]]}
            loaded = cls(**columns, pools=tuple(head["pools"]), card=head["card"])
            written = str(data["hash"])
        if loaded.content_hash != written:
            raise CorruptFile(f"{path} says its content is {written}, but it is {loaded.content_hash}")
        return loaded


@cache
def pool_named(name: str) -> TablePool:
    """The frozen pool of a name such as "metasyn_0_856"; with "_rows" behind it, blocks of rows too."""
    found = re.fullmatch(rf"metasyn_(\d+)_(\d+)({BLOCKS})?", name)
    if not found:
        raise InvalidPool(
            f"no pool is called {name!r}; names look like metasyn_0_856 (seed, tables), metasyn_0_856_rows"
        )
    pool = load_metasyn(int(found[1]), int(found[2]))
    return with_blocks(pool) if found[3] else pool


def with_blocks(pool: TablePool) -> TablePool:
    """Tables of a pool, then blocks of a half, a quarter and an eighth of each table's rows, as row-wise makes them.

    Table t of N is t, N + t, 2 N + t and 3 N + t.
    """
    many = pool.take(np.tile(np.arange(len(pool)), len(CUTS)))
    cuts = np.repeat(CUTS, len(pool))
    names = tuple(f"{name}/{cut}" if cut > 1 else name for name, cut in zip(many.name, cuts, strict=True))
    return blocks(many, -(-many.rows // cuts)).with_(name=names)


def groups(m: Measurements) -> dict[Any, list[int]]:
    """The measurements of each distinct shard that has a time."""
    found: dict[Any, list[int]] = {}
    for i in np.flatnonzero(np.isfinite(m.total_ms)).tolist():
        found.setdefault(m.key(i), []).append(i)
    return found


def repeat_noise(m: Measurements) -> dict[str, float]:
    """Differences between measurements of one shard: the noise floor of whatever is fitted to them.

    A pair's difference is |a - b| over its mean, for the total of both passes; `relative_std` is what the median says
    of one measurement (a difference has sqrt(2) times its deviation).
    """
    pairs = [pair for group in groups(m).values() for pair in combinations(group, 2)]
    if not pairs:
        return {"pairs": 0}
    a, b = m.total_ms[np.array(pairs).T].astype(np.float64)
    differences = abs(a - b) / ((a + b) / 2)
    median = float(np.median(differences))
    return {
        "pairs": len(pairs),
        "median_relative_difference": median,
        "mean_relative_difference": float(differences.mean()),
        "relative_std": median / (NORMAL_MEDIAN * 2**0.5),
    }


def merged(m: Measurements) -> Measurements:
    """Each distinct shard that has a time once, at the means of its measurements."""
    found = groups(m)
    once = m.take([group[0] for group in found.values()])
    forward, backward = (
        np.array([times[group].mean() for group in found.values()]) for times in (m.forward_ms, m.backward_ms)
    )
    return replace(once, forward_ms=forward, backward_ms=backward)


def pace(m: Measurements, reference: Measurements) -> float:
    """Time over that of the reference: the median over the shards that both hold."""
    known, ours = (mean_times(part) for part in (reference, m))
    ratios = [ours[key] / known[key] for key in ours.keys() & known.keys()]
    if len(ratios) < MIN_SHARED:
        raise InvalidPool(
            f"{len(ratios)} shards of {', '.join(m.pools)} are in both campaigns, their paces need {MIN_SHARED} to be "
            "compared: measure some shards of each again in one campaign"
        )
    one, other = (part.card.get("settings", {}) for part in (m, reference))
    if differ := [name for name in SETTINGS if one.get(name) != other.get(name)]:
        told = ", ".join(f"{name} {one.get(name)} and {other.get(name)}" for name in differ)
        raise InvalidPool(f"the campaigns were measured in different ways, so no pace compares them: {told}")
    return float(np.median(ratios))


def at_pace_of(reference: Measurements, parts: Sequence[Measurements]) -> list[Measurements]:
    """The parts with times as the reference would have had them; each card says by what they were divided."""
    found = []
    for m in parts:
        factor = pace(m, reference)
        card = m.card | {"pace": factor, "pace_of": reference.content_hash}
        found.append(replace(at_pace(m, factor), card=card))
    return found


def at_pace(m: Measurements, factor: np.ndarray | float) -> Measurements:
    """All times divided by one factor, or by one of each shard."""
    by = np.asarray(factor, np.float32)
    columns = {c: getattr(m, c) / by for c in ("forward_ms", "backward_ms", "forward_spread", "backward_spread")}
    return replace(m, run_ms=(m.run_ms.T / by).T, **columns)


def _card_json(m: Measurements) -> str:
    return json.dumps({"schema": m._schema, "pools": list(m.pools), "card": m.card}, sort_keys=True)


def _check(m: Measurements) -> None:
    shards, tables = len(m.offsets) - 1, len(m.table)
    if shards < 0 or m.offsets[0] != 0 or m.offsets[-1] != tables or (np.diff(m.offsets) < 1).any():
        raise InvalidPool(f"offsets must rise from 0 to {tables}, the number of tables, with no empty shard")
    for f in fields(m):
        if f.name in COLUMNS | WHEN and f.name != "offsets":
            shape = (tables,) if f.name in _PER_TABLE else (shards,)
            if getattr(m, f.name).shape != shape:
                raise InvalidPool(f"column {f.name} has shape {getattr(m, f.name).shape}, expected {shape}")
    if m.run_ms.ndim != 3 or m.run_ms.shape[::2] != (shards, 2):
        raise InvalidPool(f"column run_ms has shape {m.run_ms.shape}, expected ({shards}, runs, 2)")
    rules = {
        f"pool must be below {len(m.pools)}, the number of pools": m.pool >= len(m.pools),
        f"kind must be below {len(KINDS)}": m.kind >= len(KINDS),
        "table must not be negative": m.table < 0,
        "dim must be at least 1": m.dim < 1,
        "times must not be negative": (m.forward_ms < 0) | (m.backward_ms < 0) | (m.run_ms < 0).any(axis=(1, 2)),
    }
    for rule, broken in rules.items():
        if broken.any():
            raise InvalidPool(f"{rule}: entry {int(np.argmax(broken))} breaks it")


def mean_times(m: Measurements) -> dict[Any, float]:
    """Mean of the measurements of each distinct shard that has a time, ms."""
    total = m.total_ms.astype(np.float64)
    return {key: float(total[group].mean()) for key, group in groups(m).items()}
