"""Cost-greedy on tables that are halved first: the least that a search over column splits has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.simulators.base import plan_latency
from shard_gym.task.task import Task
from shard_gym_agents.solvers.greedy import CostGreedy
from shard_gym_agents.solvers.solver import of_columns, others_named, require_fast


@dataclass(frozen=True)
class Ladder:
    """Cost-greedy after 0, 1, ... `rungs` halvings of the costliest piece; the plan that is predicted to be fastest.

    Of equals that with fewer pieces. Where nothing may be split it is cost-greedy.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    rungs: int = 8

    def __post_init__(self) -> None:
        if self.rungs < 0:
            raise InvalidTask(f"a ladder needs rungs >= 0, got {self.rungs}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        with others_named(task):
            return self._best(of_columns(task, "ladder"), require_fast(planner))

    def _best(self, task: Task, planner: FastSimulator) -> Plan:
        splits = [pieces.splits for pieces in in_halves(task, planner, self.rungs)]
        plans: list[Plan] = []
        dead_ends: list[InfeasibleTask] = []
        for each in splits:
            try:
                plans.append(greedy_after(task, each, planner))
            except InfeasibleTask as error:
                dead_ends.append(error)
        if not plans:
            raise dead_ends[0]
        return min(plans, key=lambda plan: float(plan_latency(planner, task, plan).makespan(task.objective)))


@dataclass(frozen=True)
class HalveThenGreedy:
    """Cost-greedy after the costliest piece was halved until none costs more alone than an even share of all.

    So many halvings follow from the task, and greedy runs once.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        with others_named(task):
            task, planner = of_columns(task, "halve-then-greedy"), require_fast(planner)
            pieces = next(p for p in in_halves(task, planner) if not p.uneven)
            return greedy_after(task, pieces.splits, planner)


@dataclass(frozen=True)
class Pieces:
    """Tables after some halvings."""

    splits: tuple[int, ...]  # as `Task.split` takes them
    uneven: bool  # True if a piece that may be halved costs more alone than an even share of all


def in_halves(task: Task, planner: FastSimulator, most: int | None = None) -> Iterator[Pieces]:
    """The tables whole, then after each halving of the costliest piece that may be halved: at most `most` of them."""
    nodes = Nodes.of(task, split_action=True)
    cost, node, splits = single_costs(planner, nodes.pieces), nodes.whole.tolist(), list[int]()
    while True:
        halvable = np.where(nodes.may_split[node], cost[node], -np.inf)
        costliest = int(halvable.argmax())
        uneven = halvable[costliest] > cost[node].sum() / task.num_devices
        yield Pieces(tuple(splits), bool(uneven))
        if halvable[costliest] == -np.inf or len(splits) == most:
            return
        splits.append(costliest)
        node[costliest] += 1
        node.append(node[costliest])


def greedy_after(task: Task, splits: tuple[int, ...], planner: FastSimulator) -> Plan:
    """Cost-greedy's plan of the pieces that splits leave."""
    if not splits:
        return CostGreedy()(task, planner)
    rules = replace(task.constraints, base=(), max_moves=None)  # of tables that are whole: they keep their numbers
    return replace(CostGreedy()(replace(task.split(splits), constraints=rules), planner), splits=splits)
