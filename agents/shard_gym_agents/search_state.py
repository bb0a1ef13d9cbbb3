"""A placement under search: pieces of tables on devices, with running sums of what they add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.memory import device_sums, table_bytes
from shard_gym.nodes import Nodes
from shard_gym.plan import Plan
from shard_gym.tasks import Task
from shard_gym_agents.search_costs import Costs
from shard_gym_agents.solver import require_number

EXACT_SHARDS = 2**18  # asked about at the start for what each piece adds; beyond, its share is guessed
BALANCE = 0.01  # weight of the unevenness of all devices beside the makespan


class Board:
    """What stays the same during a search: the nodes that pieces are of, what they add, and where they may go."""

    def __init__(self, task: Task, costs: Costs, splits: bool = False, allowed: np.ndarray | None = None) -> None:
        self.task, self.costs = task, costs
        self.nodes = Nodes.of(task, splits and task.splits_allowed)
        pieces = self.nodes.pieces
        self.none = len(self.nodes)  # a node of no size and no cost
        self.embedding = np.pad(costs.planner.embed(pieces), ((0, 1), (0, 0)))
        self.size = np.append(table_bytes(pieces), 0)
        self.dim = np.append(pieces.tables.dim.astype(np.float64), 0.0)
        self.single = costs.compute(self.embedding, 0)  # computation of each piece alone, on the first device
        self.may_split = np.append(self.nodes.may_split, False)
        half = np.append(self.single[1:], 1.0)
        self.half_share = np.where(self.may_split, half / np.maximum(self.single, 1e-12), 1.0).clip(0.0, 1.0)
        self.alike = len(set(task.speed)) == 1
        self.allowed = allowed  # (N, K) bool; None: anywhere

    def start(self, device: Sequence[int] | np.ndarray, node: np.ndarray | None = None) -> State:
        """Pieces on devices, whole tables unless told otherwise."""
        return State(self, self.nodes.whole if node is None else node, np.array(device))


class State:
    """Pieces, their devices and the running sums; `forward` and `own` are what devices cost, as in `Parts`."""

    def __init__(self, board: Board, node: np.ndarray, device: np.ndarray) -> None:
        self.board, self.node, self.device = board, node.copy(), device.astype(np.int64)
        k = board.task.num_devices
        self.sums = device_sums(board.embedding[node], self.device, k)
        used = device_sums(board.size[node][:, None].astype(np.float64), self.device, k)[:, 0]
        self.free = board.task.capacity - used.astype(np.int64)
        self.scaling_share = 1.0 if board.alike else board.costs.scaling_share(self.sums)
        self.settle()

    def copy(self) -> State:
        """Another one, to change apart."""
        other = object.__new__(State)
        other.board, other.scaling_share = self.board, self.scaling_share
        for name in ("node", "device", "sums", "free", "forward", "own", "added", "added_forward"):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def makespan(self) -> float:
        """What the placement is worth."""
        return float(self.forward.max() + self.own.max())

    @property
    def value(self) -> float:
        """What the search makes small: the makespan, and a little of how uneven the devices are."""
        return float(value(self.forward, self.own))

    @property
    def overflow(self) -> int:
        """Bytes that do not fit, over all devices."""
        return int(np.maximum(-self.free, 0).sum())

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
            self.refresh(None)

    def _guess_added(self) -> None:
        """Each piece's share of its device's cost, by what it costs alone."""
        single = self.board.single[self.node]
        total = np.maximum(np.bincount(self.device, single, minlength=len(self.free)), 1e-12)[self.device]
        self.added = self.own[self.device] * single / total
        self.added_forward = self.forward[self.device] * single / total

    def refresh(self, devices: Sequence[int] | None) -> None:
        """Ask what the pieces of these devices add to the cost there; None: of all."""
        if devices is None:
            pieces = np.arange(len(self.node))
        else:
            pieces = np.flatnonzero(np.logical_or.reduce([self.device == d for d in devices]))
        at_once = max(1, EXACT_SHARDS // len(self.free))
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
        self.device[piece] = target

    def halve(self, piece: int, target: int) -> None:
        """Halve a piece's columns; the new half goes to a device."""
        whole = int(self.node[piece])
        half = whole + 1
        self.shift(int(self.device[piece]), whole, half)
        self.shift(target, self.board.none, half)
        self.node[piece] = half
        self.node = np.append(self.node, half)
        self.device = np.append(self.device, target)
        self.added = np.append(self.added, 0.0)
        self.added_forward = np.append(self.added_forward, 0.0)

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
        return plan_of(self.board.nodes, self.node, self.device)


def value(forward: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The makespan of plans and a little of their unevenness, (..., K) -> (...)."""
    squares = np.sqrt(np.einsum("...k,...k", own, own)) + np.sqrt(np.einsum("...k,...k", forward, forward))
    return forward.max(axis=-1) + own.max(axis=-1) + squares * (BALANCE / np.sqrt(own.shape[-1]))


def plan_of(nodes: Nodes, node: np.ndarray, device: np.ndarray) -> Plan:
    """Pieces on devices as a plan: each table is halved until its pieces are there."""
    if len(node) == nodes.task.num_tables:
        placement = np.empty(len(node), np.int64)
        placement[nodes.table[node]] = device
        return Plan(tuple(placement.tolist()))
    wanted: dict[int, list[int]] = {}
    for n, d in zip(node.tolist(), device.tolist(), strict=True):
        wanted.setdefault(n, []).append(d)
    placed = [-1] * nodes.task.num_tables
    splits: list[int] = []
    for table, first in enumerate(nodes.whole.tolist()):
        waiting, current = [table], first
        while waiting:
            for d in wanted.get(current, ()):
                placed[waiting.pop()] = d
            splits += waiting
            halves = list(range(len(placed), len(placed) + len(waiting)))
            placed += [-1] * len(halves)
            waiting, current = waiting + halves, current + 1
    return Plan(tuple(placed), tuple(splits))
