"""Items in turn, each in its option that adds least, by numpy: what `core.in_turn` does, for several greedies at once.

The greedies differ in prices of memory and in how much loads are raised, and so in what is chosen. Sums over devices
are made in their order, so that C gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shard_gym import core
from shard_gym.plan.forms import DEVICE, HOST

BEFORE = np.array([1, 2, 0, 0])  # order of the choices: shards on all devices, then pieces on devices, then on hosts


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
        told = [core.in_turn(options, *one) for one in asked]
        return [one for one in told if one is not None]
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
    (n, _, count), k = more.shape, load.shape[2]
    worth, picked = np.full((count, n), np.inf), np.zeros((count, n, 2 + core.MOST_PIECES), np.int64)
    picked[..., 0] = -1
    times, asked, known = np.zeros((count, n, k)), 0, dict[bytes, Steps]()
    for i, some in enumerate(_options(options, order)):
        load += more[i, ..., None]
        offset += more[i, ..., None]
        if not len(some.form):
            continue
        key = some.choice.tobytes() + some.pieces.tobytes()
        steps = known[key] = known.get(key) or Steps(some.choice, some.pieces, k, options.host)
        asked += steps.asked
        on_all, added = steps.added(some, load, free)
        least = np.concatenate([on_all, steps.least(added)], axis=1) / 4 + _paid(price[i], some.taken)
        for one, option in enumerate(least.argmin(axis=1).tolist()):
            if (least_of_all := least[one, option]) == np.inf:
                continue
            worth[one, i] = least_of_all
            picked[one, i, :2] = some.form[option], some.choice[option]
            if option < steps.on_all:
                times[one, i] = 1
                continue
            places = steps.places(added[one, option - steps.on_all], int(some.pieces[option]))
            picked[one, i, 2 : 2 + len(places)] = places
            span = options.host if some.choice[option] == HOST else 1
            times[one, i] = np.bincount(places, minlength=k // span).repeat(span)
        form, choice = picked[:, i, 0], picked[:, i, 1]
        load += options.loads[:, form, choice] * times[:, i]
        free -= options.size[:, form, choice] * times[:, i]
    return [core.Picks(asked, w, p[:, 0], p[:, 1], p[:, 2:], t) for w, p, t in zip(worth, picked, times, strict=True)]


class Some(NamedTuple):
    """The options of an item: the first are on all devices, then pieces go to devices, and the last to hosts."""

    form: np.ndarray  # (O,)
    choice: np.ndarray  # (O,)
    pieces: np.ndarray  # (O,)
    loads: np.ndarray  # (P, O, K) of a piece on a device
    size: np.ndarray  # (Q, O, K) bytes of it
    taken: np.ndarray  # (Q, O) bytes of all pieces


def _options(given: core.Options, order: np.ndarray) -> Iterator[Some]:
    """The options of each item in turn."""
    form, choice = np.nonzero(given.may)
    item = np.repeat(np.arange(len(given.first) - 1), np.diff(given.first))[form]
    sorted_ = (3 * item + BEFORE[choice]).argsort(kind="stable")
    form, choice, item = form[sorted_], choice[sorted_], item[sorted_]
    loads, size = given.loads[:, form, choice], given.size[:, form, choice]
    pieces = np.where(choice <= HOST, given.pieces[form], 1)
    spans = np.array([1, given.host, loads.shape[2], loads.shape[2]])[choice]
    taken = pieces * np.where(np.arange(loads.shape[2]) < spans[:, None], size, 0).sum(axis=2)
    starts = np.searchsorted(item, np.arange(len(given.first)))
    for start, end in zip(starts[order].tolist(), starts[order + 1].tolist(), strict=True):
        some = slice(start, end)
        yield Some(form[some], choice[some], pieces[some], loads[:, some], size[:, some], taken[:, some])


class Steps:
    """Pieces that are asked about one by one, for items with options of the same choices and pieces.

    M steps: a piece on all devices; 1, 2, .. pieces on any device; none; 1, 2, .. on any host.
    """

    def __init__(self, choice: np.ndarray, pieces: np.ndarray, devices: int, host: int) -> None:
        self.devices, self.host, self.hosts = devices, host, devices // host
        self.on_all, self.most = int((choice > HOST).sum()), int(pieces.max())
        self.none = self.on_all + int(pieces[choice == DEVICE].sum())
        first = pieces.cumsum() - pieces
        times = np.arange(pieces.sum()) - first.repeat(pieces) + 1.0
        self.option = np.insert(np.arange(len(pieces)).repeat(pieces), self.none, 0)  # (M,)
        self.times = np.insert(times, self.none, 0)[:, None]  # (M, 1)
        # the step before each, where pieces go to devices, and to hosts
        before = np.where(self.times[:, 0] == 1, self.none, np.arange(len(self.times)) - 1)
        self.on_devices, self.on_hosts = before[self.on_all : self.none], before[self.none + 1 :] - self.none
        # where it is told what pieces add, place by place, of those options; in the end what is out of reach
        placed = slice(self.on_all, None)
        self.pieces, first = pieces[placed], first[placed]
        places = np.where(choice[placed] == HOST, self.hosts, devices)
        start = np.where(
            choice[placed] == HOST,
            len(self.on_devices) * devices + (first - self.none) * self.hosts,
            (first - self.on_all) * devices,
        )
        place, j = np.divmod(np.arange(devices * self.most), self.most)
        at = start[:, None] + j * places[:, None] + place
        end = len(self.on_devices) * devices + len(self.on_hosts) * self.hosts
        self.at = np.where((j < self.pieces[:, None]) & (place < places[:, None]), at, end)  # (o, K * J)
        self.asked = self.on_all + int(places.sum())

    def added(self, some: Some, load: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fourth powers that options on all devices add, (L, O'), and each piece of the others, (L, o, K * J)."""
        cost = load[:, :, None] + (some.loads[:, self.option] * self.times)[:, None]
        np.maximum(cost, 0.0, out=cost)
        cost *= cost
        cost *= cost
        cost = cost.sum(axis=0)  # (L, M, K)
        closed = ((some.size[:, self.option] * self.times)[:, None] > free[:, :, None]).any(axis=0)
        on_all = _in_order(cost[:, : self.on_all]) - _in_order(cost[:, self.none : self.none + 1])
        on_all[closed[:, : self.on_all].any(axis=2)] = np.inf
        single = cost[:, self.on_all : self.none] - cost[:, self.on_devices]
        np.copyto(single, np.inf, where=closed[:, self.on_all : self.none])
        found = [single.reshape(len(cost), -1)]
        if len(self.on_hosts):
            shape = len(cost), -1, self.hosts, self.host
            by_host = _in_order(cost[:, self.none :].reshape(shape))
            several = by_host[:, 1:] - by_host[:, self.on_hosts]
            np.copyto(several, np.inf, where=closed[:, self.none + 1 :].reshape(shape).any(axis=3))
            found.append(several.reshape(len(cost), -1))
        return on_all, np.concatenate([*found, np.full((len(cost), 1), np.inf)], axis=1).take(self.at, axis=1)

    def least(self, added: np.ndarray) -> np.ndarray:
        """The least that all pieces of options add, (L, o)."""
        if self.most == 1:
            return added.min(axis=2)
        found: np.ndarray = np.sort(added, axis=2)[..., : self.most].cumsum(axis=2)
        return found[:, np.arange(len(self.pieces)), self.pieces - 1]

    def places(self, added: np.ndarray, pieces: int) -> list[int]:
        """Places of an option's pieces, in order: where they add least, the first of equals."""
        if pieces == 1:
            return [int(added.argmin()) // self.most]
        return sorted((added.argsort(kind="stable")[:pieces] // self.most).tolist())


def _paid(price: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Bytes (Q, O) at prices (Q, L), (L, O)."""
    paid: np.ndarray = price[0, :, None] * taken[0]
    return paid if len(taken) == 1 else paid + price[1, :, None] * taken[1]


def _in_order(values: np.ndarray) -> np.ndarray:
    """Sums along the last axis, from the first on."""
    found: np.ndarray = values.cumsum(axis=-1)[..., -1]
    return found
