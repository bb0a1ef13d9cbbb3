"""Sharding tables of all kinds one after another: what memories have left, what devices hold, and what may be done."""

from __future__ import annotations

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST, shape_of
from shard_gym.plan.keeping import Asked, Keeping
from shard_gym.plan.ways import CACHE, HALVE, Ways

ANY, TO_DEVICES, TO_HOSTS = range(3)  # where the pieces of a table go: all of them where the first one did
_OPEN = np.array([[1] * 6, [1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], bool)  # choices and changes then


class Sharing:
    """Partial plans side by side, (B,): the next piece of each, what it may do, bytes left, sums of what devices hold.

    The next table of a plan is told by `turn`; `place` takes an action of each plan for its next piece.
    """

    def __init__(self, ways: Ways, count: int = 1) -> None:
        k = ways.capacity.shape[1]
        self.ways, self.actions = ways, ways.actions
        self.does, self._start = self.actions.does, self.actions.start
        self._reach, self._block = self.actions.reach, self.actions.block
        self._of_choice, self._each = 3 * np.arange(4)[:, None], np.arange(count)
        self.task = np.zeros(count, np.int64)
        self.row = np.zeros(count, np.int64)  # form of the next piece
        self.stage = np.zeros(count, np.int64)  # ANY before the first piece of a table
        self.left = np.ones(count, np.int64)  # pieces of the table that wait
        self.free = np.repeat(ways.capacity[:1], count, axis=0)  # (B, K) bytes left; negative when over
        self.host = np.repeat(ways.host[:1], count, axis=0)  # (B, K) of each device's part of its host's memory
        self.least = self.free.min(axis=1)  # (B,) the smallest of both
        self.sums = np.zeros((count, k, ways.vector.shape[1]))
        self._kept = Keeping(ways, count)
        if ways.rules.binding:
            self._kept.begin(self._each, self.task, self.free)

    def begin(self, of: np.ndarray, tasks: np.ndarray) -> None:
        """Begin some plans anew, of these tasks."""
        self.task[of], self.free[of], self.host[of] = tasks, self.ways.capacity[tasks], self.ways.host[tasks]
        self.least[of], self.sums[of] = self.free[of].min(axis=1), 0
        if self.ways.rules.binding:
            self._kept.begin(of, tasks, self.free)

    def turn(self, of: np.ndarray, rows: np.ndarray) -> None:
        """Let the next tables of some plans be those whose first form is in these rows."""
        self.row[of], self.stage[of], self.left[of] = rows, ANY, 1

    def settled(self, actions: np.ndarray) -> np.ndarray:
        """Actions done in place of these, (B,): each itself where it can be done, whether or not there is room.

        Else the piece goes to the device with most bytes left; where it may not go to one device, to the host that has
        most on its fullest device, over all rows, or to copies; and where it may go nowhere, it is changed.
        """
        may = self.may(self._each)
        odd = np.flatnonzero(~may[self._each, self.does[actions]])
        if not len(odd):
            return actions
        hosts = self.actions.hosts
        does = may[odd].argmax(axis=1)  # the first that it may
        free = self.free[odd]
        target = np.zeros((6, len(odd)), np.int64)
        target[DEVICE] = free.argmax(axis=1)
        if hosts:
            target[HOST] = free.reshape(len(odd), hosts, -1).min(axis=2).argmax(axis=1)
        settled = actions.copy()
        settled[odd] = self._first_placing()[does] + target[does, np.arange(len(odd))]
        return settled

    def place(self, actions: np.ndarray) -> np.ndarray:
        """Do with each next piece as told; True where it was its table's last, (B,). Actions are `settled` ones."""
        does = self.does[actions]
        changed = does >= HALVE
        if self.ways.rules.binding:
            self._keep(actions, np.flatnonzero(~changed))
        self._put(actions, does)
        self.left = np.where(does == HALVE, 2 * self.left, self.left - ~changed)
        self.stage = np.where(changed, self.stage, does + 1)
        self.row = self.changed(self._each, does)
        return self.left == 0

    def changed(self, plans: np.ndarray, does: np.ndarray | int) -> np.ndarray:
        """Forms of the next pieces of some plans once they are changed, (b,); what is placed keeps its form."""
        rows = self.row[plans]
        after: np.ndarray = rows + np.where(does == HALVE, self.ways.further.take(rows), does == CACHE)
        return after

    def masks(self) -> np.ndarray:
        """Legal actions, int8 (B, A); where a piece may go nowhere, its changes or, if it has none, all it could do."""
        return self._masks(self._each, self.row, self.may(self._each))

    def masks_as(self, plans: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The masks of some plans, (b, A), were the first pieces of their next tables of these forms."""
        return self._masks(plans, rows, self.ways.may.take(rows, axis=0))

    def parts(self, rows: np.ndarray) -> np.ndarray:
        """The part of a piece of these forms, (b,), that each choice puts on each device, (b, 4, K)."""
        shape = shape_of(self._block, self.ways.whole.take(rows, axis=0)[..., None])
        shape += 12 * rows[:, None, None] + self._of_choice
        return self.ways.part.take(shape)

    def may(self, plans: np.ndarray) -> np.ndarray:
        """Choices and changes that the task and the pieces placed before leave the next piece of plans, (b, 6)."""
        return self.ways.may.take(self.row[plans], axis=0) & _OPEN.take(self.stage[plans], axis=0)

    def _masks(self, plans: np.ndarray, rows: np.ndarray, may: np.ndarray) -> np.ndarray:
        devices, count = self.actions.devices, self.actions.placing
        masks = may.view(np.int8).take(self.does, axis=1)
        fits = self._fits(plans, rows)  # (b, 4, K)
        masks[:, :devices] &= fits[:, DEVICE]
        by_host: np.ndarray = np.all(fits[:, HOST].reshape(len(fits), -1, self.actions.per_host), axis=2)
        masks[:, devices : count - 2] &= by_host[:, : self.actions.hosts]
        masks[:, count - 2 : count] &= fits[:, 2:].all(axis=2)
        nowhere = np.flatnonzero(~masks.any(axis=1))
        masks[nowhere] = may[nowhere][:, self.does]
        return masks

    def _first_placing(self) -> np.ndarray:
        """The first action of each choice, HALVE and CACHE."""
        a = self.actions
        return np.array([0, a.devices, *range(a.placing - 2, a.count)])

    def _fits(self, plans: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """True where memory and constraints let each choice put what it puts of pieces of forms, (b, 4, K)."""
        ways, parts = self.ways, self.parts(rows)
        room, allowed, asks = self.free[plans], None, ways.size[0].take(parts)
        if ways.rules.binding:
            asked = self._asked(plans, rows, asks[:, DEVICE, :1])
            room, held, allowed = self._kept.found(asked)
            asks[:, DEVICE] = held
        fits: np.ndarray = (asks <= room[:, None]) & (ways.size[1].take(parts) <= self.host[plans, None])
        if allowed is not None:
            fits[:, DEVICE] &= allowed
        return fits

    def _put(self, actions: np.ndarray, does: np.ndarray) -> None:
        """Take bytes from the devices of each plan's action, and add what goes there to their sums."""
        ways, reach, width = self.ways, self._reach[does], self.sums.shape[2]
        plan, k = self._each.repeat(reach), self.free.shape[1]
        first = self._start.take(actions) - (np.cumsum(reach) - reach)  # less what plans before it have
        device = first.take(plan) + np.arange(len(plan))
        of = 4 * self.row + np.minimum(does, HALVE - 1)  # the form's choice
        block = self._block.take(k * does.take(plan) + device)
        part = ways.part.take((3 * of).take(plan) + shape_of(block, ways.whole.take(of).take(plan)))
        at = plan * k + device
        self.free.reshape(-1)[at] -= ways.size[0].take(part)
        self.host.reshape(-1)[at] -= ways.size[1].take(part)
        self.sums.reshape(-1, width)[at] += ways.vector.take(part, axis=0)
        self.least = np.minimum(self.free.min(axis=1), self.host.min(axis=1))
        if ways.rules.binding:
            free_of_rules = ways.table[self.row[plan]] < 0
            self._kept.room.reshape(-1)[at[free_of_rules]] -= ways.size[0][part[free_of_rules]]

    def _asked(self, each: np.ndarray, rows: np.ndarray, size: np.ndarray) -> Asked:
        rule = self.ways.rules.row(self.task[each], self.ways.table[rows])
        return Asked(each, rule, size)

    def _keep(self, actions: np.ndarray, placed: np.ndarray) -> None:
        """Keep count of tables that constraints name, which go to one device."""
        ruled = placed[self.ways.table[self.row[placed]] >= 0]
        size = self.ways.size[0][self.ways.part[self.row[ruled], DEVICE, 0]][:, None]
        self._kept.keep(self._asked(ruled, self.row[ruled], size), actions[ruled])
