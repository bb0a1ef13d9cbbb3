"""Options of tables with what they add to devices, and the one that adds least: in C where the core is, or in numpy.

The aim is the sum of fourth powers of devices' loads, and bytes at their price. Sums over devices are made in their
order, so that both ways give the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym import core
from shard_gym.plan.forms import ALL, DEVICE, HOST
from shard_gym_agents.search.choices import Choices, Option


@dataclass(frozen=True, eq=False)
class Piecewise:
    """Forms of an item whose pieces go to devices, or to hosts of `span` devices, one by one."""

    forms: np.ndarray  # (r,)
    choice: int
    span: int
    pieces: np.ndarray  # (r,)
    loads: np.ndarray  # (P, r, K, J) of j + 1 pieces on a device
    size: np.ndarray  # (Q, r, K, J) bytes of them; no room for more pieces than there are
    taken: np.ndarray  # (Q, r) bytes of all pieces


@dataclass(frozen=True, eq=False)
class Everywhere:
    """Forms of an item that put a shard on every device."""

    forms: np.ndarray  # (r,)
    choice: np.ndarray  # (r,)
    loads: np.ndarray  # (P, r, K)
    size: np.ndarray  # (Q, r, K)
    taken: np.ndarray  # (Q, r)


Told = dict[int, tuple[list[Piecewise], Everywhere | None]]  # options of items as arrays, for numpy


class Options:
    """The options that items may have, and what they add to each phase of costs on each device."""

    def __init__(self, choices: Choices, loads: np.ndarray, may: np.ndarray) -> None:
        self.choices, self.told = choices, Told()
        self.loads, self.may = np.ascontiguousarray(loads), np.ascontiguousarray(may)  # (P, R, 4, K), (R, 4)
        forms = choices.forms
        self.given = core.Options(
            forms.first, forms.pieces, self.may.view(np.int8), self.loads, choices.size, choices.host
        )

    def best(
        self, item: int, load: np.ndarray, free: np.ndarray, price: np.ndarray, allowed: np.ndarray | None
    ) -> tuple[Option | None, int]:
        """The option that adds least, None if there is room for none, and how many were asked about."""
        told = core.cheapest(self.given, load, free, price, allowed, item)
        if told is None:
            return _Asking(self._of(item), load, free, price, allowed).best()
        if told.form < 0:
            return None, told.asked
        return Option(told.worth, told.form, told.choice, told.targets), told.asked

    def _of(self, item: int) -> tuple[list[Piecewise], Everywhere | None]:
        if (told := self.told.get(item)) is None:
            told = self.told[item] = self._as_arrays(item)
        return told

    def _as_arrays(self, item: int) -> tuple[list[Piecewise], Everywhere | None]:
        """The options of an item: by pieces, and on all devices."""
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
                most = np.where(times <= count[:, None, None], size[..., None] * times, np.inf)
                pieces.append(Piecewise(some, choice, span, count, loads, most, taken))
        found, spread = np.nonzero(self.may[rows, ALL:])
        if not len(found):
            return pieces, None
        forms, choices = found + rows.start, spread + ALL
        size = c.size[:, forms, choices]
        return pieces, Everywhere(forms, choices, self.loads[:, forms, choices], size, size.sum(axis=2))


class _Asking:
    """The options of one item on some loads, by numpy."""

    def __init__(
        self,
        options: tuple[list[Piecewise], Everywhere | None],
        load: np.ndarray,
        free: np.ndarray,
        price: np.ndarray,
        allowed: np.ndarray | None,
    ) -> None:
        self.options, self.load, self.free, self.price, self.allowed = options, load, free, price, allowed
        self.power = _fourth(load[..., None])[:, 0]
        self.asked = 0

    def best(self) -> tuple[Option | None, int]:
        """The option that adds least, and how many were asked about."""
        pieces, everywhere = self.options
        found = None if everywhere is None else self._everywhere(everywhere)
        for some in pieces:
            option = self._piecewise(some)
            if option is not None and (found is None or option.worth < found.worth):
                found = option
        return found, self.asked

    def _everywhere(self, some: Everywhere) -> Option | None:
        """The best of forms on all devices."""
        fits = (some.size <= self.free[:, None]).all(axis=(0, 2))
        self.asked += len(some.forms)
        if not fits.any():
            return None
        more = _in_order(_fourth(self.load[:, None] + some.loads)) - _in_order(self.power)
        worth = np.where(fits, more / 4 + self._paid(some.taken), np.inf)
        i = int(worth.argmin())
        return Option(float(worth[i]), int(some.forms[i]), int(some.choice[i]), (0,))

    def _piecewise(self, some: Piecewise) -> Option | None:
        """The best of forms whose pieces go to devices, or hosts: as each adds more than the one before, the cheapest
        places are found by sorting."""
        span, (_, count, k, most) = some.span, some.loads.shape
        cost, power = _fourth(self.load[:, None, :, None] + some.loads), self.power  # (r, K, J)
        fits = (some.size <= self.free[:, None, :, None]).all(axis=0)
        if span > 1:
            cost = _in_order(np.moveaxis(cost.reshape(count, k // span, span, most), 2, -1))
            fits = fits.reshape(count, k // span, span, most).all(axis=2)
            power = _in_order(power.reshape(-1, span))
        cost[..., 1:] -= cost[..., :-1].copy()
        cost[..., 0] -= power
        cost[~fits] = np.inf
        if span == 1 and self.allowed is not None:
            cost[:, ~self.allowed] = np.inf
        self.asked += count * cost.shape[1]
        flat = cost.reshape(count, -1)
        if most > 1:
            least = np.sort(flat, axis=1)[:, :most].cumsum(axis=1)[np.arange(count), some.pieces - 1]
        else:
            least = flat.min(axis=1)
        least = least / 4 + self._paid(some.taken)
        i = int(least.argmin())
        if least[i] == np.inf:
            return None
        if some.pieces[i] == 1:
            return Option(float(least[i]), int(some.forms[i]), some.choice, (int(flat[i].argmin()) // most,))
        order = flat[i].argsort(kind="stable")[: some.pieces[i]] // most
        return Option(float(least[i]), int(some.forms[i]), some.choice, tuple(sorted(order.tolist())))

    def _paid(self, taken: np.ndarray) -> np.ndarray:
        """Bytes (Q, r) at their price."""
        paid: np.ndarray = self.price[0] * taken[0]
        return paid if len(taken) == 1 else paid + self.price[1] * taken[1]


def _fourth(load: np.ndarray) -> np.ndarray:
    """Fourth powers of loads, phases added up."""
    cost = np.maximum(load, 0.0)
    cost *= cost
    cost *= cost
    found: np.ndarray = cost.sum(axis=0)
    return found


def _in_order(values: np.ndarray) -> np.ndarray:
    """Sums along the last axis, from the first on."""
    found: np.ndarray = values.cumsum(axis=-1)[..., -1]
    return found
