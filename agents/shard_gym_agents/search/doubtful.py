"""Planners that charge for what they do not know, for searches: a plan that relies on it is worth less to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.memory.shards import Shards
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.expected import expected_max
from shard_gym.task.task import Task


class Charged(FastSimulator):
    """A planner by which each device takes what is predicted and `times` its spread."""

    def __init__(self, planner: FastSimulator, times: float) -> None:
        self.planner, self.times = planner.uncounted, times
        self.id = f"{planner.id} + {times:g} spread"

    def embed(self, task: Task) -> np.ndarray:
        """The planner's own."""
        return self.planner.embed(task)

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        """The planner's own."""
        return self.planner.embed_shards(task, shards)

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """The planner's latency, the charge with the forward pass."""
        found = self.planner.decode(task, sums)
        if found.spread is None:
            return found
        return replace(found, forward_compute=found.forward_compute + self.times * found.spread)


class Expected(Charged):
    """A planner of one kernel task by which a plan takes the expected time of its slowest device.

    What that is above the largest prediction is added to every device. Shards that are asked about as those of no plan
    are not charged.
    """

    def __init__(self, planner: FastSimulator, task: Task) -> None:
        super().__init__(planner, 0.0)
        self.task, self.id = task, f"{planner.id}, expected slowest"

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """The planner's latency, the charge with the forward pass."""
        found = self.planner.decode(task, sums)
        if found.spread is None or task is not self.task:
            return found
        cost = found.cost(task.objective)
        charge = expected_max(cost, found.spread) - cost.max(axis=-1)
        return replace(found, forward_compute=found.forward_compute + charge[..., None])
