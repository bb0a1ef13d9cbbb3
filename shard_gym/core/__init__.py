"""The compiled core: a few loops in C (core.c) that give what the numpy code beside each call gives, to the bit.

Functions here return None where there is no core, or nothing that it knows: callers then do it in numpy, which is the
specification. SHARD_GYM_CORE says which is to be used: `numpy`, or `c`, which is refused where it is not there; unless
told, C where it was built.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np

from shard_gym.errors import CoreError

VERSION = 2  # of the functions in core.c
FUNCTIONS = ("decode", "device_sums", "greedy")
AGAIN = "build it with `pip install -e .` or `pip install --force-reinstall shard-gym`, or set SHARD_GYM_CORE=numpy"


def load(wanted: str) -> ModuleType | None:
    """The core that SHARD_GYM_CORE asks for; None: numpy."""
    if wanted not in ("", "c", "numpy"):
        raise CoreError(f"SHARD_GYM_CORE is c or numpy, got {wanted!r}")
    if wanted == "numpy":
        return None
    try:
        found = import_module("shard_gym.core._compiled")
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


def device_sums(values: np.ndarray, placements: np.ndarray, num_devices: int) -> np.ndarray | None:
    """Sum of each device's tables: values (N, H), placements (P, N) with -1 for none -> (P, K, H)."""
    if (c := compiled()) is None:
        return None
    out = np.empty((len(placements), num_devices, values.shape[1]))
    rows, where = np.ascontiguousarray(values, np.float64), np.ascontiguousarray(placements, np.int64)
    c.device_sums(rows, where, out)
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
