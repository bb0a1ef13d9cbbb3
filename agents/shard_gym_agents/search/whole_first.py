"""Greedy placement by a named cost over all kinds of sharding: tables whole, and only those that must be in shards.

Tables that are pinned, or that no empty device has room for, come first. A table that no device has room for goes by
the first way that has room: rows in the device's memory before rows in its host's, in one piece before 2, 4 and 8
pieces of its columns, and of each piece on one device, by rows over a host, by rows over all devices, copied. Its cost
is shared out evenly over its shards.
"""

from __future__ import annotations

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.forms import DEVICE, HOST
from shard_gym.plan.plan import Plan
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.solvers.solver import no_luck


def whole_first(task: Task, cost: np.ndarray, order: np.ndarray) -> Plan:
    """Plan of tables in this order, each to the devices with the least cost so far, by the first way with room."""
    if why := disproof(task):
        raise InfeasibleTask(why)
    choices = Choices(task, lambda shards: np.zeros((len(shards.rows), 1)))
    board, ways = _board(choices, choices.rules.merged(cost.astype(np.float64))), _ways(choices)
    rules, free = choices.rules, choices.forms.fits[choices.forms.first[:-1], DEVICE]
    free &= rules.home[:-1] < 0
    for item in rules.by_leader(order[np.argsort(free[order], kind="stable")]):
        for way in ways:
            board.narrow(way)
            if (option := board.best(item)) is not None:
                board.put(item, option)
                break
        else:
            raise no_luck(f"in the order tried table {item} ({task.tables.name[item]!r}) finds no room")
    return choices.plan(board.chosen)


def _board(choices: Choices, cost: np.ndarray) -> Board:
    """A board without a table, whose loads are each table's cost, shared out over its shards."""
    task, forms = choices.task, choices.forms
    k = task.num_devices
    span = np.full((len(forms.table), 4), k)
    span[:, DEVICE], span[:, HOST] = forms.pieces, forms.pieces * task.devices_per_host
    share = np.maximum(cost, np.finfo(np.float64).tiny)[forms.table, None] / span
    unit = max(float(cost.sum()) / k, 1e-300)
    return Board(choices, share[None, ..., None] / np.array(task.speed), np.zeros((1, k)), np.zeros(2), unit)


def _ways(choices: Choices) -> list[np.ndarray]:
    """The choices of all forms, (R, 4), way by way."""
    forms = choices.forms
    rank = 4 * (forms.residence * (1 + forms.level.max()) + forms.level)[:, None] + np.arange(4)
    return [choices.may & (rank == way) for way in np.unique(rank[choices.may])]
