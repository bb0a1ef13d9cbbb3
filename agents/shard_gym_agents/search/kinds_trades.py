"""Trades of single devices: pieces move, change places, and take up more memory or less, by asking the planner.

All trades of a device that sets the pace are guessed about, as if costs added up near where they are, and the most
promising ones are asked about.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shard_gym.plan.forms import DEVICE
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.search.state import Budget, Costs, Parts
from shard_gym_agents.solvers.solver import require_number

AT_ONCE = 16  # devices, or groups of them, whose costs are asked about one by one
ASKED = 64  # trades asked about in one round, at most
UNEVEN = 1e-3  # weight, in guesses, of what both devices cost beside the makespan


class Trades:
    """The fixed part: what a piece of each form adds to its device, and the forms that it may have.

    A table in one piece may have its rows wherever it may; pieces of a split one are alike, and stay as they are. The
    last form is none.
    """

    def __init__(self, choices: Choices, costs: Costs) -> None:
        forms = choices.forms
        self.choices, self.costs, self.none = choices, costs, len(forms.table)
        self.rows = np.pad(choices.piece_rows(), ((0, 1), (0, 0)))
        self.size = np.pad(choices.size[:, :, DEVICE, 0], ((0, 0), (0, 1)))
        self.step = np.maximum(np.abs(self.rows).mean(axis=0), 1e-9)
        whole = (forms.level == 0) & choices.may[:, DEVICE]
        self.whole = np.split(np.flatnonzero(whole), whole.cumsum()[forms.first[1:-1] - 1])


class Position:
    """Pieces on single devices, and what devices cost and have free; all else stays where it is."""

    def __init__(self, trades: Trades, board: Board) -> None:
        self.trades, self.sums, self.free = trades, board.sums.copy(), board.free.copy()
        placed = [(item, o) for item, o in board.chosen.items() if o.choice == DEVICE and trades.choices.loose[item]]
        self.item = np.array([item for item, o in placed for _ in o.targets], np.int64)
        self.form = np.array([o.form for _, o in placed for _ in o.targets], np.int64)
        self.device = np.array([d for _, o in placed for d in o.targets], np.int64)
        forms = [trades.whole[i] if len(o.targets) == 1 else np.array([o.form]) for i, o in placed for _ in o.targets]
        # each piece in each form that it may have; the last one is none
        self.piece = np.append(np.repeat(np.arange(len(forms)), [len(some) for some in forms]), -1)
        self.into = np.append(np.concatenate(forms), trades.none) if forms else np.array([trades.none])
        self._set(trades.costs.plans(self.sums))

    def _set(self, parts: Parts) -> None:
        self.parts, self.value = _both(parts), float(parts.value)

    def improve(self) -> bool:
        """Make the best trade found of a device that sets the pace, if one helps."""
        added, at = self._added().astype(np.float32), self._at()  # guesses need no more digits
        return any(self._make_best(s, added, at) for s in dict.fromkeys(self.parts[::-1].argmax(axis=1).tolist()))

    def _added(self) -> np.ndarray:
        """Cost that a piece of each form adds to both parts of each device, about, (2, R + 1, K)."""
        t = self.trades
        growth = slopes(lambda sums: _both(t.costs.plans(sums)), self.sums, self.parts, t.step)
        return np.asarray(t.rows @ growth.swapaxes(1, 2))

    def _at(self) -> np.ndarray:
        """Entries that could be traded on each device: index into `piece` and `into`, filled up with none, (K, M)."""
        where, k = self.device[self.piece[:-1]], len(self.sums)
        counts, order = np.bincount(where, minlength=k), np.argsort(where, kind="stable")
        at = np.full((k, int(counts.max()) + 1), len(where))
        at[where[order], np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)] = order
        return at

    def _make_best(self, source: int, added: np.ndarray, at: np.ndarray) -> bool:
        """Ask about the best trades of a device by guess, and make the best one of these if it helps."""
        mine = at[source][at[source] < len(self.piece) - 1]
        guess = self._guesses(source, mine, added, at)
        best = np.argpartition(guess, ASKED, axis=None)[:ASKED] if guess.size > ASKED else np.arange(guess.size)
        best = best[guess.ravel()[best] < np.inf]
        if not len(best):
            return False
        i, target, j = np.unravel_index(best, guess.shape)
        one, other = mine[i], at[target, j]
        tried = np.repeat(self.sums[None], len(best), axis=0)
        rows, each, stays = self.trades.rows, np.arange(len(best)), (target == source)[:, None]
        come, leave, back, out = (
            rows[form] for form in (self.into[one], self._now(one), self.into[other], self._now(other))
        )
        tried[:, source] += np.where(stays, come - out, 0) + back - leave
        tried[each, target] += np.where(stays, 0, come - out)
        parts = self.trades.costs.plans(tried)
        values = parts.value
        b = int(values.argmin())  # of a NaN, if there is one
        require_number(float(values[b]), self.trades.costs.planner)
        if values[b] >= self.value * (1 - 1e-12):
            return False
        self._place(int(one[b]), int(target[b]))
        self._place(int(other[b]), source)
        self.sums = tried[b]
        self._set(Parts(parts.forward[b], parts.own[b]))
        return True

    def _now(self, entry: np.ndarray) -> np.ndarray:
        """Forms that pieces have now."""
        return np.append(self.form, self.trades.none)[self.piece[entry]]

    def _place(self, entry: int, device: int) -> None:
        piece, form, size = int(self.piece[entry]), int(self.into[entry]), self.trades.size
        if piece >= 0:
            self.free[:, self.device[piece]] += size[:, self.form[piece]]
            self.free[:, device] -= size[:, form]
            self.form[piece], self.device[piece] = form, device

    def _guesses(self, source: int, mine: np.ndarray, added: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The makespan if a piece of the source goes to each device in a form, and one from there comes: (A, K, M).

        On the source itself both stay, in their forms.
        """
        size, (into, now) = self.trades.size, (self.into[at], self._now(at))
        mine_into, mine_now = self.into[mine], self._now(mine)
        parts = self.parts.astype(np.float32)
        here = parts[:, source, None] - added[:, mine_now, source]  # (2, A)
        each = np.arange(len(at))[:, None]
        there = parts[..., None] - added[:, now, each]  # (2, K, M)
        there[:, source] = added[:, into[source], source] - added[:, now[source], source]
        cost_here = here[:, :, None, None] + added[:, into, source][:, None]
        cost_there = added[:, mine_into][..., None] + there[:, None]
        cost_here[:, :, source] = cost_there[:, :, source] = here[..., None] + cost_there[:, :, source]
        worse = np.maximum(cost_here, cost_there, out=cost_there)
        guess = np.maximum(worse, _others(parts, source)[:, None, :, None]).sum(axis=0) + UNEVEN * worse.sum(axis=0)
        left = self.free[:, source, None] + size[:, mine_now]  # (Q, A)
        room = self.free[..., None] + size[:, now]  # (Q, K, M)
        fits = (size[:, into][:, None] <= left[..., None, None]) & (
            size[:, mine_into][..., None, None] <= room[:, None]
        )
        both = size[:, mine_into][..., None] + (size[:, into[source]] - size[:, now[source]])[:, None]
        fits[:, :, source] = both <= left[..., None]
        fits[:, :, source] &= self.piece[mine][:, None] != self.piece[at[source]]
        guess[~np.logical_and.reduce(fits)] = np.inf
        return np.asarray(guess)


