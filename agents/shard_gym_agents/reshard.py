"""From the plan in use to a better one, where what that saves is worth what it takes to move tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shard_gym.bounds import unwrapped
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.links import Links
from shard_gym.memory import device_sums
from shard_gym.moves import aligned, delta
from shard_gym.plan import Plan, violations
from shard_gym.simulators import Roofline, Simulator
from shard_gym.tasks import Task
from shard_gym_agents.auto import Auto
from shard_gym_agents.local_search import IDLE, Progress
from shard_gym_agents.reshard_moves import Pieces, Placement, Prices
from shard_gym_agents.search_costs import Budget, Costs
from shard_gym_agents.solver import require_fast, task_rng

GB_S = 1e9  # bytes a second
BASE_SHARE, FRESH_SHARE = 0.25, 0.25  # of the budget: to improve the plan in use, and to make one afresh
AFRESH = 0.3  # share of the descents that begin where the search did, not at the best placement
KICKS = (1, 5)  # changes at random before a descent: from, below
CHEAPEST = 2.0  # orders of magnitude that moving bytes is made cheaper by, for a while, at most


@dataclass(frozen=True)
class Reshard:
    """Change the plan in use, `constraints.base`, where that pays.

    Makes small, in ms: horizon x makespan + time to move, the bytes that the busiest device sends or receives over its
    bandwidth. Starts from the plan in use and from what `auto` plans afresh, its devices renamed so that most bytes
    stay; moves and swaps, at first with bytes made cheaper, then at their price. Stays where the gain is within `sure`
    standard deviations of the planner. Where nothing is in use, nothing has to move: the plan is auto's.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    calls: int = 0  # plans asked of the planner, instead of seconds
    horizon: float = 10_000.0  # steps that the new plan will be used for
    bandwidth_gb_s: float = 10.0  # 1e9 bytes a second that a device sends, and receives, while tables move
    sure: float = 1.0
    progress: Progress | None = field(default=None, repr=False)  # told of makespans, as in local search

    def __post_init__(self) -> None:
        if not (0 <= self.horizon < math.inf and self.bandwidth_gb_s > 0 and self.sure >= 0):
            found = f"{self.horizon}, {self.bandwidth_gb_s}, {self.sure}"
            raise InvalidTask(f"reshard needs horizon >= 0 steps, bandwidth_gb_s > 0 and sure >= 0, got {found}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        if not task.constraints.base:
            return Auto(self.seed, self.budget, self.calls, sure=self.sure, progress=self.progress)(task, planner)
        search = _Search(self, task, require_fast(planner))
        try:
            search.run()
        except KeyboardInterrupt:
            if self.progress is None or search.best is None:
                raise
        return search.chosen()


class _Search:
    """One call: the candidates so far, and the best placement."""

    def __init__(self, settings: Reshard, task: Task, planner: Simulator) -> None:
        self.settings, self.task, self.planner = settings, task, planner
        self.costs, self.rng = Costs(task, require_fast(planner)), task_rng(settings.seed, task)
        self.budget = Budget(settings.budget, settings.calls)
        self.prices = Prices(settings.horizon, 1e3 / (settings.bandwidth_gb_s * GB_S))
        self.base = Plan(task.constraints.base)
        self.candidates = [self.base]
        self.starts: list[Placement] = []
        self.best: Placement | None = None
        self.end = 1.0 - FRESH_SHARE if settings.calls else 1.0  # of the budget; auto counts its own calls
        self.stopped = False

    def run(self) -> None:
        """Improve the plan in use, then one made afresh, then the better of them until the budget is spent."""
        fits = not violations(self.task, self.base)
        if fits:
            self.improve(self.base, BASE_SHARE)
        if self.stopped:
            return
        try:
            fresh = self._fresh()
        except InfeasibleTask:
            if not fits:
                raise
            fresh = self.base
        renamed = aligned(self.task, self.base, fresh, _links(self.planner))
        self.candidates += [fresh, renamed]
        self.improve(renamed, 1.0)
        idle = 0
        while self.best is not None and idle < IDLE and not self.over(1.0):
            idle = 0 if self._again(self.best) else idle + 1

    def improve(self, plan: Plan, share: float) -> None:
        """What descents from a plan lead to, if it may be used at all."""
        if violations(self.task, plan):
            return
        start = Placement(Pieces(self.task, plan, self.costs), plan)
        self.keep(start)
        self.starts.append(start)
        for cheaper in (1.0, 0.1, 0.01):
            state = start.copy()
            self.descend(state, cheaper, share)
            self.descend(state, 1.0, share)

    def _fresh(self) -> Plan:
        """What auto plans, as if nothing were in use unless moves are counted."""
        c = self.task.constraints
        task = self.task if c.max_moves is not None else replace(self.task, constraints=replace(c, base=()))
        s = self.settings
        calls = max(1, int(s.calls * FRESH_SHARE)) if s.calls else 0
        return Auto(s.seed, s.budget * FRESH_SHARE, calls, sure=s.sure)(task, self.planner)

    def _again(self, best: Placement) -> bool:
        """Shake the best placement or a start and descend, bytes made cheaper at first; False if nothing moved."""
        afresh = self.rng.random() < AFRESH
        state = (self.starts[int(self.rng.integers(len(self.starts)))] if afresh else best).copy()
        changes = [change for _ in range(int(self.rng.integers(*KICKS))) if (change := state.anything(self.rng))]
        for change in changes:
            if state.may(change):
                state.make(change)
        self.descend(state, 10 ** -self.rng.uniform(0, CHEAPEST), 1.0)
        self.descend(state, 1.0, 1.0)
        return bool(changes)

    def descend(self, state: Placement, cheaper: float, share: float) -> None:
        """Make the change that helps most until none does; `cheaper` is a factor on what bytes cost."""
        prices = replace(self.prices, ms_per_byte=self.prices.ms_per_byte * cheaper)
        while not self.over(share) and state.improve(prices, self.rng):
            self.keep(state)

    def keep(self, state: Placement) -> None:
        """Remember a placement that is better than all before."""
        if self.best is None or state.worth(self.prices) < self.best.worth(self.prices) * (1 - 1e-12):
            self.best = state.copy()
            if self.settings.progress is not None:
                self.stopped |= bool(self.settings.progress(state.makespan, self.budget.spent_seconds))

    def over(self, share: float) -> bool:
        """Whether to stop."""
        return self.stopped or self.budget.over(self.costs, min(share, self.end))

    def chosen(self) -> Plan:
        """The plan that costs least of those that break nothing; the one in use unless the gain is sure."""
        found = [*self.candidates, *([] if self.best is None else [self.best.plan()])]
        usable = [plan for plan in found if not violations(self.task, plan)] or found
        return min(usable, key=self._total_ms)

    def _total_ms(self, plan: Plan) -> float:
        sums, doubt = self._sums(plan), 0.0
        if plan != self.base:
            doubt = self.settings.sure * self.costs.doubt(sums, self._sums(self.base))
        moves = delta(self.task, self.base, plan)
        steps_ms = self.prices.horizon * (float(self.costs.plans(sums).makespan) + doubt)
        return steps_ms + max(moves.sent + moves.received) * self.prices.ms_per_byte

    def _sums(self, plan: Plan) -> np.ndarray:
        embedding = self.costs.planner.embed(self.task.split(plan.splits))
        return device_sums(embedding, np.array(plan.device), self.task.num_devices)


def _links(planner: Simulator) -> Links | None:
    """The wires that a planner assumes where a task has none."""
    planner = unwrapped(planner)
    return planner.hardware.links if isinstance(planner, Roofline) else getattr(planner, "links", None)
