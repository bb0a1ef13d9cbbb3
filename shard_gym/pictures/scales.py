"""Scales: round numbers along an axis, and units for bytes."""

from __future__ import annotations

import math

from shard_gym.tables.pool import GB

_UNITS = {"GiB": GB, "MiB": 2**20, "KiB": 2**10}


def round_numbers(top: float, most: int) -> list[float]:
    """Multiples, no more than so many, of 1, 2 or 5 times a power of ten, above 0 and up to a number."""
    power = 10.0 ** math.floor(math.log10(top / most))
    step = next(power * m for m in (1, 2, 5, 10, 20) if int(top / (power * m) + 1e-9) <= most)
    return [step * i for i in range(1, int(top / step + 1e-9) + 1)]


def in_units(size: float) -> str:
    """A number of bytes for people."""
    unit, name = unit_of(size)
    return f"{size / unit:.3g} {name}"


def unit_of(size: float) -> tuple[int, str]:
    """The unit that a number of bytes is best told in, and its name."""
    return next(((unit, name) for name, unit in _UNITS.items() if size >= unit), (1, "bytes"))
