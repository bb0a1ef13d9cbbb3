"""Changes that take work off one device: moves, swaps, halvings and joins, screened on guesses, then asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym_agents.search.state import Parts, State
from shard_gym_agents.solvers.solver import require_number

PARTNERS = 24  # devices that may take or swap pieces with the one that is too slow, cheapest first, ...
RANDOM_PARTNERS = 8  # ... and some more of the others
SCREENED = 20_000  # changes guessed about in one round, about, at most
ASKED = 192  # changes asked about in one round, at most
ASKED_SHARDS = 2**13  # and no more than so many shards, where devices touch
HEAVY = 0.6  # share of its device's cost from which a piece is said to bind it
SWAP, HALVE, JOIN = range(3)  # kinds of change; a move is a swap with nothing


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of one kind that take a piece from device `source`, to or against something on device `target`, (C,)."""

    kind: int
    source: int
    piece: np.ndarray
    other: np.ndarray  # the piece on the target that is swapped or joined; -1: none
    target: np.ndarray
    guess: np.ndarray  # value of the placement afterwards, if costs added up

    def take(self, index: np.ndarray) -> Changes:
        """Pick some of the changes."""
        columns = (self.piece, self.other, self.target, self.guess)
        return Changes(self.kind, self.source, *(column[index] for column in columns))

    def nodes(self, state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes that enter the source, that enter the target, and that leave the target, (C,) each."""
        node, none = state.node[self.piece], state.board.none
        if self.kind == HALVE:
            return node + 1, node + 1, np.full(len(node), none)
        if self.kind == JOIN:
            return np.full(len(node), none), node - 1, node
        back = np.where(self.other >= 0, state.node[self.other], none)
        return back, node, back


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
    grows = board.size[state.node[mine]][:, None] - board.size[np.where(back >= 0, state.node[back], board.none)]
    fits = (grows <= state.free[target]) & (grows >= -state.free[source])
    fits &= state.breaks(mine[:, None], target, back) <= 0
    none = back < 0
    lost = state.added[mine][:, None] - np.where(none, 0.0, state.added[back])
    lost_forward = state.added_forward[mine][:, None] - np.where(none, 0.0, state.added_forward[back])
    guess = _guesses(state, source, target, (lost, lost), (lost_forward, lost_forward))
    guess[~fits] = np.inf
    best = _smallest(guess.ravel(), asked)
    i, j = np.divmod(best, len(back))
    return Changes(SWAP, source, mine[i], back[j], target[j], guess.ravel()[best])


def _halved(state: State, source: int, asked: int) -> Changes:
    """A half of a piece goes elsewhere."""
    board = state.board
    mine = np.flatnonzero(state.device == source)
    whole = mine[board.may_split[state.node[mine]]]
    others = np.delete(np.arange(len(state.free)), source)
    piece, target = np.repeat(whole, len(others)), np.tile(others, len(whole))
    share = board.half_share[state.node[piece]]
    own, forward = ((added * (1 - share), added * share) for added in (state.added[piece], state.added_forward[piece]))
    guess = _guesses(state, source, target, own, forward)
    return _fitting(state, Changes(HALVE, source, piece, np.full(len(piece), -1), target, guess), asked)


def _joined(state: State, source: int, asked: int) -> Changes:
    """A piece joins its equal elsewhere."""
    board = state.board
    mine = np.flatnonzero(state.device == source)
    halves = mine[board.nodes.level[state.node[mine]] > 0]
    i, other = np.nonzero((state.node[halves][:, None] == state.node) & (state.device != source))
    piece, target = halves[i], state.device[other]
    grows = 1 / np.maximum(board.half_share[state.node[piece] - 1], 0.1) - 1
    lost = (state.added[piece], state.added[other] * grows)
    forward = (state.added_forward[piece], state.added_forward[other] * grows)
    guess = _guesses(state, source, target, lost, forward)
    return _fitting(state, Changes(JOIN, source, piece, other, target, guess), asked)


def _fitting(state: State, found: Changes, asked: int) -> Changes:
    """Halvings and joins that memory lets be made, the most promising by guess; no rule speaks of such tables."""
    _, enters, leaves = found.nodes(state)
    grows = state.board.size[enters] - state.board.size[leaves]
    found = found.take(np.flatnonzero(grows <= state.free[found.target]))
    return found.take(_smallest(found.guess, asked))


def _guesses(
    state: State,
    source: int,
    target: np.ndarray,
    own: tuple[np.ndarray, np.ndarray],
    forward: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Value of placements if costs added up, from (loss of the source, gain of the target)."""
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
    """Largest cost, for each target, of the cost of the devices beside it and the source, (K,)."""
    if len(cost) < 3:
        return np.zeros(len(cost))
    rest = cost.copy()
    rest[source] = -np.inf
    second, first = np.partition(rest, -2)[-2:]
    return np.where(rest == first, second, first)


def _asked(state: State, found: Changes) -> Parts:
    """Ask what each change makes of all devices' costs, (C, K)."""
    embedding, costs = state.board.embedding, state.board.costs
    enters_source, enters_target, leaves_target = found.nodes(state)
    leaves = embedding[state.node[found.piece]]
    here = state.sums[found.source] + embedding[enters_source] - leaves
    came = embedding[enters_target] - embedding[leaves_target]
    if not costs.kernel:
        tried = np.repeat(state.sums[None], len(leaves), axis=0)
        tried[:, found.source] = here
        tried[np.arange(len(leaves)), found.target] += came
        return costs.plans(tried)
    both = np.concatenate([here, state.sums[found.target] + came])
    where = np.append(np.full(len(leaves), found.source), found.target)
    tried_own = np.repeat(state.own[None], len(leaves), axis=0)
    cost = costs.compute(both, where)
    tried_own[:, found.source] = cost[: len(leaves)]
    tried_own[np.arange(len(leaves)), found.target] = cost[len(leaves) :]
    return Parts(np.zeros_like(tried_own), tried_own)


def _make(state: State, found: Changes, index: int, parts: Parts) -> tuple[int, int]:
    """Make one of the changes, whose parts were asked for; the two devices that are no longer what they were."""
    piece, other, target = int(found.piece[index]), int(found.other[index]), int(found.target[index])
    if found.kind == SWAP:
        state.relocate(piece, target)
        if other >= 0:
            state.relocate(other, found.source)
    elif found.kind == HALVE:
        state.halve(piece, target)
    else:
        state.join(piece, other)
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
    if not state.board.may_split.any():
        return False
    return any(_make_best(state, kind(state, source, asked)) for source in sources for kind in (_halved, _joined))


def finer(state: State) -> State | None:
    """The placement with its dearest pieces in halves, where one is most of what the slowest device computes.

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
    parts = _asked(state, found)
    worth = parts.value
    best = int(worth.argmin())  # of a NaN, if there is one
    require_number(worth[best], state.board.costs.planner)
    if worth[best] >= state.value * (1 - 1e-12):
        return False
    state.refresh(_make(state, found, best, parts))
    return True


def _at_most(items: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return items if len(items) <= count else rng.choice(items, max(1, count), replace=False)


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the smallest finite values, in no order."""
    if len(values) > count:
        index = np.argpartition(values, count)[:count]
        return index[values[index] < np.inf]
    return np.flatnonzero(values < np.inf)
