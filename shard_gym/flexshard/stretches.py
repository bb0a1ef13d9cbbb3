"""A task's rows in stretches, most frequent first, each of which goes to one tier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.flexshard.tiers import RowTask, merged

STRETCHES = 64  # of rows, an episode's steps
FIRST = 1e-6  # share of all rows in the first stretch; each further one is larger by the same factor


@dataclass(frozen=True, eq=False)
class Stretches:
    """A task's rows, most frequent first, in stretches that go to a tier each; arrays are (T,) or (3, T) by tier."""

    task: RowTask

    def __post_init__(self) -> None:
        if pooled := [table.name for table in self.task.tables if table.pooled]:
            raise InvalidTask(f"table {pooled[0]!r} is pooled: it has no stretches, it goes to one tier as a whole")
        if not any(table.curve.length for table in self.task.tables):
            raise InvalidTask("no sample looks any row up: there is nothing to communicate")

    @cached_property
    def parts(self) -> tuple[np.ndarray, ...]:
        """Rows, lookups, bytes and looked up bytes of each stretch."""
        p, rows, row_bytes, _ = merged(self.task)
        ends = np.cumsum(rows)
        cuts = np.geomspace(max(1.0, FIRST * ends[-1]), ends[-1], STRETCHES)
        columns = (rows, rows * p, rows * row_bytes, rows * row_bytes * p)
        at = np.concatenate([[0.0], cuts])
        return tuple(np.diff(np.interp(at, np.append(0, ends), np.append(0, np.cumsum(c)))) for c in columns)

    @cached_property
    def memory(self) -> np.ndarray:
        """Bytes a GPU of each stretch in each tier."""
        return self._in_tiers("memory")

    @cached_property
    def ms(self) -> np.ndarray:
        """Communication in a step, but for latencies."""
        return self._in_tiers("ms")

    @cached_property
    def latency(self) -> np.ndarray:
        """Latency of each tier that has any rows, (3,)."""
        return np.array([line.latency_ms for line in self.task.lines.values()])

    @cached_property
    def rw_ms(self) -> float:
        """All rows in RW: what rewards are measured in."""
        return float(self.ms[-1].sum() + self.latency[-1])

    @cached_property
    def rw_memory(self) -> float:
        """All rows in RW: what memory is measured in."""
        return float(self.memory[-1].sum())

    @cached_property
    def budget(self) -> float:
        """Bytes a GPU."""
        return self.rw_memory + self.task.extra_bytes

    @cached_property
    def worst_ms(self) -> float:
        """No tiers communicate for longer."""
        return float(self.ms.max(axis=0).sum() + self.latency.sum())

    @cached_property
    def later(self) -> np.ndarray:
        """The least memory that the stretches from each one on can take, (T + 1,)."""
        return np.append(np.cumsum(self.memory.min(axis=0)[::-1])[::-1], 0.0)

    @cached_property
    def rest(self) -> np.ndarray:
        """The memory that the stretches from each one on take in RW, (T + 1,)."""
        return np.array([self.memory[-1, done:].sum() for done in range(STRETCHES + 1)])

    @cached_property
    def latencies(self) -> np.ndarray:
        """Summed latency of each set of tiers, (8,), in the order of its bits."""
        return np.array([self.latency[[tier for tier in range(3) if used >> tier & 1]].sum() for used in range(8)])

    @cached_property
    def shown(self) -> np.ndarray:
        """Numbers of each stretch in an observation, (T, 7); zeros at the end."""
        rows, lookups, size, looked_up = self.parts
        p = np.divide(looked_up, size, out=np.zeros_like(size), where=size > 0)
        dp, flex, rw = self.memory / self.rw_memory
        dp_ms, flex_ms, rw_ms = self.ms / self.rw_ms
        columns = (np.log10(np.maximum(p, 1e-12)) / 6, lookups / lookups.sum(), rows / rows.sum())
        told = np.stack([*columns, dp - rw, flex - rw, dp_ms - rw_ms, flex_ms - rw_ms], axis=1)
        return np.concatenate([told, np.zeros((1, 7))])

    def _in_tiers(self, what: str) -> np.ndarray:
        _, _, size, looked_up = self.parts
        lines = [getattr(line, what) for line in self.task.lines.values()]
        return np.array([constant * size + slope * looked_up for constant, slope in lines])
