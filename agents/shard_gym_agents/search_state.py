"""A placement under search: pieces of tables on devices, with running sums of what they add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.memory import device_sums, table_bytes
from shard_gym.nodes import Nodes
from shard_gym.plan import Plan
from shard_gym.room import Rules
from shard_gym.tasks import Task
from shard_gym_agents.search_costs import Costs
from shard_gym_agents.search_rules import Standing
from shard_gym_agents.solver import require_number

EXACT_SHARDS = 2**18  # asked about at the start for what each piece adds; beyond, its share is guessed
BALANCE = 0.01  # weight of the unevenness of all devices beside the makespan


class Board:
    """What stays the same during a search: the nodes that pieces are of, what they add, and where they may go.

    Tables that must be together are one piece, the first of them; the others are no pieces.
    """

    def __init__(self, task: Task, costs: Costs, splits: bool = False) -> None:
        self.task, self.costs, self.rules = task, costs, Rules.of(task)
        self.nodes = Nodes.of(task, splits and task.splits_allowed)
        pieces = self.nodes.pieces
        self.none = len(self.nodes)  # a node of no size and no cost
        self.whole = self.nodes.whole if self.rules is None else self.nodes.whole[self.rules.leads]  # to begin with
        self.table = np.append(self.nodes.table, -1)
        self.embedding = self._merged(costs.planner.embed(pieces))
        self.size = self._merged(table_bytes(pieces))
        self.dim = self._merged(pieces.tables.columns_sent)
        self.single = costs.compute(self.embedding, 0)  # computation of each piece alone, on the first device
        self.may_split = np.append(self.nodes.may_split, False)
        half = np.append(self.single[1:], 1.0)
        self.half_share = np.where(self.may_split, half / np.maximum(self.single, 1e-12), 1.0).clip(0.0, 1.0)
        self.alike = len(set(task.speed)) == 1
        self.standing = None if self.rules is None else Standing(task, self.rules)  # of no table placed

    def start(self, device: Sequence[int] | np.ndarray, node: np.ndarray | None = None) -> State:
        """Pieces on devices, or whole tables, (N,); those that must be together go where the first of them is."""
        if node is not None:
            return State(self, node, np.array(device))
        return State(self, self.whole, np.array(device)[self.nodes.table[self.whole]])

    def plan(self, node: np.ndarray, device: np.ndarray) -> Plan:
        """Pieces on devices as a plan: splits that lead to these pieces, and a device for each."""
        if self.rules is not None:
            led = np.flatnonzero(~self.rules.leads)
            where = np.empty(len(self.nodes), np.int64)
            where[node] = device
            leader = self.nodes.whole[self.rules.leader[led]]
            node, device = np.append(node, self.nodes.whole[led]), np.append(device, where[leader])
        return plan_of(self.nodes, node, device)

    def _merged(self, values: np.ndarray) -> np.ndarray:
        """Values of nodes, those of tables together in the first one's row, and a row of zeros for no node."""
        if self.rules is not None:
            whole = self.nodes.whole
            values = values.copy()
            values[whole] = self.rules.merged(values[whole])
        return np.pad(values, ((0, 1), *((0, 0),) * (values.ndim - 1)))


class State:
    """Pieces, their devices and the running sums; `forward` and `own` are what devices cost, as in `Parts`."""

    def __init__(self, board: Board, node: np.ndarray, device: np.ndarray) -> None:
        self.board, self.node, self.device = board, node.copy(), device.astype(np.int64)
        k = board.task.num_devices
        self.sums = device_sums(board.embedding[node], self.device, k)
        used = device_sums(board.size[node][:, None].astype(np.float64), self.device, k)[:, 0]
        self.free = board.task.capacity - used.astype(np.int64)
        self.standing = None if board.standing is None else board.standing.copy()
        if self.standing is not None:
            self.standing.put(0, board.table[node], self.device)
        self.scaling_share = 1.0 if board.alike else board.costs.scaling_share(self.sums)
        self.settle()

    def copy(self) -> State:
        """Another one, to change apart."""
        other = object.__new__(State)
        other.board, other.scaling_share = self.board, self.scaling_share
        for name in ("node", "device", "sums", "free", "forward", "own", "added", "added_forward"):
            setattr(other, name, getattr(self, name).copy())
        other.standing = None if self.standing is None else self.standing.copy()
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

    @property
    def broken(self) -> int:
        """Rules that are broken: two tables on one device that must be apart, or a move too many."""
        return 0 if self.standing is None else self.standing.broken(self.board.table[self.node], self.device)

    def breaks(self, piece: np.ndarray | int, target: np.ndarray | int, other: np.ndarray | int = -1) -> np.ndarray:
        """How many more rules are broken if pieces go to a device, in exchange with others (-1: with none)."""
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
        return self.board.plan(self.node, self.device)


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
