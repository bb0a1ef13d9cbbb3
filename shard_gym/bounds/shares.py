"""The least that a device costs which holds a given weight of tables, phase by phase; the ground of all lower bounds.

Proofs rest on one thing only: a shard's cost never falls when a table is added. Column splits are allowed for: a
table may lie in pieces, each half as wide as its parent, on several devices.

Where costs are maxima of sums, each sum is a lower bound. Where they are factors, a shard costs
sum_p (B_p + fixed_p) F_p(T): each pass's base B_p and the totals T are sums over its tables, the factor F_p grows with
T. The product is neither convex nor additive: shards of dear tables with small totals cost less than the average of
shards. So the least over shards that hold a weight y, with any part of any table (a relaxation), is bounded from below
by branch and bound:

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from shard_gym.errors import SimulatorError
from shard_gym.memory.usage import piece_bytes
from shard_gym.simulators.base import GRAIN, PASSES, Factors, FastSimulator, Maxima, Simulator
from shard_gym.simulators.networks import HIGHEST, LOWEST_FACTOR, ROOT_OFFSET
from shard_gym.task.task import Constraints, Task

MS = 1e-3  # of a microsecond
INTERVALS = 12
TILTS = (0.8, 0.75, 0.85, 0.7, 0.9, 0.6, 1.0)  # of the factor's part in a weight; measured: 0.8 is best or nearly so
HALF = 0.5 / GRAIN  # the most that rounding to the network's grid changes
STEPS = 14  # halvings of the interval of a multiplier; any multiplier gives a valid bound, more steps a better one
TAIL = 6  # first of which in proportion: multipliers span many orders of magnitude


@dataclass(frozen=True, eq=False)
class Share:
    """A weight for each table, whole, and the least that a device costs which holds so much of it.

    A piece of half the columns weighs half, so the devices' weights always add up to `weights.sum()`: some device
    holds at least what any sharing-out of that sum gives it. `least` and `guess` are ms on a device of speed 1.
    """

    weights: np.ndarray  # (N,)
    least: Callable[[float], float]  # of a device that holds this weight or more; of 0: of one that is not empty
    guess: Callable[[np.ndarray], np.ndarray]  # what a device costs that holds the same part of every table


@dataclass(frozen=True, eq=False)
class Pieces:
    """Tables in pieces of each depth: 0 is the whole table, v an 2**v-th of its columns; arrays are (V, N, ...).

    A table that cannot be split so often stands there whole.
    """

    embedding: np.ndarray  # of one piece
    parts: np.ndarray  # pieces that make a table
    bytes: np.ndarray
    columns: np.ndarray  # that a sample gets back, float64
    alone: dict[str, np.ndarray]  # by phase, the ms of one piece as the only one of a device of speed 1, (V, N)

    @property
    def whole(self) -> np.ndarray:
        """The sum of all pieces of a table, (V, N, H)."""
        return self.embedding * self.parts[..., None]


def pieces_of(task: Task, simulator: FastSimulator) -> Pieces:
    """The pieces of every depth that the task's splits can reach."""
    dim, parts = task.tables.dim, np.ones(task.num_tables, np.int64)
    may = np.full(task.num_tables, task.splits_allowed)
    may[list(task.constraints.no_split)] = False
    depths = []
    while True:
        at_depth = replace(task, tables=task.tables.with_(dim=dim), constraints=Constraints())
        size = piece_bytes(task, np.arange(task.num_tables), dim)
        depths.append((simulator.embed(at_depth), parts, size, at_depth.tables.columns_sent))
        may &= dim % 8 == 0
        if not may.any():
            embedding, made, size, columns = (np.stack(column) for column in zip(*depths, strict=True))
            return Pieces(embedding, made, size, columns, _costs_alone(task, simulator, embedding))
        dim, parts = np.where(may, dim // 2, task.tables.dim), np.where(may, 2 * parts, 1)


def _costs_alone(task: Task, simulator: FastSimulator, embedding: np.ndarray) -> dict[str, np.ndarray]:
    latency = simulator.decode(task.computation(), embedding.reshape(-1, 1, embedding.shape[-1]))
    shape = embedding.shape[:-1]
    forward, backward = latency.forward_compute.reshape(shape), latency.backward_compute.reshape(shape)
    return {"forward": forward, "backward": backward, "both": forward + backward}


def shares_of(simulator: FastSimulator, pieces: Pieces, phase: str, devices: int) -> Iterator[Share]:
    """Shares of a simulator that tells its costs as maxima or as factors, the best first."""
    maxima, factors = simulator.maxima(phase), simulator.factors()
    if maxima is not None:
        return _of_sums(maxima, pieces)
    if factors is not None:
        return _of_factors(factors, pieces, phase, devices, simulator.id)
    raise no_bound(simulator)


def no_bound(simulator: Simulator) -> SimulatorError:
    """The error of a simulator that does not tell how its costs rise as tables are added."""
    name = getattr(simulator, "id", type(simulator).__name__)
    return SimulatorError(
        f"no bound is known for {name}: give a roofline or a learned simulator (not with a published network, "
        "whose costs may fall as tables are added)"
    )


def _of_sums(maxima: Maxima, pieces: Pieces) -> Iterator[Share]:
    """A share of each sum; of a table in pieces the cheapest depth counts."""
    whole, fixed = pieces.whole * MS, maxima.fixed_ms
    for columns in maxima.sums:
        cost = whole[..., list(columns)].sum(axis=-1)
        yield Share(cost.min(axis=0), lambda weight: weight + fixed, lambda weight: weight + fixed)


def factor_shares(task: Task, simulator: FastSimulator) -> Iterator[_Held]:
    """Intervals of what a device holds with as much work as all have on average, where costs are factors."""
    factors, pieces = simulator.factors(), pieces_of(task, simulator)
    if factors is None:
        return
    for share in _of_factors(factors, pieces, "both", task.num_devices, simulator.id):
        least = _Least(factors, pieces.whole[..., factors.own :], "both", task.num_devices)
        held = least.held(share.weights, float(share.weights.sum()) / task.num_devices)
        least.of(held)
        yield held


def _of_factors(factors: Factors, pieces: Pieces, phase: str, devices: int, simulator_id: str) -> Iterator[Share]:
    """Shares weighted by the slope of the cost at the mean shard, its factor's part by a tilt."""
    if min(factors.hidden.min(), factors.out.min(), factors.fixed.min()) < 0:
        raise SimulatorError(f"{simulator_id} has negative weights in its factor or fixed costs: no bound is known")
    least = _Least(factors, pieces.whole[..., factors.own :], phase, devices)
    if least.cut_off:
        raise SimulatorError(f"{simulator_id} cuts off the costs of so much work: no bound is known")
    for tilt in TILTS:
        yield _share(least, least.base_slope + tilt * least.factor_slope, float(pieces.alone[phase].min()))


def _share(least: _Least, weights: np.ndarray, empty: float) -> Share:
    """A share of those weights, which are positive: every table has a base. Of no weight, the cheapest piece."""
    total = float(weights.sum())
    return Share(
        weights,
        lambda weight: max(empty, least(weights, weight)) if weight > 0 else empty,
        lambda weight: least.along(np.asarray(weight) / total),
    )


@dataclass(frozen=True, eq=False)
class _Held:
    """Intervals of shards that hold `total` of a weight, and phi between low and high, one interval a row."""

    weights: np.ndarray  # (N,)
    total: float
    phi: np.ndarray  # (N,)
    low: np.ndarray  # (I,)
    high: np.ndarray
    multipliers: list[np.ndarray] = field(default_factory=list)  # (I, C) of each call of `least`, for certificates

    def least(self, cost: np.ndarray) -> np.ndarray:
        """Bound the least of costs that add up over tables, (I, C, N) -> (I, C)."""
        intervals, columns, tables = cost.shape
        low, high = (np.repeat(edge, columns) for edge in (self.low, self.high))
        flat, multiplier = _between(cost.reshape(-1, tables), self.weights, self.total, self.phi, low, high)
        self.multipliers.append(multiplier.reshape(intervals, columns))
        return flat.reshape(intervals, columns)

    def ranges(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least and most of the sums of some columns (V, N, C), whichever depth the pieces have; (I, C) each."""
        shape = (len(self.low), values.shape[2], values.shape[1])
        least = self.least(np.broadcast_to(values.min(axis=0).T, shape))
        most = -self.least(np.broadcast_to(-values.max(axis=0).T, shape))
        return np.maximum(least, 0.0), np.maximum(most, np.maximum(least, 0.0))


class _Least:
    """Branch and bound as above. P: passes of all members, Q: totals, U: hidden units, V: depths of pieces."""

    def __init__(self, factors: Factors, whole: np.ndarray, phase: str, devices: int) -> None:
        members, q, _ = factors.hidden.shape
        passes = np.tile(PASSES[phase], members)
        of_member = np.repeat(np.arange(members), 2)[passes]
        self.totals, self.base = whole[..., :q], whole[..., q:][..., passes]  # (V, N, Q), (V, N, P)
        self.fixed = factors.fixed.ravel()[passes]
        self.hidden, self.hidden_bias = factors.hidden[of_member], factors.hidden_bias[of_member]  # (P, Q, U)
        self.out = factors.out.transpose(0, 2, 1).reshape(2 * members, -1)[passes]  # (P, U)
        self.out_bias = factors.out_bias.ravel()[passes]
        self.ms, self.highest = MS / members, factors.highest
        rounded = HALF * (1 + self.hidden.sum(axis=1))  # of the roots, then of the unit
        self.rounding = (self.out * rounded).sum(axis=1)  # (P,), of the factor
        most = (self.totals.max(axis=0).sum(axis=0) + ROOT_OFFSET) ** 0.25
        # whether the network does so with the most that a device can hold
        self.cut_off = self._factor(most**4).max() >= HIGHEST
        if self.highest == HIGHEST:
            self.cut_off |= (most @ self.hidden + self.hidden_bias).max() >= HIGHEST
        self.base_slope, self.factor_slope = self._slopes(devices)

    def __call__(self, weights: np.ndarray, total: float) -> float:
        """The least ms of a device of speed 1 that holds `total` of the weight."""
        return self.of(self.held(weights, total))

    def held(self, weights: np.ndarray, total: float) -> _Held:
        """The intervals of what such a device may hold."""
        phi = np.maximum(self.factor_slope, 1e-12 * self.factor_slope.max() + 1e-300)
        lowest, _ = least_of(phi[None], weights, total)
        highest, _ = least_of(-phi[None], weights, total)
        edges = np.linspace(lowest[0] * (1 - 1e-9), -highest[0] * (1 + 1e-9), INTERVALS + 1)
        return _Held(weights, total, phi, edges[:-1], edges[1:])

    def of(self, held: _Held) -> float:
        """The least ms over all intervals."""
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
        """Bound the factors of shards with these totals, (..., Q) -> (..., P)."""
        roots = (totals + ROOT_OFFSET) ** 0.25
        hidden = (np.einsum("...q,pqu->...pu", roots, self.hidden) + self.hidden_bias).clip(0.0, self.highest)
        out = (hidden * self.out).sum(axis=-1) + self.out_bias - self.rounding
        return np.maximum(out, LOWEST_FACTOR)

    def _chords(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """constant (I, P) and slope (I, P, Q) of a function that no factor is below for totals in these ranges."""
        root, top = (low + ROOT_OFFSET) ** 0.25, (high + ROOT_OFFSET) ** 0.25  # (I, Q)
        rise = (top - root) / np.maximum(high - low, 1e-12)
        unit_rise = rise[:, None, :, None] * self.hidden  # (I, P, Q, U)
        unit = np.einsum("iq,pqu->ipu", root - rise * low, self.hidden) + self.hidden_bias
        first, last = (unit + np.einsum("ipqu,iq->ipu", unit_rise, end) for end in (low, high))
        slope, start = below_a_unit(first, last, self.highest)
        constant = ((start + slope * unit) * self.out).sum(-1) + self.out_bias - self.rounding
        return constant, np.einsum("ipqu,ipu->ipq", unit_rise, slope * self.out)

    def _slopes(self, devices: int) -> tuple[np.ndarray, np.ndarray]:
        """Cost that each whole table adds to the mean shard: through its base, through the factor; (N,)."""
        totals, base = self.totals[0].sum(axis=0) / devices, self.base[0].sum(axis=0) / devices
        wide = np.maximum(totals, ROOT_OFFSET)
        _, slope = self._chords(0.99 * wide[None], 1.01 * wide[None])
        by_total = (base + self.fixed) @ slope[0]
        return self.base[0] @ self._factor(totals) * self.ms, self.totals[0] @ by_total * self.ms


def below_a_unit(first: np.ndarray, last: np.ndarray, highest: float) -> tuple[np.ndarray, np.ndarray]:
    """Slope and start of a line that a unit, clipped to 0 and `highest`, is nowhere below between first and last.

    Where the unit stops at `highest`, the line goes there from its first value; or from 0, where it begins below.
    """
    stops = last > highest
    slope = np.where(stops, 0.0, first + last > 0)
    start = np.zeros_like(slope)
    begins = first.clip(0.0, highest)
    rise = stops & (first < highest)
    gap = np.where(rise, last - np.maximum(first, 0.0), 1.0)
    slope[rise] = ((highest - begins) / gap)[rise]
    start[stops] = (begins - slope * np.maximum(first, 0.0))[stops]
    return slope, start


def least_of(cost: np.ndarray, weight: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray]:
    """min cost.x with weight.x = total and x in [0, 1]^N, and the x that reaches it; cost (R, N) -> (R,), (R, N).

    The fractional knapsack: cheapest per weight first. Weights are positive and sum to `total` at least.
    """
    order = np.argsort(cost / weight, axis=1)
    sorted_weight = weight[order]
    before = np.cumsum(sorted_weight, axis=1) - sorted_weight
    taken = np.clip((total - before) / sorted_weight, 0, 1)
    x = np.empty_like(cost)
    np.put_along_axis(x, order, taken, axis=1)
    return (cost * x).sum(axis=1), x


def least_between(
    cost: np.ndarray, weight: np.ndarray, total: float, second: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Bound the least cost.x with weight.x = total and low <= second.x <= high; cost (R, N), low (R,) -> (R,).

    Lagrange: for any multiplier m >= 0 the least of (cost - m second).x, plus m low, is no more than the least cost
    under second.x >= low; and so with the sign turned for high. The best m is searched by halving.
    """
    return _between(cost, weight, total, second, low, high)[0]


def _between(
    cost: np.ndarray, weight: np.ndarray, total: float, second: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same with the multiplier that it was found with, below 0 for `high`."""
    best, x = least_of(cost, weight, total)
    reached, multiplier = x @ second, np.zeros(len(best))
    rows = np.flatnonzero((reached < low) | (reached > high))
    if not len(rows):
        return best, multiplier
    sign = np.where(reached[rows] < low[rows], 1.0, -1.0)
    target, found = np.where(sign > 0, low[rows], high[rows]), best[rows]
    small, large = np.zeros(len(rows)), (abs(cost[rows]) / second).max(axis=1)
    for step in range(STEPS):
        middle = (small + large) / 2 if step >= TAIL else np.where(small > 0, np.sqrt(small * large), large / 64)
        tilted = cost[rows] - (sign * middle)[:, None] * second
        value, x = least_of(tilted, weight, total)
        value = value + sign * middle * target
        multiplier[rows] = np.where(value > found, sign * middle, multiplier[rows])
        found = np.maximum(found, value)
        more = sign * (x @ second) < sign * target
        small, large = np.where(more, middle, small), np.where(more, large, middle)
    best[rows] = found
    return best, multiplier
