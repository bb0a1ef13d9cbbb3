"""One episode: which task it draws, and its tables in their order.

Where split actions may halve tables, episodes go over nodes (see `shard_gym.plan.nodes`); elsewhere nodes are tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shard_gym.plan.nodes import Nodes, Options
from shard_gym.plan.rules import Rules
from shard_gym.simulators import FastSimulator, Latency, Simulator, single_costs
from shard_gym.task.task import Task

if TYPE_CHECKING:  # imported where tables may be of all kinds
    from shard_gym.plan.forms import Forms

Whole = TypeVar("Whole", int, np.ndarray)

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
COST_GRAIN = 2.0**20  # what remains is summed in multiples of 1/COST_GRAIN ms


def task_index(seed: Whole, episode: Whole, num_tasks: int) -> Whole:
    """Index of the task that an episode draws; ints, or uint64 arrays with the same answers."""
    return hashed(seed, episode) % num_tasks


def hashed(seed: Whole, episode: Whole) -> Whole:
    """64 bits from a seed and a number: splitmix64's stream, its state mixed from the seed."""
    return _mix((_mix(seed & _MASK) + (episode + 1) * _GAMMA) & _MASK)


def _mix(z: Whole) -> Whole:
    # `& _MASK` makes Python's ints wrap as uint64 arrays do
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Scales(NamedTuple):
    """Units in which numbers of devices are shown; each may be an array of the devices' shape."""

    capacity: Any  # bytes of the device
    largest: Any  # bytes of the largest device
    cost: Any  # summed single costs of all tables, ms
    embedding: Any  # an even share of all tables' embeddings, (..., H)
    speed: Any  # speed of the device over the fastest one's: shown as it is
    num_devices: int
    pace: Any = None  # time of a table on the device over that on the first one; for "flat"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task with what all its episodes share; arrays are in the order of its nodes."""

    nodes: Nodes
    simulator: Simulator
    features: np.ndarray  # (M, 21) float32, standardised
    split_action: bool = False
    random_makespan: float | None = None  # of a suite's task

    @cached_property
    def task(self) -> Task:
        """The task, its tables whole."""
        return self.nodes.task

    @cached_property
    def num_actions(self) -> int:
        """All actions: the devices, and one more to split where there are split actions."""
        return self.task.num_devices + self.split_action

    @property
    def one_step_a_table(self) -> bool:
        """True if every step places a table."""
        return not self.split_action and self.forms is None

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of a piece of each node on its device, (M,) int64."""
        return self.nodes.size

    @cached_property
    def forms(self) -> Forms | None:
        """All forms of its tables, where these may be sharded by more than columns; see `envs.kinds`."""
        return None

    @cached_property
    def options(self) -> Options:
        """Options for a piece of each node."""
        nodes, changes = self.nodes, self.nodes.may_split[:, None] if self.split_action else None
        table = np.where(nodes.level == 0, nodes.table, -1)
        return Options.of_pieces(self.task, self.sizes, table, self.embedding, Rules.of(self.task), changes)

    @cached_property
    def embedding(self) -> np.ndarray | None:
        """Vectors that pieces of nodes add to their device's sum, (M, H); None if the simulator has no embeddings."""
        return self.simulator.embed(self.nodes.pieces) if isinstance(self.simulator, FastSimulator) else None

    @cached_property
    def alone(self) -> np.ndarray:
        """Predicted makespan of a piece of each node alone on the first device, ms (M,)."""
        return single_costs(self.simulator, self.nodes.pieces)

    @cached_property
    def values(self) -> np.ndarray:
        """Amounts that waiting pieces of nodes add to `remaining`, (M, 4): pieces, single cost, bytes, columns.

        Costs are multiples of 1/COST_GRAIN, so that sums are exact in any order.
        """
        cost = np.rint(self.alone * COST_GRAIN) / COST_GRAIN
        return np.stack([np.ones(len(cost)), cost, self.sizes, self.nodes.pieces.tables.dim], axis=1)

    @cached_property
    def total_cost(self) -> float:
        """Summed single costs of all tables, ms; never 0, as it is divided by."""
        return max(float(self.alone[self.nodes.whole].sum()), 1e-12)

    @cached_property
    def even_share(self) -> np.ndarray:
        """An even share of all tables' embeddings on each device, (H,); never 0, as it is divided by."""
        assert self.embedding is not None
        share = np.abs(self.embedding[self.nodes.whole]).sum(axis=0) / self.task.num_devices
        return np.where(share > 0, share, 1)

    @cached_property
    def speed(self) -> np.ndarray:
        """Speed of each device over the fastest one's, (K,) float64."""
        return np.array(self.task.speed) / max(self.task.speed)

    @cached_property
    def scales(self) -> Scales:
        """Units in which numbers of its devices are shown."""
        capacity = self.task.capacity
        share, pace = self.even_share, self.speed[0] / self.speed
        return Scales(capacity, capacity.max(), self.total_cost, share, self.speed, len(capacity), pace)

    @cached_property
    def worst(self) -> float:
        """Makespan of all tables, whole, on one device, whichever device makes it longest, ms."""
        task, devices = self.task, self.task.num_devices
        if self.embedding is None:
            placements = np.repeat(np.arange(devices)[:, None], task.num_tables, axis=1)
            latency = self.simulator.latency(task, placements)
        else:
            latency = self.decode(np.eye(devices)[:, :, None] * self.embedding[self.nodes.whole].sum(axis=0))
        return float(latency.makespan(task.objective).max())

    @cached_property
    def reference(self) -> float:
        """Divisor of makespans in rewards, ms: the mean random plan's in a suite, else `worst`."""
        reference = self.worst if self.random_makespan is None else self.random_makespan
        return reference if reference > 0 else 1.0

    def decode(self, sums: np.ndarray) -> Latency:
        """Latencies from each device's sum of embeddings, (..., K, H); for fast simulators."""
        assert isinstance(self.simulator, FastSimulator)
        return self.simulator.decode(self.task, sums)


