"""Changes from a plan in use to a better one over all kinds of sharding: tables taken out and put back.

A table goes back to where it is in use or in a plan made afresh, or to the option that adds least, what it moves among
it: whichever makes the whole cost least, steps at the makespan and the time that the busiest device sends or receives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InvalidPlan
from shard_gym.memory.usage import device_sums
from shard_gym.plan.forms import DEVICE
from shard_gym.plan.moves import aligned, sent_received
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Option
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.search.kinds_greedy import greedy_board
from shard_gym_agents.search.state import Budget, Costs
from shard_gym_agents.search.traffic import Traffic
from shard_gym_agents.solvers.solver import Progress, no_luck, require_number, task_rng

FRESH_SHARE = 0.4  # of the budget: to make a plan afresh
OUT = (1, 6)  # tables taken out at a time: from, below
AWAY, SLOW = 0.3, 0.8  # share of the times that they are of those that moved; or of these and of the slowest device
EVEN = 0.01  # weight of what all devices move, beside the one that moves most


@dataclass(frozen=True)
class Aim:
    """The whole cost of a plan, ms: steps, and the bytes of the busiest device."""

    horizon: float
    ms_per_byte: float

    def ms(self, makespan: float, busiest: float) -> float:
        """The cost of so many steps, and of so many bytes."""
        return self.horizon * makespan + self.ms_per_byte * busiest

    @property
    def per_step(self) -> float:
        """The ms that a byte costs a step."""
        return self.ms_per_byte / max(self.horizon, 1e-9)


class Resharding:
    """One call: the candidates so far, and the best options."""

    def __init__(self, task: Task, planner: FastSimulator, base: Plan, aim: Aim, budget: Budget, seed: int) -> None:
        self.task, self.planner, self.base, self.aim, self.budget = task, planner, base, aim, budget
        self.costs, self.rng = Costs(task, planner), task_rng(seed, task)
        part = Budget(budget.seconds * FRESH_SHARE, math.ceil(budget.calls * FRESH_SHARE))
        self.search = Search(task, planner, part)
        self.traffic = Traffic(self.search.choices, base)
        self.progress: Progress | None = None
        self.stays: Plan | None = base if self._usable(base) else None  # the plan that moves no more than it has to
        self.candidates = [] if self.stays is None else [base]
        self.ways: list[Mapping[int, Option]] = [self.traffic.home]  # options that items go back to
        self.least, self.best = np.inf, dict[int, Option]()

    def run(self, progress: Progress | None) -> None:
        """Improve the plan in use, or what is left of it, and one made afresh, until the budget is spent."""
        self.progress, search = progress, self.search
        search.run(greedy_board(search), self.rng)
        placed = [Placed(self, self.traffic.home)]
        self._keep(placed[0])
        if self.stays is None and placed[0].complete:
            self.stays = placed[0].plan
            self.candidates.append(self.stays)
        if search.chosen:
            wires = self.planner.uncounted.all_to_all(self.task)
            renamed = aligned(self.task, self.base, search.plan, wires and wires[0])
            self.candidates += [search.plan, renamed]
            self.ways.append(Traffic(search.choices, renamed).home)
            placed.append(Placed(self, self.ways[-1]))
        placed = [one for one in placed if one.complete]
        for one in placed:
            self._keep(one)
            while any([self._changed(one, [item]) for item in search.choices.items.tolist()]):
                pass
        while placed and not self._over:
            one = placed[int(self.rng.integers(len(placed)))]
            self._changed(one, self._some(one))

    def chosen(self, sure: float) -> Plan:
        """The plan that costs least of those that keep to the task; the one that stays unless the gain is sure."""
        found = [*self.candidates, *([self.traffic.plan(self.best)] if self.best else [])]
        usable = [plan for plan in found if self._usable(plan)]
        if not usable:
            raise no_luck("some tables found no room")
        return min(usable, key=lambda plan: self._total_ms(plan, sure))

    def _changed(self, placed: Placed, out: list[int]) -> bool:
        """Take some items out and put each back where the whole costs least; False if that is no better, or late."""
        if self._over:
            return False
        before, old = placed.total, {item: placed.board.chosen[item] for item in out}
        for item in out:
            placed.take(item)
        done = all(self._put_back(placed, item, old[item]) for item in self.rng.permutation(out).tolist())
        if done and placed.total < before * (1 - 1e-12):
            self._keep(placed)
            return True
        for item in out:
            if item in placed.board.chosen:
                placed.take(item)
        for item, option in old.items():
            placed.put(item, option)
        return False

    def _put_back(self, placed: Placed, item: int, old: Option) -> bool:
        """Put an item back by the best of its options that have room; False if none has."""
        options = [placed.board.best(item), old, *(way[item] for way in self.ways if item in way)]
        tried: list[tuple[float, int, Option]] = []
        for option in {(o.form, o.choice, o.targets): o for o in options if o is not None}.values():
            if placed.has_room(item, option):
                placed.put(item, option)
                tried.append((placed.total, len(tried), option))
                placed.take(item)
        if tried:
            placed.put(item, min(tried)[2])
        return bool(tried)

    def _some(self, placed: Placed) -> list[int]:
        """Items to take out: of those that moved, of the slowest device's, or of all."""
        items, kind = np.array(list(placed.board.chosen)), self.rng.random()
        some = np.array([item for item in items.tolist() if placed.moved[item].any()], np.int64)
        if kind > AWAY:
            some = items[placed.board.work[items, int(placed.board.time.argmax())] > 0] if kind < SLOW else items
        count = min(int(self.rng.integers(*OUT)), len(items))
        return list(dict.fromkeys(self.rng.permutation(some).tolist() + self.rng.permutation(items).tolist()))[:count]

    def _keep(self, placed: Placed) -> None:
        if not placed.complete or placed.total >= self.least:
            return
        self.least, self.best = placed.total, dict(placed.board.chosen)
        if self.progress is not None and self.progress(placed.makespan, self.budget.spent_seconds):
            self.budget.stopped = True

    @property
    def _over(self) -> bool:
        return self.budget.stopped or self.budget.over(self.costs, 1.0 - FRESH_SHARE if self.budget.calls else 1.0)

    def _usable(self, plan: Plan) -> bool:
        try:
            return not violations(self.task, plan)
        except InvalidPlan:  # of kinds that the task does not allow
            return False

    def _total_ms(self, plan: Plan, sure: float) -> float:
        sums, doubt = self._sums(plan), 0.0
        if self.stays is not None and plan != self.stays:
            doubt = sure * self.costs.doubt(sums, self._sums(self.stays))
        busiest = int(sent_received(self.task, self.base, plan).max())
        return self.aim.ms(float(self.costs.plans(sums).makespan) + doubt, busiest)

    def _sums(self, plan: Plan) -> np.ndarray:
        placed = shards(self.task, plan)
        return device_sums(self.planner.embed_shards(self.task, placed), placed.device, self.task.num_devices)


