"""Random plans, and the best of many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import device_bytes, device_sums
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import TRIES, random_placements
from shard_gym.plan.rules import Rules
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.base import along_devices, plan_latency
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds import random_options, random_plan
from shard_gym_agents.solvers.solver import Progress, require_fast, require_number, task_rng

Drawn: TypeAlias = tuple[Callable[[int], Plan], np.ndarray]  # plans by number, and what each is worth
CACHED_SHARDS = 2**11  # decoded in one call
WORTH_DRAWING = 0.25  # share of uniform placements that fit, below which placing table by table is faster


@dataclass(frozen=True)
class Random:
    """A uniform placement; drawn again while a device overflows, up to 1,000 times, then first-fit-decreasing.

    Under constraints tables go one by one, each to a random device where it may go: see `random_placements`. Of tasks
    of more kinds of sharding, so do random options of tables.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = False
    seed: int = 0

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        rng = task_rng(self.seed, task)
        if beyond_columns(task):
            return random_plan(task, rng)
        if Rules.of(task).binding:
            return Plan(tuple(random_placements(task, 1, rng)[0].tolist()))
        drawn, size = 0, 1
        while drawn < TRIES:
            size = min(size, TRIES - drawn)
            placements = rng.integers(task.num_devices, size=(size, task.num_tables))
            fits = np.flatnonzero((device_bytes(task, placements) <= task.capacity).all(axis=1))
            if len(fits):
                return Plan(tuple(placements[fits[0]].tolist()))
            drawn, size = drawn + size, 10 * size
        return Plan(tuple(first_fit_decreasing(task).tolist()))


@dataclass(frozen=True)
class RandomSearch:
    """The best of many random feasible plans, by predicted makespan; `progress` and Ctrl-C as in local search.

    Of tasks of more kinds of sharding, plans of random options of tables.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    samples: int = 1_000  # AutoShard's Figure 9; what the planner is asked
    budget: float = 0.0  # seconds; 0: `samples` plans, otherwise as many as fit
    progress: Progress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.samples < 1 or not self.budget >= 0:
            raise InvalidTask(f"random search needs samples >= 1 and budget >= 0, got {self.samples}, {self.budget}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        best, least, begun = None, np.inf, time.perf_counter()
        drawn = self._of_kinds if beyond_columns(task) else self._of_devices
        try:
            for plan, makespans in drawn(task, planner, begun):
                require_number(makespans.min(), planner)
                if best is not None and makespans.min() >= least:
                    continue
                best, least = plan(int(makespans.argmin())), float(makespans.min())
                if self.progress is not None and self.progress(least, time.perf_counter() - begun):
                    break
        except KeyboardInterrupt:
            if self.progress is None or best is None:
                raise
        assert best is not None
        return best

    def _of_devices(self, task: Task, planner: Simulator, begun: float) -> Iterator[Drawn]:
        """Placements of whole tables in parts."""
        rng, makespans_of, left = task_rng(self.seed, task), _makespans(task, planner), self.samples
        chunk = max(1, min(self.samples, 2_000_000 // (task.num_tables * 8)))
        while left == self.samples or self._goes_on(left, begun):
            placements = random_placements(task, chunk if self.budget else min(chunk, left), rng, WORTH_DRAWING)
            left -= len(placements)
            yield partial(_plan, placements), makespans_of(placements)

    def _of_kinds(self, task: Task, planner: Simulator, begun: float) -> Iterator[Drawn]:
        """Plans of random options one by one; where few have room, a sample is one that was tried."""
        fast, rng, left = require_fast(planner), task_rng(self.seed, task), self.samples - 1
        first = random_plan(task, rng)
        yield lambda _: first, plan_latency(fast, task, first).makespan(task.objective)[None]
        choices = Choices(task, lambda shards: fast.embed_shards(task, shards))
        while self._goes_on(left, begun):
            left -= 1
            if chosen := random_options(choices, rng):
                cost = fast.cost(task, choices.sums(chosen))
                yield partial(_chosen, choices, chosen), cost.max()[None]

    def _goes_on(self, left: int, begun: float) -> bool:
        """True until the samples or the time are used up."""
        return time.perf_counter() < begun + self.budget if self.budget else left > 0


def _plan(placements: np.ndarray, index: int) -> Plan:
    return Plan(tuple(placements[index].tolist()))


def _chosen(choices: Choices, chosen: dict[int, Option], index: int) -> Plan:
    return choices.plan(chosen)


def _makespans(task: Task, planner: Simulator) -> Callable[[np.ndarray], np.ndarray]:
    """Makespans of placements (P, N), (P,): tables are embedded once, and what is decoded stays in the cache."""
    if not isinstance(planner, FastSimulator):
        return lambda placements: planner.latency(task, placements).makespan(task.objective)
    tables = planner.embed(task)
    at_once = max(1, CACHED_SHARDS // task.num_devices)

    def makespans(placements: np.ndarray) -> np.ndarray:
        parts = [placements[start : start + at_once] for start in range(0, len(placements), at_once)]
        costs = (planner.cost(task, device_sums(tables, part, task.num_devices)) for part in parts)
        return np.concatenate([along_devices(np.maximum, cost)[:, 0] for cost in costs])

    return makespans
