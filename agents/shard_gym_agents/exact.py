"""Exact solving by mixed-integer programs: plans with a certified gap, and whether there is a plan at all.

Plans are table-wise, without splits. With `roofline` the program is the simulator itself, all-to-alls and launches
included, so its bound is one on the makespan. With `learned` it shares out the weights behind our own lower bound,
and on kernel tasks the program's bound becomes one on the makespan through it. Other planners get what each table
adds to a mean shard, without a certificate. Constraints are kept.

`cost="recshard"` plans by what RecShard minimises (Sethi et al., ASPLOS 2022), the bytes looked up on the busiest
device: the table-wise part of it, without rows in host memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shard_gym.bounds import lower_bound, unwrapped
from shard_gym.errors import InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.feasibility import Verdict, disproof, quick
from shard_gym.links import Links
from shard_gym.memory import device_bytes
from shard_gym.plan import Plan, violations
from shard_gym.random_plans import first_fit_decreasing
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.tasks import Constraints, Task
from shard_gym_agents.exact_models import (
    MEGABYTE,
    Phase,
    Program,
    add_memory,
    alike_devices,
    heaviest_first,
    interchangeable,
    renumbered,
)
from shard_gym_agents.milp import Model
from shard_gym_agents.solver import require_fast, require_number, task_rng

COSTS = ("surrogate", "recshard")
SAFETY = 1 - 1e-5  # the solver works in floating point, to tolerances of a millionth
PROVED = 1e-3  # megabytes that must be missing before a task counts as infeasible, well above those tolerances
START = 0.2  # of the budget, for the plan to begin with
LAST_TRY = 0.05  # seconds for any plan at all, where the budget went by without one
USELESS = 1e-9  # speed


@dataclass(frozen=True)
class Solved:
    """A plan and how far from the best one it can be, by the planner and by the program's own costs."""

    plan: Plan
    makespan: float  # ms, by the planner
    bound: float  # ms; no plan without splits is faster by the planner. 0 where nothing is known
    surrogate: float  # what the program minimised, of its own last plan; infinite if it found none
    surrogate_bound: float

    @property
    def gap(self) -> float:
        """Share of the makespan that a better plan could save, at most."""
        return 1 - self.bound / self.makespan if self.makespan > 0 else 0.0


