"""Tables placed so far by options of all kinds of sharding, and the option that adds least for one more."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from shard_gym import core
from shard_gym.plan.forms import DEVICE, HOST
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_options import Options
from shard_gym_agents.search.kinds_turns import Asked, in_turns

LIFT = 8.0  # of all loads at first, in units of the bound: costs count beside their evenness


class Board:
    """Items placed so far, what devices cost, and what is free; loads are in units of a target.

    There is a load for each phase of costs. Fourth powers count a phase in units of its share of all: so each phase is
    made as even as any other, and a millisecond more of one counts as much as of another.
    """

    def __init__(  # noqa: PLR0913  # what boards of a search share, and what each has of its own
        self,
        choices: Choices,
        loads: np.ndarray,
        offset: np.ndarray,
        price: np.ndarray,
        unit: float,
        ask: Callable[[np.ndarray], float] | None = None,
        share: np.ndarray | None = None,
        options: Options | None = None,
    ) -> None:
        self.choices, self.unit, self.ask = choices, unit, ask
        self.share = np.ones((1, 1)) if share is None else share[:, None]  # (P, 1) of each phase
        self.scale = unit * self.share**0.75  # a power of a load counts as the share of one in units of the share
        self.options = options or Options(choices, loads / self.scale[..., None, None], choices.may)
        width = choices.forms.part_vector.shape[1]
        self.sums = np.zeros((choices.task.num_devices, width))  # where costs do not add up
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

    def copy(self) -> Board:
        """Copy the board, to go on apart from this one; costs of shards and choices stay shared."""
        other = copy(self)
        for name in (name for name, value in vars(self).items() if isinstance(value, np.ndarray)):
            setattr(other, name, getattr(self, name).copy())
        other.chosen = dict(self.chosen)
        return other

    @property
    def loads(self) -> np.ndarray:
        """Loads that each choice of a form adds to each phase of devices' costs, in units, (P, R, 4, K)."""
        return self.options.loads

    @property
    def may(self) -> np.ndarray:
        """The choices of forms that are left to items, (R, 4)."""
        return self.options.may

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
        times = self.choices.times(option)
        self.cost[item], self.held[item] = self._of(option, times)
        self.load += self.cost[item]
        self.free -= self.held[item] - self.choices.kept[item]
        self.chosen[item] = option
        self.form[item] = option.form
        if option.choice == DEVICE:
            self.alone[item] = times > 0
        if self.ask is not None:
            self.sums += self.choices.rows(item, option)
        if self.choices.rules.binding:
            self._stands(item, option, 1)

    def put_in_turn(self, order: np.ndarray, lift: np.ndarray) -> None:
        """Place items in turn, (n,), each in its best option that has room; loads are raised by so much before each."""
        put_side_by_side([self], order, [lift])

    def _put_in_turn(self, order: np.ndarray, lift: np.ndarray) -> None:
        for item, raised in zip(order.tolist(), lift.tolist(), strict=True):
            self.raised(raised)
            if (option := self.best(item)) is not None:
                self.put(item, option)

    def _asked(self, order: np.ndarray, lift: np.ndarray) -> Asked:
        more = np.diff(lift, prepend=self.lift)[:, None] * self.share[:, 0] ** 0.25
        price = self.price * np.array([(1 + raised) ** 3 for raised in lift.tolist()])[:, None]
        return Asked(self.load, self.free, self.offset, order, more, price)

    def _keep(self, order: np.ndarray, lift: np.ndarray, found: core.Picks) -> None:
        """Keep what has been put in turn."""
        self.lift, self.asked = float(lift[-1]) if len(lift) else self.lift, self.asked + found.asked
        done = np.flatnonzero(found.form >= 0)
        items, form, choice, times = order[done], found.form[done], found.choice[done], found.times[done]
        self.cost[items] = (self.loads[:, form, choice] * times).swapaxes(0, 1)
        self.held[items] = (self.choices.size[:, form, choice] * times).swapaxes(0, 1)
        self.form[items], self.alone[items] = form, (times > 0) & (choice == DEVICE)[:, None]
        pieces = np.where(choice <= HOST, self.choices.forms.pieces[form], 1)
        columns = (column.tolist() for column in (items, found.worth[done], form, choice, found.targets[done], pieces))
        for item, worth, of, by, targets, count in zip(*columns, strict=True):
            self.chosen[item] = Option(worth, of, by, tuple(targets[:count]))
        if self.ask is not None:
            self.sums += self.choices.sum_of(form, choice, times)

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
        self.options = Options(self.choices, loads / self.scale[..., None, None], self.may)
        self.offset = offset / self.scale + self.lift * self.share**0.25
        for item, option in self.chosen.items():
            self.cost[item] = self._of(option, self.choices.times(option))[0]
        self.settle()

    def _of(self, option: Option, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Load (P, K) and bytes (Q, K) that an option adds to devices that hold so many of its pieces."""
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
        rules, free, allowed = self.choices.rules, self.free, None
        if rules.binding:
            free, allowed = free + self.choices.kept[item], self.allowed(item)
        found, asked = self.options.best(item, self.load, free, self.dear * noise, allowed)
        self.asked += asked
        return found

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
        self.options = Options(self.choices, self.loads, may)

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


def put_side_by_side(boards: list[Board], order: np.ndarray, lifts: list[np.ndarray]) -> None:
    """Place items in turn, (n,), on each of some boards that share options; `lifts` are one for each board, (n,)."""
    if boards[0].choices.rules.binding:
        for board, lift in zip(boards, lifts, strict=True):
            board._put_in_turn(order, lift)
        return
    asked = [board._asked(order, lift) for board, lift in zip(boards, lifts, strict=True)]
    for board, lift, found in zip(boards, lifts, in_turns(boards[0].options.given, asked), strict=True):
        board._keep(order, lift, found)
