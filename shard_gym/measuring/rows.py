"""Rows of a campaign: what is written down of each shard, read again and packed into columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile
from shard_gym.measuring.measurements import KINDS, WHEN, Measurements
from shard_gym.measuring.shards import Shard
from shard_gym.records import ledger
from shard_gym.records.guard import parsed_json
from shard_gym.records.numbers import whole

TIMES = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
LONGEST_MS = 1e9  # of a run
MOST_WORKERS = 2**15

Row = dict[str, Any]


def as_measurements(shards: list[Shard], times: list[Row], card: dict[str, Any]) -> Measurements:
    """Shards and their times as columns."""
    pools = tuple(dict.fromkeys(s.pool for s in shards))
    columns: dict[str, Any] = {c: np.array([t[c] for t in times]) for c in (*TIMES, *WHEN)}
    columns["run_ms"] = _runs(times)
    return Measurements(
        offsets=np.cumsum([0, *(len(s.table) for s in shards)]),
        pool=np.array([pools.index(s.pool) for s in shards], np.uint8),
        table=np.concatenate([np.zeros(0, np.int32), *(s.table for s in shards)]),
        dim=np.concatenate([np.zeros(0, np.int16), *(s.dim for s in shards)]),
        kind=np.array([KINDS.index(s.kind) for s in shards], np.uint8),
        round=np.array([s.round for s in shards], np.uint8),
        pools=pools,
        card=card,
        **columns,
    )


def _runs(times: list[Row]) -> np.ndarray:
    """Forward and backward of each run, (S, R, 2); no runs where a row that has a time does not tell them."""
    counts = {len(t.get("run_ms", ())) for t in times if math.isfinite(t["forward_ms"])}
    count = counts.pop() if len(counts) == 1 else 0
    unknown = np.full((count, 2), math.nan)
    return np.array([t["run_ms"] if math.isfinite(t["forward_ms"]) and count else unknown for t in times])


def rows_of(path: Path) -> list[Row]:
    """All rows of a file; a last line that was cut off is dropped."""
    try:
        return ledger.read(path, parsed_row, "measurement")
    except CorruptFile as error:
        raise CorruptFile(f"{error}; remove that line to measure again") from error


def parsed_row(line: bytes) -> Row:
    """The content of a line: a shard that was begun, or its times, or why it has none."""
    row = parsed_json(line)
    if whole(row["index"]) < 0:
        raise ValueError("an index is below 0")
    if "begun" not in row and not isinstance(row.get("error", ""), str):
        raise ValueError("an error is text")
    if "begun" not in row and "error" not in row:
        if not all(0 <= row[t] < LONGEST_MS for t in TIMES):
            raise ValueError("a time is negative or no number")
        whole(row.get("repeated", 0))
        if not -1 <= whole(row.get("worker", -1)) < MOST_WORKERS:
            raise ValueError("no worker has that number")
        if not all(0 <= ms < LONGEST_MS for run in row.get("run_ms", ()) for ms in run):
            raise ValueError("a run's time is negative or no number")
    return row
