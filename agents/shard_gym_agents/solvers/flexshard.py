"""FlexShard: which rows of sequence tables to replicate, to replicate in every node, and to split over all GPUs.

A row's cost in a tier is a line in its probability, and so is that cost plus a price for memory. The higher tiers'
lines are flatter, so under any price each tier is one stretch of the rows in descending order, and the ends of the
stretches are where lines cross. Sorted once, any budget is a search for its price: what is found is the best of the
linear relaxation but for part of one row. `bound` is that relaxation's value.

"flex2" and "flex3" try every set of their tiers, as collectives have latencies. "flex3-paper" is the published
procedure: DP while it saves memory, then Flex until what was saved is used up or Flex gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shard_gym.errors import InfeasibleTask, UnknownName
from shard_gym.flexshard.tiers import TIERS, RowTask, TieredPlan, merged, whole_table, worth

SETS = {  # of tiers, by method
    "flex2": (("rw",), ("dp", "rw"), ("dp",)),
    "flex3": (("rw",), ("dp", "rw"), ("dp",), ("flex",), ("flex", "rw"), ("dp", "flex"), ("dp", "flex", "rw")),
}
METHODS = (*SETS, "flex3-paper")
SLACK = 1e-12  # share of the budget that rounding may take


def solve(task: RowTask, method: str = "flex3") -> TieredPlan:
    """The plan of one of `METHODS`, within the task's budget."""
    if method not in METHODS:
        raise UnknownName("FlexShard method", method, METHODS)
    frontier = Frontier(task)
    return frontier.published() if method == "flex3-paper" else frontier.best(method)


class Cuts(NamedTuple):
    """Rows of all sequence tables in DP, and in DP or Flex; the tier of each pooled table."""

    dp: int
    both: int
    pooled: tuple[str, ...] = ()


class Priced(NamedTuple):
    """The cuts that cost least, memory included, at the least price of memory, ms a byte, at which they fit."""

    cuts: Cuts
    price: float
    beyond: Cuts | None  # those at a price just below, which do not fit; None where there is none