def slopes(
    ask: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, costs: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """Growth of costs (P, K) of each device with each column of its sum, (P, K, H), by asking about steps (H,).

    Where there are many devices several take a step at once.
    """
    (k, width), groups = sums.shape, min(len(sums), AT_ONCE)
    tried = np.repeat(np.repeat(sums[None], groups, axis=0)[:, None], width, axis=1)
    device, column = np.indices((k, width))
    tried[device % groups, column, device, column] += step
    found: np.ndarray = (ask(tried)[:, device % groups, column, device] - costs[..., None]) / step
    return found


def _both(parts: Parts) -> np.ndarray:
    return np.stack([parts.forward, parts.own])


def _others(cost: np.ndarray, source: int) -> np.ndarray:
    """Largest cost, for each target, of the devices beside it and the source, (P, K)."""
    rest, own = np.repeat(cost[:, None], cost.shape[1], axis=1), np.arange(cost.shape[1])
    rest[:, own, own] = rest[:, :, source] = -np.inf
    found: np.ndarray = rest.max(axis=2)
    return found


def traded(board: Board, trades: Trades, budget: Budget) -> None:
    """Make trades on a board until none that is tried helps."""
    position, helped = Position(trades, board), False
    while len(position.item) and not budget.over(trades.costs) and position.improve():
        helped = True
    if not helped:
        return
    for item in sorted(set(position.item.tolist())):  # np.unique would import much
        mine = position.item == item
        targets, form = tuple(sorted(position.device[mine].tolist())), int(position.form[mine][0])
        if (targets, form) != (board.chosen[item].targets, board.chosen[item].form):
            board.take(item)
            board.put(item, Option(0.0, form, DEVICE, targets))
