"""What devices cost in many episodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import costs_with
from shard_gym.tasks import Task
from shard_gym.vector.record import Record
from shard_gym.vector.shelf import Shelf
from shard_gym.vector.states import States

PHASES = tuple(field.name for field in fields(Latency))


def latencies(shelf: Shelf, states: States, envs: np.ndarray) -> tuple[Latency, np.ndarray]:
    """Latency and cost of each device, (c, K), of episodes that are over, or of any whose sums are kept.

    One call of a fast simulator for all tasks that it decodes alike; any other is asked task by task. Where it
    needs the tables after splits it is asked plan by plan.
    """
    simulator = shelf.env.simulator
    if isinstance(simulator, FastSimulator):
        sums = states.device_sums(envs)
        parts = [(p, t, simulator.decode(t, sums[p])) for p, t in _alike(shelf, states.slot[envs])]
        return _together(parts, len(envs))
    parts = []
    if states.pieces is None:
        placements = states.placements(envs)
        for part, task in _same_task(shelf, states.slot[envs]):
            parts.append((part, task, simulator.latency(task, placements[part, : task.num_tables])))
    else:
        for i, plan in enumerate(Record.of(states, envs).plans()):
            (_, task), *_ = _same_task(shelf, states.slot[envs[i : i + 1]])
            latency = simulator.latency(task.split(plan.splits), np.array(plan.device)[None])
            parts.append((np.array([i]), task, latency))
    return _together(parts, len(envs))


Part = slice | np.ndarray


def _alike(shelf: Shelf, slots: np.ndarray) -> Iterator[tuple[Part, Task]]:
    """Those that a simulator decodes in one call, and one of their tasks."""
    if len(shelf.groups) == 1:
        yield slice(None), shelf.groups[0]
        return
    groups = shelf.slots.group[slots]
    for group in np.unique(groups).tolist():
        yield np.flatnonzero(groups == group), shelf.groups[group]


def _same_task(shelf: Shelf, slots: np.ndarray) -> Iterator[tuple[Part, Task]]:
    for slot in np.unique(slots).tolist():
        yield np.flatnonzero(slots == slot), shelf.slots.episode[slot].prepared.task


def _together(parts: list[tuple[Part, Task, Latency]], count: int) -> tuple[Latency, np.ndarray]:
    """The parts' latencies and costs as one; which numbers a simulator tells does not depend on the task."""
    _, task, latency = parts[0]
    if isinstance(parts[0][0], slice):
        return latency, latency.cost(task.objective)
    shape = (count, latency.forward_compute.shape[-1])
    arrays = {name: np.empty(shape) for name in PHASES if getattr(latency, name) is not None}
    cost = np.empty(shape)
    for part, task, latency in parts:
        cost[part] = latency.cost(task.objective)
        for name, values in arrays.items():
            values[part] = getattr(latency, name)
    return Latency(**arrays), cost


class RunningCosts:
    """The cost of each device in every episode, (n, K) ms, kept up to date step by step."""

    def __init__(self, shelf: Shelf, states: States) -> None:
        self.shelf, self.states = shelf, states
        self.cost = np.zeros(states.free.shape)
        self.all_changed = True  # by the last update; else the chosen devices only

    def begin(self, envs: np.ndarray) -> None:
        """An empty device computes for nothing."""
        self.cost[envs] = 0

    def update(self) -> None:
        """After a step.

        Where devices are alike and do not touch (kernel objective, equal speeds) only the chosen one is decoded, K
        of them as one plan, as `simulators.single_costs` does; elsewhere all are.
        """
        states, simulator = self.states, self.shelf.env.simulator
        if not isinstance(simulator, FastSimulator):
            self.cost = latencies(self.shelf, states, np.arange(len(states.slot)))[1]
            return
        assert states.sums is not None
        self.all_changed = not all(_devices_apart(task) for task in self.shelf.groups)
        for part, task in _alike(self.shelf, states.slot):
            if _devices_apart(task):
                changed = states.changed[part]
                dealt = _dealt(changed, states.num_devices)
                costs = simulator.decode(task, dealt).compute.reshape(-1)[: len(changed)]
                self.cost.reshape(-1)[states.chosen[part]] = costs
            else:
                self.cost[part] = simulator.decode(task, states.sums[part]).cost(task.objective)


def costs_ahead(shelf: Shelf, states: States) -> np.ndarray:
    """What each device would cost with its episode's next piece on it, (n, K) ms; at ends, what it costs."""
    simulator, pieces = shelf.env.simulator, shelf.rows.embedding.take(states.row, axis=0)  # zeros at ends
    assert isinstance(simulator, FastSimulator) and states.sums is not None
    cost = np.empty(states.free.shape)
    for part, task in _alike(shelf, states.slot):
        cost[part] = costs_with(task, simulator, states.sums[part], pieces[part])
    return cost


def _devices_apart(task: Task) -> bool:
    return task.objective == "kernel" and len(set(task.speed)) == 1


def _dealt(shards: np.ndarray, devices: int) -> np.ndarray:
    """As sums of plans, the last one filled up with empty devices: (S, H) -> (P, K, H)."""
    if missing := -len(shards) % devices:
        shards = np.concatenate([shards, np.zeros((missing, shards.shape[1]))])
    return shards.reshape(-1, devices, shards.shape[1])
