"""Bounds of tasks of all kinds of sharding, case by case: of plans that wait for no more than some collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shard_gym.bounds.prices import Prices, prices
from shard_gym.plan.forms import Forms
from shard_gym.proofs.prices import least
from shard_gym.proofs.waits import Columns, Waits
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

BELOW = 1 - 1e-9  # of a bound: its certificate's guess, and of 1: what weights add up to


@dataclass(frozen=True, eq=False)
class Case:
    """Plans that have nothing to wait for but these columns of sums, and what they take at least, waits aside."""

    columns: Columns
    found: Prices
    proof: dict[str, Any]
    ms: float


class ByWaits:
    """Cases that prove a bound, the one of all plans first.

    As long as the bound is that of plans of which a wider case tells, they become a case of their own.
    """

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        self.task, self.simulator = task, simulator
        self.forms = Forms.of(task, lambda shards: simulator.embed_shards(task, shards))
        self.waits = Waits(task, simulator, self.forms)
        self.floors, self.averages = simulator.floors(task), simulator.averages(task)
        every = (self._case(frozenset(self.waits.ms), number) for number in range(len(self.floors)))
        widest = max(every, key=lambda case: case.ms)
        cases, number = {widest.columns: widest}, int(widest.proof["sum"])
        while True:
            self.makespan, columns = self.waits.least({case.columns: case.ms for case in cases.values()})
            if columns in cases:
                break
            cases[columns] = self._case(columns, number)
        self.binding, self.proofs = cases[columns], [case.proof for case in cases.values()]

    def _case(self, columns: Columns, number: int) -> Case:
        """The bound by one sum."""
        forms, may = self.forms, self.waits.within(columns)
        found = prices(forms, forms.loads(self.floors[number]), forms.loads(self.averages[number]), may)
        memory = (found.price / self.task.num_devices).tolist()
        proof = {"columns": sorted(columns), "sum": number, "guess": found.bound * BELOW, "memory": memory}
        return Case(columns, found, proof, least(self.simulator, forms, may, proof))
