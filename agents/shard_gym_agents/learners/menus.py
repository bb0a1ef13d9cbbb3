"""Menus: the tables of tasks that allow all kinds of sharding, in the order they are placed, and the options of each.

Tables that must be together are one item. A menu lists a task's items, and of each the best options at a fair price of
memory. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shard_gym.envs.vector.shelf import decoded_alike
from shard_gym.errors import InvalidTask
from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.learners.rollouts import standardised
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.solvers.solver import require_number

KEPT = 10  # options of an item, at most
ATTEMPTS = 16  # orders, by cost and by size in turn; memory is dearer after each two, by larger and larger steps
DEARER = 1.1


@dataclass(frozen=True, eq=False)
class Menu:
    """Menus of B tasks that the planner decodes alike: N items each, M options of each item, the best first."""

    choices: tuple[Choices, ...]  # of all tasks that these were taken from
    vector: np.ndarray  # (S, H) what parts of their shards add to sums
    task: np.ndarray  # (B,) which of the tasks
    item: np.ndarray  # (B, N) its table, or the first of its group; -1 where padded
    form: np.ndarray  # (B, N, M), as of `Forms`
    choice: np.ndarray  # (B, N, M); -1 where there are fewer options
    pieces: np.ndarray  # (B, N, M)
    part: np.ndarray  # (B, N, M, K) row of `vector`, for a piece
    load: np.ndarray  # (B, N, M, K) ms of a piece, as far as costs add up
    size: np.ndarray  # (B, N, M, 2, K) bytes of a piece, there and in the host's memory
    told: np.ndarray  # (B, N, M, 5) halvings of three, share of rows in devices' memory; if by host, by rows, copied
    allowed: np.ndarray  # (B, N, K) devices that pins leave
    rival: np.ndarray  # (B, N) number among those that must be apart from some; -1: from none
    apart: np.ndarray  # (B, N, A) rivals that it must be apart from
    features: np.ndarray  # (B, N, 21), standardised
    adds: np.ndarray  # (B, N) ms that the best option adds to the mean device
    bytes: np.ndarray  # (B, N) bytes of the best option
    capacity: np.ndarray  # (B, 2, K)
    price: np.ndarray  # (B, 2) ms of the mean device for a byte
    unit: np.ndarray  # (B,) ms: the makespan if each device held an even share of the best options
    forward: np.ndarray  # (B,) share of forward computation in it

    @classmethod
    def of(cls, searches: Sequence[Search], planner: FastSimulator, scaling: np.ndarray, attempts: np.ndarray) -> Menu:
        """Menus of the tasks of searches that have not begun.

        `scaling` is the mean and the deviation of features, (2, 21); attempts (B,) as of `ATTEMPTS`.
        """
        tasks = [search.task for search in searches]
        if not all(decoded_alike(tasks[0], task) for task in tasks):
            raise InvalidTask("these tasks differ in speed, links, batch or objective: train on one kind of hardware")
        if any(task.constraints.max_moves is not None for task in tasks):
            raise InvalidTask("a policy over options does not count moves: with max_moves take auto or local-search")
        each = [_columns(search, planner, scaling, int(a)) for search, a in zip(searches, attempts, strict=True)]
        vectors = [one.pop("vector") for one in each]
        starts = np.cumsum([0, *map(len, vectors)])
        for one, start in zip(each, starts, strict=False):
            one["part"] = one["part"] + start
        choices = tuple(one.pop("choices") for one in each)
        columns = {name: _stacked(each, name) for name in each[0]}
        return cls(choices, np.concatenate(vectors), np.arange(len(each)), **columns)

    def take(self, rows: np.ndarray) -> Menu:
        """Some of the tasks; repeats are legal."""
        values = [getattr(self, field.name) for field in fields(self)]
        return Menu(*values[:2], *(column[rows] for column in values[2:]))

    def plan(self, chosen: np.ndarray, times: np.ndarray) -> Plan:
        """The plan of the first task, from the option of each item, (N,), and the pieces on each device, (N, K)."""
        choices, found = self.choices[self.task[0]], {}
        for n, item in enumerate(self.item[0].tolist()):
            form, choice = (int(column[0, n, chosen[n]]) for column in (self.form, self.choice))
            targets = times[n, :: spans(choices.task)[choice]]
            found[item] = Option(0.0, form, choice, tuple(np.repeat(np.arange(len(targets)), targets).tolist()))
        return choices.plan(found)


def spans(task: Task) -> np.ndarray:
    """Devices that a piece is on, by each choice, (4,)."""
    return np.array([1, task.devices_per_host, task.num_devices, task.num_devices])


def _columns(search: Search, planner: FastSimulator, scaling: np.ndarray, attempt: int) -> dict[str, Any]:
    """Columns of one task's menu."""
    task, choices, forms, k = search.task, search.choices, search.choices.forms, search.task.num_devices
    size, capacity = np.zeros((2, *forms.placed.shape)), np.zeros((2, k))
    size[: len(choices.size)], capacity[: len(choices.size)] = choices.size, choices.room
    adds, taken = _in_all(forms, search.loads) / k, _in_all(forms, size)
    price = _price(search.prices.price / k, capacity, search.unit, attempt)
    paid = np.where(choices.may & forms.fits, adds + np.tensordot(price, taken, 1), np.inf)
    form, choice = _best(choices, paid, taken.sum(axis=0))
    by = size[0, form[:, 0], DEVICE, 0] if attempt % 2 else adds[form[:, 0], choice[:, 0]]
    order = np.argsort(-by, kind="stable")
    form, choice = form[order], choice[order]
    at = form, np.maximum(choice, 0)
    part, vector = _parts(choices)
    part = part[at]
    best = vector[part[:, 0]] * (_first_piece(task)[at[1][:, 0]] * forms.pieces[form[:, :1]])[..., None]
    even = np.repeat(best.sum(axis=(0, 1))[None] / k, k, axis=0)
    latency = planner.decode(task, even)
    unit = max(float(latency.makespan(task.objective)), 1e-12)
    require_number(unit, planner)
    items = choices.items[order]
    return {
        "choices": choices,
        "vector": vector,
        "item": items,
        "form": form,
        "choice": choice,
        "pieces": forms.pieces[form],
        "part": part,
        "load": search.loads[at],
        "size": np.moveaxis(size[:, *at], 0, 2),
        "told": _told(forms, form, choice),
        "allowed": choices.rules.allowed[items],
        "rival": choices.rules.rival[items],
        "apart": choices.rules.apart[items],
        "features": standardised(task, scaling)[items].astype(np.float32),
        "adds": adds[at][:, 0],
        "bytes": taken[:, *at].sum(axis=0)[:, 0],
        "capacity": capacity,
        "price": price,
        "unit": unit,
        "forward": float(latency.forward_compute.max()) / unit,
    }


