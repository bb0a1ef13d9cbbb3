"""Exact solving by mixed-integer programs: plans with a certified gap, and whether there is a plan at all.

Plans are table-wise. With a roofline the program is the simulator itself, all-to-alls and launches included, so its
bound is one on the makespan; where the task allows splits, it halves tables into at most 8 pieces, as environments
and other solvers do. With a learned simulator it shares out the weights behind our own lower bound, and on kernel
tasks the program's bound becomes one on the makespan through it. Other planners get what each table adds to a mean
shard, without a certificate. Constraints are kept.

`cost="recshard"` plans by what RecShard minimises (Sethi et al., ASPLOS 2022), the bytes looked up on the busiest
device: the table-wise part of it, without rows in host memory and without splits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar

import numpy as np

from shard_gym.bounds import lower_bound
from shard_gym.bounds.shares import Share, pieces_of, shares_of
from shard_gym.errors import InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.feasibility import Verdict, disproof, first_fit_decreasing, quick
from shard_gym.plan.nodes import MOST_HALVINGS, Nodes, halvings
from shard_gym.plan.plan import Plan, check
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym_agents.search.local_search import LocalSearch
from shard_gym_agents.search.milp import INFINITY, LARGE, MEGABYTE, Answer, Improved, Model, OutOfTime
from shard_gym_agents.search.state import Budget
from shard_gym_agents.solvers.solver import Progress, require_fast, require_number, task_rng

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
    """Decide if there is a plan: simple counts first, then a program that minimises the bytes missing on a device.

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
    model.memory(over)
    if interchangeable(task) and not crumbs:
        model.break_symmetry(alike_devices(task, None), np.argsort(-table_bytes(task), kind="stable"))
    return model.solve(end - time.perf_counter(), gap=0.0)


def _has_finer(nodes: Nodes) -> bool:
    """True if some table may be halved more often than its nodes are."""
    finest = ~nodes.may_split & (nodes.level == MOST_HALVINGS)
    return bool((nodes.pieces.tables.dim[finest] % 8 == 0).any())


def _missing(answer: Answer) -> str:
    if not np.isfinite(answer.bound):
        return "constraints cannot be kept together, whatever the memory"
    return f"whatever the plan, on some device {int(answer.bound * MEGABYTE * SAFETY):,} bytes are too few"


def _teller(progress: Progress, task: Task, planner: FastSimulator, worth: float, begun: float) -> Improved:
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


@dataclass(frozen=True, eq=False)
class Phase:
    """A device's ms in one phase are at least each of these sums over its tables, plus a constant; speed 1."""

    weights: np.ndarray  # (J, M), of one piece of each node
    constant: float = 0.0  # of a device that is not empty
    share: Share | None = None  # what makes a bound of these sums one on the cost, where the sums alone do not


