"""Shards that a campaign measures, drawn for wide coverage or read from a list, and the ids that they look up."""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.measuring.measurements import KINDS, Measurements, pool_named
from shard_gym.records.files import write_whole
from shard_gym.records.guard import content_of
from shard_gym.tables.pool import TablePool
from shard_gym.tables.traces import run_lengths, scatter

if TYPE_CHECKING:
    import torch

MAX_TABLES = 16
SUITE_DIMS, ALL_DIMS = (16, 32), (4, 8, 16, 32, 64, 128)
WIDE_DIMS = (*ALL_DIMS, 192, 256, 384, 512, 768)  # what production models have
# How often each kind is drawn, out of 100.
SHARES = {"single": 10, "random": 58, "light": 15, "heavy": 14, "repeat": 3}
MIN_POOLING = 30.0  # summed over a shard: 10 ms and more at batch 2,048 on one core
TRIES = 1_000
FEW = 50  # one lookup of so many is picked by itself, not from a permutation of all
DRAWS = 4  # batches drawn of a table; runs take them in turn, each time with new ids
LIST = "shards.npz"  # file of listed shards in the folder of a campaign
Draw = tuple["torch.Tensor", "torch.Tensor"]  # ranks int32, offsets int64


@dataclass(frozen=True)
class Shard:
    """Tables of a pool that are measured together."""

    pool: str
    table: np.ndarray  # (n,) int32
    dim: np.ndarray  # (n,) int16
    kind: str = "random"
    round: int = 0

    @property
    def tables(self) -> TablePool:
        """The tables with the shard's columns."""
        return pool_named(self.pool).take(self.table).with_(dim=self.dim.astype(np.int32))