@dataclass(frozen=True, eq=False)
class Frontier:
    """All rows of a task, sorted once; asked for as many budgets as one likes."""

    task: RowTask

    def best(self, method: str = "flex3", budget_bytes: float | None = None) -> TieredPlan:
        """The plan that communicates least within the budget, the task's unless another is given."""
        budget = self.task.budget_bytes if budget_bytes is None else budget_bytes
        found = [cuts for tiers in SETS[method] if (cuts := self._within(tiers, budget)) is not None]
        if not found:
            raise _too_small(method, self.least_bytes(method), budget)
        return min((self.plan(cuts) for cuts in found), key=lambda plan: worth(self.task, plan).comm_ms)

    def bound(self, method: str = "flex3", budget_bytes: float | None = None) -> float:
        """No plan of that method's tiers communicates for less, ms a step; infinite where none fits."""
        budget = self.task.budget_bytes if budget_bytes is None else budget_bytes
        return min(self._relaxed(tiers, budget) for tiers in SETS[method])

    def least_bytes(self, method: str = "flex3") -> float:
        """The smallest budget that a plan of that method fits."""
        return min(self._memory(self._cuts(tiers, np.inf)) for tiers in SETS[method])

    def points(self) -> dict[str, TieredPlan]:
        """Points of the curve DP against RW: A least memory, B as much as RW, C least traffic, D all rows in DP."""
        pair, rw_bytes = ("dp", "rw"), worth(self.task, TieredPlan.uniform(self.task, "rw")).memory_bytes
        b = self._within(pair, rw_bytes)
        assert b is not None  # all rows in RW fit
        cuts = {"A": self._cuts(pair, np.inf), "B": b, "C": self._cuts(pair, 0.0), "D": self._cuts(("dp",), 0.0)}
        return {name: self.plan(cut) for name, cut in cuts.items()}

    def published(self) -> TieredPlan:
        """The paper's three tiers, section 4.5; latencies play no part in it."""
        budget, a = self.task.budget_bytes, self._cuts(("dp", "rw"), np.inf)
        if self._memory(a) > budget * (1 + SLACK):
            raise _too_small("flex3-paper", self._memory(a), budget)
        pays = max(a.dp, self._cuts(("flex", "rw"), 0.0).both)
        last = self._furthest(budget, lambda n: a._replace(both=n), a.dp, pays)
        return self.plan(a._replace(both=last))

    def plan(self, cuts: Cuts) -> TieredPlan:
        """Cuts through the rows of all tables as rows of each."""
        dp, both = (self._rows.by_table(rows) for rows in cuts[:2])
        for table, tier in zip(self._pooled, cuts.pooled, strict=True):
            rows = self.task.tables[table].curve.num_rows
            dp[table], both[table] = rows * (tier == "dp"), rows * (tier != "rw")
        return TieredPlan(tuple(dp.tolist()), tuple((both - dp).tolist()))

    def _within(self, tiers: tuple[str, ...], budget: float) -> Cuts | None:
        """The cuts that communicate least within the budget, latencies aside; None where none fits.

        Between the cuts that just fit and those that just do not, whole rows move for as long as there is room.
        """
        found = self._priced(tiers, budget)
        if found is None or found.beyond is None:
            return found and found.cuts
        cuts, beyond = found.cuts, found.beyond
        if "flex" not in tiers:
            n = self._furthest(budget, lambda n: cuts._replace(dp=n, both=n), cuts.dp, beyond.dp)
            return cuts._replace(dp=n, both=n)
        both = self._furthest(budget, lambda n: cuts._replace(both=n), cuts.both, max(beyond.both, cuts.dp))
        dp = self._furthest(budget, lambda n: cuts._replace(dp=n, both=both), cuts.dp, min(beyond.dp, both))
        return min((cuts, cuts._replace(both=both), cuts._replace(dp=dp, both=both)), key=self._ms)

    def _relaxed(self, tiers: tuple[str, ...], budget: float) -> float:
        """The value of the relaxation in which rows can be divided, with the latencies of these tiers."""
        found = self._priced(tiers, budget)
        if found is None:
            return np.inf
        latency = sum(self.task.lines[tier].latency_ms for tier in tiers)
        unused = found.price * (budget - self._memory(found.cuts)) if found.price else 0.0
        return self._ms(found.cuts) - unused + latency

    def _priced(self, tiers: tuple[str, ...], budget: float) -> Priced | None:
        """The least price at which cuts fit, by halving; None where none fits."""
        budget *= 1 + SLACK
        free, least = self._cuts(tiers, 0.0), self._cuts(tiers, np.inf)
        if self._memory(free) <= budget:
            return Priced(free, 0.0, None)
        if self._memory(least) > budget:
            return None
        low, high = 0.0, 1e-12
        while self._memory(self._cuts(tiers, high)) > budget:
            low, high = high, 2 * high
            if high > 1e12:  # no price in reason, but for rounding: only the least memory is little enough
                return Priced(least, low, None)
        while low < (middle := (low + high) / 2) < high:
            fits = self._memory(self._cuts(tiers, middle)) <= budget
            low, high = (low, middle) if fits else (middle, high)
        return Priced(self._cuts(tiers, high), high, self._cuts(tiers, low))

    def _cuts(self, tiers: tuple[str, ...], price: float) -> Cuts:
        """Ends of the stretches of these tiers if a byte costs `price` ms; at infinity memory alone counts."""
        pooled = self._tiers_of_pooled(tiers, price)
        if len(tiers) == 1:
            end = self._rows.count
            return Cuts(end * (tiers[0] == "dp"), end * (tiers[0] != "rw"), pooled)
        if tiers == ("dp", "flex"):
            return Cuts(self._better("dp", "flex", price), self._rows.count, pooled)
        if tiers == ("flex", "rw"):
            return Cuts(0, self._better("flex", "rw", price), pooled)
        if tiers == ("dp", "flex", "rw"):
            dp, both = self._better("dp", "flex", price), self._better("flex", "rw", price)
            if dp < both:
                return Cuts(dp, both, pooled)
        both = self._better("dp", "rw", price)  # Flex is best for no row
        return Cuts(both, both, pooled)

    def _tiers_of_pooled(self, tiers: tuple[str, ...], price: float) -> tuple[str, ...]:
        """The cheapest of these tiers for each pooled table at a price of memory."""
        costs = np.array([self._pooled_costs[tier] for tier in tiers])  # (tiers, P, 2)
        priced = costs[..., 0] if price == np.inf else costs[..., 1] + price * costs[..., 0]
        return tuple(tiers[n] for n in priced.argmin(axis=0))

    def _better(self, upper: str, lower: str, price: float) -> int:
        """Number of rows, the most frequent ones, that are better off in the upper tier."""
        return self._rows.above(self._crossing(upper, lower, price))

    def _crossing(self, upper: str, lower: str, price: float) -> float:
        """The probability above which a row is better off in the upper tier."""
        over, under = self.task.lines[upper], self.task.lines[lower]
        memory, ms = np.subtract(over.memory, under.memory), np.subtract(over.ms, under.ms)
        constant, slope = map(float, memory if price == np.inf else ms + price * memory)
        if slope < 0:
            return -constant / slope if constant > 0 else -np.inf
        return -np.inf if slope == 0 and constant < 0 else np.inf

    def _furthest(self, budget: float, cuts: Callable[[int], Cuts], start: int, end: int) -> int:
        """Go from cuts that fit towards those at the end, as far as memory allows; it grows on the way."""
        low, high, step = 0, abs(end - start), 1 if end >= start else -1
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._memory(cuts(start + step * middle)) <= budget * (1 + SLACK)
            low, high = (middle, high) if fits else (low, middle - 1)
        return start + step * low

    def _memory(self, cuts: Cuts) -> float:
        return self._total(cuts, {tier: line.memory for tier, line in self.task.lines.items()}, 0)

    def _ms(self, cuts: Cuts) -> float:
        return self._total(cuts, {tier: line.ms for tier, line in self.task.lines.items()}, 1)

    def _total(self, cuts: Cuts, lines: Mapping[str, tuple[float, float]], what: int) -> float:
        """Summed over all rows: each tier's line, times the bytes of its rows; and over pooled tables."""
        ends = [self._rows.sums(rows) for rows in (0, cuts.dp, cuts.both, self._rows.count)]
        total = float(sum(self._pooled_costs[tier][n, what] for n, tier in enumerate(cuts.pooled)))
        for tier, (size, looked_up), (size_end, looked_up_end) in zip(TIERS, ends, ends[1:], strict=False):
            constant, slope = lines[tier]
            total += constant * (size_end - size) + slope * (looked_up_end - looked_up)
        return total

    @cached_property
    def _rows(self) -> _SortedRows:
        return _SortedRows(self.task)

    @cached_property
    def _pooled(self) -> list[int]:
        return [i for i, table in enumerate(self.task.tables) if table.pooled]

    @cached_property
    def _pooled_costs(self) -> Mapping[str, np.ndarray]:
        """Memory and ms of each pooled table in each tier, (P, 2)."""
        tables = [self.task.tables[i] for i in self._pooled]
        return {tier: np.array([whole_table(self.task, t, tier) for t in tables]).reshape(-1, 2) for tier in TIERS}


