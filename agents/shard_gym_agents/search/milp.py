"""Mixed-integer programs over placements of whole tables and of their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.task.links import Links
from shard_gym.task.task import Constraints
from shard_gym_agents.search.linear import INFINITY, LARGE, MEGABYTE, PACE, Linear, OutOfTime

Told = Callable[[Plan], bool | None]  # of better plans; True stops the solver


@dataclass(frozen=True, eq=False)
class Answer:
    """Result of a solver in its time: a plan, if any, and a value that no plan is below."""

    plan: Plan | None
    value: float  # of what was minimised; infinite without a plan
    bound: float


class Model(Linear):
    """Program of placements; `place` holds the numbers of the variables x[m, k].

    x[m, k] pieces of node m lie on device k: 0 or 1 where tables stay whole, up to 2**level otherwise, and in all the
    pieces of a table make the table. `crumbs`: the pieces of a table that no more halvings are modelled of come in
    any fraction, so that no finer piece is ruled out; for bounds alone.
    """

    def __init__(self, nodes: Nodes, end: float = INFINITY, crumbs: bool = False) -> None:
        super().__init__(end)
        self.nodes, self.crumbs = nodes, crumbs
        task, devices = self.nodes.task, self.nodes.task.num_devices
        most = 1 << self.nodes.level
        fraction = self.crumbs & ~self.nodes.may_split & (self.nodes.pieces.tables.dim % 8 == 0)
        fraction[self.nodes.whole[list(task.constraints.no_split)]] = False
        self.cost = [0.0] * (len(most) * devices)
        self.upper, self.whole = np.repeat(most, devices).tolist(), np.repeat(~fraction, devices).tolist()
        self.place = np.arange(len(self.cost)).reshape(len(most), devices)
        self.by_table = np.split(np.arange(len(most)), self.nodes.whole[1:])
        for of_table in self.by_table:
            self.row(1.0, self.place[of_table].ravel(), np.repeat(1 / most[of_table], devices), 1.0)
        self._keep(task.constraints)

    def at_least(
        self, result: int, device: int, values: np.ndarray, constant: float, others: Sequence[tuple[int, float]] = ()
    ) -> None:
        """result >= values of the pieces on a device, plus a constant, plus other variables times a factor."""
        variables = [*self.place[:, device], *(variable for variable, _ in others), result]
        self.row(-INFINITY, variables, [*values, *(factor for _, factor in others), -1.0], -constant)

    def memory(self, over: int | None = None) -> None:
        """Add rows of each device's bytes, less what variable `over` says it may have too many, in megabytes."""
        size = self.nodes.size / MEGABYTE
        for k, capacity in enumerate(self.nodes.task.memory):
            extra = [] if over is None else [over]
            self.row(-INFINITY, [*self.place[:, k], *extra], [*size, *(-1.0 for _ in extra)], capacity / MEGABYTE)

    def used_devices(self) -> list[int]:
        """A variable for each device, at least 1 where a table lies."""
        used = [self.variable() for _ in self.nodes.task.memory]
        for variable, column in zip(used, self.place.T, strict=True):
            for placed in column:
                self.row(0.0, [variable, placed], [self.upper[placed], -1.0], INFINITY)
        return used

    def all_to_alls(self, links: Links, batch: int) -> tuple[list[list[tuple[int, float]]], float]:
        """Add two all-to-alls, as in `Links.all_to_all_ms`: variables with ms of each for every device, a constant."""
        task, dim = self.nodes.task, self.nodes.pieces.tables.columns_sent
        devices, total = task.num_devices, float(task.tables.columns_sent.sum())
        slice_bytes, group = 4.0 * batch / devices, links.group or devices
        columns = [self.variable() for _ in range(devices)]
        for k, variable in enumerate(columns):
            self.row(0.0, [*self.place[:, k], variable], [*dim, -1.0], 0.0)
        terms: list[list[tuple[int, float]]] = [[] for _ in range(devices)]
        for start in range(0, devices, group):
            members = range(start, min(start + group, devices))
            near, far = self._traffic(links, columns, members, total)
            for k, variable in zip(members, near, strict=True):
                if links.port < math.inf:
                    terms[k].append((variable, 2 * slice_bytes / links.port))
                if links.uplink < math.inf:
                    terms[k].append((far, 2 * slice_bytes / links.uplink))
        fabric = total * (devices - 1) * slice_bytes / links.fabric
        return terms, 2 * (links.latency_ms + fabric)

    def _traffic(self, links: Links, columns: list[int], members: Sequence[int], total: float) -> tuple[list[int], int]:
        """Variables, in columns: what each device of a group moves inside it, and what the group moves out of it."""
        devices, inside = len(columns), [columns[k] for k in members]
        one = np.ones(len(members))
        near, far = [self.variable() for _ in members], self.variable()
        for k, variable in zip(members, near, strict=True):
            if links.peer_to_peer:
                self.row(-INFINITY, [columns[k], variable], [len(members) - 1.0, -1.0], 0.0)
                others = [column for column in inside if column != columns[k]]
                self.row(-INFINITY, [*others, variable], [*one[1:], -1.0], 0.0)
            else:
                self.row(-INFINITY, [columns[k], variable], [devices - 1.0, -1.0], 0.0)
                self.row(-INFINITY, [columns[k], variable], [-1.0, -1.0], -total)
        out, back = (devices - len(members), len(members)) if links.peer_to_peer else (devices - 1, 1)
        self.row(-INFINITY, [*inside, far], [*(out * one), -1.0], 0.0)
        self.row(-INFINITY, [*inside, far], [*(-back * one), -1.0], -total * len(members))
        return near, far

    def break_symmetry(self, alike: Sequence[Sequence[int]], order: np.ndarray) -> None:
        """Number devices that are alike by the first table in `order` that each holds.

        A table in p pieces is the first one of p devices at most. So none lies on the j-th device that, with those
        before it, comes in j pieces at most.
        """
        pieces = np.cumsum([1 << (len(self.by_table[t]) - 1) for t in order])
        for devices in alike:
            for j, device in enumerate(devices):
                for table in order[: np.searchsorted(pieces, j, side="right")]:
                    self._keep_off(table, device)

    def counts(self, plan: Plan) -> np.ndarray:
        """Pieces of each node on each device in a plan, (M, K)."""
        source, level = list(range(self.nodes.task.num_tables)), [0] * self.nodes.task.num_tables
        for i in plan.splits:
            level[i] += 1
            source.append(source[i])
            level.append(level[i])
        counts = np.zeros(self.place.shape, np.int64)
        np.add.at(counts, (self.nodes.whole[source] + np.array(level), np.array(plan.device)), 1)
        return counts

    def solve(
        self,
        seconds: float,
        gap: float,
        seed: int = 0,
        start: np.ndarray | None = None,
        improved: Told | None = None,
    ) -> Answer:
        """Solve the program; `start` is the counts of a plan to begin with."""
        if LARGE < self.place.size > seconds * PACE:
            raise OutOfTime
        begun = None if start is None else (self.place.ravel(), start.ravel())
        told = None if improved is None else lambda values: improved(self._plan(values))
        found = self.solved(seconds, gap, seed, begun, told)
        plan = None if self.crumbs or found.values is None else self._plan(found.values)
        return Answer(plan, found.value, found.bound)

    def _plan(self, values: Any) -> Plan:
        counts = np.rint(np.asarray(values)[self.place]).astype(np.int64)
        node, device = np.nonzero(counts)
        times = counts[node, device]
        return self.nodes.plan(np.repeat(node, times), np.repeat(device, times))

    def _keep(self, constraints: Constraints) -> None:
        devices = range(self.place.shape[1])
        for table, pinned in constraints.pin:
            for device in set(devices) - {pinned}:
                self._keep_off(table, device)
        for group in constraints.together:
            self._keep_together([[self._on(table, device, 1.0) for device in devices] for table in group])
        for group in constraints.apart:
            for device in devices:
                self.row(-INFINITY, [self._on(table, device, -1.0) for table in group], np.ones(len(group)), 1.0)
        if constraints.max_moves is not None:
            stay = [self._on(table, device, 1.0) for table, device in enumerate(constraints.base)]
            self.row(len(stay) - constraints.max_moves, stay, np.ones(len(stay)), INFINITY)

    def _keep_together(self, places: Sequence[Sequence[int]]) -> None:
        self.row(1.0, places[0], np.ones(len(places[0])), 1.0)
        for a, b in pairwise(places):
            for one, other in zip(a, b, strict=True):
                self.row(0.0, [one, other], [1.0, -1.0], 0.0)

    def _keep_off(self, table: int, device: int) -> None:
        for node in self.by_table[table]:
            self.upper[self.place[node, device]] = 0.0

    def _on(self, table: int, device: int, sign: float) -> int:
        """A variable, 0 or 1: with sign 1, 0 unless all of the table lies there; with -1, 1 if any of it does."""
        nodes = self.by_table[table]
        if len(nodes) == 1 and self.whole[self.place[nodes[0], device]]:
            return int(self.place[nodes[0], device])
        answer = self.variable(upper=1.0, whole=True)
        part = sign / (1 << self.nodes.level[nodes])
        self.row(0.0, [*self.place[nodes, device], answer], [*part, -sign], INFINITY)
        return answer
