"""Parts that every form of proof reads: tables and their pieces, and numbers that are checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile
from shard_gym.memory.usage import piece_bytes
from shard_gym.simulators import FastSimulator
from shard_gym.task.constraints import Constraints
from shard_gym.task.task import Task

ROUNDING = 2.0**-36  # of sums of at most MOST_TERMS numbers in float64: far more than they can be wrong
MOST_TERMS = 10_000
MS = 1e-3  # of a microsecond


def depths(task: Task, simulator: FastSimulator) -> Iterator[tuple[np.ndarray, ...]]:
    """Tell of whole tables, halves and so on: which there may be, bytes and columns of a piece, and what it adds."""
    dim, may = task.tables.dim, np.full(task.num_tables, task.num_tables <= MOST_TERMS)
    while may.any():
        pieces = replace(task, tables=task.tables.with_(dim=dim), constraints=Constraints())
        size = piece_bytes(pieces, np.arange(task.num_tables), dim)
        yield may, size, pieces.tables.columns_sent, simulator.embed(pieces)
        may = may & task.splits_allowed & (dim % 8 == 0)
        may[list(task.constraints.no_split)] = False
        dim = np.where(may, dim // 2, dim)


def number(told: Any) -> float:
    """A number from 0; nothing else is a weight or price."""
    require(isinstance(told, int | float) and 0 <= told < np.inf, f"{told!r:.40} is no number from 0")
    return float(told)


def require(holds: Any, otherwise: str) -> None:
    """Refuse a proof that lacks something."""
    if not holds:
        raise CorruptFile(otherwise)
