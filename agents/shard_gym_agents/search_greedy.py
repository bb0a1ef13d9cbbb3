"""Greedy placements of many variants of a task at once: which pieces, in which order, how many columns a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.random_plans import no_room
from shard_gym_agents.greedy import COSTS, CostGreedy, Greedy
from shard_gym_agents.search_costs import Costs
from shard_gym_agents.search_state import Board
from shard_gym_agents.solver import require_number

LIMITS = (1.02, 1.05, 1.1, 1.2, 1.35, np.inf)
SHARDS_A_SECOND = 10**7  # asked about by cost-greedy in a third of the time, about


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the pieces of each variant went, and what came of it."""

    nodes: np.ndarray  # (V, P), in the order they were placed
    device: np.ndarray  # (V, P)
    sums: np.ndarray  # (V, K, H)
    feasible: np.ndarray  # (V,): every device has room for its pieces, and no more columns than allowed

    def makespans(self, costs: Costs) -> np.ndarray:
        """What the variants are worth, infinity where they are infeasible, (V,)."""
        worth = costs.plans(self.sums).makespan
        require_number(float(worth.min()), costs.planner)
        return np.where(self.feasible, worth, np.inf)


def place(board: Board, nodes: np.ndarray, limits: np.ndarray | None = None) -> Placed:
    """Each variant's pieces in turn, (V, P) nodes, each to the device that computes least so far and has room.

    `limits` (V,) is the most columns that a device may hold. Where no device qualifies, a piece goes where most bytes
    are free.
    """
    count, k = len(nodes), board.task.num_devices
    sums = np.zeros((count, k, board.embedding.shape[1]))
    cost, dims = np.zeros((count, k)), np.zeros((count, k))
    free = np.repeat(board.task.capacity[None], count, axis=0)
    device, each = np.empty(nodes.shape, np.int64), np.arange(count)
    feasible = np.ones(count, bool)
    for i, node in enumerate(nodes.T):
        legal = free >= board.size[node][:, None]
        if limits is not None:
            legal &= dims + board.dim[node][:, None] <= limits[:, None]
        chosen = np.where(legal, cost, np.inf).argmin(axis=1)
        nowhere = ~legal[each, chosen]
        if nowhere.any():
            chosen = np.where(nowhere, free.argmax(axis=1), chosen)
            feasible &= ~nowhere
        device[:, i] = chosen
        sums[each, chosen] += board.embedding[node]
        free[each, chosen] -= board.size[node]
        dims[each, chosen] += board.dim[node]
        cost[each, chosen] = board.costs.compute(sums[each, chosen], chosen)
    return Placed(nodes, device, sums, feasible)


def by_cost(board: Board, nodes: np.ndarray) -> np.ndarray:
    """Pieces in descending order of what they compute alone, (..., P) nodes."""
    return np.take_along_axis(nodes, np.argsort(-board.single[nodes], axis=-1, kind="stable"), axis=-1)


def what_misses(board: Board, nodes: np.ndarray, device: np.ndarray) -> InfeasibleTask:
    """The error of a greedy that ran into a dead end: the first piece that found no room."""
    free = board.task.capacity.copy()
    for node, d in zip(nodes.tolist(), device.tolist(), strict=True):
        if free[d] < board.size[node]:
            return no_room(board.nodes.pieces, node, free)
        free[d] -= board.size[node]
    raise AssertionError("this placement fits")


def starts(board: Board, seconds: float) -> Iterator[np.ndarray]:
    """Placements to begin from, (N,), the most promising first; they may overflow."""
    task, costs = board.task, board.costs
    if _affordable(costs, seconds):
        with suppress(InfeasibleTask):
            yield np.array(CostGreedy()(task, costs.planner).device)
    yield under_limits(board)
    largest_first = board.nodes.whole[np.argsort(-board.size[board.nodes.whole], kind="stable")]
    yield _by_table(board, largest_first, place(board, largest_first[None]).device[0])


def under_limits(board: Board, limits: tuple[float, ...] = LIMITS) -> np.ndarray:
    """The best placement, (N,), of a greedy under limits of a device's columns, in units of the mean; may overflow."""
    limits = limits[-1:] if board.costs.kernel else limits
    mean = board.dim[board.nodes.whole].sum() / board.task.num_devices
    nodes = np.repeat(by_cost(board, board.nodes.whole)[None], len(limits), axis=0)
    placed = place(board, nodes, np.array(limits) * mean)
    best = int(placed.makespans(board.costs)[::-1].argmin())  # where none is feasible the one without a limit
    return _by_table(board, nodes[0], placed.device[::-1][best])


def named(board: Board) -> Iterator[np.ndarray]:
    """What the greedies of named costs find, (N,), where they find a plan."""
    for cost in COSTS:
        with suppress(InfeasibleTask):
            yield np.array(Greedy(cost)(board.task, board.costs.planner).device)


def _affordable(costs: Costs, seconds: float) -> bool:
    """Whether cost-greedy leaves most of the time to others: it asks about every table on every device."""
    n, k = costs.task.num_tables, costs.task.num_devices
    return n * k * (1 if costs.kernel else k) <= max(10**6, SHARDS_A_SECOND * seconds)


def _by_table(board: Board, nodes: np.ndarray, device: np.ndarray) -> np.ndarray:
    placement = np.empty(len(nodes), np.int64)
    placement[board.nodes.table[nodes]] = device
    return placement
