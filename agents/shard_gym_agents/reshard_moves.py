"""A plan on its way from the one in use: what each device costs, and what has moved so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.memory import device_sums, table_bytes
from shard_gym.moves import moved_bytes
from shard_gym.plan import Plan
from shard_gym.room import Rules
from shard_gym.tasks import Task
from shard_gym_agents.search_costs import Costs
from shard_gym_agents.solver import require_number

EVEN = 0.01  # weight of what all devices cost and move, beside the one that costs or moves most
SHARDS = 2**12  # asked about in one round, at most ...
FEWEST = 32  # ... but so many changes at least
PIECES = 256  # looked at on the slowest devices, and of those away; four times as many to swap with
TARGETS = 32  # devices that may take something from the slowest one, the cheapest


@dataclass(frozen=True)
class Prices:
    """What a millisecond of makespan and a byte on the busiest device cost."""

    horizon: float
    ms_per_byte: float


@dataclass(frozen=True)
class Change:
    """A piece goes to a device; `other`, if not -1, goes where that came from."""

    piece: int
    target: int
    other: int = -1


@dataclass(frozen=True, eq=False)
class _Changes:
    """Several, (C,)."""

    piece: np.ndarray
    target: np.ndarray
    other: np.ndarray

    def __len__(self) -> int:
        return len(self.piece)

    def take(self, index: np.ndarray) -> _Changes:
        return _Changes(self.piece[index], self.target[index], self.other[index])

    def at(self, i: int) -> Change:
        return Change(int(self.piece[i]), int(self.target[i]), int(self.other[i]))


class Pieces:
    """What can move: the pieces of a plan's tables, those of tables that must be together as one."""

    def __init__(self, task: Task, plan: Plan, costs: Costs) -> None:
        self.task, self.costs, self.splits = task, costs, plan.splits
        tables, c = task.split(plan.splits), task.constraints
        source = list(range(task.num_tables))
        for i in plan.splits:
            source.append(source[i])
        self.table = np.array(source)
        self.of = self._joined()
        count = int(self.of.max()) + 1
        embedding = costs.planner.embed(tables)
        self.embedding = np.zeros((count + 1, embedding.shape[1]))  # the last stands for no piece
        np.add.at(self.embedding, self.of, embedding)
        self.size = np.zeros(count + 1, np.int64)
        np.add.at(self.size, self.of, table_bytes(tables))
        self.load = np.zeros(count + 1, np.int64)  # bytes to move
        np.add.at(self.load, self.of, moved_bytes(tables))
        self.home = np.zeros(count + 1, np.int64)
        self.home[self.of[::-1]] = np.array(c.base)[self.table[::-1]]  # of the first table, where several are one
        self.free_to_move = np.ones(count, bool)
        self.free_to_move[self.of[np.isin(self.table, [table for table, _ in c.pin])]] = False
        self.apart = [[np.flatnonzero(self.table == table) for table in group] for group in c.apart]

    def _joined(self) -> np.ndarray:
        """The number of the movable piece that each piece of the plan belongs to, (P,)."""
        n, rules = self.task.num_tables, Rules.of(self.task)
        leader = np.arange(n) if rules is None else rules.leader
        grouped = np.bincount(leader)[leader] > 1
        alone = n + np.arange(len(self.table))
        return np.unique(np.where(grouped[self.table], leader[self.table], alone), return_inverse=True)[1]

    def keeps(self, device: np.ndarray) -> bool:
        """Whether pieces on these devices stay apart that must, and no more tables move than may."""
        where, c = device[self.of], self.task.constraints
        for group in self.apart:
            placed = [set(where[pieces].tolist()) for pieces in group]
            if sum(map(len, placed)) != len(set().union(*placed)):
                return False
        moved = self.table[where != np.array(c.base)[self.table]]
        return c.max_moves is None or len(np.unique(moved)) <= c.max_moves


