"""Options of tables of all kinds of sharding, for searches: the fixed part of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shard_gym.memory.shards import Shards
from shard_gym.plan.forms import DEVICE, HOST, KINDS_OF, Forms
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules, on_one_device
from shard_gym.plan.violations import rooms
from shard_gym.task.task import Task


class Option(NamedTuple):
    """A form, a choice, and the device or host of each piece (0 for others), with what it adds to the aim."""

    worth: float
    form: int
    choice: int
    targets: tuple[int, ...]


class Choices:
    """The fixed part of a search: options of each item, which is a table or those that must be together."""

    def __init__(self, task: Task, embed: Callable[[Shards], np.ndarray]) -> None:
        self.task, self.rules = task, Rules.of(task)
        self.forms = Forms.of(task, embed)
        self.items = np.flatnonzero(self.rules.leads)
        self.host = task.devices_per_host
        resources = 2 if task.residences != ("hbm",) else 1
        self.size = np.ascontiguousarray(self.forms.bytes[:resources], np.float64)  # (Q, R, 4, K)
        self.room = np.stack(rooms(task)).astype(np.float64)[:resources]
        self.may = self.forms.may.copy()
        self.loose = (self.rules.allowed.all(axis=1) & (self.rules.rival < 0))[:-1]  # may go to any device
        self.loose &= self.rules.away is None
        if self.rules.binding:
            self._bind()
        self.at = [slice(a, b) for a, b in zip(self.forms.first[:-1], self.forms.first[1:], strict=True)]

    @cached_property
    def kept(self) -> np.ndarray:
        """Bytes kept for an item that is not placed, on the device where it must, or may always, be, (N, Q, K)."""
        rules, n = self.rules, self.task.num_tables
        kept = np.zeros((n, *self.room.shape))
        if rules.away is not None:
            whole = self.forms.first[:-1, None] + np.arange(len(self.forms.residences))
            size = np.where(self.may[whole, DEVICE], self.size[:, whole, DEVICE, 0], np.inf).min(axis=2)  # (Q, N)
            items = self.items[np.isfinite(size[0, self.items])]
            kept[items, :, rules.home[items]] = size[:, items].T
        return kept

    def _bind(self) -> None:
        """Keep tables whose device is constrained whole on one; those together are the first one's forms."""
        forms = self.forms
        held = on_one_device(self.task)[forms.table]
        self.may[held & (forms.level > 0)] = False
        self.may[held, 1:] = False
        for mine, leader in self._led():
            self.size[:, leader] += self.size[:, mine]
            self.may[leader] &= self.may[mine]

    def _led(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Whole forms of each table that another one leads, and the leader's."""
        whole = np.arange(len(self.forms.residences))
        for table in np.flatnonzero(~self.rules.leads).tolist():
            yield self.forms.first[table] + whole, self.forms.first[self.rules.leader[table]] + whole

    @cached_property
    def ruled(self) -> Forms:
        """Forms with the choices that rules leave."""
        return replace(self.forms, may=self.may) if self.rules.binding else self.forms

    @property
    def kinds(self) -> np.ndarray:
        """The kind of sharding that each choice of a form is, index into the task's words for them, (R, 4)."""
        of_columns = (self.forms.level > 0)[:, None] & np.array([kinds[0] != kinds[-1] for kinds in KINDS_OF])
        return np.arange(len(KINDS_OF)) + len(KINDS_OF) * of_columns

    def suffice(self, may: np.ndarray) -> bool:
        """True if every item fits, on empty devices, by some of these choices, (R, 4)."""
        fits = np.logical_or.reduceat((self.forms.fits & may).any(axis=1), self.forms.first[:-1])
        return bool(fits[self.items].all())

    def loads(self, rates: np.ndarray) -> np.ndarray:
        """Costs that each choice of items adds to each device, (R, 4, K)."""
        loads = self.forms.loads(rates)
        for mine, leader in self._led():
            loads[leader] += loads[mine]
        return loads

    def piece_rows(self) -> np.ndarray:
        """Rows that a piece of each form of items adds to its device's sum, (R, H)."""
        rows: np.ndarray = self.forms.part_vector[self.forms.part[:, DEVICE, 0]]
        for mine, leader in self._led():
            rows[leader] += rows[mine]
        return rows

    def all_chosen(self, chosen: dict[int, Option]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Form, choice and targets of every table, those of a group as their leader's."""
        found = []
        for table, leader in enumerate(self.rules.leader[:-1].tolist()):
            option = chosen[leader]
            form = option.form - self.forms.first[leader] + self.forms.first[table]
            found.append((int(form), option.choice, option.targets))
        return found

    def plan(self, chosen: dict[int, Option]) -> Plan:
        """The plan that these options make."""
        return self.forms.plan(self.all_chosen(chosen))

    def times(self, option: Option) -> np.ndarray:
        """Pieces that an option puts on each device, (K,)."""
        k = self.task.num_devices
        span = {DEVICE: 1, HOST: self.host}.get(option.choice, k)
        return np.bincount(option.targets, minlength=k // span).repeat(span)

    def rows(self, item: int, option: Option) -> np.ndarray:
        """Rows that an item adds to the sums of devices, exact, (K, H)."""
        forms = self.forms
        rows: np.ndarray = forms.vector[option.form, forms.column[option.choice]]
        if self.rules.binding:
            group = np.flatnonzero(self.rules.leader[:-1] == item)
            same = forms.first[group] + option.form - forms.first[item]
            rows = forms.vector[same][:, forms.column[option.choice]].sum(axis=0)
        return rows * self.times(option)[:, None]

    def sum_of(self, form: np.ndarray, choice: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Each device's sum of the rows of n options, exact, (K, H): so many of their pieces, (n, K)."""
        rows = self.forms.part_vector[self.forms.placed[form, choice]]  # (n, K, H)
        rows *= times[..., None]
        added: np.ndarray = rows.sum(axis=0)
        return added

    def sums(self, chosen: dict[int, Option]) -> np.ndarray:
        """Each device's sum of the rows of its shards, exact, (K, H)."""
        return np.sum([self.rows(item, option) for item, option in chosen.items()], axis=0)