@dataclass(frozen=True)
class Milp:
    """The best plan that HiGHS finds in its time, begun with local search's; `solve` tells the gap, too."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    gap: float = 1e-4  # stop when so little is left to gain, by the program's costs
    cost: str = "surrogate"

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise UnknownName("cost", self.cost, COSTS)
        if not self.budget > 0 or not self.gap >= 0:
            raise InvalidTask(f"budget is seconds above 0 and gap a share from 0, got {self.budget} and {self.gap}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        return self.solve(task, planner).plan

    def solve(self, task: Task, planner: Simulator) -> Solved:
        """The plan with its certificate; raises InfeasibleTask where there is none, or none was found in time."""
        end = time.perf_counter() + self.budget
        seed = int(task_rng(self.seed, task).integers(2**31))
        planner = require_fast(planner)
        if why := disproof(replace(task, splits_allowed=False)):
            raise InfeasibleTask(why)
        program, start = self._program(task, planner), self._start(task, planner)
        worth = np.inf if start is None else _makespan(task, planner, start)
        model = program.model(task, busy=program.has_constants and _all_busy(task, planner, program.links, worth))
        if start is not None:
            start = renumbered(start, alike_devices(task, program.links), heaviest_first(program.phases))
        answer = model.solve(end - time.perf_counter(), self.gap, seed, start)
        placed = [p for p in (answer.placement, start) if p is not None and _fits(task, p)]
        if not placed:
            placed = [_any_placement(task, max(end - time.perf_counter(), LAST_TRY))]
        worths = [_makespan(task, planner, placement) for placement in placed]
        best = 0 if self.cost == "recshard" else int(np.argmin(worths))
        bound = max(program.certified(task, answer.bound * SAFETY), _known_bound(task, planner))
        return Solved(_plan(placed[best]), worths[best], min(bound, worths[best]), answer.value, answer.bound)

    def _program(self, task: Task, planner: FastSimulator) -> Program:
        if self.cost == "surrogate":
            return Program.of(task, require_fast(unwrapped(planner)))
        tables = task.tables
        megabytes = tables.pooling.astype(np.float64) * task.batch * tables.dim * tables.element_bytes / MEGABYTE
        return Program([Phase(megabytes[None])])

    def _start(self, task: Task, planner: FastSimulator) -> np.ndarray | None:
        from shard_gym_agents import make

        if task.constraints != Constraints():
            return None
        try:
            if self.cost == "recshard":
                return first_fit_decreasing(task)
            search = make("local-search", seed=self.seed, budget=START * self.budget)
            return np.array(search(replace(task, splits_allowed=False), planner).device)
        except InfeasibleTask:
            return None


def decide(task: Task, seconds: float) -> Verdict:
    """Is there a plan? Simple rules and counts first, then a program that minimises the bytes missing on a device."""
    verdict = quick(task)
    if verdict.feasible is not None:
        return verdict
    model = Model(task)
    over = model.variable(cost=1.0)
    add_memory(model, over)
    if interchangeable(task):
        order = np.argsort(-task.tables.weight_bytes, kind="stable")
        model.break_symmetry(alike_devices(task, None), order)
    answer = model.solve(seconds, gap=0.0)
    if answer.placement is not None and _fits(task, answer.placement):
        return Verdict(True, "the program finds a plan", _plan(answer.placement))
    if answer.bound > PROVED:
        missing = "constraints cannot be kept together, whatever the memory"
        if np.isfinite(answer.bound):
            missing = f"whatever the plan, on some device {int(answer.bound * MEGABYTE * SAFETY):,} bytes are too few"
        if not task.splits_allowed:
            return Verdict(False, missing)
        return Verdict(None, f"without splits, {missing}; plans with splits were not searched")
    nearest = "no placement keeps the constraints so far"
    if answer.placement is not None:
        missing_bytes = (device_bytes(task, answer.placement) - task.capacity).max()
        nearest = f"the nearest placement has {missing_bytes:,} bytes too few on a device"
    return Verdict(None, f"not decided within {seconds:g} s: {nearest}, and nothing rules out a better one")


def _plan(placement: np.ndarray) -> Plan:
    return Plan(tuple(placement.tolist()))


def _fits(task: Task, placement: np.ndarray) -> bool:
    return not violations(task, _plan(placement))


def _makespan(task: Task, planner: FastSimulator, placement: np.ndarray) -> float:
    makespan = float(planner.latency(task, placement).makespan(task.objective))
    require_number(makespan, planner)
    return makespan


def _any_placement(task: Task, seconds: float) -> np.ndarray:
    verdict = decide(task, seconds)
    if verdict.plan is None:
        raise InfeasibleTask(verdict.reason)
    return np.array(verdict.plan.device)


def _all_busy(task: Task, planner: FastSimulator, links: Links | None, worth: float) -> bool:
    """Whether every plan faster than `worth` ms uses all devices.

    A plan that leaves device k empty costs the same whatever k's speed: so the bound of the task in which k is
    slow beyond use holds for all such plans.
    """
    for k, *_ in alike_devices(task, links):
        slow = tuple(USELESS if j == k else speed for j, speed in enumerate(task.speed))
        try:
            if _known_bound(replace(task, speed=slow), planner) < worth:
                return False
        except InfeasibleTask:  # no plan at all: the program says so
            return False
    return True


def _known_bound(task: Task, planner: FastSimulator) -> float:
    """Our own lower bound on plans without splits, 0 for a planner that none is known for."""
    try:
        return lower_bound(replace(task, splits_allowed=False), planner, budget=0.0)
    except SimulatorError:
        return 0.0