def _first_piece(task: Task) -> np.ndarray:
    """True for the devices of a first piece, by each choice, (4, K)."""
    first: np.ndarray = np.arange(task.num_devices) < spans(task)[:, None]
    return first


def _in_all(forms: Forms, values: np.ndarray) -> np.ndarray:
    """Values of a piece on devices, (..., R, 4, K), in all: of all pieces, as on the first devices; (..., R, 4)."""
    total: np.ndarray = (values * _first_piece(forms.task)).sum(axis=-1) * forms.pieces[:, None]
    return total


def _price(price: np.ndarray, capacity: np.ndarray, unit: float, attempt: int) -> np.ndarray:
    """The price of bytes, (2,): the bound's at first, then dearer; what costs nothing begins at what is small."""
    if (steps := attempt // 2) == 0:
        return price
    small = np.where(capacity.any(axis=1), unit / np.maximum(capacity.sum(axis=1), 1), 0)
    dearer: np.ndarray = np.maximum(price, small) * DEARER ** (steps * (steps + 1) / 2)
    return dearer


def _best(choices: Choices, paid: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Form and choice of each item's best options, (N, M) both, and of the smallest one; choice -1 is none."""
    most = min(KEPT, int(np.add.reduceat((paid < np.inf).sum(axis=1), choices.forms.first[:-1]).max()))
    form, choice = np.zeros((len(choices.items), most), np.int64), np.full((len(choices.items), most), -1)
    for i, item in enumerate(choices.items.tolist()):
        rows = choices.at[item]
        cost, size = paid[rows].ravel(), taken[rows].ravel()
        real = np.flatnonzero(cost < np.inf)
        kept = real[np.argsort(cost[real], kind="stable")][:most]
        if (smallest := real[size[real].argmin()]) not in kept:
            kept[-1] = smallest
        form[i, : len(kept)], choice[i, : len(kept)] = rows.start + kept // 4, kept % 4
    return form, choice


def _parts(choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    """The part that each choice of forms puts on each device, (R, 4, K), and what parts add, those of groups too."""
    forms, leader = choices.forms, choices.rules.leader[:-1]
    placed, vectors = forms.placed.copy(), [forms.part_vector]
    for lead in np.unique(leader[~choices.rules.leads]).tolist():
        group = forms.first[:-1][leader == lead]
        for living in range(len(forms.residences)):
            placed[forms.first[lead] + living, DEVICE] = sum(map(len, vectors))
            vectors.append(forms.part_vector[forms.part[group + living, DEVICE, 0]].sum(axis=0, keepdims=True))
    return placed, np.concatenate(vectors)


def _told(forms: Forms, form: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Halvings of the most, share of rows in devices' memory; if placed by hosts, by rows, or copied: (N, M, 5)."""
    shares = np.array([share for _, share in forms.residences])[forms.residence[form]]
    return np.stack([forms.level[form] / MOST_HALVINGS, shares, choice == HOST, choice == ALL, choice == COPY], axis=-1)


def _stacked(each: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """A column of all tasks, those with fewer items padded."""
    columns = [np.asarray(one[name]) for one in each]
    if name in ("capacity", "price", "unit", "forward"):
        return np.stack(columns)
    fill = -1 if name in ("item", "choice", "rival") else 0
    padded = 1 if name in ("item", "allowed", "rival", "features", "adds", "bytes") else 2
    most = np.max([column.shape[:padded] for column in columns], axis=0)
    shape = (len(columns), *most.tolist(), *columns[0].shape[padded:])
    stacked = np.full(shape, fill, columns[0].dtype)
    for row, column in zip(stacked, columns, strict=True):
        row[tuple(map(slice, column.shape))] = column
    return stacked
