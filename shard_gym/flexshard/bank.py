"""Tasks of the tier environments, and their stretches as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard import NAMES
from shard_gym.flexshard.curves import zipf_mandelbrot
from shard_gym.flexshard.models import MODELS, fitted_curve
from shard_gym.flexshard.network import BATCH, network
from shard_gym.flexshard.stretches import STRETCHES, Stretches
from shard_gym.flexshard.tiers import RowTask, SequenceTable

COUNTS = {"train": 90, "val": 10, "test": 50}  # tasks of each split
ROWS = STRETCHES + 2  # of each task in the arrays: its stretches, the end, and what is after it
NEVER = -np.inf  # bytes that are needed after the end


class FlexBank:
    """Tasks and their stretches as arrays: one entry a task (S, ...), or ROWS of each task one after the other."""

    def __init__(self, tasks: Sequence[RowTask], name: tuple[str, str] | None = None) -> None:
        if not tasks or not all(isinstance(task, RowTask) for task in tasks):
            raise InvalidTask(f"tasks are a bank's name or at least one RowTask, got {tasks!r:.80}")
        self.tasks, self.name = tuple(tasks), name
        self.stretches = [Stretches(task) for task in self.tasks]
        self.memory = self._rows(lambda of: of.memory.T, 3)
        self.costs = self._rows(lambda of: np.stack([of.memory.T, of.ms.T], axis=2), 3, 2).reshape(-1, 2)  # by tier
        self.shown = self._rows(lambda of: of.shown, 7, dtype=np.float32)
        self.rest = self._rows(lambda of: of.rest)
        self.later = self._rows(lambda of: of.later, fill=NEVER)
        self.units = np.array([(of.budget, of.rw_memory, of.rw_ms) for of in self.stretches]).T  # (3, S)
        self.worst_ms = np.array([of.worst_ms for of in self.stretches])
        self.latencies = np.stack([of.latencies for of in self.stretches])  # (S, 8) of each set of tiers

    def __len__(self) -> int:
        return len(self.tasks)

    def index(self, task: Any) -> int:
        """The number of a task, from the end where it is negative."""
        try:
            return range(len(self.tasks))[task]
        except (IndexError, TypeError) as error:
            raise InvalidTask(f"options['task'] is an index of the {len(self.tasks)} tasks, not {task!r}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a bank that has a name by it: its tasks take megabytes."""
        return (FlexBank, (self.tasks,)) if self.name is None else (flex_bank, self.name)

    def _rows(
        self, numbers: Callable[[Stretches], np.ndarray], *width: int, dtype: type = np.float64, fill: float = 0.0
    ) -> np.ndarray:
        rows: np.ndarray = np.full((len(self.tasks), ROWS, *width), fill, dtype)
        for i, of in enumerate(self.stretches):
            found = numbers(of)
            rows[i, : len(found)] = found
        return rows.reshape(-1, *width)


@cache
def flex_bank(name: str, split: str = "train") -> FlexBank:
    """The bank of an id."""
    return FlexBank(flex_tasks(name, split), (name, split))


@cache
def flex_tasks(name: str, split: str = "train") -> tuple[RowTask, ...]:
    """The tasks of an id; "RM" are the published models, the same in every split."""
    if name not in NAMES:
        raise UnknownName("bank of row tasks", name, NAMES)
    if split not in COUNTS:
        raise UnknownName("split", split, COUNTS)
    if name == "RM":
        return tuple(_row_task(SequenceTable(m.name, fitted_curve(m.name), m.dim)) for m in MODELS.values())
    rng = np.random.default_rng([8, tuple(COUNTS).index(split)])
    return tuple(_row_task(*(_drawn(rng, i) for i in range(rng.integers(1, 5)))) for _ in range(COUNTS[split]))


def _row_task(*tables: SequenceTable) -> RowTask:
    return RowTask(tables, network("a100-4x8"), BATCH)


def _drawn(rng: np.random.Generator, index: int) -> SequenceTable:
    """A table as sequence models have them: millions of rows, hundreds of lookups a sample, a skewed curve."""
    rows = int(10 ** rng.uniform(6, 7.5))
    length, exponent, shift = float(10 ** rng.uniform(1.7, 3)), rng.uniform(0.6, 1.3), float(10 ** rng.uniform(0, 3))
    curve = zipf_mandelbrot(rows, round(length, 1), round(exponent, 3), round(shift, 1))
    return SequenceTable(f"t{index}", curve, int(rng.choice([64, 128, 256])))
