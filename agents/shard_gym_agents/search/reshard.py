"""Changes of the plan in use, made only where faster steps repay the time to move tables."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_sums, piece_bytes
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.moves import aligned, moved_bytes, sent_received
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.task import Task
from shard_gym_agents.search.local_search import IDLE, Auto
from shard_gym_agents.search.mend import mended
from shard_gym_agents.search.repair import repair
from shard_gym_agents.search.reshard_kinds import Aim, Resharding
from shard_gym_agents.search.state import Board, Budget, Costs
from shard_gym_agents.solvers.solver import Progress, require_fast, require_number, task_rng

GB_S = 1e9  # bytes a second
BASE_SHARE, FRESH_SHARE = 0.25, 0.25  # of the budget: to improve the plan in use, and to make one afresh
MENDED_SHARE = 0.6  # of the budget, by the end of which its repair is improved, where it needs one
AFRESH = 0.3  # share of the descents that begin where the search did, not at the best placement
KICKS = (1, 5)  # changes at random before a descent: from, below
CHEAPEST = 2.0  # orders of magnitude that moving bytes is made cheaper by, for a while, at most
EVEN = 0.01  # weight of what all devices cost and move, beside the one that costs or moves most
SHARDS = 2**12  # asked about in one round, at most ...
FEWEST = 32  # ... but so many changes at least
PIECES = 256  # looked at on the slowest devices, and of those away; four times as many to swap with
TARGETS = 32  # devices that may take something from the slowest one, the cheapest


@dataclass(frozen=True)
class Reshard:
    """Change the plan in use, `constraints.base`, where faster steps repay the time to move tables.

    Minimises, in ms: horizon x makespan + time to move. The time to move is the bytes that the busiest device sends or
    receives, over its bandwidth. The search starts from the plan in use, or from its smallest repairs if it no longer
    fits the task, and from a fresh plan of `auto` with devices renamed so that most bytes stay. It moves and swaps
    tables, at first with a lower price of bytes, then at the full price. It keeps the plan in use (or the best repair)
    if the gain is within `sure` standard deviations of the planner. Without a plan in use the plan is auto's.

    `in_use` may be a plan of any kinds of sharding; `search.reshard_kinds` plans such tasks.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 1.0  # seconds
    calls: int = 0  # plans asked of the planner, instead of seconds
    horizon: float = 10_000.0  # steps that the new plan will be used for
    bandwidth_gb_s: float = 10.0  # 1e9 bytes a second that a device sends, and receives, while tables move
    sure: float = 1.0
    in_use: Plan | None = None  # in place of `constraints.base`
    progress: Progress | None = field(default=None, repr=False)  # told of makespans, as in local search

    def __post_init__(self) -> None:
        if not (0 <= self.horizon < math.inf and self.bandwidth_gb_s > 0 and self.sure >= 0):
            found = f"{self.horizon}, {self.bandwidth_gb_s}, {self.sure}"
            raise InvalidTask(f"reshard needs horizon >= 0 steps, bandwidth_gb_s > 0 and sure >= 0, got {found}")

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        if self.in_use is not None and self.in_use.whole_tables:
            task = replace(task, constraints=replace(task.constraints, base=self.in_use.device))
        elif self.in_use is not None:
            return self._of_kinds(task, require_fast(planner), self.in_use)
        if not task.constraints.base:
            return Auto(self.seed, self.budget, self.calls, sure=self.sure, progress=self.progress)(task, planner)
        if beyond_columns(task):
            return self._of_kinds(task, require_fast(planner), Plan(task.constraints.base))
        search = _Search(self, task, require_fast(planner))
        try:
            search.run()
        except KeyboardInterrupt:
            if self.progress is None or search.best is None:
                raise
        return search.chosen()

    def _of_kinds(self, task: Task, planner: FastSimulator, base: Plan) -> Plan:
        aim = Aim(self.horizon, 1e3 / (self.bandwidth_gb_s * GB_S))
        search = Resharding(task, planner, base, aim, Budget(self.budget, self.calls), self.seed)
        try:
            search.run(self.progress)
        except KeyboardInterrupt:
            if self.progress is None or not search.candidates:
                raise
        return search.chosen(self.sure)


