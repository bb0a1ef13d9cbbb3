"""Costs of a planner of ours and TorchRec's estimate, added up: neither may be neglected by who plans with the sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.memory.shards import Shards
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.torchrec import TorchRecPerf
from shard_gym.task.task import Task

PERF = TorchRecPerf()


def rated(task: Task) -> Task:
    """The task by whose makespan TorchRecPerf gives TorchRec's rating: all phases of a rank, added up."""
    return replace(task, objective="iteration")


class Both(FastSimulator):
    """A planner's cost of each device, and a share of TorchRec's estimate of it."""

    def __init__(self, planner: FastSimulator, share: float) -> None:
        self.planner, self.share, self.id = planner, share, f"{planner.id} and {PERF.id}"

    def embed(self, task: Task) -> np.ndarray:
        return np.concatenate([PERF.embed(rated(task)), self.planner.embed(task)], axis=1)

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        return np.concatenate([PERF.embed_shards(rated(task), shards), self.planner.embed_shards(task, shards)], axis=1)

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        ours, theirs = self.planner.decode(task, sums[..., 2:]), PERF.decode(rated(task), sums[..., :2])
        added = self.share * (theirs.forward_comm + theirs.backward_comm + theirs.backward_compute)
        return Latency(ours.forward_compute, ours.forward_comm, ours.backward_comm, ours.backward_compute + added)

    def floors(self, task: Task) -> list[np.ndarray]:
        theirs = PERF.rates(rated(task))
        assert theirs is not None  # of the rating there are rates
        return [np.concatenate([self.share * theirs, floor], axis=1) for floor in self.planner.floors(task)]
