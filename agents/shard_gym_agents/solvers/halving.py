"""Cost-greedy on tables that are halved first: the least that a search over column splits has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_sums
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.simulators.base import embedded
from shard_gym.task.task import Task
from shard_gym_agents.solvers.greedy import cheapest_device
from shard_gym_agents.solvers.solver import of_columns, others_named, require_fast


@dataclass(frozen=True)
class Ladder:
    """Cost-greedy after 0, 1, ... `rungs` halvings of the costliest piece; the plan that is predicted to be fastest.

    Of equal plans it returns the one with fewer pieces. Where nothing may be split it is cost-greedy.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    rungs: int = 8

    def __post_init__(self) -> None:
        if self.rungs < 0:
            raise InvalidTask(f"a ladder needs rungs >= 0, got {self.rungs}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        with others_named(task):
            return self.best(of_columns(task, "ladder"), require_fast(planner))[1]

    def best(self, task: Task, planner: FastSimulator) -> tuple[np.ndarray, Plan]:
        """The plan of a task that forbids everything but splits, after the node of each of its pieces."""
        plans: list[tuple[float, Pieces, Plan]] = []
        dead_ends: list[InfeasibleTask] = []
        for pieces in Halving(task, planner).steps(self.rungs):
            try:
                makespan, plan = pieces.planned()
                plans.append((makespan, pieces, plan))
            except InfeasibleTask as error:
                dead_ends.append(error)
        if not plans:
            raise dead_ends[0]
        _, pieces, plan = min(plans, key=lambda found: found[0])
        return np.array(pieces.node), plan


@dataclass(frozen=True)
class HalveThenGreedy:
    """Cost-greedy after the costliest piece was halved until none costs more alone than an even share of all.

    The task decides the number of halvings, and greedy runs once.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        with others_named(task):
            halving = Halving(of_columns(task, "halve-then-greedy"), require_fast(planner))
            return next(pieces for pieces in halving.steps() if not pieces.uneven).planned()[1]


class Halving:
    """A task whose costliest piece is halved, again and again; what pieces of all sizes cost is asked once."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task, self.planner, self.nodes = task, planner, Nodes.of(task, split_action=True)
        self.rows, self.alone = embedded(planner, self.nodes.pieces), single_costs(planner, self.nodes.pieces)

    def steps(self, most: int | None = None) -> Iterator[Pieces]:
        """The tables whole, then after each halving of the costliest piece that may be halved: at most `most`."""
        node, splits = self.nodes.whole.tolist(), list[int]()
        while True:
            halvable = np.where(self.nodes.may_split[node], self.alone[node], -np.inf)
            costliest = int(halvable.argmax())
            uneven = bool(halvable[costliest] > self.alone[node].sum() / self.task.num_devices)
            yield Pieces(self, tuple(node), tuple(splits), uneven)
            if halvable[costliest] == -np.inf or len(splits) == most:
                return
            splits.append(costliest)
            node[costliest] += 1
            node.append(node[costliest])


@dataclass(frozen=True)
class Pieces:
    """Tables after some halvings."""

    of: Halving
    node: tuple[int, ...]  # of each piece
    splits: tuple[int, ...]  # as `Task.split` takes them
    uneven: bool  # True if a piece that may be halved costs more alone than an even share of all

    def planned(self) -> tuple[float, Plan]:
        """Cost-greedy's plan of the pieces, after its makespan."""
        task, planner, node = self.of.task, self.of.planner, list(self.node)
        rules = task.constraints
        if self.splits:  # rules are of tables that are whole: these keep their numbers
            rules = replace(rules, base=(), max_moves=None)
        cut = replace(task.split(self.splits), constraints=rules)
        rows = self.of.rows[node]
        found = cheapest_device(cut, planner, rows, self.of.alone[node])
        sums = device_sums(rows, np.array(found.device), task.num_devices)
        makespan = float(planner.decode(task, sums).makespan(task.objective))
        return makespan, replace(found, splits=self.splits)
