"""Offers: features of the options of the next tables of plans, side by side, by what the planner says. Needs torch."""

from __future__ import annotations

import numpy as np

from shard_gym.plan.forms import DEVICE, HOST
from shard_gym.simulators import FastSimulator, Latency
from shard_gym_agents.learners.menus import Menu

POWER = 4  # of devices' costs in the aim
LOW = 0.5  # units that they are raised by in a worth that evens them out more
LOUD = 100.0  # what differences between options are multiplied with: those of good ones are a hundredth of a unit
FAR = 50.0  # the most that an option is shown to be above another
FULL = 1e6  # units that a device counts more for each share of its memory that it is over
FEATURES = (
    *("aim", "even", "makespan", "forward", "comm", "backward", "mean"),  # of the plan with it, above the least
    *("dearest", "slowest"),  # of the devices that it uses; of all
    *("price", "bytes", "room", "fill", "tightness"),  # its bytes; their share; left; taken at most; of later bytes
    *("table", "to_come"),  # ms that the item adds at least, and later ones
    *("halved", "share", "by_host", "by_rows", "copied"),  # how it is sharded
)
FIRST = {"aim": -1.0, "halved": -2.0, "by_host": -10.0, "by_rows": -10.0}  # weights that training begins with


class Offers:
    """Plans under way, one of each task of a menu, and their next items' options.

    What devices cost is in units of the task, in two parts: forward computation, whose slowest device all wait for, and
    the rest. The aim is the sum of both parts' means of fourth powers, raised by an even share of what later items add
    at least, and bytes at their price.
    """

    def __init__(self, menu: Menu, planner: FastSimulator) -> None:
        self.menu, self.planner, self.task = menu, planner, menu.choices[0].task
        plans, devices = len(menu.task), self.task.num_devices
        self.free, self.sums = menu.capacity.copy(), np.zeros((plans, devices, menu.vector.shape[1]))
        self.cost, self.each = np.zeros((2, plans, devices)), np.arange(plans)
        self.near = np.zeros((plans, menu.apart.shape[2], devices), np.int64)  # rivals of each on devices
        self.bytes_later = menu.bytes[:, ::-1].cumsum(axis=1)[:, ::-1] - menu.bytes
        later = (menu.adds[:, ::-1].cumsum(axis=1)[:, ::-1] - menu.adds) / menu.unit[:, None]
        self.later = np.stack([later * menu.forward[:, None], later * (1 - menu.forward[:, None])])  # (2, B, N)

    def look(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Features of the options of each plan's next item, float32 (B, M, F), and which of them are legal."""
        m, self.step = self.menu, step
        vector, later = m.vector[m.part[:, step]], self.later[:, :, step, None, None]
        self.times = self._targets(step, vector, later)  # (B, M, K) pieces on each device
        self.asked = m.size[:, step] * self.times[:, :, None]
        self.plans = self.sums[:, None] + vector * self.times[..., None]
        latency = self.planner.decode(self.task, self.plans)
        self.after = self._cost(latency)
        real = m.choice[:, step] >= 0
        fits = (self.asked <= self.free[:, None]).all(axis=2) & ((self.times == 0) | self._allowed()[:, None])
        legal = real & fits.all(axis=2)
        parts = (
            self._above(latency, later, legal),
            self._slowest(),
            self._memory(step),
            self._later(step),
            m.told[:, step],
        )
        seen = np.concatenate([np.broadcast_to(part, (*legal.shape, part.shape[2])) for part in parts], axis=2)
        return np.where(real[..., None], seen, 0).astype(np.float32), legal

    def take(self, chosen: np.ndarray) -> None:
        """Choose an option for each plan, (B,)."""
        at = self.each, chosen
        self.near += self.menu.apart[:, self.step, :, None] * self.times[at][:, None]
        self.sums, self.cost, self.free = self.plans[at], self.after[:, *at], self.free - self.asked[at]

    def _allowed(self) -> np.ndarray:
        """True for devices where pins and rivals leave the next items, (B, K)."""
        m, rival = self.menu, self.menu.rival[:, self.step]
        free: np.ndarray = (rival < 0)[:, None] | (self.near[self.each, rival] == 0)
        return free & m.allowed[:, self.step]

    def makespan(self) -> np.ndarray:
        """Makespans so far, (B,) ms."""
        return self.planner.cost(self.task, self.sums).max(axis=-1)

    def _cost(self, latency: Latency) -> np.ndarray:
        """Both parts of what devices cost, (2, B, ..., K)."""
        rest = latency.forward_comm + latency.backward_comm + latency.backward_compute
        cost: np.ndarray = np.stack([latency.forward_compute, rest]) / self.menu.unit[:, None, None]
        return cost

    def _targets(self, step: int, vector: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Pieces that each option puts on each device: one by one to the best, or the best host, that has room.

        The first piece is asked about, others add the same.
        """
        m, choice, pieces = self.menu, self.menu.choice[:, step], self.menu.pieces[:, step]
        now = (self.cost[:, :, None] + later) ** POWER
        one = (self._cost(self.planner.decode(self.task, self.sums[:, None] + vector)) + later) ** POWER
        aim = ((now.sum(axis=3, keepdims=True) - now + one) / one.shape[3]) ** (1 / POWER)
        aim = aim.sum(axis=0)  # (B, M, K) were one piece there
        load = m.load[:, step] / m.unit[:, None, None]
        times = np.repeat((choice >= 0).astype(np.int64)[..., None], self.task.num_devices, axis=2)
        for kind, span in ((DEVICE, 1), (HOST, self.task.devices_per_host)):
            for count in np.unique(pieces[choice == kind]).tolist():
                plan, option = np.nonzero((choice == kind) & (pieces == count))
                more = np.arange(count)
                over = m.size[plan, step, option][..., None] * (more + 1) - self.free[plan][..., None]
                over = np.maximum(over / np.maximum(m.capacity[plan], 1)[..., None], 0).max(axis=1)  # (S, K, J)
                over += ~self._allowed()[plan][..., None]
                cost = aim[plan, option][..., None] + load[plan, option][..., None] * more + FULL * over
                cost = cost.reshape(len(plan), -1, span, count).max(axis=2)
                times[plan, option] = cheapest(cost, count).repeat(span, axis=1)
        return times

    def _above(self, latency: Latency, later: np.ndarray, legal: np.ndarray) -> np.ndarray:
        """The aim, and what it is made of, of the plan with each option, above the least of those that are legal."""
        m, unit, (forward, rest) = self.menu, self.menu.unit[:, None, None], self.after
        price = (self.asked.sum(axis=3) * m.price[:, None]).sum(axis=2) / m.unit[:, None]
        aim, even = (
            (((self.after + lift) ** POWER).mean(axis=3) ** (1 / POWER)).sum(axis=0) + price for lift in (later, LOW)
        )
        comm = (latency.forward_comm + latency.backward_comm) / unit
        backward, slowest = latency.backward_compute / unit, forward.max(axis=2)
        told = (aim, even, slowest + rest.max(axis=2), slowest, comm.max(axis=2), backward.max(axis=2))
        seen = np.stack([*told, self.after.sum(axis=0).mean(axis=2)], axis=2)
        least = np.where(legal[..., None], seen, np.inf).min(axis=1, keepdims=True)
        least = np.where(least < np.inf, least, seen.min(axis=1, keepdims=True))
        above: np.ndarray = np.clip(LOUD * (seen - least), -FAR, FAR)
        return above

    def _slowest(self) -> np.ndarray:
        cost = self.after.sum(axis=0)
        return np.stack([np.where(self.times > 0, cost, 0).max(axis=2), cost.max(axis=2)], axis=2)

    def _memory(self, step: int) -> np.ndarray:
        """Price and share of an option's bytes, how much room it leaves, and how tight memory is, (B, M, 5)."""
        m, free, asked = self.menu, np.maximum(self.free, 0)[:, None], self.asked
        price = (asked.sum(axis=3) * m.price[:, None]).sum(axis=2) / m.unit[:, None]
        total, later = np.maximum(free.sum(axis=(2, 3)), 1), self.bytes_later[:, step, None]
        left = np.where(self.times > 0, np.maximum(free - asked, 0)[:, :, 0], free[:, :, 0]).min(axis=2)
        return np.stack(
            [
                LOUD * price,
                np.minimum(asked.sum(axis=(2, 3)) / total * 10, 2),
                left / (left + later / self.task.num_devices + 1),
                np.minimum((asked / np.maximum(free, 1)).max(axis=(2, 3)), 1),
                np.broadcast_to(np.minimum(later / total, 2), left.shape),
            ],
            axis=2,
        )

    def _later(self, step: int) -> np.ndarray:
        """Least that the item adds, and later ones, (B, 1, 2)."""
        adds, later = self.menu.adds[:, step] / self.menu.unit, self.later[:, :, step].sum(axis=0)
        return np.stack([LOUD * adds, later], axis=1)[:, None]


def cheapest(cost: np.ndarray, count: int) -> np.ndarray:
    """Pieces that each of T targets takes, (S, T): the `count` least of costs with 1 .. J pieces, (S, T, J)."""
    flat, targets = cost.reshape(len(cost), -1), np.arange(cost.shape[1])
    found = flat.argmin(axis=1)[:, None] if count == 1 else flat.argsort(axis=1, kind="stable")[:, :count]
    times: np.ndarray = ((found // cost.shape[2])[..., None] == targets).sum(axis=1)
    return times
