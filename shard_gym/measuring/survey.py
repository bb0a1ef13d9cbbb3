"""Survey of one piece of hardware: everything that a planner, a judge and a check of both need, in stages.

Each stage has its share of the time, writes its file and is not done again; a stage that was interrupted goes on where
it was. Costs are of computation alone: links between devices are measured by `shard-gym measure comm`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from shard_gym.errors import SimulatorError
from shard_gym.measuring import chosen, fitting, predictors
from shard_gym.measuring.campaign import ENDLESS, Campaign
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.measurements import Measurements, merged, repeat_noise
from shard_gym.measuring.operator import check_apart
from shard_gym.measuring.shards import ALL_DIMS, WIDE_DIMS, Drawn, Listed, Mixed, Source
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.locks import held
from shard_gym.records.processes import end_with_parent
from shard_gym.simulators.learned import Learned

# Minutes of each stage, of 21; a survey of other length gives each the same share.
MINUTES = {"shakedown": 2.0, "planner": 7.0, "judge": 3.0, "choose": 1.0, "plans": 6.0, "test": 2.0}
# Pools of each role: a fit never sees the tables of another role.
POOLS = {
    "planner": ("metasyn_0_856", "metasyn_1_856"),
    "judge": ("metasyn_2_856", "metasyn_5_1000"),
    "test": (chosen.POOL,),
}
ROLES = ("planner", "judge")  # of fits
LEAST = {"planner": 44, "judge": 44, "test": 12}  # shards, whatever the time: a fit needs so many
MOST_TEST = 400
TASKS, FEWEST_TASKS = 20, 1
PRUDENCE = 0.8  # of the pace seen: what is begun must be measured to the end
SHAKEN, REPEATS = 10, 5  # shards of the shakedown, and how often each is measured
SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "cost-greedy": ("cost-greedy", {}),
    "local-search, 1 s": ("local-search", {"budget": 1.0}),
}


class Stopped(Exception):
    """The time of this call is over; the next call goes on."""


@dataclass(frozen=True)
class Survey:
    """A survey called `name`; its files are FOLDER/NAME-*, its campaigns in FOLDER/work."""

    name: str
    folder: Path
    settings: Settings
    minutes: float = sum(MINUTES.values())
    workers: int = 0
    noise_limit: float = 0.02  # median difference of two measurements of one shard
    stop_at: float = math.inf  # time.monotonic() at which this call ends in good order

    def run(self, tell: Callable[[str], None]) -> None:
        """Do every stage that is not done yet, in order."""
        with held(self.folder):
            self._run(tell)

    def _run(self, tell: Callable[[str], None]) -> None:
        stages = {
            "shakedown": self._shakedown,
            "planner": lambda: self._measure_role("planner"),
            "judge": lambda: self._measure_role("judge"),
            "choose": self._choose,
            "plans": self._measure_plans,
            "test": self._measure_test,
        }
        for number, (stage, work) in enumerate(stages.items(), start=1):
            if self._done(stage).exists():
                continue
            if time.monotonic() >= self.stop_at:
                raise Stopped
            self._fit_beside()
            tell(f"stage {number} of {len(stages)}, {stage}: {self._seconds_left(stage) / 60:.1f} min")
            with self._timed(stage):
                work()
        tell(f"page: {self._write_page()}")

    def file(self, ending: str) -> Path:
        """A result of the survey."""
        return self.folder / f"{self.name}-{ending}"

    # --- stages ---

    def _shakedown(self) -> None:
        """Check the operator against torch, and that repeats agree: nothing is worth measuring before."""
        s = self.settings
        checked = check_apart(s.device, s.optimizer, s.dtype, s.production)
        shards = Drawn(SHAKEN, chosen.POOL, kinds=("random",), dims=self._dims)
        repeated = Listed(self._list("shakedown", [shards.shard(i) for i in range(SHAKEN)]), REPEATS)
        noise = repeat_noise(self._measured("shakedown", repeated, at_least=len(repeated)))
        if not noise["pairs"] or noise["median_relative_difference"] > self.noise_limit:
            self._work("shakedown").rename(self._work(f"shakedown-refused-{time.time():.0f}"))
            told = f"differ by {noise['median_relative_difference']:.1%}" if noise["pairs"] else "are missing"
            raise SimulatorError(
                f"repeats {told} in the median, more than {self.noise_limit:.0%}: something else uses "
                f"{self.settings.device} or its clock moves; end it and run this again, or give a higher --noise"
            )
        write_whole(self._done("shakedown"), json.dumps({"operator": checked, "noise": noise}))

    def _measure_role(self, role: str) -> None:
        """Measure random shards of the role's pools."""
        parts = tuple(Drawn(ENDLESS, pool, dims=self._dims) for pool in POOLS[role])
        found = self._measured(role, Mixed(parts), at_least=LEAST[role])
        replace(found, card=found.card | {"shakedown": read_json(self._done("shakedown"))}).save(self._done(role))

    def _choose(self) -> None:
        """Plans of unseen tables by the new planner, written down before any of them is measured."""
        affordable = self._affordable("plans") // (2 * len(SOLVERS) * 8)  # two passes, eight devices a plan
        make = import_module("shard_gym_agents").make  # the world knows no solver but by name
        solvers = {name: make(solver, **settings) for name, (solver, settings) in SOLVERS.items()}
        planner, count = self._fitted("planner"), min(max(affordable, FEWEST_TASKS), TASKS)
        plans, shards = chosen.choose(planner, solvers, [chosen.Pick(chosen.SUITE, 0, count)])
        shards.save(self._work("plans.npz"))
        chosen.save(self._done("choose"), plans)

    def _measure_plans(self) -> None:
        """Measure, in two passes, the shards of the chosen plans, each in an order of its own."""
        listed = Listed(self._work("plans.npz"), 2)
        self._measured("plans", listed, at_least=len(listed)).save(self._done("plans"))

    def _measure_test(self) -> None:
        """Measure, in two passes, random shards of unseen tables, as many as the time allows."""
        count = min(max(self._affordable("test") // 2, LEAST["test"]), MOST_TEST)
        drawn = Drawn(count, chosen.POOL, dims=self._dims, kinds=("single", "random", "light", "heavy"))
        if not (path := self._work("test.npz")).exists():
            self._list("test", [drawn.shard(i) for i in range(count)])
        listed = Listed(path, 2)
        self._measured("test", listed, at_least=len(listed)).save(self._done("test"))

    def _write_page(self) -> Path:
        """The fidelity page of what was measured."""
        fits = {f"our network, {role}": self._fitted(role) for role in ROLES}
        planner, judge = fits.values()
        runs = chosen.passes(Measurements.load(self._done("plans")))
        told = chosen.figures(chosen.outcome(chosen.load(self._done("choose")), runs, planner, judge))
        train, unseen = (Measurements.load(self._done(role)) for role in ("planner", "test"))
        path = self.file("fidelity.md")
        write_whole(path, page(self.name, train, unseen, fits, told))
        return path

    # --- campaigns ---

    @property
    def _dims(self) -> tuple[int, ...]:
        """Columns to draw from; a CPU needs seconds for a run of the wide ones."""
        return ALL_DIMS if self.settings.device == "cpu" else WIDE_DIMS

    def _measured(self, stage: str, source: Source, at_least: int) -> Measurements:
        """Measurements of the stage's campaign, as many as its time allows, and at least so many shards."""
        campaign = Campaign(self._work(stage), source, self.settings)
        found = campaign.run(self.workers, self._seconds_left(stage), at_least, self.stop_at)
        answered = found.card["measured"] + len(found.card["failed"])
        if time.monotonic() >= self.stop_at and answered < (len(source) if self._seconds_left(stage) else at_least):
            raise Stopped
        return found

    def _affordable(self, stage: str) -> int:
        """Measurements that the stage has time for, at the pace of the planner's stage."""
        pace = len(Measurements.load(self._done("planner"))) / max(self._spent("planner"), 1.0)  # over all calls
        return int(PRUDENCE * pace * 60 * self._share(stage))

    def _list(self, stage: str, shards: list[Any]) -> Path:
        """File of shards to be measured."""
        path = self._work(f"{stage}.npz")
        pool = shards[0].pool
        Measurements.unmeasured(pool, [(s.table, s.dim) for s in shards], kind="random").save(path)
        return path

    # --- fits ---

    @cached_property
    def _fits(self) -> dict[str, SpawnProcess]:
        """Fits that run beside the next stages."""
        return {}

    def _fit_beside(self) -> None:
        """Begin the fits that have their data: a GPU's host is idle meanwhile, a CPU would be disturbed."""
        for role in ROLES:
            if self.settings.device != "cpu" and self._done(role).exists() and not self._weights(role).exists():
                self._fits[role] = self._fits.get(role) or self._fit(role)

    def _fit(self, role: str) -> SpawnProcess:
        """Begin to fit in a process of its own; what it says goes to a log."""
        architecture = "ours-wide" if role == "judge" else "ours"
        told = ["--data", str(self._done(role)), "--role", role, "--architecture", architecture]
        told += ["--seed", str(int(role == "judge")), "--out", str(self._weights(role))]
        process = get_context("spawn").Process(target=_fit, args=(told, self._work(f"fit-{role}.log")), daemon=True)
        process.start()
        return process

    def _fitted(self, role: str) -> Learned:
        """The fitted simulator; a fit that an earlier stage began is waited for, else it is done now."""
        weights = self._weights(role)
        if not weights.exists():
            process = self._fits.get(role) or self._fit(role)
            process.join()
        if not weights.exists():
            raise SimulatorError(f"the fit of the {role} failed: {self._work(f'fit-{role}.log')} says why")
        return Learned(weights)

    def _weights(self, role: str) -> Path:
        return self.file(f"{role}.safetensors")

    # --- files and time ---

    def _done(self, stage: str) -> Path:
        """The file that ends a stage."""
        if stage == "shakedown":
            return self._work("shakedown.json")
        return self.file("plans.json" if stage == "choose" else f"{stage}.npz")

    def _work(self, name: str) -> Path:
        return self.folder / "work" / name

    def _share(self, stage: str) -> float:
        """Minutes of a stage."""
        return self.minutes * MINUTES[stage] / sum(MINUTES.values())

    def _seconds_left(self, stage: str) -> float:
        return max(60 * self._share(stage) - self._spent(stage), 0.0)

    def _spent(self, stage: str) -> float:
        """Seconds that all calls have given to a stage."""
        noted = self._work(f"{stage}.seconds")
        return float(noted.read_text()) if noted.exists() else 0.0

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Write down every second how long the stage took, so that a killed call counts too."""
        path, ended = self._work(f"{stage}.seconds"), threading.Event()
        before, begun = self._spent(stage), time.monotonic()

        def note() -> None:
            while not ended.wait(1.0):
                write_whole(path, f"{before + time.monotonic() - begun:.1f}")

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            write_whole(path, f"{before + time.monotonic() - begun:.1f}")


def _fit(arguments: list[str], log: Path) -> None:
    """Fit in this process, which ends with the survey's; what it says goes to the log."""
    end_with_parent()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(fitting.main(arguments))


def page(
    name: str, train: Measurements, unseen: Measurements, fits: Mapping[str, Learned], plans: dict[str, Any]
) -> str:
    """The page of one piece of hardware: fits by name, the planner first, and what `chosen.figures` says of plans."""
    learn, shards, noise = predictors.shards_of(train), predictors.shards_of(merged(unseen)), repeat_noise(unseen)
    shown = predictors.baselines(learn, shards)
    shown["sum of single-table costs"] = predictors.by_single_tables(next(iter(fits.values())))(shards)
    shown |= {label: predictors.by_simulator(fit)(shards) for label, fit in fits.items()}
    repeats = f"{noise['median_relative_difference']:.1%} in the median" if noise["pairs"] else "unknown"
    card = train.card.get("parts", [train.card])[0]
    lines = [
        f"# How true predicted costs are: {name}",
        "",
        f"{card['hardware']['device']}, {card['simulator']}, batch {learn.batch:,}. Fitted to {len(learn):,} shards of "
        f"{', '.join(train.pools)}; errors on {len(shards):,} shards of {', '.join(unseen.pools)}, tables that no fit "
        f"has seen. Two measurements of one shard differ by {repeats} ({noise['pairs']} pairs).",
        "",
        *predictors.table([predictors.row(label, [predicted], shards) for label, predicted in shown.items()]),
        "",
        "## Error against the number of tables (MAPE, bias)",
        "",
        *predictors.size_table(predictors.by_size(shown, shards)),
        "",
        *chosen.section(plans),
    ]
    return "\n".join(lines)
