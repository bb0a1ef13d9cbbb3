"""Numbers as callers give them, made plain."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any) -> int:
    """A Python int from any kind of int but a bool; a TypeError for everything else."""
    if isinstance(value, bool):
        raise TypeError(f"expected a whole number, got {value!r}")
    return operator.index(value)
