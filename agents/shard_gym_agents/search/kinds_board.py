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
    """Items placed so far, what devices cost, and what is free; loads are in units of a target."""

    def __init__(
        self,
        choices: Choices,
        loads: np.ndarray,
        offset: np.ndarray,
        price: np.ndarray,
        unit: float,
        ask: Callable[[np.ndarray], float] | None = None,
    ) -> None:
        self.choices, self.loads, self.unit, self.ask = choices, loads / unit, unit, ask
        self.sums = np.zeros((choices.task.num_devices, choices.forms.vector.shape[2]))  # where costs do not add up
        self.offset = offset / unit + LIFT
        self.lift = LIFT
        self.price = price[: len(choices.room)] / unit
        self.asked = 0
        self.load, self.free = self.offset.copy(), choices.room.copy()
        n, k = choices.task.num_tables, choices.task.num_devices
        self.cost, self.held = np.zeros((n, k)), np.zeros((n, len(choices.room), k))
        self.near = np.zeros((choices.rules.apart.shape[1], k), np.int64)
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
            return self.ask(self.sums) / self.unit + float(self.price @ used)
        return float((np.maximum(self.load, 0.0) ** 4).sum() / 4 + self.dear @ used)

    @property
    def dear(self) -> np.ndarray:
        """The price of a byte beside fourth powers, whose slope at the bound depends on how much loads are raised."""
        return self.price * (1 + self.lift) ** 3

    @property
    def longest(self) -> float:
        """The load of the slowest device."""
        return float(self.load.max()) - self.lift

    def raised(self, lift: float) -> None:
        """Raise all loads by so much, and no more by what they were raised by before."""
        self.load += lift - self.lift
        self.offset = self.offset + (lift - self.lift)
        self.lift = lift

    def put(self, item: int, option: Option) -> None:
        """Place an item."""
        cost, held = self._of(option)
        self.cost[item], self.held[item] = cost, held
        self.load += cost
        self.free -= held
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
        self.free += self.held[item]
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

    def reprice(self, loads: np.ndarray, offset: np.ndarray, unit: float) -> None:
        """Go on with other costs of shards."""
        self.loads, self.offset = loads / unit, offset / unit + self.lift
        for item, option in self.chosen.items():
            self.cost[item] = self._of(option)[0]
        self.settle()
        self.asked_of.clear()

    def _of(self, option: Option) -> tuple[np.ndarray, np.ndarray]:
        times = self.choices.times(option)
        loads, size = self.loads[option.form, option.choice], self.choices.size[:, option.form, option.choice]
        return loads * times, size * times

    def _stands(self, item: int, option: Option, times: int) -> None:
        rules = self.choices.rules
        if rules.rival[item] >= 0:
            self.near[:, option.targets[0]] += times * rules.apart[item]

    def best(self, item: int, noise: float = 1.0) -> Option | None:
        """The option that adds least to the aim; None if there is room for none."""
        if (asked := self.asked_of.get(item)) is None:
            asked = self.asked_of[item] = self._asked_of(item)
        pieces, everywhere = asked
        square = np.maximum(self.load, 0.0) ** 2
        power = square * square
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
                loads = self.loads[some, choice][..., None] * times
                pieces.append(Piecewise(some, choice, span, count, loads, size[..., None] * times, taken))
        found, spread = np.nonzero(self.may[rows, ALL:])
        if not len(found):
            return pieces, None
        forms, choices = found + rows.start, spread + ALL
        size = c.size[:, forms, choices]
        return pieces, Everywhere(forms, choices, self.loads[forms, choices], size, size.sum(axis=2))

    def _everywhere(self, some: Everywhere, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms on all devices."""
        fits = (some.size <= self.free[:, None]).all(axis=(0, 2))
        self.asked += len(some.forms)
        if not fits.any():
            return None
        cost = np.maximum(self.load + some.loads, 0.0)
        cost *= cost
        cost *= cost
        worth = np.where(fits, (cost.sum(axis=1) - power.sum()) / 4 + price @ some.taken, np.inf)
        i = int(worth.argmin())
        return Option(float(worth[i]), int(some.forms[i]), int(some.choice[i]), (0,))

    def _piecewise(self, item: int, some: Piecewise, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms whose pieces go to devices, or hosts: as each adds more than the one before, the cheapest
        places are found by sorting."""
        span, (count, k, most) = some.span, some.loads.shape
        cost = self.load[:, None] + some.loads
        np.maximum(cost, 0.0, out=cost)
        cost *= cost
        cost *= cost  # (r, K, J)
        fits = (some.size <= self.free[:, None, :, None]).all(axis=0)
        if span > 1:
            cost = cost.reshape(count, k // span, span, most).sum(axis=2)
            fits = fits.reshape(count, k // span, span, most).all(axis=2)
            power = power.reshape(-1, span).sum(axis=1)
        cost[..., 1:] -= cost[..., :-1].copy()
        cost[..., 0] -= power
        cost[~fits] = np.inf
        if span == 1 and self.choices.rules.binding:
            cost[:, ~self._allowed(item)] = np.inf
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
        c, rows = self.choices, self.choices.at[item]
        for row, choice in rng.permutation(np.argwhere(self.may[rows])).tolist():
            form, span = rows.start + row, {DEVICE: 1, HOST: c.host}.get(choice, len(self.load))
            left, targets = self.free.copy(), []
            size = c.size[:, form, choice]
            for _ in range(int(c.forms.pieces[form])):
                fits = (left >= size).all(axis=0).reshape(-1, span).all(axis=1)
                if choice == DEVICE and c.rules.binding:
                    fits &= self._allowed(item)
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

    def _allowed(self, item: int) -> np.ndarray:
        """Devices that pins and rivals leave an item; rivals have no shards but on one device."""
        rules = self.choices.rules
        rival = rules.rival[item]
        return rules.allowed[item] & ((rival < 0) | (self.near[rival] == 0))
