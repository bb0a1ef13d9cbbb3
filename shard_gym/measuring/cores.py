"""Cores for processes that measure side by side: each takes one that no other has."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

from shard_gym.records.locks import locked

_taken: list[IO[bytes]] = []  # locked until this process ends, however it ends


def take(folder: Path | None = None) -> int:
    """Keep this thread, and those that it starts, on a core that no other process has taken; all taken: on any."""
    if not hasattr(os, "sched_setaffinity"):  # not Linux
        return 0
    folder = folder or Path(tempfile.gettempdir()) / f"shard-gym-cores-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    for core in cores:
        file = (folder / str(core)).open("wb")
        if locked(file, wait=False):
            _taken.append(file)
            os.sched_setaffinity(0, {core})
            return core
        file.close()
    return cores[0]
