"""Campaigns on a Ray cluster: a bench on each core or GPU, and a campaign of its own for each kind of device.

The nodes measure, this process alone writes: a row is in the campaign's folder once, and what a bench had in hand that
died is measured again. A node is asked to measure a few shards twice before it joins: one that others use is left out.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shard_gym.errors import NodeRefused, SimulatorError
from shard_gym.measuring.campaign import PROGRESS_SECONDS, Campaign, answer_of
from shard_gym.measuring.fbgemm import Bench, Settings
from shard_gym.measuring.host import kind_name
from shard_gym.measuring.measurements import UNKNOWN, repeat_noise
from shard_gym.measuring.noise import limit_of
from shard_gym.measuring.rows import Row, as_measurements
from shard_gym.measuring.shards import SUITE_DIMS, Drawn, Shard, Source
from shard_gym.records import ledger
from shard_gym.records.ledger import Ledger
from shard_gym.records.locks import held
from shard_gym.work.cluster import Cluster, Lane, Slot, Terms
from shard_gym.work.parts import WHOLE, Part
from shard_gym.work.pieces import BLAMES

ROWS = "rows-ray.jsonl"
MODULES = ("torch", "fbgemm_gpu")  # that a node needs
YARDSTICK = Drawn(5, kinds=("random",), seed=20, dims=SUITE_DIMS)  # shards that a node measures twice to join
VISITS = 2


@dataclass(frozen=True)
class MakeBench:
    """Makes what measures on a node; `bench` is another one than FBGEMM's where the machinery is tested."""

    settings: Settings
    bench: Callable[[Settings], Any] = Bench

    def __call__(self, slot: Slot) -> Measuring:
        return Measuring(self.settings, slot, self.bench)


class Measuring:
    """A bench on one core or GPU of a node, in memory taken once."""

    def __init__(self, settings: Settings, slot: Slot, make: Callable[[Settings], Any]) -> None:
        cores = sorted(os.sched_getaffinity(0))
        core, gpu = cores[slot.number % len(cores)], os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.place = f"{slot.host} core {core}" if settings.device == "cpu" else f"{slot.host} GPU {gpu}"
        self.bench, self._pin = make(settings), ExitStack()
        self._pin.enter_context(self.bench.pinned(core))
        self.bench.take_memory()

    def about(self) -> dict[str, Any]:
        """The machine, and how far repeats lie apart here."""
        shards = [YARDSTICK.shard(i) for i in range(len(YARDSTICK))] * VISITS
        rows = [answer_of(self.bench, shard, seed) for seed, shard in enumerate(shards)]
        if failed := [row["error"] for row in rows if "error" in row]:
            raise SimulatorError(f"a shard of the yardstick cannot be measured: {failed[0]}")
        noise = repeat_noise(as_measurements(shards, [row | UNKNOWN for row in rows], {}))
        return self.bench.machine() | {"noise": noise}

    def do(self, payload: tuple[int, Shard]) -> Row:
        """The times of a shard, or why it has none."""
        index, shard = payload
        answer = answer_of(self.bench, shard, index)
        return {"index": index, **answer, "at": round(time.time(), 1), "place": self.place}


class Kind:
    """The campaign of a kind of device, and its file of rows, which this process alone writes to."""

    def __init__(self, campaign: Campaign, machine: dict[str, Any], rows: Ledger, done: dict[int, Row]) -> None:
        self.campaign, self.versions, self.rows = campaign, machine["versions"], rows
        self.lane = Lane.of(campaign.pieces(done), self._keep, self._settle)
        self.workers = {row["place"]: row["worker"] for row in done.values() if "place" in row}
        self.kept, self.forced, self.begun, self.told = 0, 0, time.monotonic(), time.monotonic()

    def _keep(self, key: str, row: Row) -> None:
        place = row.get("place")
        number = -1 if place is None else self.workers.setdefault(place, len(self.workers))
        self.rows.append(row | {"worker": number}, force=False)
        self.kept += 1

    def _settle(self) -> None:
        """Bring to disk what was kept, and tell now and then how far it is."""
        if self.kept > self.forced:
            self.rows.force()
            self.forced = self.kept
        now = time.monotonic()
        if now - self.told >= PROGRESS_SECONDS:
            self.told, rate = now, 60 * self.kept / (now - self.begun)
            sys.stderr.write(f"{self.campaign.folder.name}: {self.kept} shards, {rate:.0f} a minute\n")
            sys.stderr.flush()


@dataclass(frozen=True)
class ClusterCampaign:
    """A list of shards, measured by all devices of a cluster; FOLDER/KIND is the campaign of a kind of device."""

    folder: Path
    source: Source
    settings: Settings
    part: Part = WHOLE
    noise: float | None = None  # largest median difference of repeats; None: the device's
    bench: Callable[[Settings], Any] = Bench
    modules: tuple[str, ...] = MODULES

    def run(self, address: str, workers: int = 0, budget_seconds: float = math.inf) -> list[Campaign]:
        """Measure what is missing on every kind of device, and pack it; a campaign for each kind."""
        if ":" in self.settings.device:
            raise SimulatorError("on a cluster each GPU of a node has a worker: give --device cuda")
        terms = Terms(
            gpus=float(self.settings.device != "cpu"),
            workers=workers,
            stop_at=time.monotonic() + budget_seconds,
            lost=_lost,
        )
        with held(self.folder), Cluster.joined(address, modules=self.modules) as cluster:
            kinds: dict[str, Kind] = {}
            with ExitStack() as files:
                admit = partial(self._admit, kinds, files)
                try:
                    cluster.work_off_by_kind(MakeBench(self.settings, self.bench), replace(terms, admit=admit))
                except KeyboardInterrupt:
                    sys.stderr.write(f"stopped; {self.folder} keeps what was measured, the same command goes on\n")
                    raise
            for kind in kinds.values():
                kind.campaign.pack()
        return [kind.campaign for kind in kinds.values()]

    def _admit(self, kinds: dict[str, Kind], files: ExitStack, slot: Slot, about: dict[str, Any]) -> Lane:
        """The list of the worker's kind, if its times can be trusted."""
        limit = limit_of(self.settings.device) if self.noise is None else self.noise
        if (noise := about["noise"]["median_relative_difference"]) > limit:
            raise NodeRefused(
                f"node {slot.node}: repeats differ by {noise:.1%} in the median, more than {limit:.0%}: something else "
                "uses it, or its clock moves; end that, or give a higher --noise"
            )
        machine = {name: about[name] for name in ("hardware", "versions")}
        name = kind_name(machine["hardware"])
        if name not in kinds:
            kinds[name] = self._begun(name, machine, files)
        if (versions := kinds[name].versions) != machine["versions"]:
            raise NodeRefused(f"node {slot.node} has {machine['versions']}, others of its kind have {versions}")
        return kinds[name].lane

    def _begun(self, name: str, machine: dict[str, Any], files: ExitStack) -> Kind:
        """The campaign of a kind, begun or gone on with."""
        campaign = Campaign(self.folder / name, self.source, self.settings, part=self.part)
        campaign.begin(machine)
        done = campaign.rows()
        return Kind(campaign, machine, files.enter_context(ledger.opened(campaign.folder / ROWS)), done)


def _lost(payload: tuple[int, Shard]) -> Row:
    """The row of a shard that nobody could measure."""
    return {"index": payload[0], "error": f"the process that measured it died, {BLAMES} times"}
