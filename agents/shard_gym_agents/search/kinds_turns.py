"""Items in turn, each in its option that adds least, by numpy: what `core.in_turn` does, for several greedies at once.

The greedies differ in prices of memory and in how much loads are raised, and so in what is chosen. Sums are made in
the order that C makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shard_gym import core
from shard_gym.plan.forms import HOST

BEFORE = np.array([1, 2, 0, 0])  # order of the choices: shards on all devices, then pieces on devices, then on hosts


class Some(NamedTuple):
    """The options of an item: the first are on all devices, then pieces go to devices, and the last to hosts."""

    forms: np.ndarray  # (O,)
    choice: np.ndarray  # (O,)
    pieces: np.ndarray  # (O,)
    loads: np.ndarray  # (P, O, K) of a piece on a device
    size: np.ndarray  # (Q, O, K) bytes of it
    taken: np.ndarray  # (Q, O) bytes of all pieces
    on_all: int
    on_devices: int


@dataclass(frozen=True, eq=False)
class State:
    """What L greedies have placed so far: loads, (P, L, K), and what is free, (Q, L, K)."""

    load: np.ndarray
    free: np.ndarray

    def fourth(self, loads: np.ndarray) -> np.ndarray:
        """Fourth powers of loads with these, (P, M, K), phases added up, (L, M, K)."""
        cost = self.load[:, :, None] + loads[:, None]
        np.maximum(cost, 0.0, out=cost)
        cost *= cost
        cost *= cost
        found: np.ndarray = cost.sum(axis=0)
        return found

    def fits(self, size: np.ndarray) -> np.ndarray:
        """True for devices that have room for bytes, (Q, M, K); (L, M, K)."""
        found: np.ndarray = (size[:, None] <= self.free[:, :, None]).all(axis=0)
        return found


class Asked(NamedTuple):
    """Arguments of `core.in_turn` but for the options."""

    load: np.ndarray  # (P, K)
    free: np.ndarray  # (Q, K)
    offset: np.ndarray  # (P, K)
    order: np.ndarray  # (n,)
    more: np.ndarray  # (n, P)
    price: np.ndarray  # (n, Q)


def in_turns(options: core.Options, asked: list[Asked]) -> list[core.Picks]:
    """Put items in turn, in the same order in each of some greedies; changes their loads, offsets and what is free."""
    if core.compiled() is not None:
        found = [core.in_turn(options, *one) for one in asked]
        return [one for one in found if one is not None]
    load, free, offset = (np.stack([one[i] for one in asked], axis=1) for i in range(3))
    more, price = (np.stack([one[i] for one in asked], axis=2) for i in (4, 5))
    found = _in_turn(options, load, free, offset, asked[0].order, more, price)
    for i, one in enumerate(asked):
        one.load[:], one.free[:], one.offset[:] = load[:, i], free[:, i], offset[:, i]
    return found


def _in_turn(
    options: core.Options,
    load: np.ndarray,
    free: np.ndarray,
    offset: np.ndarray,
    order: np.ndarray,
    more: np.ndarray,
    price: np.ndarray,
) -> list[core.Picks]:
    """The same of L greedies: load and offset (P, L, K), free (Q, L, K), more (n, P, L) and prices (n, Q, L)."""
    state, (n, _, count), k = State(load, free), more.shape, load.shape[2]
    worth, picked = np.full((count, n), np.inf), np.zeros((count, n, 2 + core.MOST_PIECES), np.int64)
    times, asked, each = np.zeros((count, n, k)), 0, np.arange(count)
    for i, some in enumerate(_options(options, order)):
        load += more[i, ..., None]
        offset += more[i, ..., None]
        least, added = _least(state, some, options.host)
        adds = least / 4 + _paid(price[i], some.taken)
        best = adds.argmin(axis=1)
        worth[:, i] = adds[each, best]
        on_hosts = len(some.forms) - some.on_all - some.on_devices
        asked += some.on_all + some.on_devices * k + on_hosts * (k // options.host)
        for one, option in enumerate(best.tolist()):
            if worth[one, i] == np.inf:
                picked[one, i, 0] = -1
                continue
            picked[one, i, :2] = some.forms[option], some.choice[option]
            if option < some.on_all:
                times[one, i] = 1
                continue
            part = int(some.choice[option])  # DEVICE or HOST
            row = option - some.on_all - part * some.on_devices
            places = _places(added[part][one, row], int(some.pieces[option]))
            picked[one, i, 2 : 2 + len(places)] = places
            span = options.host if part == HOST else 1
            times[one, i] = np.bincount(places, minlength=k // span).repeat(span)
        load += some.loads[:, best] * times[:, i]
        free -= some.size[:, best] * times[:, i]
    return [core.Picks(asked, w, p[:, 0], p[:, 1], p[:, 2:], t) for w, p, t in zip(worth, picked, times, strict=True)]


def _options(given: core.Options, order: np.ndarray) -> Iterator[Some]:
    """The options of each item in turn."""
    form, choice = np.nonzero(given.may)
    item = np.repeat(np.arange(len(given.first) - 1), np.diff(given.first))[form]
    kind = 3 * item + BEFORE[choice]
    by_item = kind.argsort(kind="stable")
    form, choice = form[by_item], choice[by_item]
    loads, size = given.loads[:, form, choice], given.size[:, form, choice]
    pieces = np.where(choice <= HOST, given.pieces[form], 1)
    spans = np.array([1, given.host, loads.shape[2], loads.shape[2]])[choice]
    taken = pieces * np.where(np.arange(loads.shape[2]) < spans[:, None], size, 0).sum(axis=2)
    starts = np.searchsorted(kind[by_item], np.arange(3 * len(given.first)))
    for one in order.tolist():
        start, devices, hosts, end = starts[3 * one : 3 * one + 4].tolist()
        some = slice(start, end)
        columns = form[some], choice[some], pieces[some], loads[:, some], size[:, some], taken[:, some]
        yield Some(*columns, devices - start, hosts - devices)


def _least(state: State, some: Some, host: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The least that each option adds to fourth powers, (L, O), and what pieces add to devices, and to hosts, one by
    one, (L, o, J, places)."""
    k, e = some.loads.shape[2], some.on_all
    power = state.fourth(np.zeros((len(some.loads), 1, k)))
    on_all = _in_order(state.fourth(some.loads[:, :e])) - _in_order(power)
    on_all[~state.fits(some.size[:, :e]).all(axis=2)] = np.inf
    pieces = some.pieces[e:]
    most = int(pieces.max(initial=1))
    times = np.arange(1, most + 1)[:, None]
    cost = state.fourth((some.loads[:, e:, None] * times).reshape(len(some.loads), -1, k))
    fits = state.fits((some.size[:, e:, None] * times).reshape(len(some.size), -1, k))
    shape = len(power), len(pieces), most, k
    cost, full = cost.reshape(shape), ~(fits.reshape(shape) & (times <= pieces[:, None, None]))
    found, added = [on_all], []
    for part, span in ((slice(some.on_devices), 1), (slice(some.on_devices, None), host)):
        grown, was, closed = cost[:, part], power, full[:, part]
        if span > 1:
            grown, was = (_in_order(_by_place(values, span)) for values in (grown, was))
            closed = _by_place(closed, span).any(axis=-1)
        more = np.empty(grown.shape)
        np.subtract(grown[:, :, 1:], grown[:, :, :-1], out=more[:, :, 1:])
        np.subtract(grown[:, :, 0], was, out=more[:, :, 0])
        more[closed] = np.inf
        added.append(more)
        if more.size:
            found.append(_cheapest(more.reshape(*more.shape[:2], -1), pieces[part], most))
    return np.concatenate(found, axis=1), added


