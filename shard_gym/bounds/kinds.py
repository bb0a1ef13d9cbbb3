"""Bounds of tasks of all kinds of sharding, case by case: of plans that wait for no more than some collectives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.bounds.prices import Prices, priced
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.forms import Forms
from shard_gym.proofs.prices import Costs
from shard_gym.proofs.waits import Columns, Waits
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

BELOW = 1 - 1e-9  # of a bound: its certificate's guess, and of 1: what weights add up to


@dataclass(frozen=True, eq=False)
class Case:
    """Plans that have nothing to wait for but these columns of sums, and prices by one sum."""

    columns: Columns
    number: int  # of the sum
    found: Prices
    costs: Costs
    may: np.ndarray

    @cached_property
    def proof(self) -> dict[str, Any]:
        """The case as certificates have it."""
        memory = (self.found.price / self.costs.forms.task.num_devices).tolist()
        columns, guess = sorted(self.columns), self.found.bound * BELOW
        return {"columns": columns, "sum": self.number, "guess": guess, "memory": memory}

    @cached_property
    def ms(self) -> float:
        """Time that the slowest device takes at least, waits aside."""
        return self.costs.least(self.may, self.proof)


class ByWaits:
    """Cases that prove a bound, that of all plans first.

    A plan waits for exactly the columns in which it has anything, and the bound is that of the best set of columns. If
    no case is about this set alone, one is added.
    """

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        if why := disproof(task):
            raise InfeasibleTask(why)
        self.simulator, self.costs = simulator, dict[int, Costs]()
        self.forms = Forms.of(task, lambda shards: simulator.embed_shards(task, shards))
        self.waits = Waits(task, simulator, self.forms)
        sums = range(len(simulator.floors(task)))
        widest = max((self._case(frozenset(self.waits.ms), n) for n in sums), key=lambda case: case.found.bound)
        cases = {widest.columns: widest}
        while True:
            self.makespan, columns = self.waits.least({case.columns: case.ms for case in cases.values()})
            if columns in cases:
                break
            cases[columns] = self._case(columns, widest.number)
        self.binding, self.proofs = cases[columns], [case.proof for case in cases.values()]

    def _case(self, columns: Columns, number: int) -> Case:
        """The case of these columns by one sum."""
        if number not in self.costs:
            self.costs[number] = Costs(self.simulator, self.forms, number)
        costs, may = self.costs[number], self.waits.within(columns)
        return Case(columns, number, priced(self.forms, may, costs.total, costs.dearest), costs, may)
