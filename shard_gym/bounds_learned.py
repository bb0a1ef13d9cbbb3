"""The least that a fitted network predicts for a device holding a given weight of tables, by branch and bound.

A shard costs sum_p (B_p + fixed_p) F_p(T): each pass's base B_p and the totals T are sums over its tables, the factor
F_p grows with T. With positive weights both only grow as tables are added, but their product is neither convex nor
additive: shards of dear tables with small totals cost less than the average of shards. So the least over shards that
hold a weight y, with any part of any table (a relaxation), is bounded from below:

1. What grows with every part is least where the weight is y exactly, so weight.x = y.
2. The range of phi.x, roughly the factor's part in the cost, is cut into intervals. In each, knapsacks give ranges of
   every total and base.
3. There the fourth root of a total is at least its chord, and a hidden unit at least that or 0, so F_p >= l_p(T),
   linear.
4. (B - B_low)(F - F_low) >= 0 and (B_high - B)(l_high - l) >= 0 make the product linear (McCormick), and a last
   knapsack gives the least of that.

Rounding in the network (to multiples of 2**-14) is taken off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shard_gym.bounds_knapsack import least_between, least_of
from shard_gym.bounds_phases import MS, PASSES, Pieces, Share
from shard_gym.cost_models.networks import GRAIN, HIGHEST, LOWEST_FACTOR, ROOT_OFFSET, Ours
from shard_gym.errors import SimulatorError
from shard_gym.simulators.learned import OWN, Learned

INTERVALS = 12
TILTS = (
    0.8,
    0.75,
    0.85,
    0.7,
    0.9,
    0.6,
    1.0,
)  # of the factor's part in a table's weight; measured: 0.8 is best or nearly so
HALF = 0.5 / GRAIN  # the most that rounding to the network's grid changes


def network_shares(simulator: Learned, pieces: Pieces, alone: np.ndarray, phase: str, devices: int) -> Iterator[Share]:
    """Shares weighted by the slope of the cost at the mean shard, its factor's part by a tilt."""
    least = _Least(simulator, pieces.whole[..., OWN:], phase, devices)
    for tilt in TILTS:
        yield _share(least, least.base_slope + tilt * least.factor_slope, float(alone.min()))


def _share(least: _Least, weights: np.ndarray, empty: float) -> Share:
    """A share of those weights, which are positive: every table has a base. Of no weight, the cheapest piece."""
    total = float(weights.sum())
    return Share(
        weights,
        lambda weight: max(empty, least(weights, weight)) if weight > 0 else empty,
        lambda weight: least.along(np.asarray(weight) / total),
    )


def monotone_network(simulator: Learned) -> Ours:
    """The simulator's network, if its cost never falls as tables are added; the bounds rest on that."""
    network = simulator.network
    if not isinstance(network, Ours):
        raise SimulatorError(
            f"{simulator.id} has a published network, whose costs may fall as tables are added: no bound"
        )
    t = network.t
    if min(t["factor/0/weight"].min(), t["factor/1/weight"].min(), t["fixed"].min()) < 0:
        raise SimulatorError(f"{simulator.id} has negative weights in its factor or fixed costs: no bound is known")
    return network


