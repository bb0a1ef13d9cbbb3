"""Other work of the machine while agents are timed, by /proc; nothing is known where there is none."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from shard_gym_agents.leaderboard.arena.processes import TICKS, process

BUSY = 0.2  # cores that other work may keep busy before times are too long to be told without a word
SHORTEST = 2.0  # seconds of a run whose load can be told; the kernel counts in hundredths
IDLE = (3, 4)  # places of the times in /proc/stat in which a core does nothing
GUESTS = 8  # the first place of times that are counted twice there


class Load:
    """CPU seconds that processes other than this one and its `nursery` take, from when it is made."""

    def __init__(self, nursery: int) -> None:
        self.nursery = nursery
        self.start, self.others = time.monotonic(), self._others()

    def cores(self) -> float:
        """Cores that others kept busy, on average; 0 where it cannot be told."""
        seconds = time.monotonic() - self.start
        return max(self._others() - self.others, 0.0) / seconds if seconds >= SHORTEST else 0.0

    def words(self) -> str:
        """A sentence where the machine was busy, else ""."""
        if (cores := self.cores()) <= BUSY:
            return ""
        told = f"The machine was busy: other work took {cores:.1f} of {os.cpu_count()} cores meanwhile"
        return f"{told}, so plan times are too long, and searches found less in theirs."

    def _others(self) -> float:
        found = process(self.nursery)
        ours = time.process_time() + (found.cpu_seconds + found.waited_seconds if found else 0.0)
        return busy_seconds() - ours


def busy_seconds() -> float:
    """CPU seconds that all cores have worked since the machine began."""
    with suppress(OSError, ValueError):
        told = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
        return sum(int(ticks) for place, ticks in enumerate(told[:GUESTS]) if place not in IDLE) / TICKS
    return 0.0
