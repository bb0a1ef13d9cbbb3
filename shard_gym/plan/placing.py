"""Placing tables one after another: what devices have left, what they hold, and where the next table may go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shard_gym import core
from shard_gym.plan.keeping import Asked, Keeping
from shard_gym.plan.nodes import Options, Rows

_NO_SUMS, _FIRST = np.zeros((1, 0, 0)), np.zeros(1, np.int64)


class Touched(NamedTuple):
    """A device of each plan that the last step put something on, (B,)."""

    at: np.ndarray  # its number among the devices of all plans
    free: np.ndarray  # bytes left there
    sums: np.ndarray | None  # (B, H) what it holds, if sums are kept


class Placing:
    """Partial plans side by side, (B,): bytes left on each device, sums of what it holds, and where pieces may go.

    Rows and options are numbers, or one for each plan; `of` names the plans if not all are meant. `put`, `may`
    and `mask` are `place`, `legal` and `masks` of a placing of one plan; where it has no rules, `One` is faster.
    """

    def __init__(self, options: Options, count: int = 1, track: bool = False) -> None:
        k, width = options.capacity.shape[1], options.vector.shape[2]
        self.options = options
        self.task = np.zeros(count, np.int64)
        self.free = np.repeat(options.capacity[:1], count, axis=0)  # (B, K) bytes left; negative when over
        self.least = self.free.min(axis=1)  # (B,) the smallest of them
        self.tracks = track
        self.sums = np.zeros((count, k, width if track else 0))  # (B, K, H), if they are kept
        self._each, self._devices = np.arange(count), np.arange(k)
        self._first = k * self._each
        self.touched: list[Touched] = []  # by the last step
        self._kept = Keeping(options, count)
        if options.rules.binding:
            self._kept.begin(self._each, self.task, self.free)

    def begin(self, of: np.ndarray, tasks: np.ndarray) -> None:
        """Begin some plans anew, of these tasks."""
        capacity = self.options.capacity[tasks]
        self.task[of], self.free[of], self.least[of] = tasks, capacity, capacity.min(axis=1)
        self.sums[of] = 0
        self.touched = [self._read(touched.at) for touched in self.touched]
        if self.options.rules.binding:
            self._kept.begin(of, tasks, self.free)

    def place(self, rows: Rows, options: Rows, of: np.ndarray | None = None) -> None:
        """Take an option of a piece of each plan, legal or not."""
        o, first, changed = self.options, self._first if of is None else self._first[of], None
        if o.changes.shape[1]:
            changed = np.asarray(options >= o.count)
            options = np.where(changed, 0, options)
        if o.rules.binding:
            self._kept.keep(self._asked(rows, self._each if of is None else of), options, changed)
        if of is None and changed is None and isinstance(rows, np.ndarray) and isinstance(options, np.ndarray):
            put = core.place(self.free, self.least, o.size, self.sums, o.vector, rows, options)
            if put is not None:
                self.touched = [Touched(*put[:2], put[2] if self.tracks else None)]
                return
        free, at, size = self.free.reshape(-1), first + options, o.size.take(rows)
        left = free.take(at) - (size if changed is None else np.where(changed, 0, size))
        free[at] = left
        if of is None:
            np.minimum(self.least, left, out=self.least)
        else:
            self.least[of] = np.minimum(self.least[of], left)
        self.touched = [Touched(at, left, self._add(at, rows, changed) if self.tracks else None)]

    def legal(self, rows: Rows, of: np.ndarray | None = None) -> np.ndarray:
        """Options that memory and constraints leave for a piece of each plan, (B, A + X) bool."""
        o = self.options
        if o.rules.binding:
            room, asked, allowed = self._kept.found(self._asked(rows, self._each if of is None else of))
            found = (room >= asked) & allowed
        else:
            found = (self.free if of is None else self.free[of]) >= o.size[rows]
        if not o.changes.shape[1]:
            return found
        legal = np.empty((len(found), o.count + o.changes.shape[1]), bool)
        legal[:, : o.count], legal[:, o.count :] = found, o.changes[rows]
        return legal

    def masks(self, rows: np.ndarray) -> np.ndarray:
        """Legal options, int8 (B, A + X); where a piece may go nowhere, every device or, if it has any, its changes."""
        o, count = self.options, self.options.count
        if not (o.rules.binding or o.changes.shape[1]):
            found = core.masks(self.free, self.least, o.size, rows)
            if found is not None:
                return found
        masks = np.ones((len(rows), count + o.changes.shape[1]), np.int8)
        if o.changes.shape[1]:
            masks[:, count:] = o.changes[rows]
        sure = not o.rules.binding  # where the smallest device has room
        close = np.flatnonzero(self.least < o.size.take(rows)) if sure else self._each
        if len(close):
            found = self.legal(rows[close], close)
            nowhere = close[~any_true(found[:, :count])]
            masks[close] = found
            masks[nowhere, :count] = ~o.changes[rows[nowhere]].any(axis=1)[:, None]
        return masks

    def put(self, row: int, option: int) -> None:
        """Take an option of a piece of the one plan."""
        self.place(row, option)

    def may(self, row: int, option: int) -> bool:
        """True if an option of a piece of the one plan is legal."""
        return bool(self.legal(row)[0, option])

    def took(self, row: int, option: int) -> bool:
        """True if an option of a piece of the one plan is legal: then it is taken."""
        legal = self.may(row, option)
        if legal:
            self.put(row, option)
        return legal

    def mask(self, row: int) -> np.ndarray:
        """Legal options for a piece of the one plan, as `masks`, a fresh int8 (A + X,)."""
        return self.masks(np.array([row]))[0]

    def roomiest(self, rows: np.ndarray) -> np.ndarray:
        """The device with most bytes left, if possible one where rules let a piece go; pins are always kept.

        Of each plan, (B,).
        """
        if not self.options.rules.binding:
            return self.free.argmax(axis=1)
        asked = self._asked(rows, self._each)
        room, _, allowed = self._kept.found(asked)
        return (room - 2**54 * ~allowed - 2**55 * ~self.options.rules.allowed[asked.rule]).argmax(axis=1)

    def full(self, rows: Rows, devices: np.ndarray) -> np.ndarray:
        """The plans in which a device has too few bytes for the whole of a piece."""
        return np.flatnonzero(self.free.take(self._first + devices) < self.options.size[rows, 0])

    def bytes_for(self, row: int, plan: int = 0) -> np.ndarray:
        """Bytes that each device of a plan has for a piece, its own kept ones among them, (K,)."""
        return self._kept.found(self._asked(row, np.array([plan])))[0][0]

    def _read(self, at: np.ndarray) -> Touched:
        sums = self.sums.reshape(-1, self.sums.shape[2]).take(at, axis=0) if self.tracks else None
        return Touched(at, self.free.take(at), sums)

    def _add(self, at: np.ndarray, rows: Rows, changed: np.ndarray | None) -> np.ndarray:
        """Add pieces to the sums of devices; the new sums."""
        width = self.sums.shape[2]
        sums, added = self.sums.reshape(-1, width), self.options.vector.reshape(-1, width).take(rows, axis=0)
        before = sums.take(at, axis=0)
        after = before + added
        if changed is not None:
            after[changed] = before[changed]
        sums[at] = after
        return after

    def _asked(self, rows: Rows, each: np.ndarray) -> Asked:
        """Question for constraints: a piece of each of these plans."""
        o = self.options
        size = np.repeat(o.size[None, rows], len(each), axis=0) if np.ndim(rows) == 0 else o.size[rows]
        return Asked(each, o.rules.row(self.task[each], o.table[rows]), size)


class One:
    """The placing of one plan where memory is all that counts, in plain numbers: a tenth of the time of `Placing`.

    Scalar environments and greedies spend most of their time here.
    """

    __slots__ = ("_count", "_left", "_sizes", "least", "options", "sums", "task", "tracks")

    def __init__(self, options: Options, track: bool = False) -> None:
        self.options, self.tracks, self.task = options, track, _FIRST
        self._left = list(options.tasks[0].memory)
        self._count, self.least = len(self._left), min(self._left)  # bytes left on the fullest device
        self._sizes = options.sizes
        self.sums = np.zeros((1, self._count, options.vector.shape[2])) if track else _NO_SUMS

    @property
    def free(self) -> np.ndarray:
        """Bytes left on each device, a fresh (1, K); negative when over."""
        return np.array([self._left])

    def put(self, row: int, option: int) -> None:
        """Take an option of a piece."""
        if option < self._count:
            self._left[option] = left = self._left[option] - self._sizes[row]
            if left < self.least:
                self.least = left
            if self.tracks:
                self.sums[0, option] += self.options.vector[row, 0]

    def may(self, row: int, option: int) -> bool:
        """True if an option of a piece is legal."""
        if option < self._count:
            return self._left[option] >= self._sizes[row]
        return bool(self.options.changes[row, option - self._count])

    def took(self, row: int, option: int) -> bool:
        """True if an option of a piece is legal: then it is taken."""
        if option < self._count and not self.tracks:  # in one step: greedies over thousands of devices ask little else
            left = self._left[option] - self._sizes[row]
            if left >= 0:
                self._left[option] = left
                if left < self.least:
                    self.least = left
            return left >= 0
        legal = self.may(row, option)
        if legal:
            self.put(row, option)
        return legal

    def legal(self, row: int) -> np.ndarray:
        """Legal options for a piece, (1, A + X) bool."""
        size = self._sizes[row]
        if self.least >= size:
            return self.options.anywhere[row][None] != 0
        return np.array([[*(left >= size for left in self._left), *self.options.changes[row].tolist()]])

    def mask(self, row: int) -> np.ndarray:
        """Legal options for a piece, a fresh int8 (A + X,); where it may go nowhere as `Placing.masks`."""
        size, mask = self._sizes[row], self.options.anywhere[row].copy()
        if self.least >= size:
            return mask
        fits = [left >= size for left in self._left]
        mask[: self._count] = fits if True in fits else 1 not in mask[self._count :]
        return mask

    def bytes_for(self, row: int, plan: int = 0) -> np.ndarray:
        """Bytes that each device has for a piece, (K,)."""
        return self.free[0]


def one(options: Options, track: bool = False) -> One | Placing:
    """Begin one plan, the faster way if there is no rule."""
    return Placing(options, track=track) if options.rules.binding else One(options, track)


def any_true(rows: np.ndarray) -> np.ndarray:
    """True for rows that have a True, (m, K) bool -> (m,). Read in words: several times as fast as `any`."""
    width = rows.shape[1]
    word = next(w for w in (8, 4, 2, 1) if width % w == 0)
    words = np.ascontiguousarray(rows).view(f"u{word}")
    return words[:, 0] != 0 if width == word else (words != 0).any(axis=1)
