"""Proofs for costs that are sums times growing factors (`simulators.base.Factors`): see `proofs`.

Some device holds as much of any weights as all do on average. It costs no less than the cheapest part of all tables
that weighs so much, x in [0, 1] for each table. What `phi` times x may be is cut into intervals. In each, for any
multiplier m, the least of cost.x is at least that of (cost - m phi).x, plus m times the interval's end: so sums of
totals and bases have ranges, factors (which grow) are at least straight lines, and products at least McCormick's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile
from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs.common import MS, ROUNDING, depths, require
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.base import GRAIN, Factors
from shard_gym.simulators.networks import HIGHEST, LOWEST_FACTOR, ROOT_OFFSET
from shard_gym.task.task import Task

MOST_INTERVALS = 100
HALF = 0.5 / GRAIN  # the most that rounding to the network's grid changes


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by weights of tables, ms."""
    factors = simulator.factors()
    if factors is None or beyond_columns(task):
        raise CorruptFile(f"costs of {simulator.id} are no factors")
    may, _, _, embedding = (np.stack(column) for column in zip(*depths(task, simulator), strict=True))
    tables = embedding * 2.0 ** np.arange(len(may))[:, None, None]
    sums = np.where(may[..., None], tables, embedding[0])[..., factors.own :]
    return _Device(factors, sums, proof).least(task.num_devices) / max(task.speed)


