"""Changes of a plan of all kinds of sharding, again and again: annealing. In C where the core knows the planner.

A change takes a table another way, puts a piece of it elsewhere, or swaps pieces of two tables. It stays if it makes
the aim no worse than it may: by the heat, which falls, times an exponential random number. The aim is the root of the
sum of 32nd powers of devices' forward passes, which all wait for, and of the rest of their costs: the longest ones, and
a little of those near them. Plans that do not fit are gone through at a price, which rises while most do not fit.

Whether in C or in numpy, random numbers are numpy's, and sums are exact or made in one order: plans are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shard_gym import core
from shard_gym.plan.forms import DEVICE, HOST
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_aim import Aim

DRAWN = 8  # random numbers of a change
SQUARINGS = 5  # of what is added up in the aim
SWAPPED, SOMETIMES = 0.5, 0.3  # share of changes that swap pieces; of those that do one thing more
HOT, COLD = 0.24, 0.0024  # the heat, at first and in the end, over the makespan's share of a table
NEAR = 0.05  # of the makespan: ways that cost more beside the cheapest are left out
CHANGES = 128  # times the devices: at one heat and price
PRICE = 1.0  # at first, of a device's memory, over the makespan
PRICIER, CHEAPER = (0.7, 1.1), (0.3, 0.93)  # shares of plans that do not fit, and what the price is multiplied by then
AT_ONCE = 32  # changes that numpy looks at together

Options = list[list[int]]  # of the tables of a change: form, choice, and where each piece goes


class Change(NamedTuple):
    """Tables, and their options before and after."""

    items: list[int]
    before: Options
    after: Options


class Plans(NamedTuple):
    """Aims of plans, their makespans, and the share of memory that they lack, (B,) each."""

    value: np.ndarray
    makespan: np.ndarray
    over: np.ndarray


def can_change(search: Aim) -> bool:
    """True if a search may go by changes: its planner can be told to the core, and some tables may go anywhere."""
    known = search.costs.planner.uncounted.iteration(search.task) is not None
    return known and bool(search.chosen) and bool(search.choices.loose[search.choices.items].any())


def annealed(search: Aim, rng: np.random.Generator, until: float) -> None:
    """Change the search's plan until so much of its budget is spent; the best plan on the way is kept."""
    search.aim(search.sums)
    (often, dearer), (seldom, cheaper) = PRICIER, CHEAPER
    changing, begun, price, hot = Changing(search), search.share_spent, PRICE, HOT / len(search.choices.items)
    while not (search.spent(until) or search.budget.stopped):
        done = (search.share_spent - begun) / max(until - begun, 1e-9)
        over = changing.go(rng, hot * (COLD / HOT) ** min(done, 1.0), price)
        price *= dearer if over > often else cheaper if over < seldom else 1.0