class _Search:
    """State of one call: the candidates so far, and the best placement."""

    def __init__(self, settings: Reshard, task: Task, planner: FastSimulator) -> None:
        self.settings, self.task, self.planner = settings, task, planner
        self.costs, self.rng = Costs(task, planner), task_rng(settings.seed, task)
        self.budget = Budget(settings.budget, settings.calls)
        self.prices = Prices(settings.horizon, 1e3 / (settings.bandwidth_gb_s * GB_S))
        self.base = Plan(task.constraints.base)
        self.stays = self.base  # the plan that moves no more than it has to
        self.candidates = [self.base]
        self.starts: list[Placement] = []
        self.best: Placement | None = None
        self.end = 1.0 - FRESH_SHARE if settings.calls else 1.0  # of the budget; auto counts its own calls
        self.stopped = False

    def run(self) -> None:
        """Improve the plan in use, then one made afresh, then the better of them until the budget is spent."""
        fits = not violations(self.task, self.base)
        if not fits and (repairs := self._repairs()):
            self.candidates += repairs
            self.stays = min(repairs, key=self._total_ms)
        self.improve(self.stays, BASE_SHARE if fits else MENDED_SHARE)
        if self.stopped:
            return
        try:
            fresh = self._fresh()
        except InfeasibleTask:
            if self.best is None:
                raise
            fresh = self.stays
        wires = self.planner.uncounted.all_to_all(self.task)
        renamed = aligned(self.task, self.base, fresh, wires and wires[0])
        self.candidates += [fresh, renamed]
        self.improve(renamed, 1.0)
        idle = 0
        while self.best is not None and idle < IDLE and not self.over(1.0):
            idle = 0 if self._again(self.best) else idle + 1

    def improve(self, plan: Plan, share: float) -> None:
        """Descend from a plan, if it may be used at all."""
        if violations(self.task, plan):
            return
        start = Placement(Pieces(self.task, plan, self.costs), plan)
        self.keep(start)
        self.starts.append(start)
        for cheaper in (1.0, 0.1, 0.01):
            state = start.copy()
            self.descend(state, cheaper, share)
            self.descend(state, 1.0, share)

    def _repairs(self) -> list[Plan]:
        """Plans that move little, so that the one in use keeps to the task again."""
        board = Board(self.task, self.costs, splits=True)
        in_use, home = np.array(self.task.constraints.base), board.rules.home[:-1]
        start = np.where(home < 0, in_use, home)  # pins, and the tables that must be together
        ms_per_byte = self.prices.ms_per_byte / max(self.settings.horizon, 1e-9)
        found = [Plan(tuple(device.tolist())) for device in mended(board, start, ms_per_byte)]
        if not found:
            state = repair(board.start(start), self.rng, self.budget)
            found = [] if state.amiss else [state.plan()]
        return found

    def _fresh(self) -> Plan:
        """Plan with auto, as if nothing were in use unless moves are counted."""
        c = self.task.constraints
        task = self.task if c.max_moves is not None else replace(self.task, constraints=replace(c, base=()))
        s = self.settings
        calls = max(1, int(s.calls * FRESH_SHARE)) if s.calls else 0
        return Auto(s.seed, s.budget * FRESH_SHARE, calls, sure=s.sure)(task, self.planner)

    def _again(self, best: Placement) -> bool:
        """Shake the best placement or a start and descend, bytes made cheaper at first; False if nothing could move."""
        asked = self.costs.planner.calls
        afresh = self.rng.random() < AFRESH
        state = (self.starts[int(self.rng.integers(len(self.starts)))] if afresh else best).copy()
        changes = [state.anything(self.rng) for _ in range(int(self.rng.integers(*KICKS)))]
        for change in changes:
            if change is not None and state.may(change):
                state.make(change)
        self.descend(state, 10 ** -self.rng.uniform(0, CHEAPEST), 1.0)
        self.descend(state, 1.0, 1.0)
        return self.costs.planner.calls > asked and any(change is not None for change in changes)

    def descend(self, state: Placement, cheaper: float, share: float) -> None:
        """Make the change that helps most until none does; `cheaper` is a factor on what bytes cost."""
        prices = replace(self.prices, ms_per_byte=self.prices.ms_per_byte * cheaper)
        while not self.over(share) and state.improve(prices, self.rng):
            self.keep(state)

    def keep(self, state: Placement) -> None:
        """Remember a placement that is better than all before."""
        if self.best is None or state.worth(self.prices) < self.best.worth(self.prices) * (1 - 1e-12):
            self.best = state.copy()
            if self.settings.progress is not None:
                self.stopped |= bool(self.settings.progress(state.makespan, self.budget.spent_seconds))

    def over(self, share: float) -> bool:
        """True when the search should stop."""
        return self.stopped or self.budget.over(self.costs, min(share, self.end))

    def chosen(self) -> Plan:
        """The plan that costs least of those that break nothing; the one that stays unless the gain is sure."""
        found = [*self.candidates, *([] if self.best is None else [self.best.plan()])]
        usable = [plan for plan in found if not violations(self.task, plan)] or found
        return min(usable, key=self._total_ms)

    def _total_ms(self, plan: Plan) -> float:
        sums, doubt = self._sums(plan), 0.0
        if plan != self.stays:
            doubt = self.settings.sure * self.costs.doubt(sums, self._sums(self.stays))
        steps_ms = self.prices.horizon * (float(self.costs.plans(sums).makespan) + doubt)
        return steps_ms + float(sent_received(self.task, self.base, plan).max()) * self.prices.ms_per_byte

    def _sums(self, plan: Plan) -> np.ndarray:
        embedding = self.costs.planner.embed(self.task.split(plan.splits))
        return device_sums(embedding, np.array(plan.device), self.task.num_devices)