def _cheapest(more: np.ndarray, pieces: np.ndarray, most: int) -> np.ndarray:
    """The sum of the least so many numbers of each row, from the least on, (L, o)."""
    if most == 1:
        return more.min(axis=2)
    found: np.ndarray = np.sort(more, axis=2)[..., :most].cumsum(axis=2)[:, np.arange(len(pieces)), pieces - 1]
    return found


def _by_place(values: np.ndarray, span: int) -> np.ndarray:
    """Values of devices, (..., K), by places of so many, (..., places, span)."""
    return values.reshape(*values.shape[:-1], values.shape[-1] // span, span)


def _places(more: np.ndarray, pieces: int) -> list[int]:
    """Places of so many pieces, in their order, by what each adds, (J, places)."""
    if pieces == 1:
        return [int(more[0].argmin())]
    cheapest = more.T.ravel().argsort(kind="stable")[:pieces]
    return sorted((cheapest // len(more)).tolist())


def _paid(price: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Bytes (Q, O) at prices (Q, L), (L, O)."""
    paid: np.ndarray = price[0, :, None] * taken[0]
    return paid if len(taken) == 1 else paid + price[1, :, None] * taken[1]


def _in_order(values: np.ndarray) -> np.ndarray:
    """Sums along the last axis, from the first on."""
    found: np.ndarray = values.cumsum(axis=-1)[..., -1]
    return found