class Placement:
    """Pieces on devices with running sums; `traffic` (2, K) is the bytes that each device sends, and receives."""

    def __init__(self, pieces: Pieces, plan: Plan) -> None:
        self.pieces, k = pieces, pieces.task.num_devices
        self.device = np.zeros(len(pieces.free_to_move), np.int64)
        self.device[pieces.of] = plan.device
        everything = np.arange(len(self.device))
        self.sums = device_sums(pieces.embedding[:-1], self.device, k)
        used = np.bincount(self.device, pieces.size[:-1], minlength=k)
        self.free = pieces.task.capacity - used.astype(np.int64)
        self.traffic = np.zeros((2, k), np.int64)
        away = everything[self.device != pieces.home[:-1]]
        np.add.at(self.traffic[0], pieces.home[away], pieces.load[away])
        np.add.at(self.traffic[1], self.device[away], pieces.load[away])
        self._ask()

    def copy(self) -> Placement:
        """Another one, to change apart."""
        other = object.__new__(Placement)
        other.pieces = self.pieces
        for name in ("device", "sums", "free", "traffic", "forward", "own"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def _ask(self) -> None:
        parts = self.pieces.costs.plans(self.sums)
        self.forward, self.own = parts.forward, parts.own
        require_number(self.makespan, self.pieces.costs.planner)

    @property
    def makespan(self) -> float:
        """What the placement takes a step, ms."""
        return float(self.forward.max() + self.own.max())

    def worth(self, prices: Prices) -> float:
        """What it costs: its steps, and what has to move; ms."""
        return prices.horizon * self.makespan + prices.ms_per_byte * float(self.traffic.max())

    def plan(self) -> Plan:
        """As a plan."""
        return Plan(tuple(self.device[self.pieces.of].tolist()), self.pieces.splits)

    def improve(self, prices: Prices, rng: np.random.Generator) -> bool:
        """Make the change that helps most, of the slowest devices and of what has moved; False if none does."""
        changes = self._changes(rng)
        now = float(_value(prices, self.forward, self.own, self.traffic))
        sums, traffic = self._outcomes(changes)
        parts = self.pieces.costs.plans(sums)
        values = _value(prices, parts.forward, parts.own, traffic)
        for i in np.argsort(values):
            if not values[i] < now - abs(now) * 1e-12:
                return False
            if self.may(change := changes.at(int(i))):
                self.make(change)
                return True
        return False

    def anything(self, rng: np.random.Generator) -> Change | None:
        """A random move, or a swap, that memory allows; None where none was found."""
        n, k = len(self.device), len(self.free)
        piece = rng.integers(n, size=FEWEST)
        other = np.where(rng.random(FEWEST) < 0.5, -1, rng.integers(n, size=FEWEST))
        target = np.where(other < 0, rng.integers(k, size=FEWEST), self.device[other])
        found = self._fitting(_Changes(piece, target, other))
        return found.at(0) if len(found) else None

    def may(self, change: Change) -> bool:
        """Whether constraints are kept after a change, and its pieces are where they were when it was thought of."""
        p, home = self.pieces, self.device[change.piece]
        if home == change.target or (change.other >= 0 and self.device[change.other] != change.target):
            return False
        after = self.device.copy()
        after[change.piece] = change.target
        if change.other >= 0:
            after[change.other] = home
        grows = p.size[change.piece] - p.size[change.other]
        return bool(self.free[change.target] >= grows >= -self.free[home]) and p.keeps(after)

    def make(self, change: Change) -> None:
        """Change it, and ask what that costs."""
        one = _Changes(*(np.array([v]) for v in (change.piece, change.target, change.other)))
        sums, traffic = self._outcomes(one)
        grows = self.pieces.size[change.piece] - self.pieces.size[change.other]
        home = int(self.device[change.piece])
        self.free[home] += grows
        self.free[change.target] -= grows
        self.sums, self.traffic = sums[0], traffic[0]
        self.device[change.piece] = change.target
        if change.other >= 0:
            self.device[change.other] = home
        self._ask()

    def _changes(self, rng: np.random.Generator) -> _Changes:
        """Moves and swaps of the slowest devices' pieces, and ways home for those that are away."""
        p, k, load = self.pieces, len(self.free), self.own + self.forward
        slowest = np.unique([self.own.argmax(), self.forward.argmax()])
        mine = _at_most(PIECES, np.isin(self.device, slowest) & p.free_to_move, rng)
        away = _at_most(PIECES, (self.device != p.home[:-1]) & p.free_to_move, rng)
        targets = np.argsort(load, kind="stable")[:TARGETS]
        others = _at_most(4 * PIECES, np.isin(self.device, targets) & p.free_to_move, rng)
        back, there = np.nonzero(p.home[away][:, None] == self.device)
        piece = [np.repeat(mine, len(targets)), away, np.repeat(mine, len(others)), away[back]]
        target = [
            np.tile(targets, len(mine)),
            p.home[away],
            self.device[np.tile(others, len(mine))],
            p.home[away[back]],
        ]
        none = [np.full(len(v), -1) for v in piece[:2]]
        found = _Changes(
            np.concatenate(piece), np.concatenate(target), np.concatenate([*none, np.tile(others, len(mine)), there])
        )
        found = self._fitting(found)
        most = max(FEWEST, SHARDS // k)
        return found if len(found) <= most else found.take(rng.choice(len(found), most, replace=False))

    def _fitting(self, changes: _Changes) -> _Changes:
        """Those that memory and pins allow."""
        p, home = self.pieces, self.device[changes.piece]
        grows = p.size[changes.piece] - p.size[changes.other]
        fits = (self.free[changes.target] >= grows) & (self.free[home] >= -grows) & (home != changes.target)
        movable = np.append(p.free_to_move, True)
        return changes.take(np.flatnonzero(fits & movable[changes.piece] & movable[changes.other]))

    def _outcomes(self, changes: _Changes) -> tuple[np.ndarray, np.ndarray]:
        """Running sums, (C, K, H), and traffic, (C, 2, K), after each change."""
        p, each, home = self.pieces, np.arange(len(changes)), self.device[changes.piece]
        gain = p.embedding[changes.piece] - p.embedding[changes.other]
        sums, traffic = (np.repeat(a[None], len(changes), axis=0) for a in (self.sums, self.traffic))
        sums[each, home] -= gain
        sums[each, changes.target] += gain
        for piece, source, target in ((changes.piece, home, changes.target), (changes.other, changes.target, home)):
            for device, sign in ((source, -1), (target, 1)):
                moved = sign * p.load[piece] * (device != p.home[piece])
                traffic[each, 0, p.home[piece]] += moved
                traffic[each, 1, device] += moved
        return sums, traffic


def _at_most(count: int, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where a mask is true; so many of these at random, where there are more."""
    found = np.flatnonzero(mask)
    return found if len(found) <= count else rng.choice(found, count, replace=False)


def _value(prices: Prices, forward: np.ndarray, own: np.ndarray, traffic: np.ndarray) -> np.ndarray:
    """What placements cost, and a little of what their other devices cost and move, (...)."""
    makespan = forward.max(axis=-1) + own.max(axis=-1)
    uneven = np.sqrt((own * own).mean(axis=-1)) + np.sqrt((forward * forward).mean(axis=-1))
    busiest, mean = traffic.max(axis=(-2, -1)), traffic.mean(axis=(-2, -1))
    return prices.horizon * (makespan + EVEN * uneven) + prices.ms_per_byte * (busiest + EVEN * mean)