def _by_cost(prepared: Prepared) -> np.ndarray:
    return np.argsort(-prepared.nodes.clamped(prepared.alone), kind="stable")


def _by_size(prepared: Prepared) -> np.ndarray:
    return np.argsort(-prepared.nodes.clamped(prepared.sizes), kind="stable")


def _as_given(prepared: Prepared) -> np.ndarray:
    return np.arange(len(prepared.nodes))


Order = Callable[[Prepared], np.ndarray]
# "random" is not among them: it differs between episodes (see shuffled)
FIXED_ORDERS: dict[str, Order] = {
    "cost": _by_cost,
    "size": _by_size,
    "given": _as_given,
}
ORDERS = (*FIXED_ORDERS, "random")


def shuffled(num_tables: int, key: int) -> np.ndarray:
    """The random order that belongs to an episode's hash."""
    tables = np.arange(num_tables, dtype=np.uint64)
    return np.argsort(hashed(np.full(num_tables, key, np.uint64), tables), kind="stable")


@dataclass(frozen=True, eq=False)
class Episode:
    """The nodes of a task in the order their pieces are placed; a node comes after the one it is half of."""

    prepared: Prepared
    order: np.ndarray  # (M,) node at each position of the queue

    @cached_property
    def nodes(self) -> list[int]:
        """The order as plain ints."""
        return self.order.tolist()

    @cached_property
    def halves(self) -> list[int]:
        """Position where the halves of a piece at each position wait; -1 where it must not be split."""
        nodes, where = self.prepared.nodes, np.empty(len(self.order), np.int64)
        where[self.order] = np.arange(len(self.order))
        after = where[np.minimum(self.order + 1, len(nodes) - 1)]
        return np.where(nodes.may_split[self.order], after, -1).tolist()

    @cached_property
    def waiting(self) -> list[int]:
        """Pieces at each position when the episode begins: the whole tables; 1 at the end."""
        return [*(self.prepared.nodes.level[self.order] == 0).astype(int).tolist(), 1]

    @cached_property
    def split_action(self) -> bool:
        """True if pieces may be halved."""
        return self.prepared.split_action

    @cached_property
    def num_devices(self) -> int:
        """Devices of the task."""
        return self.prepared.task.num_devices

    @cached_property
    def last_mask(self) -> np.ndarray:
        """The mask at the end: every device, no split."""
        return (np.arange(self.prepared.num_actions) < self.num_devices).astype(np.int8)

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """The "table" observation at each position, the last one for the end, (22,) float32 each.

        With split actions the last column, the share placed, depends on the splits: see `observations.table`.
        """
        n = len(self.order)
        rows = np.zeros((n + 1, self.prepared.features.shape[1] + 1), np.float32)
        rows[:n, :-1] = self.prepared.features[self.order]
        rows[:, -1] = np.arange(n + 1) / n
        return list(rows)

    @cached_property
    def remaining(self) -> np.ndarray:
        """Remains at each step as shares of the task, (N + 1, 5) float32; without split actions.

        Tables, their summed single cost, bytes and columns; the dearest table left over the dearest of all.
        """
        p, n = self.prepared, len(self.order)
        columns = np.stack([np.ones(n), p.alone, p.sizes, p.task.tables.dim], axis=1)[self.order]
        left = np.zeros((n + 1, 5))
        left[:n, :4] = np.cumsum(columns[::-1], axis=0)[::-1]
        left[:n, 4] = np.maximum.accumulate(columns[::-1, 1])[::-1]
        return (left / np.where(left[0] > 0, left[0], 1)).astype(np.float32)

    @cached_property
    def dearest(self) -> np.ndarray:
        """Largest single costs that remain, with split actions: at each position, that of the piece there
        and of the tables still whole, over that of all tables, (M + 1,) float64, 0 at the end."""
        alone, whole = self.prepared.alone[self.order], self.prepared.nodes.level[self.order] == 0
        later = np.maximum.accumulate(np.where(whole, alone, 0)[::-1])[::-1]
        dearest = np.append(np.maximum(alone, later), 0.0)
        return dearest / (later[0] or 1.0)

    @cached_property
    def total(self) -> np.ndarray:
        """Summed `values` of all tables, whole: what `remaining` begins with, (4,)."""
        return self.prepared.values[self.prepared.nodes.whole].sum(axis=0)
