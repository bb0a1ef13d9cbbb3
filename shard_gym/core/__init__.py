"""The compiled core: a few loops in C (core.c) that give what the numpy code beside each call gives, to the bit.

Functions here return None where there is no core, or nothing that it knows: callers then do it in numpy, which is the
specification. SHARD_GYM_CORE says which is to be used: `numpy`, or `c`, which is refused where it is not there; unless
told, C where it was built.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from struct import unpack_from
from types import ModuleType
from typing import NamedTuple

import numpy as np

from shard_gym.errors import CoreError

VERSION = 6  # of the functions in core.c
EXTENSION = "shard_gym.core._compiled"
FUNCTIONS = (
    "decode",
    "device_sums",
    "greedy",
    "deal",
    "place",
    "masks",
    "flat",
    "cheapest",
    "in_turn",
    "priced",
    "comm",
    "changed",
)
AGAIN = "build it with `pip install -e .` in a checkout, install a wheel again, or set SHARD_GYM_CORE=numpy"


def load(wanted: str) -> ModuleType | None:
    """The core that SHARD_GYM_CORE asks for; None: numpy."""
    if wanted not in ("", "c", "numpy"):
        raise CoreError(f"SHARD_GYM_CORE is c or numpy, got {wanted!r}")
    if wanted == "numpy":
        return None
    try:
        _refuse_cut_short(find_spec(EXTENSION))
        found = import_module(EXTENSION)
    except ModuleNotFoundError:
        if wanted:
            raise CoreError(f"SHARD_GYM_CORE=c, but no compiled core is there: with a C compiler, {AGAIN}") from None
        return None
    except ImportError as error:
        raise CoreError(f"the compiled core cannot be loaded, {AGAIN}: {error}") from error
    if (version := getattr(found, "VERSION", None)) != VERSION:
        raise CoreError(f"the compiled core is of version {version}, this package needs {VERSION}: {AGAIN}")
    if missing := [name for name in FUNCTIONS if not hasattr(found, name)]:
        raise CoreError(f"the compiled core lacks {', '.join(missing)}: {AGAIN}")
    return found


def _refuse_cut_short(spec: ModuleSpec | None) -> None:
    """Refuse an extension that would end the process if it were loaded."""
    if spec and spec.origin and _cut_short(Path(spec.origin)):
        raise ImportError(f"{spec.origin} is cut short")


def _cut_short(file: Path) -> bool:
    """True if a 64-bit ELF file ends before what its header says is to be loaded."""
    with file.open("rb") as content:
        head = content.read(64)
        if not head.startswith(b"\x7fELF\2\1"):
            return False
        if len(head) < 64:
            return True
        start, each, count = *unpack_from("<Q", head, 32), *unpack_from("<HH", head, 54)
        content.seek(start)
        parts = content.read(each * count)
    if len(parts) < each * count:
        return True
    ends = (sum(unpack_from("<Q16xQ", parts, i * each + 8)) for i in range(count))  # first byte and bytes of each part
    return max(ends, default=0) > file.stat().st_size


@cache
def compiled() -> ModuleType | None:
    """The core in use, found when it is first asked for; None: numpy."""
    return load(os.environ.get("SHARD_GYM_CORE", ""))


def name() -> str:
    """Name of the core in use: "c" or "numpy"."""
    return "numpy" if compiled() is None else "c"


def decode(model: np.ndarray | None, sums: np.ndarray, ms_per_us: np.ndarray, rows: int) -> np.ndarray | None:
    """Times of shards from their sums, (..., K, H) -> (rows, ..., K) ms, by a simulator's `model`.

    One row: forward and backward together; two: each; four: and their spread and the mean distance of tables.
    """
    if model is None or (c := compiled()) is None:
        return None
    *plans, devices, width = sums.shape
    out = np.empty((rows, *plans, devices))
    given = np.ascontiguousarray(sums, np.float64).reshape(-1, devices, width)
    c.decode(model, given, ms_per_us, out.reshape(rows, -1, devices))
    return out


def device_sums(
    values: np.ndarray, placements: np.ndarray, num_devices: int, first: np.ndarray | None = None
) -> np.ndarray | None:
    """Sum of each device's tables: values (N, H), placements (P, N) with -1 for none -> (P, K, H).

    With `first`, (P,), values are those of several tasks, and the tables of a plan are the rows from there on.
    """
    if (c := compiled()) is None:
        return None
    start = np.zeros(len(placements), np.int64) if first is None else first
    out = np.empty((len(placements), num_devices, values.shape[1]))
    rows, where = np.ascontiguousarray(values, np.float64), np.ascontiguousarray(placements, np.int64)
    c.device_sums(rows, where, start, out)
    return out


def greedy(
    model: np.ndarray | None,
    rows: np.ndarray,
    order: np.ndarray,
    size: np.ndarray,
    capacity: np.ndarray,
    ms_per_us: np.ndarray,
) -> np.ndarray | None:
    """Devices of tables, (N,), each in turn where it costs least of those with room; None too where that ends early."""
    if model is None or (c := compiled()) is None:
        return None
    device, room = np.full(len(rows), -1), capacity.copy()
    given = (np.ascontiguousarray(a) for a in (rows, order, size))
    return device if c.greedy(model, *given, room, ms_per_us, device) == len(order) else None


def deal(
    cost: np.ndarray, weight: np.ndarray, size: np.ndarray, order: np.ndarray, speed: np.ndarray, capacity: np.ndarray
) -> np.ndarray | None:
    """Devices of tables, (N,), each in turn where there is least cost and weight; None too if one has no room."""
    if (c := compiled()) is None:
        return None
    device, room = np.full(len(cost), -1), capacity.copy()
    given = (np.ascontiguousarray(a, np.int64) for a in (weight, size, order))
    return device if c.deal(np.ascontiguousarray(cost), *given, speed, room, device) == len(order) else None


def place(
    free: np.ndarray,
    least: np.ndarray,
    size: np.ndarray,
    sums: np.ndarray,
    vector: np.ndarray,
    rows: np.ndarray,
    options: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Put a piece of each plan on a device, (B,) each: `plan.placing.Touched` of them; changes free, least and sums."""
    if (c := compiled()) is None:
        return None
    count, width = len(free), sums.shape[2]
    at, left, held = np.empty(count, np.int64), np.empty(count, np.int64), np.empty((count, width))
    sizes, which, devices = (np.ascontiguousarray(a, np.int64) for a in (size, rows, options))
    c.place(free, least, sizes, sums, np.ascontiguousarray(vector[:, 0], np.float64), which, devices, at, left, held)
    return at, left, held


