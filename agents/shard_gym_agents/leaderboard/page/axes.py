"""Axes of the page's charts: where a value lies, and which round values are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

GAPS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # named on axes of gaps
NEAREST = 40.0  # pixels between two names on an axis


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` along pixels from `start` to `end`, after a growing function."""

    low: float
    high: float
    start: float
    end: float
    bend: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """The pixel of a value; beyond the ends it is that of the end."""
        low, high = self.bend(self.low), self.bend(self.high)
        share = (self.bend(value) - low) / ((high - low) or 1.0)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def named(self, values: tuple[float, ...]) -> list[float]:
        """Leave out values beyond the axis, and those without room for their names."""
        kept: list[float] = []
        for value in values:
            inside = self.low <= value <= self.high
            if inside and all(abs(self(value) - self(other)) >= NEAREST for other in kept):
                kept.append(value)
        return kept


def root(value: float) -> float:
    """The square root, with the sign of the value: small gaps get room, and 0 and negative ones have a place."""
    return math.copysign(math.sqrt(abs(value)), value)


def gap_axis(low: float, high: float, start: float, end: float) -> Axis:
    """An axis of gaps that begins at 0, or below where some are negative."""
    return Axis(min(low * 1.1, 0.0), max(high * 1.08, 0.01), start, end, root)


def gap_names(axis: Axis) -> list[float]:
    """Round gaps to name on an axis: 0 first, then those that have room, large ones before small ones."""
    values = (0.0, *sorted({sign * g for g in GAPS[1:] for sign in (1, -1)}, key=abs, reverse=True))
    return axis.named(values)


def log_axis(low: float, high: float, start: float, end: float) -> Axis:
    """A logarithmic axis with some room at its ends."""
    return Axis(low / 1.5, high * 1.5, start, end, lambda value: math.log10(max(value, 1e-12)))


def powers(axis: Axis) -> list[float]:
    """The powers of ten on a logarithmic axis."""
    first, last = math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high))
    return [10.0**power for power in range(first, last + 1)]


def percent(share: float, digits: int | None = None) -> str:
    """A share as "12 %", with as many digits as a small one needs."""
    value = 100 * share
    if digits is None:
        digits = 0 if abs(value) >= 1 or value == 0 else 1
    return f"{_rounded(share, digits):.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def signed(share: float) -> str:
    """A gap as "+1.6 %"; a large one without its decimal."""
    return ("+" if share >= 0 else "") + percent(share, _decimals(share))


def interval(low: float, high: float) -> str:
    """Gaps from a low to a high one in percent: "1.3 to 1.8"."""
    told = (f"{_rounded(share, _decimals(share)):.{_decimals(share)}f}" for share in (low, high))
    return " to ".join(told).replace("-", "\N{MINUS SIGN}")


def _rounded(share: float, digits: int) -> float:
    """Percents without a sign at zero."""
    return round(100 * share, digits) + 0.0


def _decimals(share: float) -> int:
    return int(abs(share) < 1)


def duration(seconds: float) -> str:
    """Seconds as people say them, to two digits: "9.2 ms"."""
    if math.isnan(seconds):
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    if value < 0.1:
        value, unit = value * 1e3, "µs"
    digits = 1 - math.floor(math.log10(max(value, 1e-2)))
    return f"{round(value, digits):.{max(digits, 0)}f} {unit}"
