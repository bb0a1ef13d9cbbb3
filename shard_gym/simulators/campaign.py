"""Many shards measured by several processes, in a folder that survives being killed.

Each worker appends one JSON line a shard to a file of its own and forces it to disk. Starting again in the same
folder measures what is missing; a last line that was cut off counts as missing.
"""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from shard_gym.errors import CorruptFile, ShardGymError, SimulatorError
from shard_gym.files import read_json, write_whole
from shard_gym.measurements import KINDS, Measurements
from shard_gym.repeats import repeat_noise
from shard_gym.simulators.fbgemm import Bench, Settings, simulator_id
from shard_gym.simulators.host import hardware, pinned, versions
from shard_gym.simulators.operator import require
from shard_gym.simulators.shards import Drawn, Listed, Shard

SCHEMA = "shard-gym/campaign/1"
HEAD, LOCK, PACKED = "campaign.json", "lock", "measurements.npz"
TIMES = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Campaign:
    """A list of shards, how to measure them, and the folder where the answers go."""

    folder: Path
    source: Drawn | Listed
    settings: Settings

    def run(self, workers: int = 0, budget_seconds: float = math.inf) -> Measurements:
        """Measure what is missing until done or out of budget, then pack; `workers` 0 is one a core or GPU."""
        deadline = time.time() + budget_seconds
        require(self.settings.device)
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / LOCK, wait=False):
            self._open()
            done = self.rows()
            missing = [int(i) for i in self.source.order() if i not in done]
            self._measure(missing, places(self.settings.device, workers), deadline, len(done))
            return self.pack()

    def rows(self) -> dict[int, dict[str, Any]]:
        """What is on disk, by index of the shard. Waits for workers of a killed run to let go of their files."""
        rows: dict[int, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("rows-*.jsonl")):
            for row in _read_rows(path):
                if row["index"] in rows:
                    raise CorruptFile(f"{path} measures shard {row['index']} a second time")
                rows[row["index"]] = row
        return rows

    def pack(self) -> Measurements:
        """Write measurements.npz with its card. Of a list every row is kept, NaN where nothing was measured."""
        self._open()
        rows = self.rows()
        good = {i: row for i, row in rows.items() if "error" not in row}
        picked = range(len(self.source)) if isinstance(self.source, Listed) else sorted(good)
        unknown = dict.fromkeys(TIMES, math.nan)
        times = [good.get(i, unknown) for i in picked]
        packed = as_measurements([self.source.shard(i) for i in picked], times, {})
        failed = {str(i): row["error"] for i, row in sorted(rows.items()) if "error" in row}
        outcome = {"measured": len(good), "failed": failed, "noise": repeat_noise(packed)}
        packed = replace(packed, card=read_json(self.folder / HEAD) | outcome)
        packed.save(self.folder / PACKED)
        return packed

    def _open(self) -> None:
        """Begin the folder, or make sure that it belongs to this very campaign."""
        ours = {
            "schema": SCHEMA,
            "simulator": simulator_id(self.settings),
            "settings": asdict(self.settings),
            "shards": self.source.describe(),
            "hardware": hardware(self.settings.device),
            "versions": versions(),
        }
        head = self.folder / HEAD
        if not head.exists():
            write_whole(head, json.dumps(ours | {"begun": time.strftime("%Y-%m-%d")}, indent=1))
            return
        theirs = read_json(head)
        if other := [key for key in ours if theirs.get(key) != json.loads(json.dumps(ours[key]))]:
            told = "; ".join(f"{key} {theirs.get(key)} there, {ours[key]} here" for key in other)
            raise SimulatorError(f"{self.folder} holds another campaign, give --out another folder: {told}")

    def _measure(self, missing: list[int], where: list[tuple[str, int | None]], deadline: float, before: int) -> None:
        where = where[: len(missing)]
        context = multiprocessing.get_context("spawn")
        jobs = [
            context.Process(target=_work, args=(self, n, place, missing[n :: len(where)], deadline), daemon=True)
            for n, place in enumerate(where)
        ]
        try:
            for job in jobs:
                job.start()
            self._watch(jobs, before, before + len(missing))
        finally:
            for job in jobs:
                job.terminate()
                job.join()
        if failed := [job.exitcode for job in jobs if job.exitcode]:
            raise SimulatorError(
                f"{len(failed)} of {len(jobs)} workers ended with {failed[0]}; what they measured is kept in "
                f"{self.folder}: start again to go on"
            )

    def _watch(self, jobs: list[Any], before: int, total: int) -> None:
        first, seen = 0.0, 0  # the clock starts with the first row: getting ready takes seconds
        while alive := [job for job in jobs if job.is_alive()]:
            alive[0].join(PROGRESS_SECONDS)
            done = sum(path.read_bytes().count(b"\n") for path in self.folder.glob("rows-*.jsonl"))
            if not first and done > before:
                first, seen = time.time(), done
            minutes = (time.time() - first) / 60
            rate = (done - seen) / minutes if first and minutes else 0.0
            left = f"{rate:.0f} a minute, {(total - done) / rate:.1f} min left" if rate else "starting"
            sys.stderr.write(f"{done}/{total} shards, {left}\n")
            sys.stderr.flush()