class _SortedRows:
    """The rows of all tables but pooled ones, most frequent first, in buckets, with sums over the first of them."""

    def __init__(self, task: RowTask) -> None:
        self._p, self._in_bucket, self._row_bytes, self._table = merged(task)
        self._tables = len(task.tables)
        self._falling = -self._p
        size = self._in_bucket * self._row_bytes.astype(np.float64)
        self._ends = np.append(0, np.cumsum(self._in_bucket))  # (M + 1,) rows before each bucket
        self._size = np.append(0.0, np.cumsum(size))  # their bytes
        self._looked_up = np.append(0.0, np.cumsum(size * self._p))  # and these times probability
        self.count = int(self._ends[-1])

    def above(self, probability: float) -> int:
        """Rows that are looked up with a higher probability."""
        return int(self._ends[np.searchsorted(self._falling, -probability, side="left")])

    def sums(self, rows: int) -> tuple[float, float]:
        """Bytes of the most frequent rows, so many of them, and their bytes times probability."""
        bucket = self._bucket(rows)
        if bucket == len(self._p):
            return self._size[-1], self._looked_up[-1]
        part = float((rows - self._ends[bucket]) * self._row_bytes[bucket])
        return float(self._size[bucket] + part), float(self._looked_up[bucket] + part * self._p[bucket])

    def by_table(self, rows: int) -> np.ndarray:
        """Number of rows of each table among the most frequent ones, so many of them."""
        bucket = self._bucket(rows)
        found = np.zeros(self._tables, np.int64)
        np.add.at(found, self._table[:bucket], self._in_bucket[:bucket])
        if bucket < len(self._p):
            found[self._table[bucket]] += rows - self._ends[bucket]
        return found

    def _bucket(self, rows: int) -> int:
        """The bucket in which so many rows end."""
        return int(np.searchsorted(self._ends[1:], rows, side="right"))


def _too_small(method: str, least: float, budget: float) -> InfeasibleTask:
    return InfeasibleTask(
        f"{method} needs {least:,.0f} bytes a GPU at the least, {least - budget:,.0f} more than the budget of "
        f"{budget:,.0f}: raise extra_bytes, or use more GPUs"
    )
