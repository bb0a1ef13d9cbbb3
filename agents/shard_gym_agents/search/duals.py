"""The best weights of a proof by cases, from the dual of the program's linear relaxation, where HiGHS is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from shard_gym.bounds.certify import MOST_DEVICES, Cases, Proof
from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs.cases import LINKS
from shard_gym.proofs.common import MS
from shard_gym.simulators import FastSimulator
from shard_gym.tables.pool import GB
from shard_gym.task.task import Task
from shard_gym_agents.search.linear import INFINITY, LARGE, Linear

TOLERANCE = 1e-6  # of the solver: weights add up to a little more than 1 at times
SECONDS = 10.0  # for one program


def dual_proofs(task: Task, simulator: FastSimulator) -> Iterator[Proof]:
    """Proofs by cases with the best weights where all devices are in use, and one of them holds as many tables as must.

    None where it is too large, or HiGHS is not installed.
    """
    fast = simulator.uncounted
    if (
        find_spec("highspy") is None
        or beyond_columns(task)
        or fast.maxima("both") is None
        or task.num_devices > MOST_DEVICES
    ):
        return
    cases = Cases(task, fast)
    if cases.pieces.bytes.size * task.num_devices > LARGE:
        return
    empty, devices = cases.busy_or_not()[1:], range(task.num_devices)
    if best := _Dual(cases).case():
        yield {"form": "cases", "cases": [best, *empty]}
    each = [_Dual(cases, k).case() for k in devices]
    if all(each):
        yield {"form": "cases", "cases": [*each, *empty]}


class _Dual(Linear):
    """max sum of y, what each table adds at least, and what all pay, less all room at its price."""

    def __init__(self, cases: Cases, crowded: int | None = None) -> None:
        """Take all plans with no device empty, or those with as many tables on the `crowded` one as some must hold."""
        super().__init__()
        self.crowded, self.most = crowded, -(-cases.task.num_tables // cases.task.num_devices)
        self.count = self.variable(cost=-float(self.most), upper=INFINITY if crowded is not None else 0.0)
        self.cases, self.pieces, self.task = cases, cases.pieces, cases.task
        devices, speed = range(self.task.num_devices), np.array(self.task.speed)
        self.weights = {
            name: np.array([[self.variable(cost=-longest.fixed_ms / speed[k]) for k in devices] for _ in longest.sums])
            for name, longest in self.pieces.maxima.items()
        }
        self.memory: list[int] = [self.variable(cost=self.task.memory[k] / GB) for k in devices]  # ms a GB
        self.each = [self.variable(cost=-1.0) for _ in range(self.task.num_tables)]
        self.less = self.variable(cost=float(self.task.num_tables))  # that y are below 0
        self.column = [self.variable() for _ in devices]  # ms of a column
        self.links = self._links()
        self._shares()
        self._least()

    def case(self) -> Proof | None:
        """The case with its weights."""
        values = self.solved(SECONDS, 0.0).values
        if values is None:
            return None
        told: Proof = {"where": "busy", "memory": []}
        if self.crowded is not None:
            told |= {"where": ["many", self.crowded, self.most], "count": float(values[self.count])}
        for name, variables in self.weights.items():
            chosen = values[variables]
            told[name] = [[k, s, _below(chosen[s, k])] for s, k in np.argwhere(chosen > 0).tolist()]
        for k, variable in enumerate(self.memory):
            told["memory"] += [[k, float(values[variable] / GB)]] if values[variable] > 0 else []
        for name, of_device in self.links.items():
            told[name] = [[k, _below(values[v])] for k, v in enumerate(of_device) if values[v] > 0]
        return told

    def _links(self) -> dict[str, list[int]]:
        """Weights of links, and the ms of a column on each device, which they add up to."""
        found: dict[str, list[int]] = {}
        parts: list[list[tuple[int, float]]] = [[] for _ in self.column]
        for name in LINKS if self.pieces.wires is not None and len(self.column) > 1 else ():
            found[name] = []
            for k in range(len(self.column)):
                by_column, latency = self.pieces.links({name: [[k, 1.0]]})
                found[name].append(self.variable(cost=-latency))
                for device in np.flatnonzero(by_column).tolist():
                    parts[device].append((found[name][-1], -float(by_column[device])))
        for variable, of_links in zip(self.column, parts, strict=True):
            self.row(0.0, [variable, *(v for v, _ in of_links)], [1.0, *(factor for _, factor in of_links)], 0.0)
        return found

    def _shares(self) -> None:
        """Weights of each phase add up to 1 at most; those of links to what their device has of what follows."""
        for name, variables in self.weights.items():
            of_device = [self.variable() for _ in self.column]
            self.row(-INFINITY, of_device, np.ones(len(of_device)), 1.0)
            for k, most in enumerate(of_device):
                sums = [list(variables[:, k])]
                if name == "backward" and self.links:
                    sums += [[self.links[link][k] for link in pair] for pair in (LINKS[:2], LINKS[2:])]
                for some in sums:
                    self.row(-INFINITY, [*some, most], [*np.ones(len(some)), -1.0], 0.0)

    def _least(self) -> None:
        """y of a table is no more than it adds anywhere."""
        p, speed = self.pieces, np.array(self.task.speed)
        adds = {
            name: [MS * p.embedding[..., list(columns)].sum(axis=-1) for columns in longest.sums]
            for name, longest in p.maxima.items()
        }  # (V, N)
        for v, t in np.argwhere(p.may).tolist():
            for k in np.flatnonzero(p.bytes[v, t] <= self.task.capacity).tolist():
                terms: list[tuple[int, Any]] = [(self.column[k], p.columns[v, t]), (self.memory[k], p.bytes[v, t] / GB)]
                terms += [(self.weights[n][s, k], ms[v, t] / speed[k]) for n in adds for s, ms in enumerate(adds[n])]
                terms += [(self.count, -1.0)] if k == self.crowded else []
                factors = [-float(p.parts[v, 0] * factor) for _, factor in terms]
                variables = [self.each[t], self.less, *(variable for variable, _ in terms)]
                self.row(-INFINITY, variables, [1.0, -1.0, *factors], 0.0)


def _below(weight: float) -> float:
    return float(weight) * (1 - TOLERANCE)
