"""Mixed-integer programs over all kinds of sharding: so many pieces of an option on each device or host."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.linear import INFINITY, LARGE, MEGABYTE, PACE, Improved, Linear, OutOfTime, Solution


class OptionsModel(Linear):
    """Program of options; its first variables are the pieces of a form and choice that go to a device or host.

    Those of choices that are on all devices are 1 or 0. A table has one form and choice: where it has several pieces, a
    variable more says if it is that.
    """

    def __init__(self, choices: Choices, end: float = INFINITY) -> None:
        super().__init__(end)
        self.choices, forms, task = choices, choices.forms, choices.task
        self.ways = np.argwhere(choices.may & forms.fits & choices.rules.leads[forms.table][:, None])  # (W, 2)
        places = np.select([self.ways[:, 1] == choice for choice in (DEVICE, HOST)], _places(choices), 1)
        self.way = np.repeat(np.arange(len(self.ways)), places)
        if LARGE < len(self.way) > (end - time.perf_counter()) * PACE:
            raise OutOfTime
        self.form, self.choice = self.ways[self.way].T
        self.target = np.arange(len(self.way)) - np.repeat(np.cumsum(places) - places, places)
        for pieces in forms.pieces[self.form].tolist():
            self.variable(upper=pieces, whole=True)
        device = np.arange(task.num_devices)
        near = {DEVICE: device == self.target[:, None], HOST: device // choices.host == self.target[:, None]}
        self.there = np.select([self.choice[:, None] == choice for choice in near], list(near.values()), True)  # (V, K)
        self._choose()
        self._keep()

    def _choose(self) -> None:
        """One form and choice for each table, and all its pieces."""
        forms, pieces = self.choices.forms, self.choices.forms.pieces[self.ways[:, 0]]
        places = np.split(np.arange(len(self.way)), np.flatnonzero(np.diff(self.way)) + 1) if len(self.way) else []
        self.taken = [-1] * len(self.ways)  # the variable that says if a table is sharded this way
        one_of: dict[int, list[int]] = {item: [] for item in self.choices.items.tolist()}
        for way, (variables, count) in enumerate(zip(places, pieces.tolist(), strict=True)):
            if count > 1:
                self.taken[way] = self.variable(upper=1.0, whole=True)
                self.row(0.0, [*variables, self.taken[way]], [1.0] * len(variables) + [-float(count)], 0.0)
            found = variables.tolist() if count == 1 else [self.taken[way]]
            one_of[int(forms.table[self.ways[way, 0]])] += found
        for found in one_of.values():
            self.row(1.0, found, np.ones(len(found)), 1.0)

    def _keep(self) -> None:
        """Keep pins, tables apart that are on one device each, and most tables where they are, if so many must."""
        rules, table = self.choices.rules, self.choices.forms.table[self.form]
        on = self.choice == DEVICE
        for variable in np.flatnonzero(on & ~rules.allowed[table, self.target]).tolist():
            self.upper[variable] = 0.0
        for group in self.choices.task.constraints.apart:
            rivals = on & np.isin(table, rules.leader[list(group)])
            for device in range(self.choices.task.num_devices):
                variables = np.flatnonzero(rivals & (self.target == device))
                self.row(-INFINITY, variables, np.ones(len(variables)), 1.0)
        most = self.choices.task.constraints.max_moves
        if most is not None and rules.away is not None:
            self.row(-INFINITY, np.flatnonzero(on), rules.away[table, self.target][on], most)

    def at_least(self, result: int, loads: np.ndarray, offset: np.ndarray) -> None:
        """result >= loads, (R, 4, K), of the shards of any device, plus an offset, (K,)."""
        self._of_devices(loads[self.form, self.choice] * self.there, result, -offset)

    def at_least_the_mean(self, result: int, loads: np.ndarray) -> None:
        """result >= the mean over devices of loads, (R, 4, K), of their shards."""
        mean = (loads[self.form, self.choice] * self.there).sum(axis=1, keepdims=True) / self.there.shape[1]
        self._of_devices(mean, result, np.zeros(1))

    def memory(self, over: int | None = None) -> None:
        """Add rows of devices' and hosts' bytes, less what variable `over` says are too many, in megabytes."""
        for size, room in zip(self.choices.size, self.choices.room, strict=True):
            self._of_devices(size[self.form, self.choice] * self.there / MEGABYTE, over, room / MEGABYTE)

    def _of_devices(self, values: np.ndarray, less: int | None, high: np.ndarray) -> None:
        """The sum of values, (V, K), less a variable, <= high, (K,)."""
        extra = [] if less is None else [less]
        for k, most in enumerate(high.tolist()):
            variables = np.flatnonzero(values[:, k])
            self.row(-INFINITY, [*variables, *extra], [*values[variables, k], *(-1.0 for _ in extra)], most)

    def solve(
        self,
        seconds: float,
        gap: float,
        seed: int = 0,
        start: Mapping[int, Option] | None = None,
        improved: Improved | None = None,
    ) -> Solution:
        """Solve the program; `start` is the options of a plan to begin with."""
        return self.solved(seconds, gap, seed, self._start(start) if start else None, improved)

    def _start(self, chosen: Mapping[int, Option]) -> tuple[np.ndarray, np.ndarray]:
        """Variables of the ways of options, and their values; those of all other ways are 0."""
        values = np.zeros(len(self.cost))
        number = {(form, choice): way for way, (form, choice) in enumerate(self.ways.tolist())}
        for option in chosen.values():
            way = number[option.form, option.choice]
            mine = np.flatnonzero(self.way == way)
            values[mine] = np.bincount(option.targets, minlength=len(mine))
            values[self.taken[way]] = 1.0 if self.taken[way] >= 0 else values[self.taken[way]]
        whole = np.flatnonzero(self.whole)
        return whole, values[whole]

    def chosen(self, values: np.ndarray) -> dict[int, Option]:
        """The options that values of the variables stand for."""
        counts = np.rint(values[: len(self.way)]).astype(np.int64)
        found: dict[int, Option] = {}
        for way in np.unique(self.way[counts > 0]).tolist():
            mine = np.flatnonzero(self.way == way)
            form, choice = self.ways[way].tolist()
            targets = np.repeat(self.target[mine], counts[mine]).tolist()
            found[int(self.choices.forms.table[form])] = Option(0.0, form, choice, tuple(targets))
        return found


def _places(choices: Choices) -> list[int]:
    """Devices, and hosts."""
    return [choices.task.num_devices, choices.task.num_devices // choices.host]
