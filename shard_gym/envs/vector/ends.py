"""Costs of many episodes at once, worth of those that are over, and what `info` tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shard_gym.envs.rewards import NUMBERS
from shard_gym.envs.vector.shelf import Shelf
from shard_gym.envs.vector.states import Record, States
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.violations import broken_constraints
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import along_devices
from shard_gym.simulators.single import costs_with
from shard_gym.task.task import Task

PHASES = tuple(field.name for field in fields(Latency))


def latencies(shelf: Shelf, states: States, envs: np.ndarray) -> tuple[Latency, np.ndarray]:
    """Latency and cost of each device, (c, K), of episodes that are over, or of any whose sums are kept.

    One call of a fast simulator for all tasks that it decodes alike; any other is asked task by task. Where it
    needs the tables after splits it is asked plan by plan.
    """
    simulator = shelf.settings.simulator
    if isinstance(simulator, FastSimulator):
        sums = states.device_sums(envs)
        parts = [(p, t, simulator.decode(t, sums[p])) for p, t in alike(shelf, states.slot[envs])]
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


def alike(shelf: Shelf, slots: np.ndarray) -> Iterator[tuple[Part, Task]]:
    """Episodes that a simulator decodes in one call, and one of their tasks."""
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
        self.cost = np.zeros(states.placing.free.shape)
        self.all_changed = True  # by the last update; else the chosen devices only

    def begin(self, envs: np.ndarray) -> None:
        """An empty device computes for nothing."""
        self.cost[envs] = 0

    def update(self) -> None:
        """After a step.

        Where devices are alike and do not touch (kernel objective, equal speeds) only the chosen one is decoded, K
        of them as one plan, as `simulators.single_costs` does; elsewhere all are.
        """
        states, simulator = self.states, self.shelf.settings.simulator
        if not isinstance(simulator, FastSimulator):
            self.cost = latencies(self.shelf, states, np.arange(len(states.slot)))[1]
            return
        placing = states.placing
        self.all_changed = not all(_devices_apart(task) for task in self.shelf.groups)
        for part, task in alike(self.shelf, states.slot):
            if not _devices_apart(task):
                self.cost[part] = simulator.cost(task, placing.sums[part])
                continue
            for at, _, sums in placing.touched:
                assert sums is not None
                dealt = _dealt(sums[part], states.num_devices)
                self.cost.reshape(-1)[at[part]] = simulator.cost(task, dealt).reshape(-1)[: len(at[part])]


def costs_ahead(shelf: Shelf, states: States) -> np.ndarray:
    """Costs of devices with their episode's next piece on them, (n, K) ms; at ends, as they are."""
    simulator, placing = shelf.settings.simulator, states.placing
    pieces = shelf.options.vector[states.row, 0]  # zeros at ends
    assert isinstance(simulator, FastSimulator)
    cost = np.empty(placing.free.shape)
    for part, task in alike(shelf, states.slot):
        cost[part] = costs_with(task, simulator, placing.sums[part], pieces[part])
    return cost


def _devices_apart(task: Task) -> bool:
    return task.objective == "kernel" and len(set(task.speed)) == 1 and not beyond_columns(task)


def _dealt(shards: np.ndarray, devices: int) -> np.ndarray:
    """Sums of shards dealt to plans, the last one filled up with empty devices: (S, H) -> (P, K, H)."""
    if missing := -len(shards) % devices:
        shards = np.concatenate([shards, np.zeros((missing, shards.shape[1]))])
    return shards.reshape(-1, devices, shards.shape[1])


