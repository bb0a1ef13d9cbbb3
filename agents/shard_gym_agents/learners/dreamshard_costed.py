"""Tasks side by side while their tables are placed, with what the planner says of each next step. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from shard_gym.errors import InvalidTask
from shard_gym.memory import table_bytes
from shard_gym.simulators import FastSimulator, single_costs
from shard_gym.tasks import Task
from shard_gym.vector.shelf import decoded_alike
from shard_gym_agents.learners.boards import device_order, leaning, ruled, standardised
from shard_gym_agents.solver import require_number

LOUD = 10.0  # what differences between devices are multiplied with: nearly full ones are close to one another
FEATURES = (
    *("cost", "makespan", "forward", "comm", "backward"),  # of the device, and the plan, with the next table on it
    *("cost_excess", "makespan_excess"),  # above the least of all devices
    *("forward_excess", "comm_excess", "backward_excess"),  # above the mean of all devices
    *("table", "to_come"),  # what the table costs alone, and an even share of later ones
    *("room", "fill", "tightness"),  # left beside an even share of what is to come; taken; to come of all there is
)
EXCESS = FEATURES.index("cost_excess")


@dataclass(frozen=True, eq=False)
class Costed:
    """B tasks that the planner decodes alike, N tables in the order they are placed; padded with tables of no cost."""

    task: Task  # one of them
    features: np.ndarray  # (B, N, 21) float32, standardised
    order: np.ndarray  # (B, N) which table it is; 0 where padded
    real: np.ndarray  # (B, N) float32: 1, or 0 where padded
    tables: np.ndarray  # (B, N, H) the planner's embeddings
    size: np.ndarray  # (B, N) int64 bytes
    bytes_to_come: np.ndarray  # (B, N) after this table
    coming: np.ndarray  # (B, N, 2) the table's single cost; an even share of those after it; over the unit
    capacity: np.ndarray  # (B, K) int64 bytes
    unit: np.ndarray  # (B,) ms: the makespan if each device held an even share of every table

    @classmethod
    def of(cls, tasks: Sequence[Task], planner: FastSimulator, scaling: np.ndarray, leans: np.ndarray) -> Costed:
        """`scaling` is the mean and the deviation of features, (2, 21); `leans` (B,) see `boards.leaning`."""
        if not all(decoded_alike(tasks[0], task) for task in tasks):
            raise InvalidTask("these tasks differ in speed, links, batch or objective: train on one kind of hardware")
        rows = [_row(task, planner, scaling, lean) for task, lean in zip(tasks, leans, strict=True)]
        most = max(task.num_tables for task in tasks)
        columns = [np.stack([_padded(row[i], most) for row in rows]) for i in range(len(rows[0]) - 2)]
        return cls(tasks[0], *columns, *(np.stack([row[i] for row in rows]) for i in (-2, -1)))

    def take(self, rows: np.ndarray) -> Costed:
        """Some of the tasks; repeats are legal."""
        names = [field.name for field in fields(self)][1:]
        return Costed(self.task, *(getattr(self, name)[rows] for name in names))


def _row(task: Task, planner: FastSimulator, scaling: np.ndarray, lean: float) -> list[np.ndarray]:
    """The columns of one task."""
    tables, alone, size = planner.embed(task), single_costs(planner, _as_shown(task)), table_bytes(task)
    require_number(float(alone.sum()), planner)
    by = leaning(torch.from_numpy(alone), torch.from_numpy(size), lean).numpy()
    order = np.argsort(-by, kind="stable")
    even = np.broadcast_to(tables.sum(axis=0) / task.num_devices, (task.num_devices, tables.shape[1]))
    unit = max(float(planner.decode(task, even).makespan(task.objective)), 1e-12)
    alone, size = alone[order] / unit, size[order]
    return [
        standardised(task, scaling)[order].astype(np.float32),
        order,
        np.ones(len(order), np.float32),
        tables[order],
        size,
        size.sum() - size.cumsum(),
        np.stack([LOUD / 2 * alone, (alone.sum() - alone.cumsum()) / task.num_devices], axis=1),
        task.capacity,
        np.array(unit),
    ]


def _as_shown(task: Task) -> Task:
    """The task with its devices in the order of `device_order`: single costs are those of the first one."""
    if len(set(zip(task.memory, task.speed, strict=True))) == 1:
        return task
    shown = device_order(task).tolist()
    memory, speed = (tuple(values[d] for d in shown) for values in (task.memory, task.speed))
    return replace(task, memory=memory, speed=speed)


def _padded(column: np.ndarray, length: int) -> np.ndarray:
    return np.pad(column, [(0, length - len(column))] + [(0, 0)] * (column.ndim - 1))


class Devices:
    """What stands on each device of B tasks.

    They are seen and chosen in the order of `shown`, so that it does not matter how a task numbers them.
    """

    def __init__(self, costed: Costed, planner: FastSimulator) -> None:
        self.costed, self.planner, self.task = costed, planner, costed.task
        self.free = costed.capacity.copy()
        self.sums = np.zeros((*self.free.shape, costed.tables.shape[2]))
        self.cost, self.next_cost = np.zeros((2, *self.free.shape))  # ms, now and with the next table
        self.shown = device_order(self.task)
        self.rules = ruled(self.task, len(self.free), self.shown)  # of the one task there is, if it has constraints
        self.rows, self.own = np.arange(len(self.free)), np.eye(self.free.shape[1], dtype=bool)

    def costs_with(self, step: int) -> np.ndarray:
        """Cost, makespan, forward, comm and backward in ms if a device took the next table, (B, K, 5)."""
        table, task = self.costed.tables[:, step], self.task
        costs = np.empty((*self.free.shape, 5))
        if task.objective == "kernel":  # devices do not touch: one decode for all
            latency = self.planner.decode(task, self.sums + table[:, None])
            costs[..., 0] = cost = latency.compute
            others = np.where(self.own, 0, self.cost[:, None]).max(axis=-1)
            np.maximum(cost, others, out=costs[..., 1])
            costs[..., 2], costs[..., 4] = latency.forward_compute, latency.backward_compute
            costs[..., 3] = 0
            return costs
        plans = self.sums[:, None] + self.own[..., None] * table[:, None, None]  # (B, K, K, H)
        latency = self.planner.decode(task, plans)
        cost = latency.cost(task.objective)
        phases = (latency.forward_compute, latency.backward_comm, latency.backward_compute)
        for i, values in ((0, cost), *enumerate(phases, start=2)):
            costs[..., i] = np.diagonal(values, axis1=1, axis2=2)
        np.maximum.reduce(cost, axis=2, out=costs[..., 1])
        return costs

    def look(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """What the policy sees of each device, float32 (B, K, 15), and which ones it may take, (B, K)."""
        c, size, k = self.costed, self.costed.size[:, step, None], len(self.own)
        costs, free = self.costs_with(step), self.free[:, self.shown]
        self.next_cost = costs[..., 0]
        costs = costs[:, self.shown] / c.unit[:, None, None]
        least = np.minimum.reduce(costs[..., :2], axis=1, keepdims=True)
        mean = np.add.reduce(costs[..., 2:], axis=1, keepdims=True) / k
        left, to_come = free - size, c.bytes_to_come[:, step, None]
        fits, room = left >= 0, np.maximum(left, 0)
        seen = np.empty((*self.free.shape, len(FEATURES)), np.float32)
        seen[..., :5] = costs
        seen[..., 5:7] = LOUD * (costs[..., :2] - least)
        seen[..., 7:10] = LOUD * (costs[..., 2:] - mean)
        seen[..., 10:12] = c.coming[:, step, None]
        seen[..., 12] = room / (room + (to_come / k + 1))
        seen[..., 13] = size / np.maximum(np.maximum(free, size), 1)
        total = np.add.reduce(free, axis=1, keepdims=True) - size
        seen[..., 14] = np.minimum(to_come / np.maximum(total, 1), 2)
        if self.rules is not None:
            return seen, self.rules.legal(c.order[:, step])
        return seen, fits | ~fits.any(axis=1, keepdims=True)

    def place(self, step: int, chosen: np.ndarray) -> None:
        """The tables that were looked at go to these devices, (B,)."""
        device = self.shown[chosen]
        if self.rules is not None:
            self.rules.place(self.costed.order[:, step], chosen)
        self.sums[self.rows, device] += self.costed.tables[:, step]
        self.free[self.rows, device] -= self.costed.size[:, step]
        self.cost[self.rows, device] = self.next_cost[self.rows, device]

    def makespan(self) -> np.ndarray:
        """In ms, (B,)."""
        return self.planner.decode(self.task, self.sums).makespan(self.task.objective)