@dataclass(frozen=True)
class Prices:
    """The cost of a millisecond of makespan and of a byte on the busiest device."""

    horizon: float
    ms_per_byte: float

    def value(self, forward: np.ndarray, own: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """The cost of placements, and a little of what their other devices cost and move, (...)."""
        makespan = forward.max(axis=-1) + own.max(axis=-1)
        uneven = np.sqrt((own * own).mean(axis=-1)) + np.sqrt((forward * forward).mean(axis=-1))
        busiest, mean = traffic.max(axis=(-2, -1)), traffic.mean(axis=(-2, -1))
        return self.horizon * (makespan + EVEN * uneven) + self.ms_per_byte * (busiest + EVEN * mean)


class Pieces:
    """The pieces of a plan's tables that can move, those of tables that must be together as one."""

    def __init__(self, task: Task, plan: Plan, costs: Costs) -> None:
        self.task, self.costs, self.splits = task, costs, plan.splits
        tables, c = task.split(plan.splits), task.constraints
        source, _, dim = task.pieces(plan.splits)
        self.table = np.array(source)
        self.of = self._joined()
        # the last of each array stands for no piece
        self.embedding = self._summed(costs.planner.embed(tables))
        self.size = self._summed(piece_bytes(task, self.table, np.array(dim)))
        self.load = self._summed(moved_bytes(tables))  # bytes to move
        self.home = np.zeros(len(self.size), np.int64)
        self.home[self.of[::-1]] = np.array(c.base)[self.table[::-1]]  # of the first table, where several are one
        self.free_to_move = np.ones(len(self.size), bool)
        self.free_to_move[self.of[np.isin(self.table, [table for table, _ in c.pin])]] = False
        self.apart = [[np.flatnonzero(self.table == table) for table in group] for group in c.apart]

    def _joined(self) -> np.ndarray:
        """The number of the movable piece that each piece of the plan belongs to, (P,)."""
        n, leader = self.task.num_tables, Rules.of(self.task).leader[:-1]
        grouped = np.bincount(leader)[leader] > 1
        alone = n + np.arange(len(self.table))
        return np.unique(np.where(grouped[self.table], leader[self.table], alone), return_inverse=True)[1]

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """Values of a plan's pieces, (P, ...), added up over each movable one."""
        summed = np.zeros((int(self.of.max()) + 2, *values.shape[1:]), values.dtype)
        np.add.at(summed, self.of, values)
        return summed

    def keeps(self, device: np.ndarray) -> bool:
        """True if pieces on these devices stay apart that must, and no more tables move than may."""
        where, c = device[self.of], self.task.constraints
        for group in self.apart:
            placed = [set(where[pieces].tolist()) for pieces in group]
            if sum(map(len, placed)) != len(set().union(*placed)):
                return False
        moved = self.table[where != np.array(c.base)[self.table]]
        return c.max_moves is None or len(np.unique(moved)) <= c.max_moves


class Placement:
    """Pieces on devices with running sums; `traffic` (2, K) is the bytes that each device sends, and receives.

    A change is a row of three: a piece, the device it goes to, and the piece that goes where it came from, or -1.
    """

    def __init__(self, pieces: Pieces, plan: Plan) -> None:
        self.pieces, k = pieces, pieces.task.num_devices
        self.device = np.zeros(len(pieces.size) - 1, np.int64)
        self.device[pieces.of] = plan.device
        self.sums = device_sums(pieces.embedding[:-1], self.device, k)
        used = np.bincount(self.device, pieces.size[:-1], minlength=k)
        self.free = pieces.task.capacity - used.astype(np.int64)
        self.traffic = np.zeros((2, k), np.int64)
        away = np.flatnonzero(self.device != pieces.home[:-1])
        np.add.at(self.traffic[0], pieces.home[away], pieces.load[away])
        np.add.at(self.traffic[1], self.device[away], pieces.load[away])
        self._ask()

    def copy(self) -> Placement:
        """Copy the placement, to change it apart from this one."""
        other = copy(self)
        for name in ("device", "sums", "free", "traffic", "forward", "own"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def _ask(self) -> None:
        parts = self.pieces.costs.plans(self.sums)
        self.forward, self.own = parts.forward, parts.own
        require_number(self.makespan, self.pieces.costs.planner)

    @property
    def makespan(self) -> float:
        """The ms that a step takes."""
        return float(self.forward.max() + self.own.max())

    def worth(self, prices: Prices) -> float:
        """The cost of its steps, and of what has to move; ms."""
        return prices.horizon * self.makespan + prices.ms_per_byte * float(self.traffic.max())

    def plan(self) -> Plan:
        """The placement as a plan."""
        return Plan(tuple(self.device[self.pieces.of].tolist()), self.pieces.splits)

    def improve(self, prices: Prices, rng: np.random.Generator) -> bool:
        """Make the change that helps most, of the slowest devices and of what has moved; False if none does."""
        changes, now = self._changes(rng), float(prices.value(self.forward, self.own, self.traffic))
        sums, traffic = self._outcomes(changes)
        parts = self.pieces.costs.plans(sums)
        values = prices.value(parts.forward, parts.own, traffic)
        for i in np.argsort(values):
            if not values[i] < now - abs(now) * 1e-12:
                return False
            if self.may(changes[i]):
                self.make(changes[i])
                return True
        return False

    def anything(self, rng: np.random.Generator) -> np.ndarray | None:
        """A random move, or a swap, that memory allows; None where none was found."""
        n, k = len(self.device), len(self.free)
        piece = rng.integers(n, size=FEWEST)
        other = np.where(rng.random(FEWEST) < 0.5, -1, rng.integers(n, size=FEWEST))
        target = np.where(other < 0, rng.integers(k, size=FEWEST), self.device[other])
        found = self._fitting(_rows(piece, target, other))
        return found[0] if len(found) else None

    def may(self, change: np.ndarray) -> bool:
        """True if constraints are kept after a change, and its pieces are where they were when it was thought of."""
        p, (piece, target, other) = self.pieces, change.tolist()
        home = self.device[piece]
        if home == target or (other >= 0 and self.device[other] != target):
            return False
        after = self.device.copy()
        after[piece] = target
        if other >= 0:
            after[other] = home
        grows = p.size[piece] - p.size[other]
        return bool(self.free[target] >= grows >= -self.free[home]) and p.keeps(after)

    def make(self, change: np.ndarray) -> None:
        """Change the placement, and ask what that costs."""
        piece, target, other = change.tolist()
        sums, traffic = self._outcomes(change[None])
        grows, home = self.pieces.size[piece] - self.pieces.size[other], int(self.device[piece])
        self.free[home] += grows
        self.free[target] -= grows
        self.sums, self.traffic = sums[0], traffic[0]
        self.device[piece] = target
        if other >= 0:
            self.device[other] = home
        self._ask()

    def _changes(self, rng: np.random.Generator) -> np.ndarray:
        """Moves and swaps of the slowest devices' pieces, and ways home for those that are away, (C, 3)."""
        home, movable, load = self.pieces.home[:-1], self.pieces.free_to_move[:-1], self.own + self.forward
        slowest = np.unique([self.own.argmax(), self.forward.argmax()])
        mine = _at_most(PIECES, np.isin(self.device, slowest) & movable, rng)
        away = _at_most(PIECES, (self.device != home) & movable, rng)
        targets = np.argsort(load, kind="stable")[:TARGETS]
        others = _at_most(4 * PIECES, np.isin(self.device, targets) & movable, rng)
        back, there = np.nonzero(home[away][:, None] == self.device)
        moves = [_rows(mine[:, None], targets), _rows(away, home[away])]
        swaps = [_rows(mine[:, None], self.device[others], others), _rows(away[back], home[away[back]], there)]
        found = self._fitting(np.concatenate(moves + swaps))
        most = max(FEWEST, SHARDS // len(self.free))
        return found if len(found) <= most else found[rng.choice(len(found), most, replace=False)]

    def _fitting(self, changes: np.ndarray) -> np.ndarray:
        """The changes that memory and pins allow."""
        p, (piece, target, other) = self.pieces, changes.T
        home, grows = self.device[piece], p.size[piece] - p.size[other]
        fits = (self.free[target] >= grows) & (self.free[home] >= -grows) & (home != target)
        return changes[fits & p.free_to_move[piece] & p.free_to_move[other]]

    def _outcomes(self, changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Running sums, (C, K, H), and traffic, (C, 2, K), after each change."""
        p, each, (piece, target, other) = self.pieces, np.arange(len(changes)), changes.T
        home, gain = self.device[piece], p.embedding[piece] - p.embedding[other]
        sums, traffic = (np.repeat(a[None], len(changes), axis=0) for a in (self.sums, self.traffic))
        sums[each, home] -= gain
        sums[each, target] += gain
        for goes, source, there in ((piece, home, target), (other, target, home)):
            for device, sign in ((source, -1), (there, 1)):
                moved = sign * p.load[goes] * (device != p.home[goes])
                traffic[each, 0, p.home[goes]] += moved
                traffic[each, 1, device] += moved
        return sums, traffic


def _rows(piece: np.ndarray, target: np.ndarray, other: np.ndarray | int = -1) -> np.ndarray:
    """Changes, (C, 3), of pieces, devices and other pieces; broadcast."""
    return np.stack(np.broadcast_arrays(piece, target, other), axis=-1).reshape(-1, 3)


def _at_most(count: int, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices where a mask is true; so many of these at random, where there are more."""
    found = np.flatnonzero(mask)
    return found if len(found) <= count else rng.choice(found, count, replace=False)
