"""Programs whose value is a planner's makespan, or a bound on it, by what a device's tables cost in each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from shard_gym.bounds.shares import Share, pieces_of, shares_of
from shard_gym.plan.nodes import Nodes, halvings
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym_agents.search.linear import INFINITY, LARGE
from shard_gym_agents.search.milp import Model


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
