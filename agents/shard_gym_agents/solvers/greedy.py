"""Greedy placement, costliest table first: one loop over named costs, and one over the predicted cost."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shard_gym import core
from shard_gym.errors import UnknownName
from shard_gym.plan.feasibility import dead_end, follow
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import one
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.simulators.base import embedded
from shard_gym.simulators.single import cheapest_in_turn, costs_with
from shard_gym.tables.pool import TablePool
from shard_gym.task.task import Task
from shard_gym_agents.search import kinds
from shard_gym_agents.search.whole_first import whole_first
from shard_gym_agents.solvers.solver import require_fast, require_number

COSTS: dict[str, Callable[[TablePool], np.ndarray]] = {
    "size": lambda t: t.weight_bytes,
    "dim": lambda t: t.dim,
    "lookup": lambda t: t.dim * t.pooling,
    "size-lookup": lambda t: t.dim * t.pooling * t.weight_bytes,  # DreamShard's paper
    "size-lookup-log": lambda t: t.dim * t.pooling * np.log10(t.rows),  # DreamShard's code
}


@dataclass(frozen=True)
class Greedy:
    """Costliest table first, each to the device with the least cost so far where it may go.

    With equal costs the larger table and the emptier device come first, as in DreamShard's code. Tables that must be
    together count as one, in all greedies but `RoundRobin`. `search.whole_first` plans tasks of more kinds of sharding.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    cost: str = "lookup"

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise UnknownName("cost", self.cost, COSTS)

    def __call__(self, task: Task, planner: object) -> Plan:
        if beyond_columns(task):
            return self._of_kinds(task)
        options = Options.of(task)
        rules = options.rules
        cost = rules.merged(COSTS[self.cost](task.tables).astype(np.float64))
        size = rules.merged(task.tables.weight_bytes)
        order = np.lexsort((-size, -cost))
        if not rules.binding:
            found = core.deal(cost, size, options.size[:, 0], order, np.array(task.speed), task.capacity)
            if found is not None:
                return Plan(tuple(found.tolist()))
        placing = one(options)
        costs, sizes, speed, placement = cost.tolist(), size.tolist(), task.speed, [-1] * task.num_tables
        devices = [(0.0, 0, d) for d in range(task.num_devices)]  # a heap of (cost and bytes so far, device)
        for t in rules.by_leader(order):
            full = []
            while devices and not placing.took(t, devices[0][2]):
                full.append(heapq.heappop(devices))
            if not devices:
                raise dead_end(placing, t)
            load, used, device = devices[0]
            heapq.heapreplace(devices, (load + costs[t] / speed[device], used + sizes[t], device))
            placement[t] = device
            for entry in full:
                heapq.heappush(devices, entry)
        return Plan(tuple(rules.as_leader(placement)))

    def _of_kinds(self, task: Task) -> Plan:
        rules, cost = Rules.of(task), COSTS[self.cost](task.tables)
        order = np.lexsort((-rules.merged(task.tables.weight_bytes), -rules.merged(cost.astype(np.float64))))
        return whole_first(task, cost, order)


@dataclass(frozen=True)
class RoundRobin:
    """Tables in the given order, dealt to the devices in turn; a device where a table may not go is skipped.

    In tasks of more kinds of sharding each table goes to the device with the fewest tables: see `search.whole_first`.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: object) -> Plan:
        if beyond_columns(task):
            return whole_first(task, np.ones(task.num_tables), np.arange(task.num_tables))
        placing, turn = one(Options.of(task)), 0

        def next_in_turn(table: int) -> int:
            nonlocal turn
            for step in range(task.num_devices):
                device = (turn + step) % task.num_devices
                if placing.may(table, device):
                    turn = device + 1
                    return device
            return -1

        return Plan(tuple(follow(placing, np.arange(task.num_tables), next_in_turn).tolist()))


@dataclass(frozen=True)
class CostGreedy:
    """Costliest table first, each to the device whose predicted multi-table cost stays lowest.

    AutoShard announces this baseline and never reports it. Costs come from running sums of table embeddings. In
    tasks of more kinds of sharding each table takes the best of all its options, see `search.kinds`.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        planner = require_fast(planner)
        if beyond_columns(task):
            return kinds.greedy(task, planner)
        return cheapest_device(task, planner, embedded(planner, task), single_costs(planner, task))


def cheapest_device(task: Task, planner: FastSimulator, rows: np.ndarray, alone: np.ndarray) -> Plan:
    """Cost-greedy's plan of tables whose embeddings are these rows, (N, H), and that cost so much alone, (N,)."""
    rules = Rules.of(task)
    tables, order = rules.merged(rows), np.argsort(-rules.merged(alone), kind="stable")
    if not rules.binding and (found := cheapest_in_turn(task, planner, tables, order)) is not None:
        return Plan(tuple(found.tolist()))
    placing = one(Options.of(task, tables, rules), track=True)
    sums = placing.sums[0]

    def cheapest(table: int) -> int:
        cost = costs_with(task, planner, sums, tables[table])
        device = int(cost.argmin())  # of a NaN, if there is one
        require_number(cost[device], planner)
        if placing.may(table, device):
            return device
        legal = placing.legal(table)[0]
        return int(np.where(legal, cost, np.inf).argmin()) if legal.any() else -1

    return Plan(tuple(follow(placing, order, cheapest).tolist()))