class Changing:
    """A plan that changes, with what its devices hold, and the best plan seen."""

    def __init__(self, search: Aim) -> None:
        self.search, self.choices = search, search.choices
        self.ways = _ways(search)
        self.known = search.costs.planner.uncounted.iteration(search.task)
        self.plan = np.zeros((search.task.num_tables, 2 + core.MOST_PIECES), np.int64)
        times = np.zeros((len(self.plan), search.task.num_devices))
        for item, option in search.chosen.items():
            self.plan[item, : 2 + len(option.targets)] = option.form, option.choice, *option.targets
            times[item] = self.choices.times(option)
        items = list(search.chosen)
        size = self.choices.size[:, self.plan[items, 0], self.plan[items, 1]]  # (Q, M, K)
        self.sums, self.used = search.sums, (size * times[items]).sum(axis=1)
        self.makespan, self.best = search.makespan, self.plan.copy()

    def go(self, rng: np.random.Generator, heat: float, price: float) -> float:
        """Make some changes, tell the search, and return the share of changes after which the plan did not fit."""
        drawn = rng.random((CHANGES * len(self.sums), DRAWN))
        drawn[:, -1] = rng.standard_exponential(len(drawn))
        per_ms, best = 1 / self.search.unit, (self.makespan, self.best)
        told = core.changed(self.ways, self.known, per_ms, self.plan, self.sums, self.used, drawn, heat, price, best)
        makespan, asked, over = self._in_numpy(drawn, heat, price) if told is None else told
        self.search.costs.planner.count(asked)
        if makespan < self.makespan:
            self.makespan = makespan
            self.search.keep(makespan, {item: self._option(item) for item in self.search.chosen})
        return over / len(drawn)

    def _option(self, item: int) -> Option:
        form, choice, *targets = self.best[item].tolist()
        pieces = int(self.ways.pieces[form]) if choice <= HOST else 1
        return Option(0.0, form, choice, tuple(sorted(targets[:pieces])))

    def _in_numpy(self, drawn: np.ndarray, heat: float, price: float) -> tuple[float, int, int]:
        """The same as `core.changed`, some changes at once: those before the first that stays are of one plan."""
        now, makespan, asked, over, at = self._plans(self.sums[None], self.used[None], price), self.makespan, 0, 0, 0
        value, lacks = float(now.value[0]), bool(now.over[0] > 0)
        while at < len(drawn):
            some = drawn[at : at + AT_ONCE]
            changes = [(i, change) for i, row in enumerate(some.tolist()) if (change := self._change(row))]
            if not changes:
                over, at = over + lacks * len(some), at + len(some)
                continue
            sums, used = (np.repeat(held[None], len(changes), axis=0) for held in (self.sums, self.used))
            for number, (_, change) in enumerate(changes):
                for options, sign in ((change.before, -1.0), (change.after, 1.0)):
                    self._put(sums[number], used[number], options, sign)
            then = self._plans(sums, used, price)
            stays = then.value <= value + heat * some[[i for i, _ in changes], -1]
            first = int(stays.argmax()) if stays.any() else len(changes)
            asked += min(first + 1, len(changes))
            if first == len(changes):
                over, at = over + lacks * len(some), at + len(some)
                continue
            i, change = changes[first]
            value, before, lacks = float(then.value[first]), lacks, bool(then.over[first] > 0)
            over, at = over + before * i + lacks, at + i + 1
            self.sums, self.used = sums[first], used[first]
            self.plan[change.items] = change.after
            if not lacks and then.makespan[first] < makespan:
                makespan = float(then.makespan[first])
                self.best[:] = self.plan
        return makespan, asked, over

    def _change(self, drawn: Sequence[float]) -> Change | None:
        """The change that these numbers are; None where it is none."""
        items = [int(self.ways.items[int(number * len(self.ways.items))]) for number in drawn[1:3]]
        if drawn[0] >= SWAPPED:
            items = items[:1]
        before: Options = self.plan[items].tolist()
        after = [list(option) for option in before]
        if len(items) == 1:
            real = self._alter(drawn, after[0], self._drawn_way(items[0], drawn[2]))
        else:
            real = items[0] != items[1] and self._swap(drawn, items[0], *after)
        return Change(items, before, after) if real else None

    def _drawn_way(self, item: int, drawn: float) -> tuple[int, int]:
        first, end = self.ways.first[item : item + 2].tolist()
        form, choice = self.ways.ways[first + int(drawn * (end - first))].tolist()
        return form, choice

    def _alter(self, drawn: Sequence[float], option: list[int], way: tuple[int, int]) -> bool:
        """Another way of a table, or one of its pieces elsewhere; pieces stay where they are as far as they may."""
        devices, (form, choice), pieces = len(self.sums), way, self.ways.pieces
        places = {DEVICE: devices, HOST: devices // self.ways.host}.get(choice, 1)
        count, start = int(pieces[form]) if choice <= HOST else 1, int(drawn[3] * places)
        kept = (int(pieces[option[0]]) if choice <= HOST else 1) if choice == option[1] else 0
        elsewhere, other = kept > 0 and drawn[4] < SOMETIMES, [form, choice] != option[:2]
        for piece in range(kept, count):
            option[2 + piece] = (start + piece) % places
        if elsewhere:
            option[2 + int(drawn[5] * count)] = start
        option[:2] = form, choice
        return elsewhere or other

    def _swap(self, drawn: Sequence[float], item: int, one: list[int], other: list[int]) -> bool:
        """Swap a piece of each of two tables on single devices, the first one in another way now and then."""
        pieces = self.ways.pieces
        if one[1] != DEVICE or other[1] != DEVICE:
            return False
        mine, theirs = (2 + int(d * pieces[o[0]]) for d, o in zip(drawn[3:5], (one, other), strict=True))
        if one[mine] == other[theirs]:
            return False
        one[mine], other[theirs] = other[theirs], one[mine]
        form, choice = self._drawn_way(item, drawn[6])
        if drawn[5] < SOMETIMES and choice == DEVICE and pieces[form] == pieces[one[0]]:
            one[0] = form
        return True

    def _put(self, sums: np.ndarray, used: np.ndarray, options: Options, sign: float) -> None:
        """Put pieces of options on devices, or take them away."""
        for form, choice, *targets in options:
            placed, span = self.ways.placed[form, choice], {DEVICE: 1, HOST: self.ways.host}.get(choice, len(sums))
            for target in targets[: int(self.ways.pieces[form]) if choice <= HOST else 1]:
                where = slice(target * span, (target + 1) * span)
                sums[where] += sign * self.ways.vector[placed[where]]
                used[:, where] += sign * self.ways.size[:, placed[where]]

    def _plans(self, sums: np.ndarray, used: np.ndarray, price: float) -> Plans:
        parts = self.search.costs.plans(sums)
        self.search.costs.planner.count(-len(sums))  # counted by who makes changes
        lacking = np.maximum(used - self.ways.room, 0.0) * self.ways.per_byte
        over = lacking.reshape(len(used), -1).cumsum(axis=1)[:, -1]
        per_ms = 1 / self.search.unit
        return Plans(_peak(parts.forward * per_ms) + _peak(parts.own * per_ms) + price * over, parts.makespan, over)


def _peak(cost: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        for _ in range(SQUARINGS):
            cost = cost * cost
        found: np.ndarray = cost.cumsum(axis=1)[:, -1]
    for _ in range(SQUARINGS):
        found = np.sqrt(found)
    return found


def _ways(search: Aim) -> core.Ways:
    """Ways of tables that no rule keeps where they are, but for those that cost much more than the cheapest."""
    choices, forms = search.choices, search.choices.forms
    excess = np.where(choices.may & forms.fits, search.prices.excess, np.inf)
    least = np.minimum.reduceat(excess.min(axis=1), forms.first[:-1])[forms.table, None]
    some = (excess <= np.maximum(least, NEAR * search.unit)) & np.isfinite(excess)
    ways = np.ascontiguousarray(np.argwhere(some))
    placed, vector, size = _parts(choices)
    return core.Ways(
        pieces=np.ascontiguousarray(forms.pieces, np.int64),
        placed=placed,
        vector=vector,
        size=size,
        room=choices.room,
        per_byte=1 / np.maximum(choices.room, 1.0),
        items=np.array([item for item in choices.items.tolist() if choices.loose[item] and item in search.chosen]),
        first=np.searchsorted(forms.table[ways[:, 0]], np.arange(len(forms.first))),
        ways=ways,
        host=choices.host,
    )


def _parts(choices: Choices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parts that pieces put on devices, (R, 4, K), and what they add, (S, H) and (Q, S); tables that go by another
    one are parts of its pieces."""
    forms = choices.forms
    placed, vector = np.ascontiguousarray(forms.placed, np.int64), np.ascontiguousarray(forms.part_vector)
    size = np.ascontiguousarray(forms.part_size[: len(choices.room)], np.float64)
    led = np.flatnonzero(np.bincount(choices.rules.leader[:-1], minlength=choices.task.num_tables) > 1)
    together = np.flatnonzero(np.isin(forms.table, led))
    if len(together):
        placed = placed.copy()
        placed[together, DEVICE] = len(vector) + np.arange(len(together))[:, None]
        vector = np.concatenate([vector, choices.piece_rows()[together]])
        size = np.concatenate([size, choices.size[:, together, DEVICE, 0]], axis=1)
    return placed, vector, size
