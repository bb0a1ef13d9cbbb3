"""Exact solving by mixed-integer programs: plans with a certified gap.

Plans are table-wise. With a roofline the program is the simulator itself, all-to-alls and launches included, so its
bound is one on the makespan; where the task allows splits, it halves tables into at most 8 pieces, as environments
and other solvers do. With a learned simulator it shares out the weights behind our own lower bound, and on kernel
tasks the program's bound becomes one on the makespan through it. Other planners get what each table adds to a mean
shard, without a certificate. Constraints are kept.

Of tasks of more kinds of sharding the program has all options of every table. Where costs add up over a device's
shards, or are the longest times of parts that do, as those of `torchrec:cuda-v1`, it is exact. Of other planners it has
the sums that bounds rest on, so its bound is one on the makespan and its plans are not the fastest; or where there are
none, what shards add near the best plan so far, without a certificate.

`cost="recshard"` plans by what RecShard minimises (Sethi et al., ASPLOS 2022), the bytes looked up on the busiest
device: the table-wise part of it, without rows in host memory and without splits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shard_gym.bounds import lower_bound
from shard_gym.errors import InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.plan.feasibility import disproof, first_fit_decreasing
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.base import plan_latency
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym_agents.search.deciding import SAFETY, decide
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.kinds_greedy import greedy_board
from shard_gym_agents.search.linear import INFINITY, MEGABYTE, OutOfTime
from shard_gym_agents.search.local_search import LocalSearch
from shard_gym_agents.search.milp import Answer, Told
from shard_gym_agents.search.milp_kinds import OptionsModel
from shard_gym_agents.search.programs import Phase, Program, alike_devices
from shard_gym_agents.search.state import Budget
from shard_gym_agents.solvers.solver import Progress, of_columns, require_fast, require_number, task_rng

COSTS = ("surrogate", "recshard")
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
    """Best plan that HiGHS finds in its time, starting from local search's plan; `solve` also gives the gap.

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
        begun, planner = time.perf_counter(), require_fast(planner)
        if self.cost == "recshard":
            task = replace(of_columns(task, "recshard's program"), splits_allowed=False)
        if why := disproof(task):
            raise InfeasibleTask(why)
        if beyond_columns(task):
            return _OfKinds(self, task, planner, begun).solved()
        return self._of_columns(task, planner, begun)

    def _of_columns(self, task: Task, planner: FastSimulator, begun: float) -> Solved:
        budget = Budget(START * self.budget, 0)
        start, known = self._start(task, planner, budget), _known_bound(task, planner)
        program, answer, held = self._program(task, planner), Answer(None, INFINITY, 0.0), "none: stopped before it"
        try:
            if not budget.stopped:
                answer, held = self._answer(program, planner, start, begun), program.words
        except OutOfTime:
            held = self.too_little
        except KeyboardInterrupt:  # while the program was built
            if self.progress is None or start is None:
                raise
        plan, worth = self.best(task, planner, [answer.plan, start], begun)
        if program.has_all_plans:
            known = max(known, program.certified(answer.bound * SAFETY))
        return Solved(plan, worth, min(known, worth), answer.value, answer.bound, held)

    @property
    def too_little(self) -> str:
        """The reason why there is no program, in words."""
        return f"none: {self.budget:g} s are too little to begin with it"

    def best(self, task: Task, planner: FastSimulator, found: list[Plan | None], begun: float) -> tuple[Plan, float]:
        """The best of the plans that keep to the task (RecShard's: the first one), or any plan; what it is worth."""
        plans = [plan for plan in found if plan is not None and not violations(task, plan)]
        plans = plans or [_any_plan(task, max(begun + self.budget - time.perf_counter(), LAST_TRY))]
        worths = [_makespan(task, planner, plan) for plan in plans]
        best = 0 if self.cost == "recshard" else int(np.argmin(worths))
        return plans[best], worths[best]

    def _program(self, task: Task, planner: FastSimulator) -> Program:
        if self.cost == "surrogate":
            return Program.of(task, planner.uncounted)
        tables = task.tables
        megabytes = tables.pooling.astype(np.float64) * task.batch * tables.dim * tables.element_bytes / MEGABYTE
        return Program(Nodes.of(task, split_action=False), [Phase(megabytes[None])])

    def _answer(self, program: Program, planner: FastSimulator, start: Plan | None, begun: float) -> Answer:
        task, end = program.nodes.task, begun + self.budget
        worth = INFINITY if start is None else _makespan(task, planner, start)
        busy = program.has_constants and _all_busy(task, planner, program.links, worth, end)
        model = program.model(busy, end)
        counts = None if start is None else program.start(model, start)
        improved = None if self.progress is None else _teller(self.progress, task, planner, worth, begun)
        return model.solve(end - time.perf_counter(), self.gap, self.seed_of(task), counts, improved)

    def seed_of(self, task: Task) -> int:
        """The solver's seed."""
        return int(task_rng(self.seed, task).integers(2**31))

    def _start(self, task: Task, planner: FastSimulator, budget: Budget) -> Plan | None:
        try:
            if self.cost == "recshard":
                return Plan(tuple(first_fit_decreasing(task).tolist()))
            return LocalSearch(self.seed, progress=self.progress).within(budget, task, planner)
        except InfeasibleTask:  # none that it finds
            return None


