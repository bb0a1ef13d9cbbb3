"""Proofs by prices of memory, for all kinds of sharding: see `proofs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, Forms, beyond_columns
from shard_gym.plan.violations import rooms
from shard_gym.proofs.common import MOST_TERMS, ROUNDING, number, require
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by one sum that is no more than a device's cost, ms."""
    require(beyond_columns(task), "prices are of tasks of more kinds of sharding")
    require(task.num_tables <= MOST_TERMS, "too many tables")
    forms, of_sum = Forms.of(task, lambda shards: simulator.embed_shards(task, shards)), whole(proof["sum"])
    guess, price = number(proof["guess"]), np.array([number(one) for one in proof["memory"]])
    loads, speed = forms.loads(simulator.floors(task)[of_sum]), np.array(task.speed)
    dearest, in_host = loads.max(axis=2), forms.by_host(loads[:, HOST])
    dearest[:, DEVICE], dearest[:, HOST] = loads[:, DEVICE].min(axis=1), in_host.max(axis=2).min(axis=1)
    loads = forms.loads(simulator.averages(task)[of_sum]) * (speed / speed.sum())
    total, in_host = loads.sum(axis=2), forms.by_host(loads[:, HOST])
    total[:, DEVICE] = loads[:, DEVICE].min(axis=1) * forms.pieces
    total[:, HOST] = in_host.sum(axis=2).min(axis=1) * forms.pieces
    cost = np.where(forms.fits & (dearest <= guess), total + np.tensordot(price, forms.taken, axes=1), np.inf)
    each = np.minimum.reduceat(cost.min(axis=1), forms.first[:-1])
    paid, room = float(each.sum()), float(price @ [memory.sum() for memory in rooms(task)])
    mean = paid - room - ROUNDING * (paid + room) if paid < np.inf else np.inf
    return min(guess, mean) * (1 - ROUNDING) + simulator.least_ms(task)
