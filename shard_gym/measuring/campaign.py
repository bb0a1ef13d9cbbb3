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
from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, ShardGymError, SimulatorError
from shard_gym.measuring.fbgemm import Bench, Settings, simulator_id
from shard_gym.measuring.host import kind_of, machine, places
from shard_gym.measuring.measurements import UNKNOWN, Measurements, repeat_noise
from shard_gym.measuring.operator import require
from shard_gym.measuring.rows import TIMES, Row, as_measurements, rows_of
from shard_gym.measuring.shards import Shard, Source
from shard_gym.records import ledger
from shard_gym.records.files import json_sha256, read_json, write_whole
from shard_gym.records.locks import held
from shard_gym.records.processes import end_with_parent
from shard_gym.work.parts import WHOLE, Part
from shard_gym.work.pieces import Piece

SCHEMA = "shard-gym/campaign/1"
HEAD, PACKED = "campaign.json", "measurements.npz"
PROGRESS_SECONDS = 5.0
ATTEMPTS = 2  # at a shard that its worker did not outlive
REFUSED, DEVICE_LOST = 1, 3  # exit codes of workers
ENDLESS = 100_000  # shards, where only the budget ends a campaign
DEATHS = 3  # of workers in a row without a measurement between them


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
    part: Part = WHOLE  # of the list
    bench: Callable[[Settings], Any] = Bench  # or what stands in for it

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
            self.begin(machine(self.settings.device))
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
        self.begin({} if (self.folder / HEAD).exists() else machine(self.settings.device))
        rows = self.rows()
        good = {i: row for i, row in rows.items() if "error" not in row}
        first = min((row["at"] for row in good.values()), default=0.0)
        good = {i: row | {"at": row["at"] - first} for i, row in good.items()}
        picked = sorted(self.indices()) if self.source.keeps_all else sorted(good)
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
            for row in rows_of(path):
                if (index := row["index"]) >= len(self.source):
                    raise CorruptFile(f"{path} measures shard {index}, there are {len(self.source)}")
                row["worker"] = int(worker) if worker.isdecimal() else row.get("worker", UNKNOWN["worker"])
                if "begun" in row:
                    begun[index] += 1
                elif index in rows:
                    raise CorruptFile(f"{path} measures shard {index} a second time")
                else:
                    rows[index] = row
        return rows, Counter({i: times for i, times in begun.items() if i not in rows})

    def begin(self, machine: dict[str, Any]) -> None:
        """Begin the folder, or make sure that it belongs to this very campaign, on the kind of hardware told."""
        ours = {**self.described, "part": str(self.part), **machine}
        head = self.folder / HEAD
        if not head.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.part.whole:
                del ours["part"]
            else:
                self.source.leave_in(self.folder)
            write_whole(head, json.dumps(ours | {"begun": time.strftime("%Y-%m-%d")}, indent=1))
            return
        theirs = {"part": str(WHOLE)} | head_of(self.folder)
        if other := [key for key in ours if compared(key, theirs.get(key)) != compared(key, ours[key])]:
            told = "; ".join(f"{key} {theirs.get(key)} there, {ours[key]} here" for key in other)
            raise SimulatorError(f"{self.folder} holds another campaign, give --out another folder: {told}")

    @property
    def described(self) -> dict[str, Any]:
        """Everything that makes two campaigns the same, wherever they are measured."""
        return {
            "schema": SCHEMA,
            "simulator": simulator_id(self.settings),
            "settings": asdict(self.settings),
            "shards": self.source.describe(),
        }

    def indices(self) -> list[int]:
        """Shards of this part, in the order to measure."""
        order = [int(i) for i in self.source.order()]
        if self.part.whole:
            return order
        campaign = json_sha256(self.described)
        return [i for i in order if self.part.takes(_key(campaign, i))]

    def pieces(self, done: Container[int]) -> Iterator[Piece]:
        """Shards of this part that have no answer, as work for others: index and shard."""
        campaign = json_sha256(self.described)
        for index in self.indices():
            if index not in done:
                yield Piece(_key(campaign, index), (index, self.source.shard(index)))

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
        missing = [i for i in self.indices() if i not in rows]
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


def head_of(folder: Path) -> dict[str, Any]:
    """Head of the campaign in a folder."""
    found = read_json(folder / HEAD)
    if not isinstance(found, dict):
        raise CorruptFile(f"{folder / HEAD} is no object")
    return found


def compared(key: str, value: Any) -> Any:
    """The part of an entry that must be the same in the heads of one campaign."""
    told = json.loads(json.dumps(value))
    return kind_of(told) if key == "hardware" and isinstance(told, dict) else told


def _key(campaign: str, index: int) -> str:
    return json_sha256({"campaign": campaign, "index": index})


def _work(campaign: Campaign, number: int, place: tuple[str, int | None], indices: list[int], until: Until) -> None:
    """Measure a share in this process, two lines a shard; stop when out of time or when the parent is gone."""
    device, core = place
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this one
    try:
        with ledger.opened(campaign.folder / f"rows-{number}.jsonl") as rows:
            bench = campaign.bench(replace(campaign.settings, device=device))
            with bench.pinned(core):
                bench.take_memory()
                for done, index in enumerate(indices):
                    if until.over(done):
                        return
                    rows.append({"index": index, "begun": round(time.time(), 1)})
                    answer = answer_of(bench, campaign.source.shard(index), index)
                    rows.append({"index": index, **answer, "at": round(time.time(), 1)})
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"worker {number} on {device}: {error}\n")
        sys.exit(REFUSED)


def answer_of(bench: Bench, shard: Shard, index: int) -> Row:
    """The times of a shard, or why it has none; ends this process if the device is lost."""
    try:
        return asdict(bench.measure(shard.tables, seed=index))
    except SimulatorError as error:
        if not bench.alive():
            sys.stderr.write(f"shard {index}: {error}\n")
            sys.stderr.flush()
            os._exit(DEVICE_LOST)  # only a new process gets the device back
        return {"error": str(error)}