class _OfKinds:
    """One call for a task of more kinds of sharding than columns."""

    def __init__(self, settings: Milp, task: Task, planner: FastSimulator, begun: float) -> None:
        self.settings, self.task, self.planner, self.begun = settings, task, planner, begun
        self.end = begun + settings.budget
        self.budget = Budget(START * settings.budget, 0)
        self.search = Search(task, planner, self.budget, settings.progress)
        self.words = "none: stopped before it"
        self.value, self.bound = INFINITY, 0.0  # of the program, ms
        self.exact = bool(planner.longest(task))  # the program is the planner itself

    def solved(self) -> Solved:
        """The plan with its certificate."""
        found, search = [], self.search
        added_up = search.rates is not None
        known = search.prices.bound * SAFETY if added_up else _known_bound(self.task, self.planner)
        search.run(greedy_board(search), task_rng(self.settings.seed, self.task))
        start = search.plan if search.chosen else None
        try:
            if not self.budget.stopped:
                found = [self._answer(start)]
        except OutOfTime:
            self.words = self.settings.too_little
        except KeyboardInterrupt:  # while the program was built
            if self.settings.progress is None or start is None:
                raise
        plan, worth = self.settings.best(self.task, self.planner, [*found, start], self.begun)
        if self.planner.floors(self.task):
            known = max(known, self.bound * SAFETY + (0.0 if self.exact else self.planner.least_ms(self.task)))
        return Solved(plan, worth, min(known, worth), self.value, self.bound, self.words)

    def _answer(self, start: Plan | None) -> Plan | None:
        """The plan of the program, if it finds any."""
        search, settings = self.search, self.settings
        model, unit = OptionsModel(search.choices, self.end), search.unit
        model.memory()
        self._aim(model, unit)
        tell = None
        if settings.progress is not None:
            worth = INFINITY if start is None else _makespan(self.task, self.planner, start)
            tell = _teller(settings.progress, self.task, self.planner, worth, self.begun)

        def plan_of(values: np.ndarray) -> Plan:
            return search.choices.plan(model.chosen(values))

        told = None if tell is None else (lambda values: tell(plan_of(values)))
        seconds = self.end - time.perf_counter()
        found = model.solve(seconds, settings.gap, settings.seed_of(self.task), search.chosen, told)
        self.value, self.bound = found.value * unit, found.bound * unit
        return None if found.values is None else plan_of(found.values)

    def _aim(self, model: OptionsModel, unit: float) -> None:
        """Say what is to be made small: the makespan, a bound on it, or what shards add near the best plan so far."""
        search, none = self.search, np.zeros(self.task.num_devices)
        self.words = "all kinds, tables in at most 8 pieces that are sharded alike"
        if self.exact:
            for loads in map(search.choices.loads, self.planner.longest(self.task)):
                model.at_least(model.variable(cost=1.0), loads / unit, none)
            return
        longest, floors = model.variable(cost=1.0), self.planner.floors(self.task)
        for loads in map(search.choices.loads, floors):
            model.at_least(longest, loads / unit, none)
        for loads in map(search.choices.loads, self.planner.averages(self.task)):
            model.at_least_the_mean(longest, loads / unit)
        if not floors:
            model.at_least(longest, search.loads / unit, search.offset.sum(axis=0) / unit)
        self.words += f", by {'what costs are no less than' if floors else 'what shards add near the best plan so far'}"


def _teller(progress: Progress, task: Task, planner: FastSimulator, worth: float, begun: float) -> Told:
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
    makespan = float(plan_latency(planner, task, plan).makespan(task.objective))
    require_number(makespan, planner)
    return makespan


def _any_plan(task: Task, seconds: float) -> Plan:
    verdict = decide(task, seconds)
    if verdict.plan is None:
        raise InfeasibleTask(verdict.reason)
    return verdict.plan


def _all_busy(task: Task, planner: FastSimulator, links: Links | None, worth: float, end: float) -> bool:
    """True if every plan faster than `worth` ms uses all devices; False where there is no time to find out.

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
    """Lower bound of the task, 0 for a planner that none is known for."""
    try:
        return lower_bound(task, planner, budget=0.0)
    except SimulatorError:
        return 0.0
