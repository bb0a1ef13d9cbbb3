"""Placements that searches begin from: those of greedies that end within the budget, and the plan in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.simulators import Counted, FastSimulator
from shard_gym.simulators.single import MANY
from shard_gym.task.task import Task
from shard_gym_agents.search.greedy import LIMITS, best_under_limits, place
from shard_gym_agents.search.mend import mended
from shard_gym_agents.search.repair import repair
from shard_gym_agents.search.state import Board, Budget, Late, Pace, State
from shard_gym_agents.solvers.greedy import COSTS, CostGreedy, Greedy
from shard_gym_agents.solvers.halving import Ladder

FIRST = "lookup"  # of the named costs the best, mostly
TIGHT = 0.9  # share of all memory that is filled, from where greedies run into dead ends
REPAIRED = len(COSTS) + 1  # rank of the placement that is repaired where it overflows
HALVED = len(COSTS) + 2  # rank of the ladder's
MOST_KICKS = 5  # of that repair
SHARE = 0.2  # of what is left of the budget, that greedies may take once there is a plan
FEW, TABLES_A_SECOND = 2_000, 2 * 10**5  # tables that a search looks at before it begins in no time, and in a second
SHARDS_A_SECOND = 10**7  # asked about by cost-greedy in a third of the time, about


def in_haste(task: Task, planner: FastSimulator, budget: Budget) -> Plan | None:
    """The plan of the first greedy where the budget would be over before a search begins; None if there is time."""
    if budget.calls or task.constraints.base or task.num_tables <= max(FEW, TABLES_A_SECOND * budget.seconds):
        return None
    with suppress(InfeasibleTask):
        return Greedy(FIRST)(task, planner)
    return None


def best_seed(board: Board, budget: Budget, rng: np.random.Generator) -> State | None:
    """The best feasible placement of a greedy, or the plan in use; None if there is none.

    Of equals the plan in use, then those of named costs, of cost-greedy, under limits, and of halved tables. Greedies
    that ask the planner come first, where memory is tight the one that is mended where it overflows, if they end in
    time. Named costs follow while they take little of what is left, or while no plan is found.
    """
    seeds, names = _Seeds(board, budget, rng), list(COSTS)
    asking = [(len(names), _started(cost_greedy)), (REPAIRED, _started(under_limits))]
    if board.size[board.whole].sum() > TIGHT * board.task.capacity.sum():
        asking.reverse()
    if board.may_split.any():
        asking.append((HALVED, ladder))
    seeds.offer(-1, in_use(board))
    for rank, greedy in asking:
        if not seeds.asked or seeds.asked < SHARE * budget.left_seconds:
            seeds.ask(rank, greedy)
    took = 0.0
    for name in sorted(names, key=lambda name: name != FIRST):
        if seeds.best is None or took < SHARE * budget.left_seconds:
            took += seeds.offer(names.index(name), named(board, [name]))
    return seeds.best


class _Seeds:
    """The best of the placements that are offered."""

    def __init__(self, board: Board, budget: Budget, rng: np.random.Generator) -> None:
        self.board, self.budget, self.rng = board, budget, rng
        self.found: list[tuple[float, int, State]] = []
        self.asked = 0.0  # seconds that the greedies took which asked the planner and found a plan

    @property
    def best(self) -> State | None:
        """The best one so far, of equals that of the lowest rank."""
        return min(self.found, key=lambda found: found[:2])[2] if self.found else None

    def ask(self, rank: int, greedy: Callable[[Board, Budget], State]) -> None:
        """Take into account what a greedy finds that asks the planner, if it ends in time."""
        before = len(self.found)
        with suppress(InfeasibleTask, Late):
            begun = time.perf_counter()
            self.take(rank, greedy(self.board, self.budget))
            self.asked += (time.perf_counter() - begun) * (len(self.found) > before)

    def offer(self, rank: int, placements: Iterable[np.ndarray]) -> float:
        """Take placements of whole tables into account; the seconds that it took to find them."""
        begun = time.perf_counter()
        for placement in placements:
            self.take(rank, self.board.start(placement))
        return time.perf_counter() - begun

    def take(self, rank: int, state: State) -> None:
        """Take a placement into account, if it keeps to the task."""
        if state.amiss and rank == REPAIRED:
            state = self._repaired(state)
        if not state.amiss:
            self.found.append((state.makespan, rank, state))

    def _repaired(self, state: State) -> State:
        """The placement with what overflows elsewhere, if that may be the best plan so far."""
        if any(makespan <= state.makespan for makespan, *_ in self.found):
            return state
        few = copy(self.budget)
        few.grace = 0.0 if self.found else few.grace
        return repair(state.copy(), self.rng, few, MOST_KICKS)


def starts(board: Board, budget: Budget) -> Iterator[np.ndarray]:
    """Placements to begin from, (N,), the most promising first; they may overflow, or break rules."""
    first = list[bool]()
    for greedy in (cost_greedy, under_limits):
        with suppress(InfeasibleTask, Late):
            placement = greedy(board, budget)
            first.append(True)
            yield placement
    if not first:
        yield from named(board, ["lookup"])
    with suppress(Late):
        yield largest_first(board, Pace(budget, len(board.whole)) if first else None)
    yield from in_use(board)


def cost_greedy(board: Board, budget: Budget) -> np.ndarray:
    """The placement, (N,), of cost-greedy, where it leaves most of the budget to others."""
    task, costs = board.task, board.costs
    if not _affordable(board, budget):
        raise Late
    planner = _Hurried(costs.planner, Pace(budget, task.num_tables))
    return np.array(CostGreedy()(task, planner).device)


def ladder(board: Board, budget: Budget) -> State:
    """The placement of pieces that the ladder finds, where it leaves most of the budget to others."""
    task, costs, greedy = board.task, board.costs, Ladder()
    if not _affordable(board, budget):
        raise Late
    planner = _Hurried(costs.planner, Pace(budget, (greedy.rungs + 1) * task.num_tables))
    node, plan = greedy.best(task, planner)
    leads = board.rules.leads[board.table[node]]  # tables that must be together are one piece of the board
    return State(board, node[leads], np.array(plan.device)[leads])


def under_limits(board: Board, budget: Budget) -> np.ndarray:
    """The best placement, (N,), of a greedy under limits of a device's columns; may overflow."""
    limits = LIMITS[-1:] if board.costs.kernel else LIMITS[::-1]  # where none is feasible the one without a limit
    pace = Pace(budget, len(limits) * len(board.whole))
    found = best_under_limits(board, [board.whole], limits, pace=pace)[0]
    return _by_table(board, found.nodes, found.device)


