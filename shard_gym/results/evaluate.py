"""Scores of plans, and runs of solvers on tasks. A score never uses what a solver claims."""

from __future__ import annotations

import json
import logging
import math
import time
from builtins import map as serial
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPlan, InvalidResult, InvalidTask, ShardGymError, SimulatorError, UnknownName
from shard_gym.plan.plan import Plan, check
from shard_gym.plan.shards import expanded
from shard_gym.plan.violations import violations_of
from shard_gym.records.guard import expect, guarded, parsed_json
from shard_gym.records.numbers import whole
from shard_gym.results import TRACKS, Result
from shard_gym.simulators import FastSimulator, Latency, Simulator
from shard_gym.simulators.base import counted, latency_of
from shard_gym.task.task import Task

logger = logging.getLogger(__name__)
LONGEST = 2_000  # characters of an error
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
    cpu_seconds: float | None = None
    alone: bool = False  # nothing else was timed or run beside it


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
    """Judge a complete plan; a plan that cannot be judged raises InvalidPlan."""
    _expect(task, judge)
    expect(plan, Plan, InvalidPlan)
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
    start = _clocks()
    spent: tuple[float, float] | None = None
    try:
        plan = solver(task, asked)
        spent = _since(start)
        check(task, plan)
        plan = Plan.from_dict(json.loads(json.dumps(Plan.to_dict(plan))))  # a value of ours, whatever it was
    except Exception as error:  # a third party's failure fails its own row only
        wall, cpu = spent or _since(start)
        if not isinstance(error, ShardGymError):
            logger.warning("%s failed on task %s", type(solver).__name__, task.hash, exc_info=True)
        return Run(None, describe(error), wall, asked.calls, cpu)
    return Run(plan, None, spent[0], asked.calls, spent[1])


def _clocks() -> tuple[float, float]:
    """Seconds on the wall, and of CPU that this process used."""
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _clocks()
    return wall - start[0], cpu - start[1]


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
    with guarded("tasks", InvalidTask):
        tasks = list(tasks)
    _expect(*tasks, planner, judge)
    if not callable(solver):
        raise InvalidTask(f"a solver is called with a task and a planner, got a {type(solver).__name__}")
    blank = template(solver, planner.id, judge.id, suite=suite, name=name)
    runs = map(partial(run, solver, planner), tasks)
    return [judged(blank, i, t, r, judge)[0] for i, (t, r) in enumerate(zip(tasks, runs, strict=True))]


def template(solver: Solver, planner: str, judge: str, *, suite: str = "", name: str = "") -> Result:
    """A result that says who solves, before anything is solved."""
    for word in (suite, name):
        expect(word, str, InvalidTask)
    own = getattr(solver, "name", None)
    return Result(
        suite=suite,
        agent=name or (own if isinstance(own, str) else "") or type(solver).__name__,
        config=config(solver),
        seed=_seed(solver),
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
        cpu_seconds=run.cpu_seconds,
        alone=run.alone,
    )
    return result, found


def track(solver: Any) -> str:
    """The track of a solver: its own word, or "search"."""
    told = getattr(solver, "track", TRACKS[0])
    if not isinstance(told, str) or told not in TRACKS:
        raise UnknownName("track", told, TRACKS)
    return told


def _expect(*given: Any) -> None:
    """Refuse what is no task and no simulator; simulators come last."""
    for one in given:
        if not isinstance(one, Task) and not callable(getattr(one, "latency", None)):
            raise InvalidTask(f"expected a Task or a Simulator, got a {type(one).__name__}")


def _seed(solver: Any) -> int | None:
    """The seed of a solver that has one."""
    told = getattr(solver, "seed", None)
    try:
        return None if told is None else whole(told)
    except TypeError as error:
        raise InvalidResult(f"the seed of a solver is a whole number: {error}") from error


def config(solver: Any) -> dict[str, Any]:
    """A dataclass solver's fields, as JSON holds them; what it cannot hold is told in words."""
    if not is_dataclass(solver) or isinstance(solver, type):
        return {}
    return {f.name: _plain(getattr(solver, f.name, None)) for f in fields(solver) if f.init}


def describe(error: BaseException) -> str:
    """An error in one line."""
    try:
        first = str(error)[:LONGEST].strip().splitlines()[:1]
    except Exception:  # a third party's error may fail to say what it is
        first = []
    return ": ".join((type(error).__name__, *first))


def _plain(value: Any) -> Any:
    """A value as JSON holds it, or its words."""
    try:
        return parsed_json(json.dumps(value, default=repr, allow_nan=False))
    except Exception:  # whatever a third party's objects do
        return describe(TypeError(f"a {type(value).__name__} that JSON does not hold"))
