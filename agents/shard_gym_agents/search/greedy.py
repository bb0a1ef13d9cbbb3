"""Greedy placements of many variants of a task at once: which pieces, in which order, how many columns a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import device_bytes
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import Placing
from shard_gym.plan.plan import Plan, check
from shard_gym.plan.violations import broken_constraints
from shard_gym.task.task import Task
from shard_gym_agents.search.rounds import MANY, Rounds
from shard_gym_agents.search.state import Board, Budget, Costs, Pace
from shard_gym_agents.solvers.solver import require_number

LIMITS = (1.02, 1.05, 1.1, 1.2, 1.35, np.inf)
AT_ONCE = 2**12  # shards of variants that are placed together, at most, between two looks at the budget


@dataclass(frozen=True, eq=False)
class Placed:
    """Devices of the pieces of each variant, and what came of it."""

    nodes: np.ndarray  # (V, P), in the order they were placed
    device: np.ndarray  # (V, P)
    sums: np.ndarray  # (V, K, H)
    feasible: np.ndarray  # (V,): every device has room for its pieces, no more columns than allowed, and rules are kept

    def makespans(self, costs: Costs) -> np.ndarray:
        """Makespans of the variants, infinity where they are infeasible, (V,)."""
        worth = costs.plans(self.sums).makespan
        require_number(float(worth.min()), costs.planner)
        return np.where(self.feasible, worth, np.inf)


@dataclass(frozen=True, eq=False)
class Found:
    """Pieces and their devices, and what the placement is worth: infinity if it is infeasible."""

    makespan: float
    nodes: np.ndarray  # (P,)
    device: np.ndarray  # (P,)


def place(board: Board, nodes: np.ndarray, limits: np.ndarray | None = None, pace: Pace | None = None) -> Placed:
    """Each variant's pieces in turn, (V, P) nodes, each to the device that computes least so far and has room.

    `limits` (V,) is the most columns that a device may hold. Where no device qualifies, a piece goes where most bytes
    are free. `pace` is told of the pieces that are placed.
    """
    count, k = len(nodes), board.task.num_devices
    if k >= MANY and not board.rules.binding:
        return _place_in_rounds(board, nodes, np.full(count, np.inf) if limits is None else limits, pace)
    table = np.append(np.where(board.nodes.level == 0, board.nodes.table, -1), -1)
    options = Options.of_pieces(board.task, board.size, table, board.embedding, board.rules)
    placing = Placing(options, count, track=True)
    cost, dims, sums = np.zeros((count, k)), np.zeros((count, k)), placing.sums
    device, each = np.empty(nodes.shape, np.int64), np.arange(count)
    feasible = np.ones(count, bool)
    for i, node in enumerate(nodes.T):
        legal = placing.legal(node)
        if limits is not None:
            legal &= dims + board.dim[node][:, None] <= limits[:, None]
        chosen = np.where(legal, cost, np.inf).argmin(axis=1)
        nowhere = ~legal[each, chosen]
        if nowhere.any():
            chosen = np.where(nowhere, placing.roomiest(node), chosen)
            feasible &= ~nowhere
        device[:, i] = chosen
        placing.place(node, chosen)
        dims[each, chosen] += board.dim[node]
        cost[each, chosen] = board.costs.compute(sums[each, chosen], chosen)
        if pace is not None:
            pace.step(count)
    return Placed(nodes, device, sums, feasible)


def _place_in_rounds(board: Board, nodes: np.ndarray, limits: np.ndarray, pace: Pace | None) -> Placed:
    """The same of one variant after another, many pieces at once; what stands for no piece is left out."""
    device = np.zeros(nodes.shape, np.int64)
    sums = np.zeros((len(nodes), board.task.num_devices, board.embedding.shape[1]))
    feasible = np.ones(len(nodes), bool)
    for i, limit in enumerate(limits.tolist()):
        rounds, real = Rounds(board, sums[i], limit), nodes[i] != board.none
        device[i, real], feasible[i] = rounds.deal(nodes[i, real], pace), rounds.feasible
    return Placed(nodes, device, sums, feasible)


def best_under_limits(
    board: Board,
    pieces: list[np.ndarray],
    limits: Sequence[float],
    budget: Budget | None = None,
    pace: Pace | None = None,
) -> list[Found]:
    """The best placement of each list of pieces by greedies under limits of a device's columns, in units of the mean.

    Costliest pieces first. Where no limit leads to a plan it is the first one's placement, which is worth infinity.
    Lists that the budget leaves no time for are left out; `pace` is told of all that are placed.
    """
    found: list[Found] = []
    at_once = max(1, AT_ONCE // (len(limits) * board.task.num_devices))
    for start in range(0, len(pieces), at_once):
        if start and budget is not None and budget.over(board.costs):
            break
        found += _best_of(board, pieces[start : start + at_once], np.array(limits), pace)
    return found


def _best_of(board: Board, pieces: list[np.ndarray], limits: np.ndarray, pace: Pace | None) -> list[Found]:
    most = max(map(len, pieces))
    padded = np.stack([np.pad(nodes, (0, most - len(nodes)), constant_values=board.none) for nodes in pieces])
    columns = limits * (board.dim[board.whole].sum() / board.task.num_devices)
    nodes = by_cost(board, np.repeat(padded, len(limits), axis=0))
    placed = place(board, nodes, np.tile(columns, len(pieces)), pace)
    makespans = placed.makespans(board.costs).reshape(len(pieces), len(limits))
    best = makespans.argmin(axis=1) + len(limits) * np.arange(len(pieces))
    real = [placed.nodes[i] != board.none for i in best]
    return [
        Found(float(makespans.ravel()[i]), placed.nodes[i][kept], placed.device[i][kept])
        for i, kept in zip(best, real, strict=True)
    ]


def by_cost(board: Board, nodes: np.ndarray) -> np.ndarray:
    """Pieces in descending order of what they compute alone, (..., P) nodes."""
    return np.take_along_axis(nodes, np.argsort(-board.single[nodes], axis=-1, kind="stable"), axis=-1)


def no_plan(task: Task, nearest: Plan) -> InfeasibleTask:
    """The error of a search without a plan: a proof that there is none, or what its nearest one lacks."""
    if proof := disproof(task):
        return InfeasibleTask(proof)
    tables = check(task, nearest)
    missing = device_bytes(tables, np.array(nearest.device)) - task.capacity
    full = [f"device {d} has {missing[d]:,} bytes too few" for d in np.flatnonzero(missing > 0)]
    why = "; ".join(full + broken_constraints(task, nearest))
    return InfeasibleTask(f"found no plan, which does not prove that there is none; in the nearest one {why}")
