"""Tables placed so far by options of all kinds of sharding, and the option that adds least for one more."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from shard_gym.plan.forms import ALL, DEVICE, HOST
from shard_gym_agents.search.choices import Choices, Everywhere, Option, Piecewise

LIFT = 8.0  # of all loads at first, in units of the bound: costs count beside their evenness


class Asked(dict[int, tuple[list[Piecewise], Everywhere | None]]):
    """Options of items as arrays: by pieces, and on all devices."""


class Board:
    """Items placed so far, what devices cost, and what is free; loads are in units of a target.

    There is a load for each phase of costs. Fourth powers count a phase in units of its share of all: so each phase is
    made as even as any other, and a millisecond more of one counts as much as of another.
    """

    def __init__(
        self,
        choices: Choices,
        loads: np.ndarray,
        offset: np.ndarray,
        price: np.ndarray,
        unit: float,
        ask: Callable[[np.ndarray], float] | None = None,
        share: np.ndarray | None = None,
    ) -> None:
        self.choices, self.unit, self.ask = choices, unit, ask
        self.share = np.ones((1, 1)) if share is None else share[:, None]  # (P, 1) of each phase
        self.scale = unit * self.share**0.75  # a power of a load counts as the share of one in units of the share
        self.loads = loads / self.scale[..., None, None]  # (P, R, 4, K)
        self.sums = np.zeros((choices.task.num_devices, choices.forms.vector.shape[2]))  # where costs do not add up
        self.offset = offset / self.scale + LIFT * self.share**0.25  # (P, K)
        self.lift = LIFT
        self.price = price[: len(choices.room)] / unit
        self.asked = 0
        self.load, self.free = self.offset.copy(), choices.room.copy()
        n, k = choices.task.num_tables, choices.task.num_devices
        self.cost, self.held = np.zeros((n, len(loads), k)), np.zeros((n, len(choices.room), k))
        self.near = np.zeros((choices.rules.apart.shape[1], k), np.int64)
        self.moves = int(choices.rules.moves[0])  # that may still be made, beside those that must
        self.free -= choices.kept.sum(axis=0)
        self.chosen: dict[int, Option] = {}
        self.form = np.zeros(n, np.int64)
        self.alone = np.zeros((n, k), bool)
        self.narrow(choices.may)

    def copy(self) -> Board:
        """Copy the board, to go on apart from this one; costs of shards and choices stay shared."""
        other = copy(self)
        shared = ("loads", "may", "price")
        for name in (name for name, value in vars(self).items() if isinstance(value, np.ndarray)):
            if name not in shared:
                setattr(other, name, getattr(self, name).copy())
        other.chosen, other.asked_of = dict(self.chosen), Asked(self.asked_of)
        return other

    @property
    def worth(self) -> float:
        """The aim: fourth powers of loads, or what is told of the sums, and bytes at their price."""
        used = (self.choices.room - self.free).sum(axis=1)
        if self.ask is not None:
            return self.asked_value / self.unit + float(self.price @ used)
        return float((np.maximum(self.load, 0.0) ** 4).sum() / 4 + self.dear @ used)

    @property
    def asked_value(self) -> float:
        """Answer about the sums, where costs do not add up."""
        return 0.0 if self.ask is None else self.ask(self.sums)

    @property
    def dear(self) -> np.ndarray:
        """The price of a byte beside fourth powers, whose slope at the bound depends on how much loads are raised."""
        return self.price * (1 + self.lift) ** 3

    @property
    def longest(self) -> float:
        """The load of the slowest device."""
        return float((self.load * self.scale).max(axis=1).sum()) / self.unit - self.lift

    @property
    def time(self) -> np.ndarray:
        """Load of each device in all phases, raised, (K,)."""
        found: np.ndarray = (self.load * self.scale).sum(axis=0) / self.unit
        return found

    @property
    def work(self) -> np.ndarray:
        """Load that each item adds in all phases, (N, K)."""
        found: np.ndarray = (self.cost * self.scale).sum(axis=1) / self.unit
        return found

    def raised(self, lift: float) -> None:
        """Raise all loads by so much, and no more by what they were raised by before."""
        more = (lift - self.lift) * self.share**0.25
        self.load += more
        self.offset = self.offset + more
        self.lift = lift

    def put(self, item: int, option: Option) -> None:
        """Place an item."""
        cost, held = self._of(option)
        self.cost[item], self.held[item] = cost, held
        self.load += cost
        self.free -= held - self.choices.kept[item]
        self.chosen[item] = option
        self.form[item] = option.form
        if option.choice == DEVICE:
            self.alone[item, list(option.targets)] = True
        if self.ask is not None:
            self.sums += self.choices.rows(item, option)
        if self.choices.rules.binding:
            self._stands(item, option, 1)

    def take(self, item: int) -> None:
        """Take an item out."""
        self.load -= self.cost[item]
        self.free += self.held[item] - self.choices.kept[item]
        option = self.chosen.pop(item)
        if self.ask is not None:
            self.sums -= self.choices.rows(item, option)
        if self.choices.rules.binding:
            self._stands(item, option, -1)
        self.alone[item] = False
        self.cost[item] = 0.0
        self.held[item] = 0.0

    def movable(self, device: int) -> np.ndarray:
        """True for items that have a whole piece on a device, and may have it on any, (N,)."""
        return self.alone[:, device] & self.choices.loose

    def settle(self) -> None:
        """Add up running sums anew."""
        self.load = self.offset + self.cost.sum(axis=0)

    def reprice(self, loads: np.ndarray, offset: np.ndarray, price: np.ndarray) -> None:
        """Go on with other costs of shards, and another price of memory."""
        self.price = price[: len(self.price)] / self.unit
        self.loads = loads / self.scale[..., None, None]
        self.offset = offset / self.scale + self.lift * self.share**0.25
        for item, option in self.chosen.items():
            self.cost[item] = self._of(option)[0]
        self.settle()
        self.asked_of.clear()

    def _of(self, option: Option) -> tuple[np.ndarray, np.ndarray]:
        times = self.choices.times(option)
        loads, size = self.loads[:, option.form, option.choice], self.choices.size[:, option.form, option.choice]
        return loads * times, size * times

    def _stands(self, item: int, option: Option, times: int) -> None:
        rules, device = self.choices.rules, option.targets[0]
        if rules.rival[item] >= 0:
            self.near[:, device] += times * rules.apart[item]
        if rules.away is not None:
            self.moves -= times * int(rules.away[item, device] - rules.away[item, rules.home[item]])

    def best(self, item: int, noise: float = 1.0) -> Option | None:
        """The option that adds least to the aim; None if there is room for none."""
        self.free += self.choices.kept[item]
        found = self._best(item, noise)
        self.free -= self.choices.kept[item]
        return found

    def _best(self, item: int, noise: float) -> Option | None:
        if (asked := self.asked_of.get(item)) is None:
            asked = self.asked_of[item] = self._asked_of(item)
        pieces, everywhere = asked
        square = np.maximum(self.load, 0.0) ** 2
        power = (square * square).sum(axis=0)
        price = self.dear * noise
        found = None if everywhere is None else self._everywhere(everywhere, power, price)
        for some in pieces:
            option = self._piecewise(item, some, power, price)
            if option is not None and (found is None or option.worth < found.worth):
                found = option
        return found

    def _asked_of(self, item: int) -> tuple[list[Piecewise], Everywhere | None]:
        """The options of an item as arrays: by pieces, and on all devices."""
        c = self.choices
        rows, pieces = c.at[item], []
        for choice, span in ((DEVICE, 1), (HOST, c.host)):
            some = rows.start + np.flatnonzero(self.may[rows, choice])
            if len(some):
                count = c.forms.pieces[some]
                times = np.arange(1, count.max() + 1)
                size = c.size[:, some, choice]
                taken = count * size[:, :, :span].sum(axis=2)
                loads = self.loads[:, some, choice][..., None] * times
                pieces.append(Piecewise(some, choice, span, count, loads, size[..., None] * times, taken))
        found, spread = np.nonzero(self.may[rows, ALL:])
        if not len(found):
            return pieces, None
        forms, choices = found + rows.start, spread + ALL
        size = c.size[:, forms, choices]
        return pieces, Everywhere(forms, choices, self.loads[:, forms, choices], size, size.sum(axis=2))

    def _everywhere(self, some: Everywhere, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms on all devices."""
        fits = (some.size <= self.free[:, None]).all(axis=(0, 2))
        self.asked += len(some.forms)
        if not fits.any():
            return None
        cost = np.maximum(self.load[:, None] + some.loads, 0.0)
        cost *= cost
        cost *= cost
        worth = np.where(fits, (cost.sum(axis=(0, 2)) - power.sum()) / 4 + price @ some.taken, np.inf)
        i = int(worth.argmin())
        return Option(float(worth[i]), int(some.forms[i]), int(some.choice[i]), (0,))

    def _piecewise(self, item: int, some: Piecewise, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms whose pieces go to devices, or hosts: as each adds more than the one before, the cheapest
        places are found by sorting."""
        span, (_, count, k, most) = some.span, some.loads.shape
        cost = self.load[:, None, :, None] + some.loads
        np.maximum(cost, 0.0, out=cost)
        cost *= cost
        cost *= cost
        cost = cost.sum(axis=0)  # (r, K, J)
        fits = (some.size <= self.free[:, None, :, None]).all(axis=0)
        if span > 1:
            cost = cost.reshape(count, k // span, span, most).sum(axis=2)
            fits = fits.reshape(count, k // span, span, most).all(axis=2)
            power = power.reshape(-1, span).sum(axis=1)
        cost[..., 1:] -= cost[..., :-1].copy()
        cost[..., 0] -= power
        cost[~fits] = np.inf
        if span == 1 and self.choices.rules.binding:
            cost[:, ~self.allowed(item)] = np.inf
        self.asked += count * cost.shape[1]
        flat = cost.reshape(count, -1)
        if most > 1:
            least = np.sort(flat, axis=1)[:, :most].cumsum(axis=1)[np.arange(count), some.pieces - 1]
        else:
            least = flat.min(axis=1)
        least = least / 4 + price @ some.taken
        i = int(least.argmin())
        if least[i] == np.inf:
            return None
        if some.pieces[i] == 1:
            return Option(float(least[i]), int(some.forms[i]), some.choice, (int(flat[i].argmin()) // most,))
        order = flat[i].argsort(kind="stable")[: some.pieces[i]] // most
        return Option(float(least[i]), int(some.forms[i]), some.choice, tuple(sorted(order.tolist())))

    def any(self, item: int, rng: np.random.Generator) -> Option | None:
        """A random option that has room; None if none of a few has."""
        c, rows, free = self.choices, self.choices.at[item], self.free + self.choices.kept[item]
        for row, choice in rng.permutation(np.argwhere(self.may[rows])).tolist():
            form, span = rows.start + row, {DEVICE: 1, HOST: c.host}.get(choice, c.task.num_devices)
            left, targets = free.copy(), []
            size = c.size[:, form, choice]
            for _ in range(int(c.forms.pieces[form])):
                fits = (left >= size).all(axis=0).reshape(-1, span).all(axis=1)
                if choice == DEVICE and c.rules.binding:
                    fits &= self.allowed(item)
                if not fits.any():
                    break
                targets.append(int(rng.choice(np.flatnonzero(fits))))
                block = slice(targets[-1] * span, (targets[-1] + 1) * span)
                left[:, block] -= size[:, block]
            else:
                return Option(0.0, form, choice, tuple(sorted(targets)))
        return None

    def narrow(self, may: np.ndarray) -> None:
        """Leave only some choices of forms to items, (R, 4)."""
        self.may = may
        self.asked_of = Asked()

    def open(self, item: int, form: int) -> np.ndarray:
        """Devices that an item may be on, in one piece of a form, (K,)."""
        c = self.choices
        fits: np.ndarray = np.all(c.size[:, form, DEVICE] <= self.free + c.kept[item], axis=0)
        return np.logical_and(fits, self.allowed(item)) if c.rules.binding else fits

    def allowed(self, item: int) -> np.ndarray:
        """Devices that pins, rivals and moves leave an item; rivals have no shards but on one device."""
        rules = self.choices.rules
        rival = rules.rival[item]
        allowed: np.ndarray = rules.allowed[item] & ((rival < 0) | (self.near[rival] == 0))
        if rules.away is not None:
            away = rules.away[item]
            allowed &= away - away[rules.home[item]] <= self.moves
        return allowed