@dataclass(frozen=True, eq=False)
class Program:
    """The sum to minimise: the longest times of some phases, the last one with two all-to-alls."""

    nodes: Nodes  # the pieces that are placed
    phases: Sequence[Phase]
    links: Links | None = None
    batch: int = 0
    exact: bool = False  # the planner itself, but for what an empty device does not cost

    @classmethod
    def of(cls, task: Task, planner: FastSimulator) -> Program:
        """The program of a planner: its maxima, the weights of the bound by its factors, or costs beside the mean.

        Only maxima split tables, where the task allows it and the program is not too LARGE then.
        """
        tables, devices, kernel = Nodes.of(task, split_action=False), task.num_devices, task.objective == "kernel"
        names = ["both"] if kernel else ["forward", "backward"]
        wires: tuple[Links | None, int] | None = (None, 0) if kernel else planner.all_to_all(task)
        if wires is not None and planner.maxima("both") is not None:
            halved = Nodes.of(task, split_action=True, every=True)
            nodes = halved if len(halved) * devices <= LARGE else tables
            pieces = pieces_of(replace(nodes.pieces, splits_allowed=False), planner)
            each = [list(shares_of(planner, pieces, name, devices)) for name in names]
            phases = [Phase(np.stack([s.weights for s in shares]), shares[0].least(0.0)) for shares in each]
            return cls(nodes, phases, *wires, exact=True)
        if wires is not None and planner.factors() is not None:
            pieces = pieces_of(replace(task, splits_allowed=False), planner)
            shares = [next(shares_of(planner, pieces, name, devices)) for name in names]
            return cls(tables, [Phase(share.weights[None], share=share) for share in shares], *wires)
        return cls(tables, [Phase(weights[None]) for weights in _beside_the_mean(task, planner)])

    @property
    def has_all_plans(self) -> bool:
        """True if the program's plans are all that the task allows, of at most 8 pieces a table."""
        return len(self.nodes) > self.nodes.task.num_tables or not halvings(self.nodes.task, every=True).any()

    @property
    def words(self) -> str:
        """The pieces that are placed, in words."""
        if len(self.nodes) > self.nodes.task.num_tables:
            return "tables in at most 8 pieces"
        return "whole tables" if self.has_all_plans else "whole tables; the bound on plans with splits is not its own"

    @property
    def order(self) -> np.ndarray:
        """Tables in the order that devices are numbered by, the heaviest first."""
        weights = np.sum([phase.weights[0] for phase in self.phases], axis=0)
        return np.argsort(-weights[self.nodes.whole], kind="stable")

    @property
    def has_constants(self) -> bool:
        """True if a device that is not empty pays something for that."""
        return any(phase.constant > 0 for phase in self.phases)

    def certified(self, bound: float) -> float:
        """The makespan that none of the program's plans is below, if its value is `bound` at least; 0: unknown."""
        share = self.phases[0].share
        if self.exact:
            return bound
        if share is None or len(self.phases) > 1 or not np.isfinite(bound):
            return 0.0
        total = float(share.weights.sum())
        return min(share.least(min(bound * speed, total)) / speed for speed in set(self.nodes.task.speed))

    def model(self, busy: bool, end: float = INFINITY) -> Model:
        """min sum of each phase's longest time. `busy`: no device is empty, so each pays its constant.

        Otherwise those pay that hold a table, or none on tasks of more than LARGE placements of one table: such a
        program is below the costs, which its bound allows.
        """
        model, task = Model(self.nodes, end), self.nodes.task
        model.memory()
        used = [] if busy or not self.has_constants or model.place.size > LARGE else model.used_devices()
        comm: list[list[tuple[int, float]]] = [[] for _ in task.memory]
        wires = 0.0
        if self.links is not None and task.num_devices > 1:
            comm, wires = model.all_to_alls(self.links, self.batch)
        for number, phase in enumerate(self.phases):
            longest, last = model.variable(cost=1.0), number == len(self.phases) - 1
            for k, speed in enumerate(task.speed):
                constant = busy * phase.constant / speed + last * wires
                others = [*(comm[k] if last else ()), *((used[k], phase.constant / speed) for _ in used[:1])]
                for weights in phase.weights:
                    model.at_least(longest, k, weights / speed, constant, others)
        if interchangeable(task):
            model.break_symmetry(alike_devices(task, self.links), self.order)
        return model

    def start(self, model: Model, plan: Plan) -> np.ndarray | None:
        """A plan's counts, its devices numbered as the model wants them; None if it splits more than the program."""
        if plan.splits and len(self.nodes) == self.nodes.task.num_tables:
            return None
        counts = model.counts(plan)
        if not interchangeable(self.nodes.task):
            return counts
        rank = np.argsort(self.order)[self.nodes.table]
        first = np.where(counts > 0, rank[:, None], len(rank)).min(axis=0)
        return counts[:, old_devices(first, alike_devices(self.nodes.task, self.links))]


def _beside_the_mean(task: Task, planner: FastSimulator) -> list[np.ndarray]:
    """Cost that each table adds to a mean shard, ms: of both passes, or one after the other."""
    tables = planner.embed(task)
    mean = tables.sum(axis=0) / task.num_devices
    latency = planner.decode(task.computation(), np.concatenate([mean[None], mean + tables])[:, None])
    passes = [ms[1:, 0] - ms[0, 0] for ms in (latency.forward_compute, latency.backward_compute)]
    return [passes[0] + passes[1]] if task.objective == "kernel" else passes


def interchangeable(task: Task) -> bool:
    """True if no constraint names a device."""
    return not task.constraints.pin and task.constraints.max_moves is None


def alike_devices(task: Task, links: Links | None) -> list[list[int]]:
    """Devices that can be exchanged without changing what a plan costs: of one memory, speed and group."""
    group = (links.group if links else 0) or task.num_devices
    kinds = [(task.memory[k], task.speed[k], k // group) for k in range(task.num_devices)]
    order = sorted(range(task.num_devices), key=lambda k: kinds[k])
    return [list(devices) for _, devices in groupby(order, key=lambda k: kinds[k])]


def old_devices(first: np.ndarray, alike: Sequence[Sequence[int]]) -> np.ndarray:
    """The device to put in each one's place, so that those alike are in order of the `first` table they hold, (K,)."""
    old = np.arange(len(first))
    for devices in alike:
        old[devices] = sorted(devices, key=lambda k: first[k])
    return old
