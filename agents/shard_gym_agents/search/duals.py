"""The best weights of a proof by cases, from the dual of the program's linear relaxation, where HiGHS is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from shard_gym.bounds.certify import BELOW, MOST_DEVICES, Cases, Proof
from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs.cases import LINKS
from shard_gym.proofs.common import MS
from shard_gym.simulators import FastSimulator
from shard_gym.tables.pool import GB
from shard_gym.task.task import Task
from shard_gym_agents.search.linear import INFINITY, LARGE, Linear

SECONDS = 10.0  # for one program


def dual_proofs(task: Task, simulator: FastSimulator) -> Iterator[Proof]:
    """A proof by cases whose first one, all devices in use, has the best weights.

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
    if cases.pieces.bytes.size * task.num_devices <= LARGE and (best := _Dual(cases).busy()):
        yield {"form": "cases", "cases": [best, *cases.busy_or_not()[1:]]}


class _Dual(Linear):
    """max sum of y, what each table adds at least, and what all pay, less all room at its price."""

    def __init__(self, cases: Cases) -> None:
        super().__init__()
        self.cases, self.pieces, self.task = cases, cases.pieces, cases.task
        devices, speed = range(self.task.num_devices), np.array(self.task.speed)
        self.weights = {
            name: np.array([[self.variable(cost=-longest.fixed_ms / speed[k]) for k in devices] for _ in longest.sums])
            for name, longest in self.pieces.maxima.items()
        }
        self.memory = [self.variable(cost=self.task.memory[k] / GB) for k in devices]  # ms a GB
        self.each = [self.variable(cost=-1.0) for _ in range(self.task.num_tables)]
        self.column = [self.variable() for _ in devices]  # ms of a column
        self.links = self._links()
        self._shares()
        self._least()

    def busy(self) -> Proof | None:
        """The case of all devices in use."""
        values = self.solved(SECONDS, 0.0).values
        if values is None:
            return None
        told: Proof = {"where": "busy", "memory": []}
        for name, variables in self.weights.items():
            chosen = values[variables]
            told[name] = [[k, s, _below(chosen[s, k])] for s, k in np.argwhere(chosen > 0).tolist()]
        for k, variable in enumerate(self.memory):
            told["memory"] += [[k, float(values[variable] / GB)]] if values[variable] > 0 else []
        for name, variables in self.links.items():
            told[name] = [[k, _below(values[v])] for k, v in enumerate(variables) if values[v] > 0]
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
                factors = [-float(p.parts[v, 0] * factor) for _, factor in terms]
                self.row(-INFINITY, [self.each[t], *(variable for variable, _ in terms)], [1.0, *factors], 0.0)


def _below(weight: float) -> float:
    return float(weight) * BELOW
