"""A placement under search: pieces of tables on devices, running sums, and what the planner is asked about them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import device_sums
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.simulators import Counted, FastSimulator
from shard_gym.simulators.base import embedded
from shard_gym.task.task import Task
from shard_gym_agents.search.rules import Standing
from shard_gym_agents.solvers.solver import require_number

CALLS_A_SECOND = 100_000
GRACE = 0.1  # seconds that a first plan may take, whatever the budget
TOLD = 8, 1 / 64  # pieces, and their share, after which one sees how fast a greedy is
OVER = 0.1  # share of the budget by which a greedy may be late: its plan is worth more than what is left of the time
EXACT_SHARDS = 2**18  # asked about at the start for what each piece adds; beyond, its share is guessed
RULE = 2**53  # bytes of overflow that a broken rule counts as: more than any
BALANCE = 0.01  # weight of the unevenness of all devices beside the makespan


@dataclass(frozen=True, eq=False)
class Parts:
    """The two parts of costs, ms (..., K): all devices wait for the slowest `forward`, then each adds its `own`."""

    forward: np.ndarray
    own: np.ndarray

    @property
    def makespan(self) -> np.ndarray:
        """The ms that plans take, (...)."""
        return self.forward.max(axis=-1) + self.own.max(axis=-1)

    @property
    def value(self) -> np.ndarray:
        """The makespan of plans and a little of their unevenness, which searches make small, (...)."""
        own, forward = self.own, self.forward
        squares = np.sqrt(np.einsum("...k,...k", own, own)) + np.sqrt(np.einsum("...k,...k", forward, forward))
        return self.makespan + squares * (BALANCE / np.sqrt(own.shape[-1]))


class Costs:
    """A task's planner, for a search."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task = task
        self.planner = Counted(planner)  # what this search asks, whatever was asked before
        self.kernel = task.objective == "kernel"
        self.slowness = 1 / np.array(task.speed)
        self._alike: dict[int, Task] = {}  # of so many devices, on which any shards can be asked about together

    def plans(self, sums: np.ndarray) -> Parts:
        """Whole plans from each device's sum, (..., K, H)."""
        if self.kernel:
            own = self.planner.cost(self.task, sums)
            return Parts(np.zeros_like(own), own)
        latency = self.planner.decode(self.task, sums)
        return Parts(latency.forward_compute, latency.forward_comm + latency.backward_comm + latency.backward_compute)

    def compute(self, sums: np.ndarray, device: np.ndarray | int) -> np.ndarray:
        """Forward and backward computation of shards, sums (S, H), each on its device (S,); K of them count as a plan.

        A device's computation depends on nothing but its own tables and its speed.
        """
        shards = len(sums)
        k = min(self.task.num_devices, 1 << max(0, shards - 1).bit_length())
        if k not in self._alike:
            self._alike[k] = self.task.computation(k)
        packed = np.zeros((-(-shards // k), k, sums.shape[-1]))
        packed.reshape(-1, sums.shape[-1])[:shards] = sums
        return self.planner.cost(self._alike[k], packed).ravel()[:shards] * self.slowness[device]

    def scaling_share(self, sums: np.ndarray) -> float:
        """Share of the devices' own cost that goes with their speed, of one plan: computation does, links do not."""
        if self.kernel:
            return 1.0
        latency = self.planner.decode(self.task, sums)
        whole = latency.backward_compute + latency.forward_comm + latency.backward_comm
        return float(latency.backward_compute.sum() / max(float(whole.sum()), 1e-12))

    def doubt(self, sums: np.ndarray, other: np.ndarray) -> float:
        """The planner's standard deviation of how much sooner one plan is done than another, ms; sums of both, (K, H).

        Where it knows only that of devices: that of the one which sets the pace. 0 where it knows none.
        """
        if (doubt := self.planner.uncounted.doubt(self.task, sums, other)) is not None:
            return doubt
        latency = self.planner.decode(self.task, sums)
        slowest = int(latency.cost(self.task.objective).argmax())
        return 0.0 if latency.spread is None else float(latency.spread[slowest])


class Budget:
    """The time of a search: seconds, or plans asked about, which any machine does alike."""

    def __init__(self, seconds: float, calls: int) -> None:
        if not seconds >= 0 or calls < 0:
            raise InvalidTask(f"a search needs budget >= 0 seconds and calls >= 0, got {seconds}, {calls}")
        self.start = time.perf_counter()
        self.seconds, self.calls, self.grace = seconds, calls, GRACE
        self.stopped = False  # by whoever follows the search

    @property
    def spent_seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    @property
    def worth_seconds(self) -> float:
        """Seconds that the budget stands for, about, for choices that depend on how much there is to spend."""
        return self.calls / CALLS_A_SECOND if self.calls else self.seconds

    def over(self, costs: Costs, share: float = 1.0) -> bool:
        """True if that share of the budget is spent."""
        spent, whole = (costs.planner.calls, self.calls) if self.calls else (self.spent_seconds, self.seconds)
        return spent >= share * whole

    @property
    def hopeless(self) -> bool:
        """True when the search for any plan at all should end; a budget of plans asked about does not say when."""
        return not self.calls and self.spent_seconds >= max(self.seconds, self.grace)

    @property
    def left_seconds(self) -> float:
        """Seconds that are left; of a budget of plans asked about as many as anything takes."""
        return math.inf if self.calls else self.seconds - self.spent_seconds


class Late(Exception):
    """A greedy would end after the budget."""


class Pace:
    """The clock of a greedy of so many pieces: it stops one that would end after the budget, once that shows."""

    def __init__(self, budget: Budget, pieces: int) -> None:
        self.begun, self.pieces, self.done, self.told = time.perf_counter(), pieces, 0, max(TOLD[0], TOLD[1] * pieces)
        self.left = budget.left_seconds + OVER * budget.seconds

    def step(self, pieces: int = 1) -> None:
        """Count pieces that are placed."""
        self.done += pieces
        if self.done >= self.told and (time.perf_counter() - self.begun) * self.pieces > self.left * self.done:
            raise Late


class Board:
    """The fixed part of a search: the nodes that pieces are of, the sums they add, and where they may go.

    Tables that must be together are one piece, the first of them; the others are no pieces.
    """

    def __init__(self, task: Task, costs: Costs, splits: bool = False) -> None:
        self.task, self.costs, self.rules = task, costs, Rules.of(task)
        self.nodes = Nodes.of(task, splits and task.splits_allowed)
        pieces = self.nodes.pieces
        self.none = len(self.nodes)  # a node of no size and no cost
        self.whole = self.nodes.whole[self.rules.leads]  # to begin with
        self.table = np.append(self.nodes.table, -1)
        self.embedding = self._merged(embedded(costs.planner, pieces))
        self.size = self._merged(self.nodes.size)
        self.dim = self._merged(pieces.tables.columns_sent)
        self.single = costs.compute(self.embedding, 0)  # computation of each piece alone, on the first device
        self.may_split = np.append(self.nodes.may_split, False)
        half = np.append(self.single[1:], 1.0)
        self.half_share = np.where(self.may_split, half / np.maximum(self.single, 1e-12), 1.0).clip(0.0, 1.0)
        self.standing = Standing(task, self.rules) if self.rules.binding else None  # of no table placed

    def start(self, device: Sequence[int] | np.ndarray) -> State:
        """Whole tables on devices, (N,); those that must be together go where the first of them is."""
        return State(self, self.whole, np.array(device)[self.nodes.table[self.whole]])

    def plan(self, node: np.ndarray, device: np.ndarray) -> Plan:
        """Pieces on devices as a plan: splits that lead to these pieces, and a device for each."""
        led = np.flatnonzero(~self.rules.leads)
        if len(led):
            where = np.empty(len(self.nodes), np.int64)
            where[node] = device
            leader = self.nodes.whole[self.rules.leader[led]]
            node, device = np.append(node, self.nodes.whole[led]), np.append(device, where[leader])
        return self.nodes.plan(node, device)

    def _merged(self, values: np.ndarray) -> np.ndarray:
        """Values of nodes, those of tables together in the first one's row, and a row of zeros for no node."""
        whole, values = self.nodes.whole, values.copy()
        values[whole] = self.rules.merged(values[whole])
        return np.pad(values, ((0, 1), *((0, 0),) * (values.ndim - 1)))


class State:
    """Pieces, their devices and the running sums; `forward` and `own` are what devices cost, as in `Parts`.

    Where devices hold more than the pieces, `full` tells the sums, and the bytes that are free.
    """

    def __init__(
        self, board: Board, node: np.ndarray, device: np.ndarray, full: tuple[np.ndarray, np.ndarray] | None = None
    ) -> None:
        self.board, self.node, self.device = board, node.copy(), device.astype(np.int64)
        k = board.task.num_devices
        if full is None:
            used = device_sums(board.size[node][:, None].astype(np.float64), self.device, k)[:, 0]
            full = device_sums(board.embedding[node], self.device, k), board.task.capacity - used.astype(np.int64)
        self.sums, self.free = full
        self.standing = None if board.standing is None else board.standing.copy()
        if self.standing is not None:
            self.standing.put(0, board.table[node], self.device)
        self.scaling_share = 1.0 if len(set(board.task.speed)) == 1 else board.costs.scaling_share(self.sums)
        self.settle()

    def copy(self) -> State:
        """Copy the placement, to change it apart from this one."""
        other = copy(self)
        for name in ("node", "device", "sums", "free", "forward", "own", "added", "added_forward"):
            setattr(other, name, getattr(self, name).copy())
        other.standing = self.standing and self.standing.copy()
        return other

    @property
    def makespan(self) -> float:
        """The ms that the placement takes."""
        return float(self.forward.max() + self.own.max())

    @property
    def value(self) -> float:
        """The value of `Parts`."""
        return float(Parts(self.forward, self.own).value)

    @property
    def overflow(self) -> int:
        """Bytes that do not fit, over all devices."""
        return int(np.maximum(-self.free, 0).sum())

    @property
    def broken(self) -> int:
        """Rules that are broken: two tables on one device that must be apart, or a move too many."""
        return 0 if self.standing is None else self.standing.broken(self.board.table[self.node], self.device)

    @property
    def amiss(self) -> int:
        """Bytes that do not fit, and more than any bytes for a broken rule; 0 of a feasible placement."""
        return self.overflow + RULE * self.broken

    def troubled(self) -> np.ndarray:
        """The fullest device, or while rules are broken those of the pieces that have a part in it."""
        if self.standing is not None:
            trouble = np.flatnonzero(self.standing.troubled(self.board.table[self.node], self.device))
            if len(trouble):
                return self.device[trouble]
        return self.free.argmin(axis=0, keepdims=True)

    def breaks(self, piece: np.ndarray | int, target: np.ndarray | int, other: np.ndarray | int = -1) -> np.ndarray:
        """Count the rules newly broken if pieces go to a device, in exchange with others (-1: with none)."""
        if self.standing is None:
            return np.zeros((), np.int64)
        table = np.append(self.board.table[self.node], -1)
        return self.standing.breaks(table[piece], self.device[piece], target, table[other])

    def rescore(self) -> None:
        """Ask what all devices cost."""
        parts = self.board.costs.plans(self.sums)
        self.forward, self.own = parts.forward, parts.own
        require_number(self.makespan, self.board.costs.planner)

    def settle(self) -> None:
        """Ask what all devices cost and what each piece adds there, or guess the latter where that is too much."""
        self.rescore()
        self._guess_added()
        if self.board.costs.kernel or len(self.node) * len(self.free) <= EXACT_SHARDS:
            self.refresh(range(len(self.free)))

    def _guess_added(self) -> None:
        """Share out each device's cost over its pieces, by the cost of each alone."""
        single = self.board.single[self.node]
        total = np.maximum(np.bincount(self.device, single, minlength=len(self.free)), 1e-12)[self.device]
        self.added = self.own[self.device] * single / total
        self.added_forward = self.forward[self.device] * single / total

    def refresh(self, devices: Iterable[int]) -> None:
        """Ask what the pieces of these devices add to the cost there."""
        asked = np.zeros(len(self.free), bool)
        asked[list(devices)] = True
        pieces = np.flatnonzero(asked[self.device])
        at_once = EXACT_SHARDS if self.board.costs.kernel else max(1, EXACT_SHARDS // len(self.free))
        for start in range(0, len(pieces), at_once):
            self._ask_added(pieces[start : start + at_once])

    def _ask_added(self, pieces: np.ndarray) -> None:
        where, lost = self.device[pieces], self.board.embedding[self.node[pieces]]
        if self.board.costs.kernel:
            self.added[pieces] = self.own[where] - self.board.costs.compute(self.sums[where] - lost, where)
            return
        each = np.arange(len(pieces))
        tried = np.repeat(self.sums[None], len(pieces), axis=0)
        tried[each, where] -= lost
        parts = self.board.costs.plans(tried)
        self.added[pieces] = self.own[where] - parts.own[each, where]
        self.added_forward[pieces] = self.forward[where] - parts.forward[each, where]

    def shift(self, device: int, out: int, into: int) -> None:
        """Running sums of a device after one node left and another came."""
        board = self.board
        self.sums[device] += board.embedding[into] - board.embedding[out]
        self.free[device] -= board.size[into] - board.size[out]

    def relocate(self, piece: int, target: int) -> None:
        """Put a piece elsewhere, without asking what that costs."""
        node = int(self.node[piece])
        self.shift(int(self.device[piece]), node, self.board.none)
        self.shift(target, self.board.none, node)
        if self.standing is not None:
            self.standing.put(0, self.board.table[node], self.device[piece], -1)
            self.standing.put(0, self.board.table[node], target)
        self.device[piece] = target

    def halve(self, piece: int, target: int) -> None:
        """Halve a piece's columns; the new half goes to a device."""
        whole = int(self.node[piece])
        half = whole + 1
        self.shift(int(self.device[piece]), whole, half)
        self.shift(target, self.board.none, half)
        self.node[piece] = half
        for name, new in (("node", half), ("device", target), ("added", 0.0), ("added_forward", 0.0)):
            setattr(self, name, np.append(getattr(self, name), new))

    def join(self, piece: int, other: int) -> None:
        """Make one piece of two equal ones of a table, where the second one is."""
        node = int(self.node[piece])
        self.shift(int(self.device[piece]), node, self.board.none)
        self.shift(int(self.device[other]), node, node - 1)
        self.node[other] = node - 1
        for name in ("node", "device", "added", "added_forward"):
            setattr(self, name, np.delete(getattr(self, name), piece))

    def plan(self) -> Plan:
        """The placement as a plan: splits that lead to these pieces, and a device for each."""
        return self.board.plan(self.node, self.device)