def largest_first(board: Board, pace: Pace | None) -> np.ndarray:
    """The placement, (N,), of a greedy that takes the largest tables first; may overflow."""
    nodes = board.whole[np.argsort(-board.size[board.whole], kind="stable")]
    return _by_table(board, nodes, place(board, nodes[None], pace=pace).device[0])


def named(board: Board, costs: Iterable[str] = COSTS) -> Iterator[np.ndarray]:
    """Placements that the greedies of named costs find, (N,)."""
    for cost in costs:
        with suppress(InfeasibleTask):
            yield np.array(Greedy(cost)(board.task, board.costs.planner).device)


def in_use(board: Board) -> Iterator[np.ndarray]:
    """The plan in use, (N,), if it keeps to the task.

    Where moves are limited, with those that rules demand made, and the best of its least repairs where it takes some.
    """
    task, rules = board.task, board.rules
    base = task.constraints.base
    if rules.away is not None:
        home = rules.home[:-1]
        yield home
        if violations(task, Plan(tuple(home.tolist()))):
            yield from mended(board, home)[:1]
    elif base and not violations(task, Plan(base)):
        yield np.array(base)


class _Hurried(Counted):
    """The planner of a greedy that asks once for each piece, at a pace."""

    def __init__(self, simulator: FastSimulator, pace: Pace) -> None:
        super().__init__(simulator)
        self.pace = pace

    def count(self, plans: int) -> None:
        super().count(plans)
        self.pace.step()


def _affordable(board: Board, budget: Budget) -> bool:
    """True if cost-greedy leaves most of the budget to others: it asks about every table on every device."""
    n, k = board.task.num_tables, board.task.num_devices
    each = 1 if board.costs.kernel else k if budget.calls or k < MANY else 2
    return n * k * each <= max(10**6, SHARDS_A_SECOND * budget.worth_seconds)


def _started(greedy: Callable[[Board, Budget], np.ndarray]) -> Callable[[Board, Budget], State]:
    return lambda board, budget: board.start(greedy(board, budget))


def _by_table(board: Board, nodes: np.ndarray, device: np.ndarray) -> np.ndarray:
    placement = np.empty(board.task.num_tables, np.int64)
    placement[board.nodes.table[nodes]] = device
    return placement[board.rules.leader[:-1]]
