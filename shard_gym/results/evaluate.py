"""Scores of plans, and runs of solvers on tasks; what a solver claims is never read."""

from __future__ import annotations

import json
import logging
import math
import time
from builtins import map as serial
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InvalidPlan, ShardGymError, SimulatorError, UnknownName
from shard_gym.plan.plan import Plan, check
from shard_gym.plan.shards import expanded
from shard_gym.plan.violations import violations_of
from shard_gym.results import BENCHMARK_VERSION, Result, read_results
from shard_gym.simulators import FastSimulator, Latency, Simulator
from shard_gym.simulators.base import counted, latency_of
from shard_gym.task import suites
from shard_gym.task.task import Task

logger = logging.getLogger(__name__)
TRACKS = ("search", "blind")
Solver = Callable[[Task, Simulator], Plan]


@dataclass(frozen=True)
class Score:
    """The worth of a plan; `violations` say why it cannot be used."""

    makespan: float  # ms
    balance: float  # fastest over slowest device, computation only
    violations: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """True if memory and constraints are kept."""
        return not self.violations


@dataclass(frozen=True)
class Run:
    """One call of a solver: its plan, or its error."""

    plan: Plan | None
    error: str | None
    wall_seconds: float
    simulator_calls: int


class Unseen(FastSimulator):
    """The planner of the blind track: it has a name and answers nothing."""

    calls = 0

    def __init__(self, simulator: Simulator) -> None:
        self.id = simulator.id

    def embed(self, task: Task) -> np.ndarray:
        raise SimulatorError("a solver of track 'blind' asks the planner nothing; set track = 'search'")

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        raise SimulatorError("a solver of track 'blind' asks the planner nothing; set track = 'search'")


def score(task: Task, plan: Plan, judge: Simulator) -> Score:
    """Latency of a complete plan by the judge; what cannot be judged raises InvalidPlan."""
    placed = expanded(task, plan)
    broken = violations_of(task, plan, placed)
    latency = latency_of(judge, task, plan, placed)
    makespan, balance = float(latency.makespan(task.objective)), float(latency.balance)
    if not math.isfinite(makespan):
        raise SimulatorError(f"{judge.id} gives this plan a makespan of {makespan} ms")
    return Score(makespan, balance, tuple(broken))


def run(solver: Solver, planner: Simulator, task: Task) -> Run:
    """Call a solver once: time the call, count its questions, and turn its failure into words."""
    asked = Unseen(planner) if track(solver) == "blind" else counted(planner)
    start = time.perf_counter()
    wall = math.nan
    try:
        plan = solver(task, asked)
        wall = time.perf_counter() - start
        check(task, plan)
        plan = Plan.from_dict(json.loads(json.dumps(Plan.to_dict(plan))))  # a value of ours, whatever it was
    except Exception as error:  # a third party's failure fails its own row only
        spent = time.perf_counter() - start
        if not isinstance(error, ShardGymError):
            logger.warning("%s failed on task %s", type(solver).__name__, task.hash, exc_info=True)
        return Run(None, describe(error), spent if math.isnan(wall) else wall, asked.calls)
    return Run(plan, None, wall, asked.calls)


def evaluate(
    solver: Solver,
    tasks: Iterable[Task],
    planner: Simulator,
    judge: Simulator,
    *,
    map: Callable[..., Iterable[Run]] = serial,
    suite: str = "",
    name: str = "",
) -> list[Result]:
    """One result for each task; `map` runs the calls elsewhere if need be."""
    tasks = list(tasks)
    blank = template(solver, planner.id, judge.id, suite=suite, name=name)
    runs = map(partial(run, solver, planner), tasks)
    return [judged(blank, i, t, r, judge)[0] for i, (t, r) in enumerate(zip(tasks, runs, strict=True))]


def template(solver: Solver, planner: str, judge: str, *, suite: str = "", name: str = "") -> Result:
    """A result that says who solves, before anything is solved."""
    return Result(
        suite=suite,
        agent=name or getattr(solver, "name", None) or type(solver).__name__,
        config=config(solver),
        seed=getattr(solver, "seed", None),
        track=track(solver),
        planner=planner,
        judge=judge,
    )


def judged(blank: Result, index: int, task: Task, run: Run, judge: Simulator) -> tuple[Result, Score | None]:
    """The result of a run, and the score of its plan if there is one."""
    plan, error, found = run.plan, run.error, None
    if plan is not None:
        try:
            found = score(task, plan, judge)
        except InvalidPlan as invalid:
            plan, error = None, describe(invalid)
    result = replace(
        blank,
        index=index,
        task=task.hash,
        plan=plan,
        error=error,
        makespan=None if found is None else found.makespan,
        wall_seconds=run.wall_seconds,
        simulator_calls=run.simulator_calls,
    )
    return result, found


def replay(path: str | Path, tasks: Sequence[Task] = ()) -> list[tuple[Result, Score | None]]:
    """Score stored plans again on their suites' tasks (and `tasks`); refuses what comes out otherwise.

    A run without a plan has no score. A judge that measures differs every time: its numbers are not compared.
    """
    known = {("", task.hash): task for task in tasks}
    judges: dict[str, Simulator] = {}
    rows: list[tuple[Result, Score | None]] = []
    for number, result in enumerate(read_results(path), start=1):
        where = f"{path}, line {number}"
        if result.benchmark_version != BENCHMARK_VERSION:
            raise CorruptFile(f"{where}: of benchmark version {result.benchmark_version}, this is {BENCHMARK_VERSION}")
        task = _task_of(result, known, where)
        if result.judge not in judges:
            judges[result.judge] = simulators.make(result.judge)
        rows.append((result, _rescored(result, task, judges[result.judge], where)))
    return rows


def track(solver: Any) -> str:
    """The track of a solver: its own word, or "search"."""
    told = getattr(solver, "track", TRACKS[0])
    if told not in TRACKS:
        raise UnknownName("track", told, TRACKS)
    return told


def config(solver: Any) -> dict[str, Any]:
    """A dataclass solver's fields, as JSON holds them."""
    if not is_dataclass(solver) or isinstance(solver, type):
        return {}
    given = {f.name: getattr(solver, f.name) for f in fields(solver) if f.init}
    return json.loads(json.dumps(given, default=repr))


def describe(error: BaseException) -> str:
    """An error in one line."""
    first = str(error).strip().splitlines()[:1]
    return ": ".join((type(error).__name__, *first))


def _task_of(result: Result, known: dict[tuple[str, str], Task], where: str) -> Task:
    """The task of that hash; a suite's splits are read one by one, test first."""
    key = (result.suite, result.task)
    splits = iter(suites.SPLITS[::-1] if result.suite else ())
    while key not in known and (split := next(splits, None)):
        known |= {(result.suite, task.hash): task for task in suites.get(result.suite).tasks(split)}
    found = known.get(key) or known.get(("", result.task))
    if found is None:
        suite = f"suite {result.suite!r}" if result.suite else "what was given: pass tasks=[...]"
        raise CorruptFile(f"{where}: no task {result.task} in {suite}")
    return found


def _rescored(result: Result, task: Task, judge: Simulator, where: str) -> Score | None:
    if result.plan is None:
        return None
    try:
        again = score(task, result.plan, judge)
    except InvalidPlan as error:
        raise CorruptFile(f"{where}: {error}") from error
    if isinstance(judge, FastSimulator) and again.makespan != result.makespan:
        raise CorruptFile(f"{where}: says {result.makespan} ms, but its plan takes {again.makespan} ms")
    return again
