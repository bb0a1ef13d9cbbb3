"""Proofs that need no words: of few tables, every plan is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.memory.usage import device_bytes
from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs.common import require
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

MOST_PLANS, AT_ONCE = 2**21, 2**16


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The makespan of the fastest plan that fits, ms."""
    require(is_small(task), "tables may be split, or have too many plans to look at each")
    devices, found = task.num_devices, np.inf
    digits = devices ** np.arange(task.num_tables)
    for start in range(0, devices**task.num_tables, AT_ONCE):
        plans = np.arange(start, min(start + AT_ONCE, devices**task.num_tables))[:, None] // digits % devices
        fits = (device_bytes(task, plans) <= task.capacity).all(axis=1)
        if fits.any():
            found = min(found, float(simulator.latency(task, plans[fits]).makespan(task.objective).min()))
    return found


def is_small(task: Task) -> bool:
    """True if tables stay whole, and there are few plans."""
    whole = not (task.splits_allowed or beyond_columns(task))
    return whole and task.num_tables * np.log2(task.num_devices) <= np.log2(MOST_PLANS)
