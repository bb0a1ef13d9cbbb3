"""Bounds of tasks of all kinds of sharding, case by case: of plans that wait for some collectives, and so long for the
slowest forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.bounds.prices import CLOSE, Prices, priced
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.forms import Forms
from shard_gym.proofs.waits import Ahead, Columns, Waits
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

SPLITS = 12  # of spans, in all cases
BELOW = 1 - 1e-9  # of a bound: its certificate's guess, and of 1: what weights add up to


@dataclass(frozen=True, eq=False)
class Span:
    """Plans whose first part takes longer than `low`, up to `most`, with prices by all costs and by what follows."""

    low: float
    most: float
    proof: dict[str, Any]
    found: Prices | None  # where there is such a plan
    ms: float  # at least


class Case:
    """Plans that have nothing to wait for but these columns of sums: by one sum, in spans of its first part."""

    def __init__(self, columns: Columns, costs: Ahead, number: int, may: np.ndarray) -> None:
        self.columns, self.costs, self.number, self.may = columns, costs, number, may
        self.spans = [self._span(0.0, np.inf)]

    @property
    def weakest(self) -> Span:
        """The span that the bound is of."""
        return min(self.spans, key=lambda span: span.ms)

    @property
    def proof(self) -> dict[str, Any]:
        """The case as certificates have it."""
        return {"columns": sorted(self.columns), "sum": self.number, "spans": [span.proof for span in self.spans]}

    def split(self) -> bool:
        """Cut the weakest span below the shard that takes longest in the first part, if it takes above the mean."""
        span = self.weakest
        if span.found is None:
            return False
        may = self.costs.within(self.may, span.most) & (span.found.alone <= span.found.bound * (1 + CLOSE))
        first, excess = self.costs.all.forms.first, np.where(may, span.found.excess, np.inf)
        tables = zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        chosen = [4 * start + int(excess[start:end].argmin()) for start, end in tables]
        cut = float(self.costs.ahead.ravel()[chosen].max()) * BELOW
        if cut <= max(span.low, float((self.costs.all.total - self.costs.rest.total).ravel()[chosen].sum())):
            return False
        at = self.spans.index(span)
        self.spans[at : at + 1] = [self._span(span.low, cut), self._span(cut, span.most)]
        return True

    def _span(self, low: float, most: float) -> Span:
        may, forms = self.costs.within(self.may, most), self.costs.all.forms
        nothing = {"guess": 0.0, "memory": [0.0, 0.0]}
        proof: dict[str, Any] = {"all": nothing, "rest": nothing}
        if most < np.inf:
            proof["most"] = most
        if not np.logical_or.reduceat(may.any(axis=1), forms.first[:-1]).all():
            return Span(low, most, proof, None, np.inf)
        found = priced(forms, may, self.costs.all.total, self.costs.all.dearest)
        proof["all"] = _told(forms, found)
        if low:
            proof["rest"] = _told(forms, priced(forms, may, self.costs.rest.total, self.costs.rest.dearest))
        return Span(low, most, proof, found, self.costs.of_span(self.may, low, most, proof))


def _told(forms: Forms, found: Prices) -> dict[str, Any]:
    """Prices as certificates have them."""
    return {"guess": found.bound * BELOW, "memory": (found.price / forms.task.num_devices).tolist()}


class ByWaits:
    """Cases that prove a bound, that of all plans first.

    A plan waits for exactly the columns in which it has anything, and the bound is that of the best set of columns. If
    no case is about this set alone, one is added; then its spans are split.
    """

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        if why := disproof(task):
            raise InfeasibleTask(why)
        forms = Forms.of(task, lambda shards: simulator.embed_shards(task, shards))
        self.waits = Waits(task, simulator, forms)
        every = (Ahead(simulator, forms, number) for number in range(len(simulator.floors(task))))
        columns = frozenset(self.waits.ms)
        widest = max(
            (Case(columns, costs, number, self.waits.within(columns)) for number, costs in enumerate(every)),
            key=lambda case: case.weakest.ms,
        )
        cases, splits = {columns: widest}, 0
        while True:
            self.makespan, columns = self.waits.least({of: case.weakest.ms for of, case in cases.items()})
            if columns not in cases:
                cases[columns] = Case(columns, widest.costs, widest.number, self.waits.within(columns))
            elif splits < SPLITS and cases[columns].split():
                splits += 1
            else:
                break
        self.binding, self.proofs = cases[columns], [case.proof for case in cases.values()]