def places(device: str, workers: int) -> list[tuple[str, int | None]]:
    """(device, core) of each worker: every GPU, or every core, unless fewer are asked for."""
    if workers < 0:
        raise SimulatorError(f"workers must be 0 (one a core or GPU) or more, got {workers}")
    found: list[tuple[str, int | None]]
    if device == "cpu":
        found = [("cpu", core) for core in sorted(os.sched_getaffinity(0))]
    elif device == "cuda":
        import torch

        found = [(f"cuda:{i}", None) for i in range(torch.cuda.device_count())]
    else:
        found = [(device, None)]
    if workers > len(found):
        raise SimulatorError(f"{workers} workers need as many cores or GPUs of their own, there are {len(found)}")
    return found[: workers or len(found)]


def as_measurements(shards: list[Shard], times: list[dict[str, float]], card: dict[str, Any]) -> Measurements:
    """Shards and their times as columns."""
    pools = tuple(dict.fromkeys(s.pool for s in shards))
    columns: dict[str, Any] = {c: np.array([t[c] for t in times], np.float32) for c in TIMES}
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


def _work(campaign: Campaign, number: int, place: tuple[str, int | None], indices: list[int], deadline: float) -> None:
    """One process: measure its share, one line a shard; stop when out of time or when the parent is gone."""
    device, core = place
    parent = os.getppid()
    try:
        with (
            _locked(campaign.folder / f"rows-{number}.jsonl", wait=True) as file,
            pinned("cpu" if device == "cpu" else device, core),
        ):
            bench = Bench(replace(campaign.settings, device=device))
            for index in indices:
                if time.time() >= deadline or os.getppid() != parent:
                    return
                row = {
                    "index": index,
                    **_answer(bench, campaign.source.shard(index), index),
                    "at": round(time.time(), 1),
                }
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
    except ShardGymError as error:
        sys.exit(f"worker {number} on {device}: {error}")


def _answer(bench: Bench, shard: Shard, index: int) -> dict[str, Any]:
    try:
        return asdict(bench.measure(shard.tables, seed=index))
    except SimulatorError as error:
        return {"error": str(error)}


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with _locked(path, wait=True) as file:
        lines = file.read().split("\n")
        if lines[-1]:  # cut off while it was written
            file.seek(0)
            file.truncate(len("\n".join(lines[:-1])) + (len(lines) > 1))
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
            if not isinstance(row["index"], int) or not ("error" in row or all(row[t] >= 0 for t in TIMES)):
                raise ValueError("a time is negative or no number")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(
                f"{path}, line {number} is no measurement: {error}; remove it to measure again"
            ) from error
        yield row


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[IO[str]]:
    """The file, ours alone until the process lets go or dies."""
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise SimulatorError(f"another campaign is measuring in {path.parent}; wait for it or end it") from None
        file.seek(0)
        yield file