def alone(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The bound by one table's device, ms."""
    factors = simulator.factors()
    grows = simulator.maxima("both") is not None
    grows |= factors is not None and min(a.min() for a in (factors.hidden, factors.out, factors.fixed)) >= 0
    require(not beyond_columns(task) and grows, f"costs of {simulator.id} may fall as tables are added")
    table, speed, least = whole(proof["table"]), np.array(task.speed), np.inf
    for may, size, _, embedding in depths(task, simulator):
        fits = may[table] & (size[table] <= task.capacity)
        ms = float(simulator.decode(task.computation(), embedding[table][None]).compute[0])
        least = min(least, ms / float(speed[fits].max())) if fits.any() else least
    return least * (1 - ROUNDING)


class _Device:
    """V: depths of pieces, N: tables, Q: totals, P: passes of all members, U: hidden units, I: intervals."""

    def __init__(self, factors: Factors, sums: np.ndarray, proof: Any) -> None:
        members, q, _ = factors.hidden.shape
        of_member = np.repeat(np.arange(members), 2)
        self.totals, self.base = sums[..., :q], sums[..., q:]  # (V, N, Q), (V, N, P)
        self.fixed, self.members = factors.fixed.ravel(), members
        self.hidden, self.hidden_bias = factors.hidden[of_member], factors.hidden_bias[of_member]  # (P, Q, U)
        self.out = factors.out.transpose(0, 2, 1).reshape(2 * members, -1)  # (P, U)
        self.out_bias = factors.out_bias.ravel()
        self.rounding = (self.out * (HALF * (1 + self.hidden.sum(axis=1)))).sum(axis=1)
        self.weights, self.phi, self.edges = (np.array(proof[name], float) for name in ("weights", "phi", "edges"))
        self.multipliers = [np.array(told, float) for told in proof["multipliers"]]
        most = (self.totals.max(axis=0).sum(axis=0) + ROOT_OFFSET) ** 0.25
        cut_off = max((most @ self.hidden + self.hidden_bias).max(), self._factor(most**4 - ROOT_OFFSET).max())
        grows = min(a.min() for a in (factors.hidden, factors.out, factors.fixed, sums)) >= 0
        require(grows and cut_off < HIGHEST, "these factors are cut off, or fall")
        require(self._is_whole(sums.shape[1]), "the proof has other numbers than it needs")

    def _is_whole(self, tables: int) -> bool:
        """True for positive weights and intervals in order."""
        shapes = (
            self.weights.shape == self.phi.shape == (tables,)
            and self.edges.ndim == 1
            and 1 < len(self.edges) <= MOST_INTERVALS
        )
        numbers = (self.weights, self.phi, self.edges, *self.multipliers)
        finite = all(np.isfinite(told).all() for told in numbers)
        return (
            shapes and finite and min(self.weights.min(), self.phi.min()) > 0 and bool((np.diff(self.edges) >= 0).all())
        )

    def least(self, devices: int) -> float:
        """Ms of a device that holds its part of the weights."""
        self.held = float(self.weights.sum()) / devices * (1 - ROUNDING)
        low, high = self._knapsack(self.phi), -self._knapsack(-self.phi)
        require(self.edges[0] <= low and high <= self.edges[-1], "the intervals leave some devices out")
        of_total, of_line, of_base, of_product = (self.multipliers[i : i + 2] for i in range(0, 8, 2))
        least, most = self._ranges(self.totals, *of_total)
        constant, slope = self._lines(least, most)
        line = np.einsum("ipq,vnq->ivpn", slope, self.totals)
        factor_least = np.maximum(self._factor(least), constant + self._sum(line.min(axis=1), of_line[0]))
        factor_most = np.maximum(factor_least, constant - self._sum(-line.max(axis=1), of_line[1]))
        bases = [base + self.fixed for base in self._ranges(self.base, *of_base)]
        found = np.full(len(self.edges) - 1, -np.inf)
        for base, factor, multiplier in zip(bases, (factor_least, factor_most), of_product, strict=True):
            cost = np.einsum("ip,vnp->ivn", factor, self.base) + np.einsum("ip,ivpn->ivn", base, line)
            rest = (self.fixed * factor + base * (constant - factor)).sum(axis=1)
            around = ROUNDING * (self.fixed * factor + base * (abs(constant) + factor)).sum(axis=1)
            found = np.maximum(found, self._sum(cost.min(axis=1)[:, None], multiplier)[:, 0] + rest - around)
        return float((found.min() - HALF * len(self.fixed)) * (MS / self.members) * (1 - ROUNDING))

    def _knapsack(self, cost: np.ndarray) -> np.ndarray:
        """Bound the least cost.x with weights.x = held, (..., N): at any price of weight, as each table is worth it."""
        price = cost / self.weights
        order = np.argsort(price, axis=-1)
        last = (np.cumsum(self.weights[order], axis=-1) < self.held).sum(axis=-1, keepdims=True)
        one = np.take_along_axis(price, np.take_along_axis(order, np.minimum(last, len(self.weights) - 1), -1), -1)
        gained = np.minimum(cost - one * self.weights, 0).sum(axis=-1)
        size = abs(cost).sum(axis=-1) + abs(one[..., 0]) * self.weights.sum()
        return one[..., 0] * self.held + gained - ROUNDING * size

    def _sum(self, cost: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        """Bound the least of costs (I, C, N) in each interval, by a multiplier of each, (I, C)."""
        end = np.where(multiplier >= 0, self.edges[:-1, None], self.edges[1:, None])
        least = self._knapsack(cost - multiplier[..., None] * self.phi)
        return least + multiplier * end - ROUNDING * abs(multiplier * end)

    def _ranges(self, values: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least and most of sums of columns (V, N, C) in each interval, (I, C)."""
        shape = (len(self.edges) - 1, values.shape[2], values.shape[1])
        least = np.maximum(self._sum(np.broadcast_to(values.min(axis=0).T, shape), first), 0.0)
        return least, np.maximum(-self._sum(np.broadcast_to(-values.max(axis=0).T, shape), second), least)

    def _factor(self, totals: np.ndarray) -> np.ndarray:
        """The factors of devices with these totals at least, (..., Q) -> (..., P)."""
        roots = (totals + ROOT_OFFSET) ** 0.25
        hidden = np.maximum(np.einsum("...q,pqu->...pu", roots, self.hidden) + self.hidden_bias, 0.0)
        return np.maximum((hidden * self.out).sum(axis=-1) + self.out_bias - self.rounding, LOWEST_FACTOR)

    def _lines(self, least: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Constants (I, P) and slopes (I, P, Q) of lines that no factor is below for totals in these ranges."""
        root, top = (least + ROOT_OFFSET) ** 0.25, (most + ROOT_OFFSET) ** 0.25
        rise = (top - root) / np.maximum(most - least, 1e-9) * (1 - ROUNDING)
        unit_rise = rise[:, None, :, None] * self.hidden  # (I, P, Q, U)
        unit = np.einsum("iq,pqu->ipu", root - rise * least, self.hidden) + self.hidden_bias
        middle = unit + np.einsum("ipqu,iq->ipu", unit_rise, (least + most) / 2)
        used = np.where(middle > 0, self.out, 0.0)
        constant = (unit * used).sum(-1) + self.out_bias - self.rounding
        around = ROUNDING * ((abs(unit) + abs(self.hidden_bias)) * used).sum(-1)
        return constant - around, np.einsum("ipqu,ipu->ipq", unit_rise, used)