class Placed:
    """Items by options, the largest first, as far as these have room, others where they add least; `moved` says what
    each item moves, (2, K)."""

    def __init__(self, call: Resharding, options: Mapping[int, Option]) -> None:
        search, self.traffic = call.search, call.traffic
        self.aim, self.costs, self.choices = call.aim, call.costs, search.choices
        loads = (search.loads + self.traffic.fresh * self.aim.per_step)[None]
        price = search.prices.price
        self.board = Board(
            self.choices, loads, search.offset.sum(axis=0, keepdims=True), price, search.unit, lambda _: 0.0
        )
        self.moved: dict[int, np.ndarray] = {}
        self.bytes = np.zeros((2, call.task.num_devices), np.int64)
        size = self.choices.size[0, self.choices.forms.first[:-1], DEVICE, 0]
        order = self.choices.items[np.argsort(-size[self.choices.items], kind="stable")].tolist()
        for item in order:
            if item in options and self.has_room(item, options[item]):
                self.put(item, options[item])
        for item in order:
            if item not in self.moved and (option := self.board.best(item)) is not None:
                self.put(item, option)

    def put(self, item: int, option: Option) -> None:
        """Place an item."""
        self.board.put(item, option)
        self.moved[item] = self.traffic.moves(item, option)
        self.bytes += self.moved[item]

    def take(self, item: int) -> None:
        """Take an item out."""
        self.board.take(item)
        self.bytes -= self.moved.pop(item)

    def has_room(self, item: int, option: Option) -> bool:
        """True if memory, pins and tables that must be apart allow an option."""
        held = self.choices.size[:, option.form, option.choice] * self.choices.times(option)
        bound = self.choices.rules.binding and option.choice == DEVICE
        if bound and not self.board.allowed(item)[list(option.targets)].all():
            return False
        return bool((held <= self.board.free + self.choices.kept[item]).all())

    @property
    def complete(self) -> bool:
        """True if all items are placed."""
        return len(self.moved) == len(self.choices.items)

    @property
    def makespan(self) -> float:
        """The ms that a step takes."""
        found = float(self.costs.plans(self.board.sums).makespan)
        require_number(found, self.costs.planner)
        return found

    @property
    def total(self) -> float:
        """The whole cost, and a little of what other devices cost and move."""
        value = float(self.costs.plans(self.board.sums).value)
        require_number(value, self.costs.planner)
        return self.aim.ms(value, float(self.bytes.max() + EVEN * self.bytes.mean()))

    @property
    def plan(self) -> Plan:
        """The plan, its pieces where most of them stays."""
        return self.traffic.plan(self.board.chosen)