@dataclass(frozen=True, eq=False)
class _Held:
    """What the shards looked at hold: `total` of a weight, and phi between low and high, one interval a row."""

    weights: np.ndarray  # (N,)
    total: float
    phi: np.ndarray  # (N,)
    low: np.ndarray  # (I,)
    high: np.ndarray

    def least(self, cost: np.ndarray) -> np.ndarray:
        """At most the least of costs that add up over tables, (I, C, N) -> (I, C)."""
        intervals, columns, tables = cost.shape
        low, high = (np.repeat(edge, columns) for edge in (self.low, self.high))
        flat = least_between(cost.reshape(-1, tables), self.weights, self.total, self.phi, low, high)
        return flat.reshape(intervals, columns)

    def ranges(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least and most of the sums of some columns (V, N, C), whichever depth the pieces have; (I, C) each."""
        shape = (len(self.low), values.shape[2], values.shape[1])
        least = self.least(np.broadcast_to(values.min(axis=0).T, shape))
        most = -self.least(np.broadcast_to(-values.max(axis=0).T, shape))
        return np.maximum(least, 0.0), np.maximum(most, np.maximum(least, 0.0))


class _Least:
    """The function described above. P: passes of all members, Q: totals, U: hidden units, V: depths of pieces."""

    def __init__(self, simulator: Learned, whole: np.ndarray, phase: str, devices: int) -> None:
        network = monotone_network(simulator)
        t, members, q = network.t, network.members, network.totals
        passes = np.tile(PASSES[phase], members)
        of_member = np.repeat(np.arange(members), 2)[passes]
        self.totals, self.base = whole[..., :q], whole[..., q:][..., passes]  # (V, N, Q), (V, N, P)
        self.fixed = t["fixed"].ravel()[passes]
        self.hidden, self.hidden_bias = t["factor/0/weight"][of_member], t["factor/0/bias"][of_member]  # (P, Q, U)
        self.out = t["factor/1/weight"].transpose(0, 2, 1).reshape(2 * members, -1)[passes]  # (P, U)
        self.out_bias = t["factor/1/bias"].ravel()[passes]
        self.ms = MS / members
        rounded = HALF * (1 + self.hidden.sum(axis=1))  # of the roots, then of the unit
        self.rounding = (self.out * rounded).sum(axis=1)  # (P,), of the factor
        most = (self.totals.max(axis=0).sum(axis=0) + ROOT_OFFSET) ** 0.25
        if max((most @ self.hidden + self.hidden_bias).max(), self._factor(most**4).max()) >= HIGHEST:
            raise SimulatorError(f"{simulator.id} cuts off the costs of so much work: no bound is known")
        self.base_slope, self.factor_slope = self._slopes(devices)

    def __call__(self, weights: np.ndarray, total: float) -> float:
        """The least ms of a device of speed 1 that holds `total` of the weight."""
        phi = np.maximum(self.factor_slope, 1e-12 * self.factor_slope.max() + 1e-300)
        lowest, _ = least_of(phi[None], weights, total)
        highest, _ = least_of(-phi[None], weights, total)
        edges = np.linspace(lowest[0] * (1 - 1e-9), -highest[0] * (1 + 1e-9), INTERVALS + 1)
        held = _Held(weights, total, phi, edges[:-1], edges[1:])
        low, high = held.ranges(self.totals)
        constant, slope = self._chords(low, high)
        linear = np.einsum("ipq,vnq->ivpn", slope, self.totals)  # (I, V, P, N)
        factor_low = np.maximum(self._factor(low), constant + held.least(linear.min(axis=1)))
        factor_high = np.maximum(factor_low, constant - held.least(-linear.max(axis=1)))
        base_low, base_high = (base + self.fixed for base in held.ranges(self.base))
        found = np.full(INTERVALS, -np.inf)
        for base, factor in ((base_low, factor_low), (base_high, factor_high)):  # each (I, P)
            cost = np.einsum("ip,vnp->ivn", factor, self.base) + np.einsum("ip,ivpn->ivn", base, linear)
            rest = (self.fixed * factor + base * (constant - factor)).sum(axis=1)
            found = np.maximum(found, held.least(cost.min(axis=1)[:, None])[:, 0] + rest)
        return float((found.min() - HALF * len(self.fixed)) * self.ms)

    def along(self, part: np.ndarray) -> np.ndarray:
        """Cost of shards that hold the same part (S,) of every table unsplit, ms."""
        totals, base = (np.multiply.outer(part, amount[0].sum(axis=0)) for amount in (self.totals, self.base))
        return ((base + self.fixed) * self._factor(totals)).sum(axis=-1) * self.ms

    def _factor(self, totals: np.ndarray) -> np.ndarray:
        """At most the factors of shards with these totals, (..., Q) -> (..., P)."""
        roots = (totals + ROOT_OFFSET) ** 0.25
        hidden = np.maximum(np.einsum("...q,pqu->...pu", roots, self.hidden) + self.hidden_bias, 0.0)
        out = (hidden * self.out).sum(axis=-1) + self.out_bias - self.rounding
        return np.maximum(out, LOWEST_FACTOR)

    def _chords(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """constant (I, P) and slope (I, P, Q) of a function that no factor is below for totals in these ranges."""
        root, top = (low + ROOT_OFFSET) ** 0.25, (high + ROOT_OFFSET) ** 0.25  # (I, Q)
        rise = (top - root) / np.maximum(high - low, 1e-12)
        unit_rise = rise[:, None, :, None] * self.hidden  # (I, P, Q, U)
        unit = np.einsum("iq,pqu->ipu", root - rise * low, self.hidden) + self.hidden_bias
        middle = unit + np.einsum("ipqu,iq->ipu", unit_rise, (low + high) / 2)
        used = np.where(middle > 0, self.out, 0.0)  # a unit is at least 0, too
        return (unit * used).sum(-1) + self.out_bias - self.rounding, np.einsum("ipqu,ipu->ipq", unit_rise, used)

    def _slopes(self, devices: int) -> tuple[np.ndarray, np.ndarray]:
        """What each whole table adds to the cost of the mean shard: through its base, through the factor; (N,)."""
        totals, base = self.totals[0].sum(axis=0) / devices, self.base[0].sum(axis=0) / devices
        wide = np.maximum(totals, ROOT_OFFSET)
        _, slope = self._chords(0.99 * wide[None], 1.01 * wide[None])
        by_total = (base + self.fixed) @ slope[0]
        return self.base[0] @ self._factor(totals) * self.ms, self.totals[0] @ by_total * self.ms