def masks(free: np.ndarray, least: np.ndarray, size: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Devices that have room for a piece of each plan, int8 (B, K); all where none has."""
    if (c := compiled()) is None:
        return None
    out = np.empty(free.shape, np.int8)
    c.masks(free, least, *(np.ascontiguousarray(a, np.int64) for a in (size, rows)), out)
    return out


def flat(  # noqa: PLR0913  # the arrays that one row of numbers is made of
    pieces: np.ndarray,
    alone: np.ndarray,
    rows: np.ndarray,
    cost: np.ndarray,
    share: np.ndarray,
    pace: np.ndarray,
    masks: np.ndarray,
    shown: np.ndarray,
) -> bool:
    """Put the next pieces, costs, gaps and masks of many episodes into their "flat" observations; False: numpy must."""
    if (c := compiled()) is None:
        return False
    c.flat(pieces, alone, rows, np.ascontiguousarray(cost), share, pace, masks, shown)
    return True


MOST_PIECES = 8  # that an option of a table has


class Options(NamedTuple):
    """Options of N tables of all kinds of sharding: R forms, table by table, each by 4 choices; C-contiguous."""

    first: np.ndarray  # (N + 1,) int64, each table's first form
    pieces: np.ndarray  # (R,) int64
    may: np.ndarray  # (R, 4) int8
    loads: np.ndarray  # (P, R, 4, K) that a piece adds to each device
    size: np.ndarray  # (Q, R, 4, K) bytes of it
    host: int  # devices of a host


class Pick(NamedTuple):
    """The option of a table that adds least: form and choice, form -1 where none has room, and where its pieces go."""

    asked: int  # options, and places for their pieces, that it is the best of
    worth: float
    form: int
    choice: int
    targets: tuple[int, ...]


class Picks(NamedTuple):
    """The options of n tables that were put in turn."""

    asked: int
    worth: np.ndarray  # (n,)
    form: np.ndarray  # (n,) -1 where none had room
    choice: np.ndarray  # (n,)
    targets: np.ndarray  # (n, 8)
    times: np.ndarray  # (n, K) pieces on each device


def cheapest(
    options: Options, load: np.ndarray, free: np.ndarray, price: np.ndarray, allowed: np.ndarray | None, table: int
) -> Pick | None:
    """The option of a table that adds least to fourth powers of loads (P, K), and bytes at a price (Q,), with room in
    what is free, (Q, K), single pieces only where allowed, (K,) bool."""
    if (c := compiled()) is None:
        return None
    where = None if allowed is None else allowed.view(np.int8)
    return Pick(*c.cheapest(*options, load, free, price, where, table))


def in_turn(
    options: Options,
    load: np.ndarray,
    free: np.ndarray,
    offset: np.ndarray,
    order: np.ndarray,
    more: np.ndarray,
    price: np.ndarray,
) -> Picks | None:
    """Put tables in turn, (n,), in their `cheapest` options at prices (n, Q), and raise loads and their offset, (P, K)
    both, by `more`, (n, P), before each; changes load, free and offset."""
    if (c := compiled()) is None:
        return None
    picked, times = np.empty((len(order), 2 + MOST_PIECES), np.int64), np.empty((len(order), load.shape[1]))
    worth = np.empty(len(order))
    asked = c.in_turn(*options, load, free, offset, order, more, price, worth, picked, times)
    return Picks(asked, worth, picked[:, 0], picked[:, 1], picked[:, 2:], times)


def priced(  # noqa: PLR0913  # a search in one variable, and all that it is in
    cost: np.ndarray,
    size: np.ndarray,
    room: np.ndarray,
    price: np.ndarray,
    memory: int,
    between: np.ndarray,
    steps: int,
    mean: float,
) -> float | None:
    """The largest mean of N tables' cheapest options, (N, M), bytes (2, N, M) paid for and room (2,) paid back, over
    prices of one memory, which is set in `price`, (2,): 0 if there is room then, or between two by halving."""
    if (c := compiled()) is None:
        return None
    found: float = c.priced(cost, size, room, price, memory, between, steps, mean)
    return found


def comm(
    numbers: np.ndarray, first: np.ndarray, size: np.ndarray, sums: np.ndarray, dim: int, moved: int
) -> np.ndarray | None:
    """Communication in the forward and the backward pass, (2, ..., K), from sums (..., K, H) with columns of whole
    tables and, from `moved` on, of other traffic; by numbers of the links, (9,), and each device's host, (K,) both."""
    if (c := compiled()) is None:
        return None
    *plans, devices, width = sums.shape
    out = np.empty((2, *plans, devices))
    given = np.ascontiguousarray(sums, np.float64).reshape(-1, devices, width)
    c.comm(numbers, first, size, given, dim, moved, out.reshape(2, -1, devices))
    return out


class Ways(NamedTuple):
    """Ways of N tables of all kinds of sharding, what pieces add where they go, and what is free; C-contiguous."""

    pieces: np.ndarray  # (R,) int64 of each form
    placed: np.ndarray  # (R, 4, K) int64, the part that a piece puts on each device by each choice
    vector: np.ndarray  # (S, H) that parts add to their device's sum
    size: np.ndarray  # (Q, S) bytes of parts
    room: np.ndarray  # (Q, K) bytes
    per_byte: np.ndarray  # (Q, K) what a byte too many counts
    items: np.ndarray  # (M,) int64, the tables that change
    first: np.ndarray  # (N + 1,) int64, each table's first way
    ways: np.ndarray  # (W, 2) int64, form and choice
    host: int  # devices of a host


class Iteration(NamedTuple):
    """Costs of iterations with all kinds of sharding, as the core knows them."""

    model: np.ndarray
    ms_per_us: np.ndarray  # (K,)
    links: np.ndarray  # (9,)
    first: np.ndarray  # (K,) int64, the first device of each device's host
    size: np.ndarray  # (K,) int64, devices of that
    per_mib: float  # ms at the host's memory


def changed(  # noqa: PLR0913  # a plan, all that it may become, and how it is drawn
    ways: Ways,
    known: Iteration | None,
    per_ms: float,
    plan: np.ndarray,
    sums: np.ndarray,
    used: np.ndarray,
    drawn: np.ndarray,
    heat: float,
    dear: float,
    best: tuple[float, np.ndarray],
) -> tuple[float, int, int] | None:
    """Change a plan by drawn numbers (n, 8), with its sums (K, H) and bytes (Q, K): see `search.kinds_changes`.

    The best makespan, what the plan of it is put into `best`'s array; changes asked about, and plans that do not fit.
    """
    if known is None or (c := compiled()) is None:
        return None
    makespan, kept = best
    told: tuple[float, int, int] = c.changed(*ways, *known, per_ms, plan, sums, used, drawn, heat, dear, makespan, kept)
    return told
