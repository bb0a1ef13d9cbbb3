"""Proofs by what plans wait for, for all kinds of sharding: see `proofs`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, Forms
from shard_gym.proofs.common import number, require
from shard_gym.proofs.prices import Costs, dearest_of, forms_of, sums_of
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

Columns = frozenset[int]  # of a simulator's sums
MOST_CASES = 256


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by the case that is proved least, ms."""
    forms, told = forms_of(task, simulator), proof["cases"]
    waits = Waits(task, simulator, forms)
    require(len(told) <= MOST_CASES, "these are too many cases")
    cases = {}
    for case in told:
        columns, of_sum = frozenset(map(whole, case["columns"])), whole(case["sum"])
        require(len(case["spans"]) <= MOST_CASES, "these are too many spans")
        cases[columns] = Ahead(simulator, forms, of_sum).least(waits.within(columns), case["spans"])
    return waits.least(cases)[0]


class Ahead:
    """Costs by one sum, part of which ends for all devices when the slowest is done with it."""

    def __init__(self, simulator: FastSimulator, forms: Forms, of_sum: int) -> None:
        task, launch = forms.task, simulator.launch(forms.task)
        ahead, (floor, average) = simulator.ahead(task)[of_sum], sums_of(simulator, task, of_sum)
        self.all, self._ahead = Costs(forms, floor, average, launch), ahead
        self._rest = forms, floor - ahead, average - ahead, launch

    @cached_property
    def ahead(self) -> np.ndarray:
        """The dearest shard in the first part, by forms and choices, (R, 4)."""
        return dearest_of(self.all.forms, self.all.forms.loads(self._ahead))

    @cached_property
    def rest(self) -> Costs:
        """Costs of what follows."""
        return Costs(*self._rest)

    def least(self, may: np.ndarray, spans: list[Any]) -> float:
        """Time that the slowest device takes at least: in some span, which is how long the first part may take.

        It takes as long as any shard's, so a plan of the span has none that takes longer than `most`; and the part
        takes longer than the span before. The last span has no end.
        """
        found, low = np.inf, 0.0
        for span in spans:
            most = np.inf if span is spans[-1] else number(span["most"])
            found, low = min(found, self.of_span(may, low, most, span)), max(low, most)
        return found if spans else 0.0

    def within(self, may: np.ndarray, most: float) -> np.ndarray:
        """Forms and choices without a shard that takes longer in the first part, (R, 4)."""
        return may & (self.ahead <= most) if most < np.inf else may

    def of_span(self, may: np.ndarray, low: float, most: float, span: Any) -> float:
        """Time that the slowest device takes at least, where the first part takes longer than `low`, up to `most`."""
        may = self.within(may, most)
        ms = self.all.least(may, span["all"])
        return max(ms, low + self.rest.least(may, span["rest"])) if low else ms


class Waits:
    """Columns of sums that all devices wait for, however little is there, and the forms and choices that have any.

    A wait is as long as that of the device that waits least, where no more devices hold any than those that hold some
    by every option; of a piece, or a host's pieces, wherever it may be.
    """

    def __init__(self, task: Task, simulator: FastSimulator, forms: Forms) -> None:
        self.forms, k, columns = forms, task.num_devices, forms.part_vector.shape[1]
        in_host = np.kron(np.eye(k // task.devices_per_host), np.ones(task.devices_per_host))
        places = {DEVICE: np.eye(k), HOST: in_host}

        def waited(held: np.ndarray, column: int) -> float:
            sums = held[..., None] * (np.arange(columns) == column)
            return float(simulator.waits(task, sums).min())

        always = waited(np.zeros(k), 0)
        self.always = always + simulator.least_ms(task)
        self.ms, self.used = dict[int, float](), dict[int, np.ndarray]()
        for column in range(columns):
            if waited(np.ones(k), column) <= always:
                continue
            holds = (forms.part_vector[:, column] > 0)[forms.placed]  # (R, 4, K)
            used = holds.any(axis=2) & forms.fits
            by_all = ((c, holds[used[:, c], c].all(axis=0)) for c in np.flatnonzero(used.any(axis=0)).tolist())
            ms = min((waited(places.get(c, np.ones((1, k))) * held, column) for c, held in by_all), default=always)
            if ms > always:
                self.ms[column], self.used[column] = ms - always, used
        self.sets = [found for found in _subsets(self.ms) if self._possible(found)]

    def within(self, columns: Columns) -> np.ndarray:
        """Forms and choices that fit and have nothing to wait for but these columns, (R, 4)."""
        may = self.forms.fits.copy()
        for column in self.used.keys() - columns:
            may &= ~self.used[column]
        return may

    def least(self, cases: dict[Columns, float]) -> tuple[float, Columns]:
        """The bound from bounds of plans that have nothing in other columns, and the columns of the plans it is of.

        A plan waits for all columns in which it has anything.
        """

        def bound(columns: Columns) -> float:
            proved = max((ms for case, ms in cases.items() if columns <= case), default=0.0)
            return self.always + proved + sum(self.ms[column] for column in columns)

        columns = min(self.sets, key=bound)
        return bound(columns), columns

    def _possible(self, columns: Columns) -> bool:
        """True if every table has a form and choice that fits within these columns."""
        some = np.logical_or.reduceat(self.within(columns).any(axis=1), self.forms.first[:-1])
        return bool(some.all())


def _subsets(columns: Iterable[int]) -> list[Columns]:
    every = sorted(columns)
    return [frozenset(some) for size in range(len(every) + 1) for some in combinations(every, size)]
