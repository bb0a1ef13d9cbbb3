"""Proofs by prices of memory, for all kinds of sharding: see `proofs`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms, beyond_columns
from shard_gym.plan.violations import rooms
from shard_gym.proofs.common import MOST_TERMS, ROUNDING, number, require
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.base import along_devices
from shard_gym.task.task import Task


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by one sum that is no more than a device's cost, ms."""
    forms = forms_of(task, simulator)
    costs = Costs(forms, *sums_of(simulator, task, whole(proof["sum"])), simulator.launch(task))
    return costs.least(forms.fits, proof) + simulator.least_ms(task)


def sums_of(simulator: FastSimulator, task: Task, of_sum: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of one sum that is no more than each device's cost, and no more than their mean."""
    return simulator.floors(task)[of_sum], simulator.averages(task)[of_sum]


def forms_of(task: Task, simulator: FastSimulator) -> Forms:
    """All forms of a task's tables, with what they add to a simulator's sums."""
    require(beyond_columns(task), "prices are of tasks of more kinds of sharding")
    require(task.num_tables <= MOST_TERMS, "too many tables")
    return Forms.of(task, lambda shards: simulator.embed_shards(task, shards))


class Costs:
    """Costs of forms and choices by one sum, by the weights of each device's cost and of their mean."""

    def __init__(self, forms: Forms, floor: np.ndarray, average: np.ndarray, launch: tuple[int, float]) -> None:
        self.forms, self.loads = forms, forms.loads(floor)
        self.dearest, self.total = dearest_of(forms, self.loads), totals_of(forms, forms.loads(average))
        self.column, self.launch = launch

    def least(self, may: np.ndarray, proof: Any) -> float:
        """Time that the slowest device takes at least, `least_ms` and waits aside, by these forms and choices.

        Devices with rows launch, so their mean is a launch above that of their shards. If all have rows, it is the mean
        of all devices; if one has none, what shards cost their own devices is shared out over the others. A device with
        a shard that takes longer than the guess has rows, or all devices have.
        """
        if not np.logical_or.reduceat(may.any(axis=1), self.forms.first[:-1]).all():
            return np.inf  # no plan
        guess, price = number(proof["guess"]), np.array([number(one) for one in proof["memory"]])

        def mean(dearest: np.ndarray, total: np.ndarray) -> float:
            return _mean(self.forms, np.where(may & (dearest <= guess), total, np.inf), price)

        found = min(guess, mean(self.dearest, self.total)) * (1 - ROUNDING)
        if not self.launch or self.forms.task.num_devices == 1:
            return found + self.launch
        return max(found, min(found, mean(*self._with_rows)) + self.launch)

    @cached_property
    def _with_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The dearest shard, and the mean of the other devices if one has no rows; of shards with rows alone.

        By choices that put rows on every device there is no such plan.
        """
        forms, speed = self.forms, np.array(self.forms.task.speed)
        rows = (forms.part_vector[:, self.column] > 0)[forms.placed]
        on_all = rows.all(axis=2) & np.isin(np.arange(4), [ALL, COPY])
        loads, others = np.where(rows, self.loads, 0.0), speed.sum() / (speed.sum() - speed.min()) * (1 - ROUNDING)
        return dearest_of(forms, loads), np.where(on_all, np.inf, totals_of(forms, loads) * others)


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
    dearest[:, DEVICE] = along_devices(np.minimum, loads[:, DEVICE])[..., 0]
    dearest[:, HOST] = along_devices(np.maximum, forms.by_host(loads[:, HOST]))[..., 0].min(axis=1)
    return dearest


def _mean(forms: Forms, cost: np.ndarray, price: np.ndarray) -> float:
    """The least mean of devices where tables cost so much, (R, 4), and pay for the memory that they take."""
    cost = cost + np.tensordot(price, forms.taken, axes=1)
    paid = float(np.minimum.reduceat(cost.min(axis=1), forms.first[:-1]).sum())
    room = float(price @ [memory.sum() for memory in rooms(forms.task)])
    return paid - room - ROUNDING * (paid + room) if paid < np.inf else np.inf