@dataclass(frozen=True, eq=False)
class Ends:
    """The ends of some environments' episodes; see `rewards.Outcome`."""

    envs: np.ndarray
    record: Record
    latency: Latency  # (c, K)
    cost: np.ndarray  # (c, K)
    makespan: np.ndarray  # ms
    balance: np.ndarray
    excess: np.ndarray
    hash: np.ndarray

    def numbers(self, num_envs: int) -> dict[str, np.ndarray]:
        """Numbers that infos tell of each environment, (n,); of those that go on what they tell before the end."""
        slowest, latency = self.cost.argmax(axis=1)[:, None], self.latency
        known = {"makespan": self.makespan, "balance": self.balance, "feasible": self.excess == 0}
        for name in ("spread", "distance"):
            if (values := getattr(latency, name)) is not None:
                known[name] = np.take_along_axis(values, slowest, axis=1)[:, 0]
        return before_ends(num_envs) | {name: spread_out(values, self.envs, num_envs) for name, values in known.items()}

    def objects(self, num_envs: int) -> dict[str, np.ndarray]:
        """Plan, latency and the task's hash of each environment that ended, (n,); None of the others."""
        told = {"plan": objects(self.record.plans()), "latency": objects(self.latencies()), "task": self.hash}
        return {name: spread_out(values, self.envs, num_envs) for name, values in told.items()}

    def latencies(self) -> list[Latency]:
        """One of each environment."""
        return [one_of(self.latency, i) for i in range(len(self.envs))]


def one_of(latency: Latency, i: int) -> Latency:
    """The latency of one environment."""
    phases = {f.name: getattr(latency, f.name) for f in fields(Latency)}
    return Latency(**{name: phase[i] for name, phase in phases.items() if phase is not None})


def judged(shelf: Shelf, states: States, envs: np.ndarray) -> Ends:
    """Judge episodes that are over."""
    record = Record.of(states, envs)
    latency, cost = latencies(shelf, states, envs)
    excess = _excess(shelf, states, envs, record)
    hashes = shelf.slots.hash[states.slot[envs]]
    makespan = along_devices(np.maximum, cost)[:, 0]
    return Ends(envs, record, latency, cost, makespan, latency.balance, excess, hashes)


def end_rewards(shelf: Shelf, states: States, ends: Ends) -> np.ndarray:
    """The whole return of each episode, as `rewards.end_reward`."""
    of, slots = shelf.slots, states.slot[ends.envs]
    worth = shelf.settings.paid.worth
    return worth(ends.makespan, ends.balance, ends.excess, of.worst[slots], of.reference[slots])


def _excess(shelf: Shelf, states: States, envs: np.ndarray, record: Record) -> np.ndarray:
    """Excess of bytes, and one for each broken constraint."""
    excess = states.excess(envs)
    for i in range(len(envs)) if shelf.options.rules.binding else ():
        excess[i] += len(broken_constraints(record.episode(i).prepared.task, record.plan(i)))
    return excess


def before_ends(num_envs: int) -> dict[str, np.ndarray]:
    """Numbers that infos tell where no episode is over, (n,): all are 0, or False."""
    numbers = dict(zip(NUMBERS, np.zeros((len(NUMBERS), num_envs)), strict=True))
    return numbers | {"feasible": np.zeros(num_envs, bool)}


def told_where(told: dict[str, Any], where: np.ndarray) -> dict[str, Any]:
    """Infos with, beside each key, where it is told, as gymnasium's vector environments have them."""
    return told | {f"_{key}": where for key in told}


def last_told(shown: Sequence[Any], told: dict[str, Any], envs: np.ndarray, over: np.ndarray) -> dict[str, Any]:
    """Infos of ends that new episodes follow in the same step: what was shown last, and what it was told with."""
    return told_where({"final_obs": spread_out(objects(shown), envs, len(over)), "final_info": told}, over)


def objects(values: Sequence[Any]) -> np.ndarray:
    """A flat array of these, whatever they are."""
    return np.fromiter(values, object, len(values))


def spread_out(values: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    """Values of some environments in an array of all, as gymnasium tells them: 0, or None, for the others."""
    shape = (num_envs, *values.shape[1:])
    out = np.full(shape, None) if values.dtype == object else np.zeros(shape, values.dtype)
    out[envs] = values
    return out