class Source(Protocol):
    """A fixed list of shards, by index."""

    keeps_all: ClassVar[bool]  # True if shards without a time stay in what is packed

    def __len__(self) -> int: ...

    def order(self) -> np.ndarray:
        """Every index once, in the order to measure."""
        ...

    def shard(self, index: int) -> Shard:
        """The shard at an index, always the same one."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that two runs must share to be one campaign."""
        ...

    def leave_in(self, folder: Path) -> None:
        """Have the folder hold whatever is needed beside `describe` to make the list again."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Shards drawn at random; each follows from (seed, index) alone, so a longer list begins like a shorter one."""

    keeps_all: ClassVar[bool] = False
    count: int
    pool: str = "metasyn_0_856"
    kinds: tuple[str, ...] = tuple(SHARES)
    seed: int = 0
    min_pooling: float = MIN_POOLING
    round: int = 0
    dims: tuple[int, ...] = ALL_DIMS  # of half the shards; the others have SUITE_DIMS
    _tables: TablePool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in SHARES:
                raise UnknownName("kind of shard to draw", kind, SHARES)
        if not self.dims or any(dim < 1 or dim % 4 for dim in self.dims):
            raise SimulatorError(f"FBGEMM needs dims that are multiples of 4, got {self.dims}")
        if self.count < 0 or set(self.kinds) <= {"repeat"}:
            raise SimulatorError(f"draw at least one kind besides repeats, and 0 shards or more; got {self}")
        object.__setattr__(self, "_tables", pool_named(self.pool))

    def __len__(self) -> int:
        return self.count

    def order(self) -> np.ndarray:
        """Every index once, from the first on."""
        return np.arange(self.count)

    def describe(self) -> dict[str, Any]:
        """Settings that decide what is drawn."""
        kinds = sorted(set(self.kinds))
        return {
            "pool": self.pool,
            "kinds": kinds,
            "seed": self.seed,
            "min_pooling": self.min_pooling,
            "round": self.round,
            "dims": list(self.dims),
        }

    def leave_in(self, folder: Path) -> None:
        """Leave nothing: the settings are all."""

    def shard(self, index: int) -> Shard:
        """Redrawn until it has lookups enough to be timed well; single tables are taken as they come."""
        rng = np.random.default_rng([self.seed, index])
        kind = self._kind(rng, index)
        if kind == "repeat":
            earlier = self.shard(int(rng.integers(index)))
            return Shard(self.pool, earlier.table, earlier.dim, "repeat", self.round)
        for _ in range(TRIES):
            table = self._draw(rng, kind)
            pooling = self._tables.pooling[table].sum()
            if pooling >= self.min_pooling or (kind == "single" and pooling >= 0.1):
                dims = SUITE_DIMS if rng.random() < 0.5 else self.dims
                dim = rng.choice(dims, len(table)).astype(np.int16)
                return Shard(self.pool, table.astype(np.int32), dim, kind, self.round)
        raise SimulatorError(f"no {kind} shard of {self.pool} in {TRIES} reaches a pooling of {self.min_pooling}")

    def _kind(self, rng: np.random.Generator, index: int) -> str:
        kinds = [k for k in SHARES if k in self.kinds and (k != "repeat" or index)]
        weights = np.array([SHARES[k] for k in kinds], float)
        return kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]

    def _draw(self, rng: np.random.Generator, kind: str) -> np.ndarray:
        """Light shards hold many tables of the lower half by pooling, heavy ones prefer tables much looked up."""
        pooling = self._tables.pooling.astype(np.float64)
        if kind == "single":
            return rng.integers(len(pooling), size=1)
        if kind == "light":
            return rng.choice(np.argsort(pooling)[: len(pooling) // 2], int(rng.integers(8, MAX_TABLES + 1)), False)
        if kind == "heavy":
            return rng.choice(len(pooling), int(rng.integers(1, 13)), False, p=pooling / pooling.sum())
        number = 10 if rng.random() < 0.3 else int(rng.integers(1, MAX_TABLES + 1))
        return rng.choice(len(pooling), number, replace=False)


@dataclass(frozen=True)
class Mixed:
    """Several drawn lists in turn: index i is shard i // P of list i % P."""

    keeps_all: ClassVar[bool] = False
    parts: tuple[Drawn, ...]

    def __len__(self) -> int:
        return len(self.parts) * min(map(len, self.parts))

    def order(self) -> np.ndarray:
        """Every index once, from the first on."""
        return np.arange(len(self))

    def describe(self) -> dict[str, Any]:
        """Settings of all parts."""
        return {"parts": [part.describe() for part in self.parts]}

    def leave_in(self, folder: Path) -> None:
        """Leave nothing: the settings are all."""

    def shard(self, index: int) -> Shard:
        """The shard at an index, of the part whose turn it is."""
        return self.parts[index % len(self.parts)].shard(index // len(self.parts))


@dataclass(frozen=True)
class Listed:
    """The shards of a file, measured `repeats` times: pass p of shard i has index p * S + i.

    Within a pass the order is shuffled, so that what drifts on the device hits all shards alike.
    """

    keeps_all: ClassVar[bool] = True
    path: Path
    repeats: int = 1
    seed: int = 0

    @cached_property
    def _list(self) -> Measurements:
        return Measurements.load(self.path)

    def __len__(self) -> int:
        return len(self._list) * self.repeats

    def order(self) -> np.ndarray:
        """Every index once, pass by pass, each pass shuffled."""
        return order_of_passes(len(self._list), self.repeats, self.seed)

    def describe(self) -> dict[str, Any]:
        """Hash of the file, and settings of the passes."""
        return {"shard_file": self._list.content_hash, "repeats": self.repeats, "seed": self.seed}

    def leave_in(self, folder: Path) -> None:
        """Leave the file."""
        if not (path := folder / LIST).exists():
            write_whole(path, content_of(self.path))

    def shard(self, index: int) -> Shard:
        """The shard of the file at an index."""
        i = index % len(self._list)
        table, dim = self._list.tables(i)
        kind = KINDS[self._list.kind[i]] if index == i else "repeat"
        return Shard(self._list.pools[self._list.pool[i]], table, dim, kind, int(self._list.round[i]))


def order_of_passes(shards: int, repeats: int, seed: int) -> np.ndarray:
    """Indices of passes over a list of shards, each pass in an order of its own."""
    passes = [np.random.default_rng([seed, p]).permutation(shards) + p * shards for p in range(repeats)]
    return np.concatenate([np.zeros(0, np.int64), *passes])


class Ids:
    """Index sets of shards. Draws of a table are kept, on the device, for the next shard that holds it."""

    def __init__(self, device: torch.device, batch: int, fresh: bool, cache_bytes: int) -> None:
        self.device, self.batch, self.fresh, self.cache_bytes = device, batch, fresh, cache_bytes
        self._draws: OrderedDict[bytes, list[Draw]] = OrderedDict()
        self._held = 0  # bytes

    def sets(self, tables: TablePool, rng: np.random.Generator) -> Iterator[Draw]:
        """Endless (indices, offsets) of a shard, made just before each run and outside the timed region."""
        import torch

        drawn = [self._drawn_of(tables, t) for t in range(len(tables))]
        turns = [self._fused([d[i % len(d)] for d in drawn]) for i in range(max(map(len, drawn)))]
        turn = int(rng.integers(len(turns)))
        while True:
            ranks, owner, offsets = turns[turn % len(turns)]
            how = [(*scatter(rng, rows), rows) for rows in tables.rows.tolist()]
            step, shift, rows = (
                torch.tensor(values, dtype=torch.int64, device=self.device).index_select(0, owner)
                for values in zip(*how, strict=True)
            )
            indices = step.mul_(ranks).add_(shift).remainder_(rows)
            del step, shift, rows  # as large as the ids themselves
            while not self.fresh:
                yield indices, offsets
            yield indices, offsets
            turn += 1

    def _fused(self, parts: list[Draw]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ranks, table and offsets of the lookups of all tables, one table after the other."""
        import torch

        counts = [len(ranks) for ranks, _ in parts]
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        tails = [offsets[1:] + start for (_, offsets), start in zip(parts, starts, strict=True)]
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        owner = [torch.full((n,), t, dtype=torch.int32, device=self.device) for t, n in enumerate(counts)]
        return torch.cat([ranks for ranks, _ in parts]), torch.cat(owner), torch.cat([first, *tails])

    def _drawn_of(self, tables: TablePool, t: int) -> list[Draw]:
        key = b"".join(getattr(tables, c)[t].tobytes() for c in ("rows", "pooling", "distinct", "uses", "accesses"))
        key += tables.name[t].encode()
        if key in self._draws:
            self._draws.move_to_end(key)
            return self._draws[key]
        count = max(1, min(DRAWS, tables.reference_batch // self.batch))
        self._draws[key] = made = draws(tables.take([t]), self.batch, count, zlib.crc32(key), self.device)
        self._held += _bytes(made)
        while self._held > self.cache_bytes and len(self._draws) > 1:
            self._held -= _bytes(self._draws.popitem(last=False)[1])
        return made


def draws(table: TablePool, batch: int, count: int, seed: int, device: torch.device | str = "cpu") -> list[Draw]:
    """`count` batches of a pool's one table that share no sample, each (ranks int32, offsets int64).

    Ranks number the touched rows from the least used. `scatter` turns them into row ids, so that one draw serves
    many times with fresh ids: (shift + step * ranks) % rows is a trace.
    """
    import torch

    samples = batch * count
    counts, repeats = (torch.from_numpy(part).to(device) for part in run_lengths(table))
    generator = torch.Generator(device).manual_seed(seed)
    uses = torch.repeat_interleave(counts, repeats)  # of each touched row in the reference batch
    total, share, rng = int(uses.sum()), samples / table.reference_batch, np.random.default_rng(seed)
    wanted = total if share == 1 else int(rng.binomial(total, share))
    if wanted * FEW < total:
        picked = torch.from_numpy(rng.choice(total, wanted, replace=False)).to(device)
        ranks = torch.searchsorted(torch.cumsum(uses, 0), picked, right=True).int()
    else:
        rows = torch.arange(len(uses), dtype=torch.int32, device=device)
        order = torch.randperm(total, generator=generator, device=device)
        ranks = torch.repeat_interleave(rows, uses)[order[:wanted]]
    sample = torch.randint(samples, (wanted,), generator=generator, device=device)  # of each lookup, at random
    ends = torch.cumsum(torch.bincount(sample, minlength=samples), 0)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends])
    cuts = [starts[i * batch : (i + 1) * batch + 1] for i in range(count)]
    bounds = starts[::batch].tolist()
    return [(ranks[a:b], cut - a) for a, b, cut in zip(bounds[:-1], bounds[1:], cuts, strict=True)]


def _bytes(made: list[Draw]) -> int:
    return sum(math.prod(part.shape) * part.itemsize for draw in made for part in draw)
