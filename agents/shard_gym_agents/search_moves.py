"""Changes that take work off one device: moves, swaps, halvings and joins, screened on guesses, then asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym_agents.search_costs import Parts
from shard_gym_agents.search_state import State, value
from shard_gym_agents.solver import require_number

PARTNERS = 24  # devices that may take or swap pieces with the one that is too slow, cheapest first, ...
RANDOM_PARTNERS = 8  # ... and some more of the others
SCREENED = 20_000  # changes guessed about in one round, about, at most
ASKED = 192  # changes asked about in one round, at most
ASKED_SHARDS = 2**13  # and no more than so many shards, where devices touch
HEAVY = 0.6  # share of its device's cost from which a piece is said to bind it
SWAP, HALVE, JOIN = range(3)  # kinds of change; a move is a swap with nothing


@dataclass(frozen=True, eq=False)
class Changes:
    """Each takes a piece from device `source`, to or against something on device `target`, (C,).

    Nodes leave and enter both devices; `guess` is what the placement might then be worth.
    """

    kind: np.ndarray
    piece: np.ndarray
    other: np.ndarray  # the piece on the target that is swapped or joined; -1: none
    source: int
    target: np.ndarray
    enters_source: np.ndarray
    enters_target: np.ndarray
    leaves_target: np.ndarray
    guess: np.ndarray

    def take(self, index: np.ndarray) -> Changes:
        """Some of them."""
        columns = {name: column[index] for name, column in vars(self).items() if name != "source"}
        return Changes(source=self.source, **columns)


def partners(state: State, source: int, rng: np.random.Generator) -> np.ndarray:
    """Devices that may help the source: all where there are few, else the cheapest and a random few."""
    k = len(state.free)
    if k <= PARTNERS + RANDOM_PARTNERS:
        return np.delete(np.arange(k), source)
    load = state.own + state.forward
    load[source] = np.inf
    cheapest = np.argpartition(load, PARTNERS)[:PARTNERS]
    found = np.append(cheapest, rng.integers(k, size=RANDOM_PARTNERS))
    return np.unique(found[found != source])


def _swaps(state: State, source: int, asked: int, rng: np.random.Generator) -> Changes:
    """Moves and swaps, the most promising by guess."""
    board, others = state.board, partners(state, source, rng)
    helps = np.zeros(len(state.free), bool)
    helps[others] = True
    mine = _at_most(np.flatnonzero(state.device == source), SCREENED // (4 * len(others)), rng)
    theirs = _at_most(np.flatnonzero(helps[state.device]), SCREENED // max(1, len(mine)), rng)
    back = np.append(theirs, np.full(len(others), -1))  # a move gets nothing back
    target = np.append(state.device[theirs], others)
    node = np.where(back >= 0, state.node[back], board.none)
    out_size, back_size = board.size[state.node[mine]][:, None], board.size[node]
    grows = out_size - back_size
    fits = (grows <= state.free[target]) & (grows >= -state.free[source])
    fits &= state.breaks(mine[:, None], target, back) <= 0
    none = back < 0
    lost = state.added[mine][:, None] - np.where(none, 0.0, state.added[back])
    lost_forward = state.added_forward[mine][:, None] - np.where(none, 0.0, state.added_forward[back])
    guess = _guesses(state, source, target, (lost, lost), (lost_forward, lost_forward))
    guess[~fits] = np.inf
    best = _smallest(guess.ravel(), asked)
    i, j = np.divmod(best, len(back))
    kind = np.full(len(best), SWAP)
    piece = mine[i]
    return Changes(kind, piece, back[j], source, target[j], node[j], state.node[piece], node[j], guess.ravel()[best])


def _halved(state: State, source: int, asked: int) -> Changes:
    """A half of a piece goes elsewhere."""
    board = state.board
    mine = np.flatnonzero(state.device == source)
    whole = mine[board.may_split[state.node[mine]]]
    others = np.delete(np.arange(len(state.free)), source)
    piece, target = np.repeat(whole, len(others)), np.tile(others, len(whole))
    node, none = state.node[piece], np.full(len(piece), board.none)
    share = board.half_share[node]
    added, forward = state.added[piece], state.added_forward[piece]
    guess = _guesses(
        state, source, target, (added * (1 - share), added * share), (forward * (1 - share), forward * share)
    )
    kind, other = np.full(len(piece), HALVE), np.full(len(piece), -1)
    found = Changes(kind, piece, other, source, target, node + 1, node + 1, none, guess)
    return _fitting(state, found, asked)


def _joined(state: State, source: int, asked: int) -> Changes:
    """A piece joins its equal elsewhere."""
    board = state.board
    mine = np.flatnonzero(state.device == source)
    halves = mine[board.nodes.level[state.node[mine]] > 0]
    i, other = np.nonzero((state.node[halves][:, None] == state.node) & (state.device != source))
    piece = halves[i]
    node, none = state.node[piece], np.full(len(piece), board.none)
    grows = 1 / np.maximum(board.half_share[node - 1], 0.1) - 1
    lost = (state.added[piece], state.added[other] * grows)
    forward = (state.added_forward[piece], state.added_forward[other] * grows)
    target = state.device[other]
    guess = _guesses(state, source, target, lost, forward)
    kind = np.full(len(piece), JOIN)
    return _fitting(state, Changes(kind, piece, other, source, target, none, node - 1, node, guess), asked)


def _fitting(state: State, found: Changes, asked: int) -> Changes:
    """Halvings and joins that memory lets be made, the most promising by guess; no rule speaks of such tables."""
    board = state.board
    grows = board.size[found.enters_target] - board.size[found.leaves_target]
    found = found.take(np.flatnonzero(grows <= state.free[found.target]))
    return found.take(_smallest(found.guess, asked))


def _guesses(
    state: State,
    source: int,
    target: np.ndarray,
    own: tuple[np.ndarray, np.ndarray],
    forward: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """What placements would be worth if costs added up: (what the source loses, what the target gains)."""
    slower = state.board.costs.slowness
    ratio = slower[target] / slower[source]
    parts = [(state.own, own, 1 + (ratio - 1) * state.scaling_share)]
    if not state.board.costs.kernel:
        parts.append((state.forward, forward, ratio))
    total: np.ndarray | float = 0.0
    for cost, (lost, gained), ratio in parts:
        here, there = cost[source] - lost, cost[target] + gained * ratio
        worse = np.maximum(here, there)
        total = total + np.maximum(worse, _others(cost, source)[target])
        total = total + 1e-3 * worse  # of two that do not matter now, the one that leaves more room
    return np.asarray(total)


def _others(cost: np.ndarray, source: int) -> np.ndarray:
    """For each target, the largest cost of the devices beside it and the source, (K,)."""
    if len(cost) < 3:
        return np.zeros(len(cost))
    rest = cost.copy()
    rest[source] = -np.inf
    second, first = np.partition(rest, -2)[-2:]
    return np.where(rest == first, second, first)


def ask(state: State, found: Changes) -> tuple[np.ndarray, Parts | None]:
    """What each change makes of `State.value`, (C,); where devices touch, all parts of each plan too."""
    board, costs = state.board, state.board.costs
    leaves = board.embedding[state.node[found.piece]]
    here = state.sums[found.source] + board.embedding[found.enters_source] - leaves
    came = board.embedding[found.enters_target] - board.embedding[found.leaves_target]
    if not costs.kernel:
        tried = np.repeat(state.sums[None], len(leaves), axis=0)
        tried[:, found.source] = here
        tried[np.arange(len(leaves)), found.target] += came
        parts = costs.plans(tried)
        return value(parts.forward, parts.own), parts
    both = np.concatenate([here, state.sums[found.target] + came])
    where = np.append(np.full(len(leaves), found.source), found.target)
    tried_own = np.repeat(state.own[None], len(leaves), axis=0)
    cost = costs.compute(both, where)
    tried_own[:, found.source] = cost[: len(leaves)]
    tried_own[np.arange(len(leaves)), found.target] = cost[len(leaves) :]
    forward = np.zeros_like(tried_own)
    return value(forward, tried_own), Parts(forward, tried_own)


def apply(state: State, found: Changes, index: int, parts: Parts | None = None) -> tuple[int, int]:
    """Make one of the changes; returns the two devices that are no longer what they were."""
    piece, other, target = int(found.piece[index]), int(found.other[index]), int(found.target[index])
    kind = int(found.kind[index])
    if kind == SWAP:
        state.relocate(piece, target)
        if other >= 0:
            state.relocate(other, found.source)
    elif kind == HALVE:
        state.halve(piece, target)
    else:
        state.join(piece, other)
    if parts is not None:
        state.forward, state.own = parts.forward[index].copy(), parts.own[index].copy()
    return found.source, target


def improve(state: State, rng: np.random.Generator) -> bool:
    """Make the best change found around a device that sets the pace, if one helps; halve where nothing else does."""
    if len(state.free) == 1:
        return False
    kernel = state.board.costs.kernel
    asked = ASKED if kernel else int(np.clip(ASKED_SHARDS // len(state.free), 8, ASKED))
    paces = (state.own,) if kernel else (state.own, state.forward)
    sources = tuple(dict.fromkeys(int(cost.argmax()) for cost in paces))
    if any(_make_best(state, _swaps(state, source, asked, rng)) for source in sources):
        return True
    if len(state.board.nodes) == state.board.task.num_tables:
        return False
    return any(_make_best(state, kind(state, source, asked)) for source in sources for kind in (_halved, _joined))


def finer(state: State) -> State | None:
    """Where one piece is most of what the slowest device computes: with it, and all that are as dear, in halves.

    To halve one of two equal pieces helps no more than to halve none. The halves go to the devices with least to do.
    """
    board, load = state.board, state.own + state.forward
    source = int(load.argmax())
    mine = np.flatnonzero((state.device == source) & board.may_split[state.node])
    if not len(mine):
        return None
    single = board.single[state.node]
    dearest = mine[single[mine].argmax()]
    if state.added[dearest] + state.added_forward[dearest] < HEAVY * load[source]:
        return None
    halved, slowness = state.copy(), board.costs.slowness
    for piece in np.flatnonzero(board.may_split[state.node] & (single >= single[dearest])).tolist():
        home, node = int(state.device[piece]), int(state.node[piece])
        room = halved.free >= board.size[node + 1]
        room[home] = False
        if not room.any():
            return None
        target = int(np.where(room, load, np.inf).argmin())
        halved.halve(piece, target)
        load[home] -= single[piece] * (1 - board.half_share[node]) * slowness[home]
        load[target] += single[piece] * board.half_share[node] * slowness[target]
    halved.settle()
    return halved


def _make_best(state: State, found: Changes) -> bool:
    """Ask what these changes are worth and make the best one, if it helps."""
    if not len(found.piece):
        return False
    worth, parts = ask(state, found)
    best = int(worth.argmin())  # of a NaN, if there is one
    require_number(worth[best], state.board.costs.planner)
    if worth[best] >= state.value * (1 - 1e-12):
        return False
    state.refresh(apply(state, found, best, parts))
    return True


def _at_most(items: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return items if len(items) <= count else rng.choice(items, max(1, count), replace=False)


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the smallest finite values, in no order."""
    if len(values) > count:
        index = np.argpartition(values, count)[:count]
        return index[values[index] < np.inf]
    return np.flatnonzero(values < np.inf)
