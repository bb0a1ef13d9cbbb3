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
from shard_gym.rowwise.tiers import TIERS, RowTask, TieredPlan, merged, whole_table, worth

SETS = {  # of tiers, by method
    "flex2": (("rw",), ("dp", "rw"), ("dp",)),
    "flex3": (("rw",), ("dp", "rw"), ("dp",), ("flex",), ("flex", "rw"), ("dp", "flex"), ("dp", "flex", "rw")),
}
METHODS = (*SETS, "flex3-paper")
SLACK = 1e-12  # share of the budget that rounding may take


class Cuts(NamedTuple):
    """Rows of all sequence tables in DP, and in DP or Flex; the tier of each pooled table."""

    dp: int
    both: int
    pooled: tuple[str, ...] = ()


def solve(task: RowTask, method: str = "flex3") -> TieredPlan:
    """The plan of one of `METHODS`, within the task's budget."""
    if method not in METHODS:
        raise UnknownName("FlexShard method", method, METHODS)
    frontier = Frontier(task)
    return frontier.published() if method == "flex3-paper" else frontier.best(method)


@dataclass(frozen=True, eq=False)
class Frontier:
    """All rows of a task, sorted once; asked for as many budgets as one likes."""

    task: RowTask

    def best(self, method: str = "flex3", budget_bytes: float | None = None) -> TieredPlan:
        """The plan that communicates least within the budget, the task's unless another is given."""
        budget = self.task.budget_bytes if budget_bytes is None else budget_bytes
        found = [cuts for tiers in SETS[method] if (cuts := self._within(tiers, budget)) is not None]
        if not found:
            least = min(self._memory(self._cuts(tiers, np.inf)) for tiers in SETS[method])
            raise InfeasibleTask(
                f"{method} needs {least:,.0f} bytes a GPU at the least, {least - budget:,.0f} more than the budget of "
                f"{budget:,.0f}: raise extra_bytes, or use more GPUs"
            )
        return min((self.plan(cuts) for cuts in found), key=lambda plan: worth(self.task, plan).comm_ms)

    def bound(self, method: str = "flex3", budget_bytes: float | None = None) -> float:
        """No plan of that method's tiers communicates for less, ms a step; infinite where none fits."""
        budget = self.task.budget_bytes if budget_bytes is None else budget_bytes
        return min(self._relaxed(tiers, budget) for tiers in SETS[method])

    def points(self) -> dict[str, TieredPlan]:
        """On the curve of DP against RW: A least memory, B as much as RW, C least communication, D all rows in DP."""
        pair = ("dp", "rw")
        b = self._within(pair, worth(self.task, TieredPlan.uniform(self.task, "rw")).memory_bytes)
        assert b is not None
        end = self._rows_before(len(self._p))
        d = Cuts(end, end, ("dp",) * len(self._pooled))
        cuts = {"A": self._cuts(pair, np.inf), "B": b, "C": self._cuts(pair, 0.0), "D": d}
        return {name: self.plan(cut) for name, cut in cuts.items()}

    def published(self) -> TieredPlan:
        """The paper's three tiers."""
        first, _, pooled = self._cuts(("dp", "rw"), np.inf)
        pays = max(first, self._cuts(("flex", "rw"), 0.0).both)
        last = self._furthest(self.task.budget_bytes, lambda j: Cuts(first, j, pooled), first, pays)
        return self.plan(Cuts(first, last, pooled))

    def plan(self, cuts: Cuts) -> TieredPlan:
        """Cuts through the rows of all tables as rows of each."""
        dp, both = (self._by_table(rows) for rows in cuts[:2])
        for table, tier in zip(self._pooled, cuts.pooled, strict=True):
            rows = self.task.tables[table].curve.num_rows
            dp[table], both[table] = rows * (tier == "dp"), rows * (tier != "rw")
        return TieredPlan(tuple(dp.tolist()), tuple((both - dp).tolist()))

    def _within(self, tiers: tuple[str, ...], budget: float) -> Cuts | None:
        """The cuts that communicate least within the budget, latencies aside; None where none fits."""
        dear, _, cheap = self._prices(tiers, budget)
        if dear is None:
            return None
        if cheap is None:
            return dear
        i, j, pooled = dear
        if "flex" not in tiers:
            both = self._furthest(budget, lambda n: Cuts(n, n, pooled), i, cheap.dp)
            return Cuts(both, both, pooled)
        reached = self._furthest(budget, lambda n: Cuts(i, n, pooled), j, max(cheap.both, i))
        moved = self._furthest(budget, lambda n: Cuts(n, reached, pooled), i, min(cheap.dp, reached))
        return min((dear, Cuts(i, reached, pooled), Cuts(moved, reached, pooled)), key=self._ms)

    def _relaxed(self, tiers: tuple[str, ...], budget: float) -> float:
        """The value of the relaxation in which rows can be divided, with the latencies of these tiers."""
        dear, price, _ = self._prices(tiers, budget)
        if dear is None:
            return np.inf
        latency = sum(self.task.lines[tier].latency_ms for tier in tiers)
        return self._ms(dear) + price * (self._memory(dear) - budget) + latency

    def _prices(self, tiers: tuple[str, ...], budget: float) -> tuple[Cuts | None, float, Cuts | None]:
        """Cuts at the least price of memory at which they fit, that price, and the cuts at a price just below it."""
        budget *= 1 + SLACK
        free = self._cuts(tiers, 0.0)
        if self._memory(free) <= budget:
            return free, 0.0, None
        if self._memory(self._cuts(tiers, np.inf)) > budget:
            return None, np.inf, None
        low, high = 0.0, 1e-12
        while self._memory(self._cuts(tiers, high)) > budget:
            low, high = high, 2 * high
            if high > 1e12:  # only the cuts of least memory fit
                return self._cuts(tiers, np.inf), low, None
        while low < (middle := (low + high) / 2) < high:
            fits = self._memory(self._cuts(tiers, middle)) <= budget
            low, high = (low, middle) if fits else (middle, high)
        return self._cuts(tiers, high), high, self._cuts(tiers, low)

    def _cuts(self, tiers: tuple[str, ...], price: float) -> Cuts:
        """Where the stretches of these tiers end if a byte costs `price` ms; at infinity memory alone counts."""
        end = self._rows_before(len(self._p))
        worth = {tier: self._whole(tier, price) for tier in tiers}
        pooled = tuple(min(tiers, key=lambda tier, n=n: worth[tier][n]) for n in range(len(self._pooled)))  # type: ignore[misc]
        if tiers == ("dp", "flex", "rw"):
            above_flex, above_rw = self._crossing("dp", "flex", price), self._crossing("flex", "rw", price)
            if above_flex <= above_rw:
                above_flex = above_rw = self._crossing("dp", "rw", price)
            return Cuts(self._rows_above(above_flex), self._rows_above(above_rw), pooled)
        first = self._rows_above(self._crossing(*tiers, price)) if len(tiers) == 2 else end  # type: ignore[call-arg]
        dp = first if tiers[0] == "dp" else 0
        return Cuts(dp, end if "rw" not in tiers else first if tiers != ("rw",) else 0, pooled)

    def _whole(self, tier: str, price: float) -> np.ndarray:
        """What each pooled table costs in a tier at a price of memory."""
        memory, ms = self._pooled_costs[tier].T
        return memory if price == np.inf else ms + price * memory

    def _crossing(self, upper: str, lower: str, price: float) -> float:
        """The probability above which a row is better off in the upper tier."""
        over, under = self.task.lines[upper], self.task.lines[lower]
        constant, slope = (
            (over.memory[n] - under.memory[n]) * (1.0 if price == np.inf else price)
            + (0.0 if price == np.inf else over.ms[n] - under.ms[n])
            for n in (0, 1)
        )
        if slope < 0:
            return -constant / slope if constant > 0 else -np.inf
        return -np.inf if slope == 0 and constant < 0 else np.inf

    def _furthest(self, budget: float, cuts: Callable[[int], Cuts], start: int, end: int) -> int:
        """From cuts that fit towards those at the end, as far as memory allows; it grows on the way."""
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
        ends = [self._sums(0), *map(self._sums, cuts[:2]), (self._size[-1], self._looked_up[-1])]
        total = float(sum(self._pooled_costs[tier][n, what] for n, tier in enumerate(cuts.pooled)))
        for (constant, slope), (size, p), (size_end, p_end) in zip(lines.values(), ends, ends[1:], strict=False):
            total += constant * (size_end - size) + slope * (p_end - p)
        return total

    def _sums(self, rows: int) -> tuple[float, float]:
        """Bytes of the most frequent rows, so many of them, and their bytes times probability."""
        bucket = int(np.searchsorted(self._ends, rows, side="right"))
        if bucket == len(self._ends):
            return self._size[-1], self._looked_up[-1]
        part = (rows - self._rows_before(bucket)) * self._row_bytes[bucket]
        return float(self._size[bucket] + part), float(self._looked_up[bucket] + part * self._p[bucket])

    def _by_table(self, rows: int) -> np.ndarray:
        bucket = int(np.searchsorted(self._ends, rows, side="right"))
        table, count = self._merged[3][: bucket + 1], self._merged[1][: bucket + 1].copy()
        if bucket < len(self._ends):
            count[-1] = rows - self._rows_before(bucket)
        exact = [int(count[table == t].sum()) for t in range(len(self.task.tables))]
        return np.array(exact, np.int64)

    def _rows_above(self, probability: float) -> int:
        return self._rows_before(int(np.searchsorted(-self._p, -probability, side="left")))

    def _rows_before(self, bucket: int) -> int:
        return int(self._ends[bucket - 1]) if bucket else 0

    @cached_property
    def _pooled(self) -> list[int]:
        return [i for i, table in enumerate(self.task.tables) if table.pooled]

    @cached_property
    def _pooled_costs(self) -> Mapping[str, np.ndarray]:
        """Memory and ms of each pooled table in each tier, (P, 2)."""
        tables = [self.task.tables[i] for i in self._pooled]
        return {tier: np.array([whole_table(self.task, t, tier) for t in tables]).reshape(-1, 2) for tier in TIERS}

    @cached_property
    def _merged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return merged(self.task)

    @property
    def _p(self) -> np.ndarray:
        return self._merged[0]

    @property
    def _row_bytes(self) -> np.ndarray:
        return self._merged[2]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self._merged[1])

    @cached_property
    def _size(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self._merged[1] * self._row_bytes.astype(np.float64)))

    @cached_property
    def _looked_up(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self._merged[1] * self._row_bytes * self._p))
