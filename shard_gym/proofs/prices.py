"""Proofs by prices of memory, for all kinds of sharding: see `proofs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, Forms, beyond_columns
from shard_gym.plan.violations import rooms
from shard_gym.proofs.common import MOST_TERMS, ROUNDING, number, require
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.base import along_devices
from shard_gym.task.task import Task


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by one sum that is no more than a device's cost, ms."""
    forms = forms_of(task, simulator)
    return least(simulator, forms, forms.fits, proof) + simulator.least_ms(task)


def forms_of(task: Task, simulator: FastSimulator) -> Forms:
    """All forms of a task's tables, with what they add to a simulator's sums."""
    require(beyond_columns(task), "prices are of tasks of more kinds of sharding")
    require(task.num_tables <= MOST_TERMS, "too many tables")
    return Forms.of(task, lambda shards: simulator.embed_shards(task, shards))


def least(simulator: FastSimulator, forms: Forms, may: np.ndarray, proof: Any) -> float:
    """What the slowest device takes at least, `least_ms` and waits aside, by forms and choices that plans may have.

    Where every device has rows, all launch. Where one has none, the others share its part of the mean. In either case
    the device of a shard that takes longer than the guess has rows, or all have: it launches as well.
    """
    task, guess, of_sum = forms.task, number(proof["guess"]), whole(proof["sum"])
    price = np.array([number(one) for one in proof["memory"]])

    def mean(loads: np.ndarray, average: np.ndarray) -> float:
        fast = may & (dearest_of(forms, loads) <= guess)
        return _mean(forms, np.where(fast, totals_of(forms, average), np.inf), price)

    loads = forms.loads(simulator.floors(task)[of_sum])
    found = min(guess, mean(loads, forms.loads(simulator.averages(task)[of_sum]))) * (1 - ROUNDING)
    column, launch = simulator.launch(task)
    if task.num_devices == 1 or not launch:
        return found
    counted = np.zeros((task.num_devices, forms.part_vector.shape[1]))
    counted[:, column] = 1.0
    with_rows, speed = np.where(forms.loads(counted) > 0, loads, 0.0), np.array(task.speed)
    others = speed.sum() / (speed.sum() - speed.min()) * (1 - ROUNDING)
    return max(found, min(found + launch, mean(with_rows, with_rows * others)))


def totals_of(forms: Forms, loads: np.ndarray) -> np.ndarray:
    """The least that each form adds to the mean of devices by each choice, devices weighted by their speed, (R, 4)."""
    speed = np.array(forms.task.speed)
    cost = loads * (speed / speed.sum())
    total: np.ndarray = cost.sum(axis=2)
    total[:, DEVICE] = cost[:, DEVICE].min(axis=1) * forms.pieces
    total[:, HOST] = forms.by_host(cost[:, HOST]).sum(axis=2).min(axis=1) * forms.pieces
    return total


def dearest_of(forms: Forms, loads: np.ndarray) -> np.ndarray:
    """The least cost of the dearest device that holds a part of a table, by forms and choices, (R, 4)."""
    dearest = along_devices(np.maximum, loads)[..., 0]
    dearest[:, DEVICE] = loads[:, DEVICE].min(axis=1)
    dearest[:, HOST] = forms.by_host(loads[:, HOST]).max(axis=2).min(axis=1)
    return dearest


def _mean(forms: Forms, cost: np.ndarray, price: np.ndarray) -> float:
    """The least mean of devices where tables cost so much, (R, 4), and pay for the memory that they take."""
    cost = cost + np.tensordot(price, forms.taken, axes=1)
    paid = float(np.minimum.reduceat(cost.min(axis=1), forms.first[:-1]).sum())
    room = float(price @ [memory.sum() for memory in rooms(forms.task)])
    return paid - room - ROUNDING * (paid + room) if paid < np.inf else np.inf
