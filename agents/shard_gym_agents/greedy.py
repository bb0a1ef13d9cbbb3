"""Greedy placement, costliest table first: one loop over named costs, and one over the predicted cost."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan
from shard_gym.random_plans import no_room
from shard_gym.room import Rules, follow
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.simulators.base import costs_with
from shard_gym.tables import TablePool
from shard_gym.tasks import Task
from shard_gym_agents.solver import require_fast, require_number

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

    Tables that must be together count as one, in all greedies but `RoundRobin`.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    cost: str = "lookup"

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise UnknownName("cost", self.cost, COSTS)

    def __call__(self, task: Task, planner: object) -> Plan:
        cost = COSTS[self.cost](task.tables).astype(np.float64)
        if (rules := Rules.of(task)) is not None:
            return _least_first(task, rules.merged(cost))
        speed = task.speed
        costs, size, free = cost.tolist(), table_bytes(task).tolist(), list(task.memory)
        devices = [(0.0, d) for d in range(task.num_devices)]  # a heap of (cost so far, device)
        placement = [-1] * task.num_tables
        for t in np.argsort(-cost, kind="stable").tolist():
            full = []
            while devices and free[devices[0][1]] < size[t]:
                full.append(heapq.heappop(devices))
            if not devices:
                raise no_room(task, t, np.array(free))
            load, d = devices[0]
            heapq.heapreplace(devices, (load + costs[t] / speed[d], d))
            placement[t] = d
            free[d] -= size[t]
            for entry in full:
                heapq.heappush(devices, entry)
        return Plan(tuple(placement))


def _least_first(task: Task, cost: np.ndarray) -> Plan:
    """`Greedy` under rules, from the costs of groups in their leaders' places (N,)."""
    load, speed = np.zeros(task.num_devices), np.array(task.speed)

    def choose(table: int, legal: np.ndarray) -> int:
        d = int(np.where(legal, load, np.inf).argmin())
        load[d] += cost[table] / speed[d]
        return d

    return Plan(tuple(follow(task, np.argsort(-cost, kind="stable"), choose).tolist()))


@dataclass(frozen=True)
class RoundRobin:
    """Tables in the order given, dealt to the devices in turn; one where a table may not go is passed over."""

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: object) -> Plan:
        if Rules.of(task) is not None:
            return _in_turn(task)
        size, free, placement = table_bytes(task).tolist(), list(task.memory), []
        turn = 0
        for t in range(task.num_tables):
            for step in range(task.num_devices):
                d = (turn + step) % task.num_devices
                if free[d] >= size[t]:
                    break
            else:
                raise no_room(task, t, np.array(free))
            placement.append(d)
            free[d] -= size[t]
            turn = d + 1
        return Plan(tuple(placement))


def _in_turn(task: Task) -> Plan:
    """`RoundRobin` under rules."""
    turn = 0

    def choose(table: int, legal: np.ndarray) -> int:
        nonlocal turn
        d = (turn + int(np.roll(legal, -turn).argmax())) % task.num_devices
        turn = d + 1
        return d

    return Plan(tuple(follow(task, np.arange(task.num_tables), choose).tolist()))


@dataclass(frozen=True)
class CostGreedy:
    """Costliest table first, each to the device whose predicted multi-table cost stays lowest.

    AutoShard announces this baseline and never reports it. Costs come from running sums of table embeddings.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        planner = require_fast(planner)
        if (rules := Rules.of(task)) is not None:
            return _least_predicted(task, planner, rules)
        tables, size, free = planner.embed(task), table_bytes(task).tolist(), list(task.memory)
        sums = np.zeros((task.num_devices, tables.shape[1]))
        placement = [-1] * task.num_tables
        for t in np.argsort(-single_costs(planner, task), kind="stable").tolist():
            cost = costs_with(task, planner, sums, tables[t])
            d = int(cost.argmin())  # of a NaN, if there is one
            require_number(cost[d], planner)
            if free[d] < size[t]:
                room = np.array(free) >= size[t]
                if not room.any():
                    raise no_room(task, t, np.array(free))
                d = int(np.where(room, cost, np.inf).argmin())
            placement[t] = d
            sums[d] += tables[t]
            free[d] -= size[t]
        return Plan(tuple(placement))


def _least_predicted(task: Task, planner: FastSimulator, rules: Rules) -> Plan:
    """`CostGreedy` under rules."""
    tables = rules.merged(planner.embed(task))
    sums = np.zeros((task.num_devices, tables.shape[1]))

    def choose(table: int, legal: np.ndarray) -> int:
        cost = costs_with(task, planner, sums, tables[table])
        require_number(cost[cost.argmin()], planner)
        d = int(np.where(legal, cost, np.inf).argmin())
        sums[d] += tables[table]
        return d

    order = np.argsort(-rules.merged(single_costs(planner, task)), kind="stable")
    return Plan(tuple(follow(task, order, choose).tolist()))
