"""Exact solving by mixed-integer programs: plans with a certified gap, and whether there is a plan at all.

Plans are table-wise. With `roofline` the program is the simulator itself, all-to-alls and launches included, so its
bound is one on the makespan; where the task allows splits, it halves tables into at most 8 pieces, as environments
and other solvers do. With `learned` it shares out the weights behind our own lower bound, and on kernel tasks the
program's bound becomes one on the makespan through it. Other planners get what each table adds to a mean shard,
without a certificate. Constraints are kept.

`cost="recshard"` plans by what RecShard minimises (Sethi et al., ASPLOS 2022), the bytes looked up on the busiest
device: the table-wise part of it, without rows in host memory and without splits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shard_gym.bounds import lower_bound, unwrapped
from shard_gym.errors import InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.feasibility import Verdict, disproof, quick
from shard_gym.links import Links
from shard_gym.memory import device_bytes, table_bytes
from shard_gym.nodes import MOST_HALVINGS, Nodes
from shard_gym.plan import Plan, check, violations
from shard_gym.random_plans import first_fit_decreasing
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.tasks import Task
from shard_gym_agents.exact_models import MEGABYTE, Phase, Program, add_memory, alike_devices, interchangeable
from shard_gym_agents.local_search import LocalSearch, Progress
from shard_gym_agents.milp import INFINITY, Answer, Model, OutOfTime
from shard_gym_agents.search_costs import Budget
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
    bound: float  # ms; no plan is faster by the planner, of those with at most 8 pieces a table. 0: nothing is known
    surrogate: float  # what the program minimised, of its own last plan; infinite if it found none
    surrogate_bound: float
    program: str  # what the program held, in words, and so where `bound` comes from

    @property
    def gap(self) -> float:
        """Share of the makespan that a better plan could save, at most."""
        return 1 - self.bound / self.makespan if self.makespan > 0 else 0.0


@dataclass(frozen=True)
class Milp:
    """The best plan that HiGHS finds in its time, begun with local search's; `solve` tells the gap, too.

    `progress` is told of every better plan and may stop the search; with it, Ctrl-C stops the search as well.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    gap: float = 1e-4  # stop when so little is left to gain, by the program's costs
    cost: str = "surrogate"
    progress: Progress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise UnknownName("cost", self.cost, COSTS)
        if not self.budget > 0 or not self.gap >= 0:
            raise InvalidTask(f"budget is seconds above 0 and gap a share from 0, got {self.budget} and {self.gap}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        return self.solve(task, planner).plan

    def solve(self, task: Task, planner: Simulator) -> Solved:
        """The plan with its certificate; raises InfeasibleTask where there is none, or none was found in time."""
        begun = time.perf_counter()
        planner = require_fast(planner)
        if self.cost == "recshard":
            task = replace(task, splits_allowed=False)
        if why := disproof(task):
            raise InfeasibleTask(why)
        budget = Budget(START * self.budget, 0)
        start, known = self._start(task, planner, budget), _known_bound(task, planner)
        program, answer, held = self._program(task, planner), Answer(None, INFINITY, 0.0), "none: stopped before it"
        try:
            if not budget.stopped:
                answer, held = self._answer(program, planner, start, begun), program.words
        except OutOfTime:
            held = f"none: {self.budget:g} s are too little to begin with it"
        except KeyboardInterrupt:  # while the program was built
            if self.progress is None or start is None:
                raise
        left = begun + self.budget - time.perf_counter()
        plans = [p for p in (answer.plan, start) if p is not None and not violations(task, p)]
        plans = plans or [_any_plan(task, max(left, LAST_TRY))]
        worths = [_makespan(task, planner, plan) for plan in plans]
        best = 0 if self.cost == "recshard" else int(np.argmin(worths))
        if program.has_all_plans:
            known = max(known, program.certified(answer.bound * SAFETY))
        return Solved(plans[best], worths[best], min(known, worths[best]), answer.value, answer.bound, held)

    def _program(self, task: Task, planner: FastSimulator) -> Program:
        if self.cost == "surrogate":
            return Program.of(task, require_fast(unwrapped(planner)))
        tables = task.tables
        megabytes = tables.pooling.astype(np.float64) * task.batch * tables.dim * tables.element_bytes / MEGABYTE
        return Program(Nodes.of(task, split_action=False), [Phase(megabytes[None])])

    def _answer(self, program: Program, planner: FastSimulator, start: Plan | None, begun: float) -> Answer:
        task, end = program.nodes.task, begun + self.budget
        worth = INFINITY if start is None else _makespan(task, planner, start)
        busy = program.has_constants and _all_busy(task, planner, program.links, worth, end)
        model = program.model(busy, end)
        counts = None if start is None else program.start(model, start)
        seed = int(task_rng(self.seed, task).integers(2**31))
        improved = None if self.progress is None else _teller(self.progress, task, planner, worth, begun)
        return model.solve(end - time.perf_counter(), self.gap, seed, counts, improved)

    def _start(self, task: Task, planner: FastSimulator, budget: Budget) -> Plan | None:
        try:
            if self.cost == "recshard":
                return Plan(tuple(first_fit_decreasing(task).tolist()))
            return LocalSearch(self.seed, progress=self.progress).within(budget, task, planner)
        except InfeasibleTask:  # none that it finds
            return None


def decide(task: Task, seconds: float) -> Verdict:
    """Is there a plan? Simple rules and counts first, then a program that minimises the bytes missing on a device.

    Where splits are allowed, plans come with at most 8 pieces a table; a proof that there is none holds for any number.
    """
    verdict, end = quick(task), time.perf_counter() + seconds
    if verdict.feasible is not None:
        return verdict
    nodes = Nodes.of(task, split_action=True, every=True)
    try:
        answer = _least_missing(nodes, end)
        if answer.plan is not None and not violations(task, answer.plan):
            return Verdict(True, "the program finds a plan", answer.plan)
        if answer.bound > PROVED:
            any_pieces = _least_missing(nodes, end, crumbs=True) if _has_finer(nodes) else answer
            if any_pieces.bound > PROVED:
                return Verdict(False, _missing(any_pieces))
            pieces = f"with at most {2**MOST_HALVINGS} pieces a table"
            return Verdict(None, f"{pieces}, {_missing(answer)}; finer splits are not ruled out")
    except OutOfTime:
        size = f"{len(nodes):,} pieces and tables on {task.num_devices:,} devices"
        return Verdict(None, f"not decided: {seconds:g} s are too little to begin with a program of {size}")
    nearest = "no plan keeps the constraints so far"
    if answer.plan is not None:
        used = device_bytes(check(task, answer.plan), np.array(answer.plan.device))
        nearest = f"the nearest plan has {(used - task.capacity).max():,} bytes too few on a device"
    return Verdict(None, f"not decided within {seconds:g} s: {nearest}, and nothing rules out a better one")


def _least_missing(nodes: Nodes, end: float, crumbs: bool = False) -> Answer:
    """The plan with the least bytes missing on a device, in megabytes."""
    model, task = Model(nodes, end, crumbs), nodes.task
    over = model.variable(cost=1.0)
    add_memory(model, over)
    if interchangeable(task) and not crumbs:
        model.break_symmetry(alike_devices(task, None), np.argsort(-table_bytes(task), kind="stable"))
    return model.solve(end - time.perf_counter(), gap=0.0)


def _has_finer(nodes: Nodes) -> bool:
    """Whether some table may be halved more often than its nodes are."""
    finest = ~nodes.may_split & (nodes.level == MOST_HALVINGS)
    return bool((nodes.pieces.tables.dim[finest] % 8 == 0).any())


def _missing(answer: Answer) -> str:
    if not np.isfinite(answer.bound):
        return "constraints cannot be kept together, whatever the memory"
    return f"whatever the plan, on some device {int(answer.bound * MEGABYTE * SAFETY):,} bytes are too few"


def _teller(
    progress: Progress, task: Task, planner: FastSimulator, worth: float, begun: float
) -> Callable[[Plan], bool | None]:
    """Tells of plans that are better than any before, by the planner."""
    best = [worth]

    def improved(plan: Plan) -> bool | None:
        makespan = _makespan(task, planner, plan)
        if makespan >= best[0] or violations(task, plan):
            return None
        best[0] = makespan
        return progress(makespan, time.perf_counter() - begun)

    return improved


def _makespan(task: Task, planner: FastSimulator, plan: Plan) -> float:
    makespan = float(planner.latency(check(task, plan), np.array(plan.device)).makespan(task.objective))
    require_number(makespan, planner)
    return makespan


def _any_plan(task: Task, seconds: float) -> Plan:
    verdict = decide(task, seconds)
    if verdict.plan is None:
        raise InfeasibleTask(verdict.reason)
    return verdict.plan


def _all_busy(task: Task, planner: FastSimulator, links: Links | None, worth: float, end: float) -> bool:
    """Whether every plan faster than `worth` ms uses all devices; False where there is no time to find out.

    A plan that leaves device k empty costs the same whatever k's speed: so the bound of the task in which k is
    slow beyond use holds for all such plans.
    """
    for k, *_ in alike_devices(task, links):
        slow = tuple(USELESS if j == k else speed for j, speed in enumerate(task.speed))
        try:
            if time.perf_counter() > end or _known_bound(replace(task, speed=slow), planner) < worth:
                return False
        except InfeasibleTask:  # no plan at all: the program says so
            return False
    return True


def _known_bound(task: Task, planner: FastSimulator) -> float:
    """Our own lower bound, 0 for a planner that none is known for."""
    try:
        return lower_bound(task, planner, budget=0.0)
    except SimulatorError:
        return 0.0
