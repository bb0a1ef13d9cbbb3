"""What any device that holds certain tables costs at least, phase by phase; the ground of all lower bounds.

Proofs rest on one thing only: a shard's cost never falls when a table is added. Column splits are allowed for: a
table may lie in pieces, each half as wide as its parent, on several devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shard_gym.memory import table_bytes
from shard_gym.simulators.base import FastSimulator
from shard_gym.simulators.roofline import (
    BACKWARD_DRAM,
    BACKWARD_ISSUE,
    FORWARD_DRAM,
    FORWARD_ISSUE,
    SORT,
    Roofline,
)
from shard_gym.tasks import Constraints, Task

MS = 1e-3  # of a microsecond
PASSES = {"forward": (True, False), "backward": (False, True), "both": (True, True)}


@dataclass(frozen=True, eq=False)
class Share:
    """A weight for each table, whole, and the least that a device costs which holds so much of it.

    A piece of half the columns weighs half, so the devices' weights always add up to `weights.sum()`: some device
    holds at least what any sharing-out of that sum gives it. `least` and `guess` are ms on a device of speed 1.
    """

    weights: np.ndarray  # (N,)
    least: Callable[[float], float]  # of a device that holds this weight or more; of 0: of one that is not empty
    guess: Callable[[np.ndarray], np.ndarray]  # what a device costs that holds the same part of every table


@dataclass(frozen=True, eq=False)
class Pieces:
    """Tables in pieces of each depth: 0 is the whole table, v an 2**v-th of its columns; arrays are (V, N, ...).

    A table that cannot be split so often stands there whole.
    """

    embedding: np.ndarray  # of one piece
    parts: np.ndarray  # pieces that make a table
    bytes: np.ndarray
    columns: np.ndarray  # that a sample gets back, float64

    @property
    def whole(self) -> np.ndarray:
        """What each table amounts to when all of it is in such pieces, (V, N, H)."""
        return self.embedding * self.parts[..., None]


def pieces_of(task: Task, simulator: FastSimulator) -> Pieces:
    """Every depth that the task's splits can reach."""
    dim, parts = task.tables.dim, np.ones(task.num_tables, np.int64)
    may = np.full(task.num_tables, task.splits_allowed)
    may[list(task.constraints.no_split)] = False
    depths = []
    while True:
        at_depth = replace(task, tables=task.tables.with_(dim=dim), constraints=Constraints())
        depths.append((simulator.embed(at_depth), parts, table_bytes(at_depth), at_depth.tables.columns_sent))
        may &= dim % 8 == 0
        if not may.any():
            return Pieces(*(np.stack(column) for column in zip(*depths, strict=True)))
        dim, parts = np.where(may, dim // 2, task.tables.dim), np.where(may, 2 * parts, 1)


def costs_alone(task: Task, simulator: FastSimulator, embedding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward ms of one piece as the only one of a device of speed 1, (V, N) each."""
    one_device = replace(task, memory=(1,), speed=(), objective="kernel", constraints=Constraints())
    latency = simulator.decode(one_device, embedding.reshape(-1, 1, embedding.shape[-1]))
    shape = embedding.shape[:-1]
    return latency.forward_compute.reshape(shape), latency.backward_compute.reshape(shape)


def additive_shares(simulator: Roofline, pieces: Pieces, phase: str) -> Iterator[Share]:
    """Shares of the analytic simulator: its passes are maxima of sums, so each of those sums is a lower bound.

    forward = max(sum of DRAM, sum of issue) + launch >= sum of either one + launch, and the same backward, where the
    sort is added. Of a table in pieces the cheapest depth counts.
    """
    whole = pieces.whole * MS
    forward, backward = PASSES[phase]
    launch = simulator.hardware.launch_us * MS * (forward + backward)
    columns = [[FORWARD_DRAM, FORWARD_ISSUE]] * forward + [[BACKWARD_DRAM, BACKWARD_ISSUE]] * backward
    for chosen in product(*columns):
        cost = whole[..., list(chosen)].sum(axis=-1) + backward * whole[..., SORT]
        yield Share(cost.min(axis=0), lambda weight: weight + launch, lambda weight: weight + launch)
