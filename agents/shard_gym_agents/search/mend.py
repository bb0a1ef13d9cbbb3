"""The least repair: few tables leave their device, so that a plan in use keeps to its task again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.plan.moves import moved_bytes
from shard_gym_agents.search.state import RULE, Board, State

PAIRS = 20_000  # exchanges looked at in one round, about
FEW = 10  # moves: where no more may be made ...
WIDTH = 16  # ... so many placements are mended side by side, ...
NARROW = 4  # ... elsewhere so many
ASKED = 600  # mended placements asked about, about, at most


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Pieces of one device, (M,), each for a piece of another device or, -1, for nothing, (T,)."""

    source: int
    piece: np.ndarray
    target: np.ndarray
    other: np.ndarray
    grows: np.ndarray  # (M, T) bytes that the target gets more, and the source less
    amiss: np.ndarray  # (M, T) more afterwards than now

    @classmethod
    def of(cls, state: State, source: int, rng: np.random.Generator) -> Exchanges:
        """All exchanges of one device; where there are too many, those with a random part of the other pieces."""
        board = state.board
        mine, others = np.flatnonzero(state.device == source), np.flatnonzero(state.device != source)
        if len(mine) * len(others) > PAIRS:
            others = rng.choice(others, PAIRS // len(mine) + 1, replace=False)
        devices = np.delete(np.arange(len(state.free)), source)
        back = np.append(others, np.full(len(devices), -1))
        target = np.append(state.device[others], devices)
        came = np.where(back >= 0, board.size[state.node[back]], 0)
        grows = board.size[state.node[mine]][:, None] - came
        before = np.maximum(-state.free[source], 0) + np.maximum(-state.free[target], 0)
        after = np.maximum(-(state.free[source] + grows), 0) + np.maximum(-(state.free[target] - grows), 0)
        broken = state.breaks(mine[:, None], target, back)
        return cls(source, mine, target, back, grows, (after - before).astype(np.float64) + float(RULE) * broken)

    def make(self, state: State, index: int) -> None:
        """Make one of them, by its index in `amiss` made flat, without asking what that costs."""
        i, j = divmod(index, len(self.target))
        state.relocate(int(self.piece[i]), int(self.target[j]))
        if self.other[j] >= 0:
            state.relocate(int(self.other[j]), self.source)


def mended(board: Board, device: np.ndarray, ms_per_byte: float = 0.0) -> list[np.ndarray]:
    """Placements, (N,), that few exchanges make of this one and that keep to the task, the best of them first.

    Those are best that have the least makespan and `ms_per_byte` for the bytes that leave the plan in use. There are
    none where this placement keeps to the task, and where no way was found.
    """
    begun, limit = board.start(device), board.task.constraints.max_moves
    width = WIDTH if limit is not None and limit <= FEW else NARROW
    beam, rng, prices = [begun], np.random.default_rng(0), _Prices(begun, ms_per_byte)
    for _ in range((board.task.num_tables if limit is None else limit) if begun.amiss else 0):
        made = [state for one in beam for state in _exchanged(one, prices, ASKED // len(beam), rng)]
        if done := [state for state in made if not state.amiss]:
            return [np.array(state.plan().device) for state in sorted(done, key=prices.asked)[:WIDTH]]
        made.sort(key=lambda state: (state.amiss, prices.guessed(state)))
        distinct = {state.device.tobytes(): state for state in reversed(made)}
        beam = [*reversed(distinct.values())][:width]
    return []


def _exchanged(state: State, prices: _Prices, asked: int, rng: np.random.Generator) -> list[State]:
    """The placement after exchanges of its most troubled device: those that mend all, or the first of the others.

    Those that leave less amiss come first, of these the moves, and of these the cheap ones.
    """
    offer = Exchanges.of(state, int(state.troubled()[0]), rng)
    swaps, amiss = np.broadcast_to(offer.other >= 0, offer.amiss.shape), offer.amiss.ravel()
    may = np.flatnonzero(~_hopeless(state, offer))
    order = may[np.lexsort((prices.exchanged(state, offer).ravel()[may], swaps.ravel()[may], amiss[may]))]
    mends = int((amiss[may] == -state.amiss).sum())
    made = []
    for index in order[: min(mends, asked) or WIDTH].tolist():
        made.append(state.copy())
        offer.make(made[-1], index)
    return made


def _hopeless(state: State, offer: Exchanges) -> np.ndarray:
    """True for exchanges that lead nowhere: no less is amiss, or more devices are over than moves are left."""
    standing, over = state.standing, state.free < 0
    if standing is None or standing.rules.away is None:
        return (offer.amiss >= 0).ravel()
    table = np.append(state.board.table[state.node], -1)
    spent = standing.spent(table[offer.piece][:, None], offer.source, offer.target, table[offer.other])
    left = standing.left[0] - spent
    still = over.sum() - over[offer.source] - over[offer.target]
    still = still + (state.free[offer.source] + offer.grows < 0) + (state.free[offer.target] - offer.grows < 0)
    return ((still > left) | (offer.amiss >= float(RULE))).ravel()


class _Prices:
    """The cost of placements: the makespan, and what leaves the plan in use."""

    def __init__(self, begun: State, ms_per_byte: float) -> None:
        task, board = begun.board.task, begun.board
        self.beside = begun.own + begun.forward - self._alone(begun)  # what devices cost beside tables alone
        self.away_ms = np.zeros((task.num_tables + 1, task.num_devices))  # of a table on a device, for its bytes
        if ms_per_byte and task.constraints.base:
            leaves = np.array(task.constraints.base)[:, None] != np.arange(task.num_devices)
            self.away_ms[:-1] = board.rules.merged(leaves * (moved_bytes(task) * ms_per_byte)[:, None])

    def exchanged(self, state: State, offer: Exchanges) -> np.ndarray:
        """The cost after exchanges, (M, T): the larger of two devices, as if costs of tables added up."""
        single, table = (
            np.append(of[state.node], none) for of, none in ((state.board.single, 0), (state.board.table, -1))
        )
        load, mine, theirs = self.beside + self._alone(state), table[offer.piece][:, None], table[offer.other]
        gained = single[offer.piece][:, None] - single[offer.other]
        away = self.away_ms[mine, offer.target] - self.away_ms[mine, offer.source]
        away = away + self.away_ms[theirs, offer.source] - self.away_ms[theirs, offer.target]
        return np.maximum(load[offer.source] - gained, load[offer.target] + gained) + away

    def guessed(self, state: State) -> float:
        """The cost, as if costs of tables added up."""
        return float((self.beside + self._alone(state)).max()) + self._away(state)

    def asked(self, state: State) -> float:
        """The cost, by the planner."""
        state.rescore()
        return state.makespan + self._away(state)

    def _alone(self, state: State) -> np.ndarray:
        return np.bincount(state.device, state.board.single[state.node], len(state.free))

    def _away(self, state: State) -> float:
        return float(self.away_ms[state.board.table[state.node], state.device].sum())
