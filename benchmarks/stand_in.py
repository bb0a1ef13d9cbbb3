"""Work that takes a known time and gives known rows, for tests and pages of the machinery that shares work out."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from shard_gym.measuring.fbgemm import Timing
from shard_gym.tables.pool import TablePool


@dataclass
class Bench:
    """A bench whose times follow from the shard alone; what machine it is on, the node's environment may say."""

    settings: Any
    seconds: float = 0.0  # that a shard takes, asleep: nobody's core is used

    def pinned(self, core: int | None) -> AbstractContextManager[None]:
        """Stay on any core."""
        return nullcontext()

    def take_memory(self) -> None:
        """Take none."""

    def alive(self) -> bool:
        """True: nothing breaks it."""
        return True

    def machine(self) -> dict[str, Any]:
        """The machine that TEST_DEVICE and TEST_TORCH tell."""
        device, torch = os.environ.get("TEST_DEVICE", "a device"), os.environ.get("TEST_TORCH", "1")
        return {"hardware": {"device": device}, "versions": {"torch": torch}}

    def measure(self, tables: TablePool, seed: int = 0) -> Timing:
        """Times of a shard; with TEST_NOISE those of odd seeds are longer by that share."""
        time.sleep(self.seconds)
        ms = float(tables.rows.sum() % 997 + tables.dim.sum())
        ms *= 1 + float(os.environ.get("TEST_NOISE", "0")) * (seed % 2)
        return Timing(ms, 2 * ms, 0.1, 0.1, 0, ((ms, 2 * ms),))


def bench(seconds: float) -> partial[Bench]:
    """Makes benches that take so many seconds a shard."""
    return partial(Bench, seconds=seconds)


@dataclass
class Echo:
    """A worker that has its row at once."""

    slot: Any

    def do(self, payload: int) -> dict[str, Any]:
        """A row about as long as a measurement's."""
        return {"index": payload, "forward_ms": payload / 7, "backward_ms": payload / 3, "runs": [payload / 9] * 10}
