"""Many tasks whose stretches are given tiers side by side, as arrays with one entry an environment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shard_gym.flexshard.bank import ROWS, FlexBank
from shard_gym.flexshard.stretches import STRETCHES
from shard_gym.flexshard.tiers import TIERS

WIDTH = 11  # of an observation
SLACK = 1e-9  # share of the memory that rounding may take
LANES = 8


class Sums:
    """Sums of rows of numbers that come one by one, (n, W), the same to the bit as numpy's of all of them at once.

    Of up to 128 numbers numpy adds every eighth to a sum of its own, the eight sums to each other in pairs, and then
    those that are left over.
    """

    def __init__(self, count: int, width: int) -> None:
        self.value = np.zeros((count, width))
        self._lanes, self._latest = np.zeros((2, LANES, count, width))
        self._each = np.arange(count)

    def begin(self, envs: np.ndarray) -> None:
        """Nothing was added yet."""
        self.value[envs], self._lanes[:, envs] = 0, 0

    def add(self, position: np.ndarray, values: np.ndarray) -> None:
        """Add a row to each; `position` many are in already."""
        lane = position % LANES
        self._latest[lane, self._each] = values
        self.value += values
        if len(whole := (lane == LANES - 1).nonzero()[0]):
            lanes = self._lanes[:, whole] + self._latest[:, whole]
            self._lanes[:, whole] = lanes
            pairs = lanes[0::2] + lanes[1::2]
            self.value[whole] = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])


class Ends(NamedTuple):
    """Rewards and numbers of episodes that are over, (c,) each."""

    reward: np.ndarray
    comm_ms: np.ndarray
    memory_bytes: np.ndarray
    feasible: np.ndarray


class States:
    """Tasks under way, one of each environment. Between `put` and `begin` those at their end are not to be read.

    `envs` are always indices of environments.
    """

    def __init__(self, bank: FlexBank, count: int) -> None:
        self.bank = bank
        # `row` is of the next stretch in the bank, `used` has a bit for each tier
        self.task, self.position, self.row, self.used = np.zeros((4, count), np.int64)
        self.log = np.zeros((count, STRETCHES + 1), np.int8)  # the tier of each stretch
        self._sums = Sums(count, 2)  # memory and communication
        self._units = np.ones((3, count))  # of each one's task
        self._each = np.arange(count)

    def begin(self, envs: np.ndarray, tasks: np.ndarray) -> None:
        """Begin these tasks."""
        self.task[envs], self.position[envs], self.row[envs], self.used[envs] = tasks, 0, ROWS * tasks, 0
        self._sums.begin(envs)
        self._units[:, envs] = self.bank.units[:, tasks]

    def put(self, tiers: np.ndarray) -> None:
        """Put each next stretch in a tier."""
        self.log[self._each, self.position] = tiers
        self._sums.add(self.position, self.bank.costs.take(self.row * len(TIERS) + tiers, axis=0))
        self.used |= 1 << tiers
        self.position += 1
        self.row += 1

    def over(self) -> np.ndarray:
        """True where every stretch has its tier, (n,)."""
        return self.position == STRETCHES

    @property
    def memory(self) -> np.ndarray:
        """Bytes a GPU so far, (n,)."""
        return self._sums.value[:, 0]

    @property
    def ms(self) -> np.ndarray:
        """Communication so far, (n,)."""
        return self._sums.value[:, 1] + self.bank.latencies[self.task, self.used]

    def shown(self) -> np.ndarray:
        """Observations, a fresh float32 (n, 11)."""
        budget, memory, ms = self._units
        shown = np.empty((len(self.task), WIDTH), np.float32)
        shown[:, :7] = self.bank.shown.take(self.row, axis=0)
        free = budget - self.memory
        shown[:, 7] = (free - self.bank.rest.take(self.row)) / memory
        shown[:, 8] = (free - self.bank.later.take(self.row)) / memory
        shown[:, 9] = self.ms / ms
        shown[:, 10] = self.position / STRETCHES
        return shown

    def masks(self) -> np.ndarray:
        """Tiers after which the rest can still fit, a fresh int8 (n, 3); all where none is, and at ends."""
        budget, memory, _ = self._units
        stretch, later = self.bank.memory.take(self.row, axis=0), self.bank.later.take(self.row + 1)
        above = self.memory[:, None] + stretch + later[:, None] - budget[:, None]
        fits = above <= (SLACK * memory)[:, None]
        return (fits | ~fits.any(axis=1)[:, None]).view(np.int8)

    def ends(self, envs: np.ndarray) -> Ends:
        """Judge episodes that are over: one over its memory is below every one that fits."""
        budget, whole, unit = self._units[:, envs]
        memory, ms, worst = self.memory[envs], self.ms[envs], self.bank.worst_ms[self.task[envs]]
        above = memory - budget
        feasible = above <= SLACK * whole
        return Ends(np.where(feasible, -ms / unit, -worst / unit - above / whole), ms, memory, feasible)

    def tiers(self, env: int) -> tuple[int, ...]:
        """The tiers so far in one of them."""
        return tuple(self.log[env, : self.position[env]].tolist())

    def shares(self, env: int) -> tuple[float, float]:
        """Communication of one of them over that of RW, and memory over its budget."""
        budget, _, unit = self._units[:, env]
        return float(self.ms[env] / unit), float(self.memory[env] / budget) if budget > 0 else 1.0
