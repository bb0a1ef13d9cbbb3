"""Many shards measured by several processes, in a folder that survives being killed.

Each worker writes down which shard it begins and what came out, one JSON line each, forced to disk. Starting again in
the same folder measures what is missing; a last line that was cut off counts as missing. A shard whose worker died is
tried once more, after all others.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, ShardGymError, SimulatorError
from shard_gym.measuring.fbgemm import Bench, Settings, simulator_id
from shard_gym.measuring.host import hardware, pinned, versions
from shard_gym.measuring.measurements import KINDS, UNKNOWN, WHEN, Measurements, repeat_noise
from shard_gym.measuring.operator import require
from shard_gym.measuring.shards import Shard, Source
from shard_gym.records import ledger
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import parsed_json
from shard_gym.records.locks import held
from shard_gym.records.numbers import whole
from shard_gym.records.processes import end_with_parent

SCHEMA = "shard-gym/campaign/1"
HEAD, PACKED = "campaign.json", "measurements.npz"
TIMES = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
LONGEST_MS = 1e9  # of a run
PROGRESS_SECONDS = 5.0
ATTEMPTS = 2  # at a shard that its worker did not outlive
REFUSED, DEVICE_LOST = 1, 3  # exit codes of workers
ENDLESS = 100_000  # shards, where only the budget ends a campaign
DEATHS = 3  # of workers in a row without a measurement between them

Row = dict[str, Any]


@dataclass(frozen=True)
class Until:
    """End of a run: at the deadline, but not before so many shards are measured; at `stop_at` in any case."""

    deadline: float  # time.monotonic(), which all processes of a host share and nobody sets
    at_least: int
    stop_at: float

    def over(self, measured: int) -> bool:
        """True if it is time to stop."""
        now = time.monotonic()
        return now >= self.stop_at or (now >= self.deadline and measured >= self.at_least)


@dataclass(frozen=True)
class Campaign:
    """A list of shards, how to measure them, and the folder where the answers go."""

    folder: Path
    source: Source
    settings: Settings
    notes: dict[str, Any] = field(default_factory=dict)  # more for the card

    def run(
        self, workers: int = 0, budget_seconds: float = math.inf, at_least: int = 0, stop_at: float = math.inf
    ) -> Measurements:
        """Measure what is missing until done or out of budget, then pack; `workers` 0 is one a core or GPU.

        However small the budget, `at_least` so many shards are measured, unless `stop_at` comes first, which is of
        time.monotonic().
        """
        until = Until(time.monotonic() + budget_seconds, at_least, stop_at)
        require(self.settings.device)
        self.folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder):
            self._open()
            try:
                self._measure(workers, until)
            except KeyboardInterrupt:
                sys.stderr.write(f"stopped; {self.folder} keeps what was measured, the same command goes on\n")
                raise
            return self.pack()

    def rows(self) -> dict[int, Row]:
        """Answers on disk, by index of the shard. Waits for workers of a killed run to let go of their files."""
        return self._read()[0]

    def pack(self) -> Measurements:
        """Write measurements.npz with its card. Of a source with `keeps_all` every row is kept, NaN if not measured."""
        self._open()
        rows = self.rows()
        good = {i: row for i, row in rows.items() if "error" not in row}
        first = min((row["at"] for row in good.values()), default=0.0)
        good = {i: row | {"at": row["at"] - first} for i, row in good.items()}
        picked = range(len(self.source)) if self.source.keeps_all else sorted(good)
        unknown = dict.fromkeys(TIMES, math.nan) | UNKNOWN
        packed = as_measurements([self.source.shard(i) for i in picked], [good.get(i, unknown) for i in picked], {})
        outcome = {
            "measured": len(good),
            "failed": {str(i): row["error"] for i, row in sorted(rows.items()) if "error" in row},
            "repeated_runs": sum(row.get("repeated", 0) for row in good.values()),
            "noise": repeat_noise(packed),
        }
        packed = replace(packed, card=read_json(self.folder / HEAD) | self.notes | outcome)
        packed.save(self.folder / PACKED)
        return packed

    def _read(self) -> tuple[dict[int, Row], Counter[int]]:
        """Answers on disk, by index of the shard, and how often shards without an answer were begun."""
        rows: dict[int, Row] = {}
        begun: Counter[int] = Counter()
        for path in sorted(self.folder.glob("rows-*.jsonl")):
            worker = path.stem.removeprefix("rows-")
            for row in _rows_of(path):
                if (index := row["index"]) >= len(self.source):
                    raise CorruptFile(f"{path} measures shard {index}, there are {len(self.source)}")
                row["worker"] = int(worker) if worker.isdecimal() else UNKNOWN["worker"]
                if "begun" in row:
                    begun[index] += 1
                elif index in rows:
                    raise CorruptFile(f"{path} measures shard {index} a second time")
                else:
                    rows[index] = row
        return rows, Counter({i: times for i, times in begun.items() if i not in rows})

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
        if not isinstance(theirs, dict):
            raise CorruptFile(f"{head} is no object")
        if other := [key for key in ours if theirs.get(key) != json.loads(json.dumps(ours[key]))]:
            told = "; ".join(f"{key} {theirs.get(key)} there, {ours[key]} here" for key in other)
            raise SimulatorError(f"{self.folder} holds another campaign, give --out another folder: {told}")

    def _measure(self, workers: int, until: Until) -> None:
        """Let workers measure; where some died, others go on with what is left."""
        where, deaths = places(self.settings.device, workers), 0
        rows, begun = self._read()
        while missing := self._missing(rows, begun):
            before = len(rows)
            if until.over(before):
                return
            codes = self._work_off(missing, where[: len(missing)], replace(until, at_least=until.at_least - before))
            rows, begun = self._read()
            died = [code for code in codes if code]
            deaths = deaths + 1 if died and len(rows) == before else 0
            if REFUSED in died or deaths == DEATHS:
                raise SimulatorError(
                    f"{len(died)} of {len(codes)} workers ended with {died[0]}; what they measured is kept in "
                    f"{self.folder}: start again to go on"
                )
            if not died:
                return

    def _missing(self, rows: dict[int, Row], begun: Counter[int]) -> list[int]:
        """Shards without an answer, those that a worker died of last; the hopeless are written down as failed."""
        missing = [int(i) for i in self.source.order() if i not in rows]
        for index in [i for i in missing if begun[i] >= ATTEMPTS]:
            rows[index] = {"index": index, "error": f"the process that measured it died, {begun[index]} times"}
            ledger.append(self.folder / "rows-died.jsonl", rows[index])
        return sorted((i for i in missing if i not in rows), key=lambda i: begun[i])

    def _work_off(self, missing: list[int], where: list[tuple[str, int | None]], until: Until) -> list[int]:
        """Share the shards out to a worker a place and wait; the workers' exit codes."""
        context = multiprocessing.get_context("spawn")
        each = replace(until, at_least=-(-until.at_least // len(where)))
        jobs = [
            context.Process(target=_work, args=(self, n, place, missing[n :: len(where)], each), daemon=True)
            for n, place in enumerate(where)
        ]
        try:
            for job in jobs:
                job.start()
            self._watch(jobs, len(missing), min(until.deadline, until.stop_at))
        finally:
            for job in jobs:
                job.terminate()
                job.join()
        return [job.exitcode or 0 for job in jobs]

    def _watch(self, jobs: list[Any], missing: int, deadline: float) -> None:
        """Tell how far the workers are, every few seconds."""
        before = self._answers()
        first, seen = 0.0, 0  # the clock starts with the first row: getting ready takes seconds
        while alive := [job for job in jobs if job.is_alive()]:
            alive[0].join(PROGRESS_SECONDS)
            done = self._answers() - before
            if not first and done:
                first, seen = time.monotonic(), done
            minutes = (time.monotonic() - first) / 60
            rate = (done - seen) / minutes if first and minutes else 0.0
            left = min((missing - done) / rate if rate else math.inf, max(deadline - time.monotonic(), 0) / 60)
            told = f"{rate:.0f} a minute, {left:.1f} min left" if rate else "starting"
            total = f"/{missing}" if missing < ENDLESS else ""
            sys.stderr.write(f"{done}{total} shards, {told}\n")
            sys.stderr.flush()

    def _answers(self) -> int:
        """Lines that hold a measurement, or say why there is none."""
        files = self.folder.glob("rows-*.jsonl")
        return sum(b'"begun"' not in line for path in files for line in path.read_bytes().splitlines())


def places(device: str, workers: int) -> list[tuple[str, int | None]]:
    """Device and core of each worker: every GPU, or every core, unless fewer are asked for."""
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


def _work(campaign: Campaign, number: int, place: tuple[str, int | None], indices: list[int], until: Until) -> None:
    """Measure a share in this process, two lines a shard; stop when out of time or when the parent is gone."""
    device, core = place
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this one
    try:
        with (
            ledger.opened(campaign.folder / f"rows-{number}.jsonl") as rows,
            pinned(device, core),
        ):
            bench = Bench(replace(campaign.settings, device=device))
            bench.take_memory()
            for done, index in enumerate(indices):
                if until.over(done):
                    return
                rows.append({"index": index, "begun": round(time.time(), 1)})
                answer = _answer(bench, campaign.source.shard(index), index)
                rows.append({"index": index, **answer, "at": round(time.time(), 1)})
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"worker {number} on {device}: {error}\n")
        sys.exit(REFUSED)


def _answer(bench: Bench, shard: Shard, index: int) -> Row:
    try:
        return asdict(bench.measure(shard.tables, seed=index))
    except SimulatorError as error:
        if not bench.alive():
            sys.stderr.write(f"shard {index}: {error}\n")
            sys.exit(DEVICE_LOST)  # only a new process gets the device back
        return {"error": str(error)}


def _rows_of(path: Path) -> list[Row]:
    try:
        return ledger.read(path, _row, "measurement")
    except CorruptFile as error:
        raise CorruptFile(f"{error}; remove that line to measure again") from error


def _row(line: bytes) -> Row:
    row = parsed_json(line)
    if whole(row["index"]) < 0:
        raise ValueError("an index is below 0")
    if "begun" not in row and not isinstance(row.get("error", ""), str):
        raise ValueError("an error is text")
    if "begun" not in row and "error" not in row:
        if not all(0 <= row[t] < LONGEST_MS for t in TIMES):
            raise ValueError("a time is negative or no number")
        whole(row.get("repeated", 0))
        if not all(0 <= ms < LONGEST_MS for run in row.get("run_ms", ()) for ms in run):
            raise ValueError("a run's time is negative or no number")
    return row
