"""Tasks of rows to share out, as data: drawn tables in three splits, and FlexShard's four models."""

from __future__ import annotations

from functools import cache

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.rowwise.curves import Curve, zipf_mandelbrot
from shard_gym.rowwise.network import network
from shard_gym.rowwise.published import MODELS, fitted_curve
from shard_gym.rowwise.tiers import RowTask, SequenceTable

BATCH = 4096  # samples a GPU
COUNTS = {"train": 90, "val": 10, "test": 50}
SPLITS = tuple(COUNTS)
NAMES = ("4x8", "RM")  # ids are ShardGym-Flex-<name>


@cache
def tasks(name: str, split: str = "train") -> tuple[RowTask, ...]:
    """The tasks of an id; "RM" are the published models, the same in every split."""
    if name not in NAMES:
        raise UnknownName("bank of row tasks", name, NAMES)
    if split not in COUNTS:
        raise UnknownName("split", split, SPLITS)
    if name == "RM":
        return tuple(_task(SequenceTable(m.name, fitted_curve(m.name), m.dim)) for m in MODELS.values())
    rng = np.random.default_rng([8, SPLITS.index(split)])
    return tuple(_task(*(_drawn(rng, i) for i in range(rng.integers(1, 5)))) for _ in range(COUNTS[split]))


def _task(*tables: SequenceTable) -> RowTask:
    return RowTask(tables, network("a100-4x8"), BATCH)


def _drawn(rng: np.random.Generator, index: int) -> SequenceTable:
    """A table as sequence models have them: millions of rows, hundreds of lookups a sample, a skewed curve."""
    rows = int(10 ** rng.uniform(6, 7.5))
    length, exponent, shift = float(10 ** rng.uniform(1.7, 3)), rng.uniform(0.6, 1.3), float(10 ** rng.uniform(0, 3))
    curve: Curve = zipf_mandelbrot(rows, round(length, 1), round(exponent, 3), round(shift, 1))
    return SequenceTable(f"t{index}", curve, int(rng.choice([64, 128, 256])))
