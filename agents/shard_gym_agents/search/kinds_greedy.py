"""First plans of all kinds of sharding: tables in turn, each in its best option; and of the few kinds worth it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from shard_gym import core
from shard_gym.plan.fitting import even_choices
from shard_gym.plan.forms import DEVICE
from shard_gym.simulators.single import costs_alone, costs_with
from shard_gym_agents.search.choices import Option
from shard_gym_agents.search.kinds_aim import Aim
from shard_gym_agents.search.kinds_board import LIFT, Board, put_side_by_side

RISES = 0, 0.1, 0.3, *(4.0**n for n in range(12))  # of the price of memory, in units of what a device costs
# Where costs do not add up: times the price of memory; loads are raised by so often what is to come, and by so much
LOOSE, TIGHT = ((1, 2, 0.5),), ((1, 4, 0), (1.25, 4, 0), (1.7, 4, 0))
ENOUGH, DESPERATE = 4, 8  # greedy plans tried, at least; those where none has room for all
FILLS = 0.4  # of the slowest device: a shard that others may be better without
NEAR = 1.03  # of the bound: good enough for a greedy
# Of random greedies: share of the budget, share of kinds, how much dearer memory is, by a power of e, and as in `TIGHT`
SEEDING, KEPT, DEARER, OFTEN, RAISED = 0.5, 0.6, (0, 0.8), (1, 2, 4, 8), (0, 0.3, 1)


class Turn(NamedTuple):
    """Settings of a greedy: the price of memory, the order of items, and what loads are raised by before each."""

    price: np.ndarray
    order: np.ndarray
    lift: np.ndarray


def greedy_board(search: Aim) -> Board:
    """A board with every item in turn in its best option: of a few orders and prices of memory, the best.

    The first will do if it is near the bound. Where some items have found no room, the price rises on.
    """
    few = ENOUGH if search.adds_up else len(_settings(search))
    found, whole = list[Board](), [*_whole(search), *_staying(search)]
    for board in _in_turns(search):
        search.seen(board)
        found.append(board)
        enough = len(found) >= (few if search.chosen else DESPERATE)
        near = search.makespan <= search.prices.bound * NEAR
        if (search.chosen and near) or (enough and (search.chosen or search.over)):
            break
    if not search.chosen:
        return _evenly(search) or min(found, key=_amiss)
    if not near:
        found += _without_slow(search, min(found, key=_amiss))
    return min((*found, *whole, *_on_single_devices(search)), key=_amiss)


def _without_slow(search: Aim, best: Board) -> Iterator[Board]:
    """Boards without shards as slow as the one that fills most of the slowest device, as long as they are better."""
    choices, turn, alone = search.choices, next(turns(search)), search.prices.alone
    may = choices.may
    while True:
        mine = np.flatnonzero(best.work[:, best.time.argmax()])
        options = [best.chosen[item] for item in mine.tolist()]
        slowest = max((float(alone[option.form, option.choice]) for option in options), default=0.0)
        may = may & (alone < slowest)
        if slowest < FILLS * best.longest * search.unit or not choices.suffice(may):
            return
        board = in_turn(search, turn, may)
        if _amiss(board) >= _amiss(best):
            return
        best = board
        yield board


def _on_single_devices(search: Aim) -> list[Board]:
    """A board of pieces on single devices, where costs do not add up: each other kind makes all wait once more."""
    may = search.choices.may & (np.arange(4) == DEVICE)
    if search.adds_up or not search.choices.suffice(may):
        return []
    return [in_turn(search, next(turns(search)), may)]


def _evenly(search: Aim) -> Board | None:
    """A board with tables spread evenly, which takes least room; None if that leads nowhere, or rules forbid it."""
    choices = search.choices
    if choices.rules.binding or (chosen := even_choices(choices.forms)) is None:
        return None
    board = search.board(search.prices.price)
    for item, (form, choice, targets) in enumerate(chosen):
        board.put(item, Option(0.0, form, choice, tuple(sorted(targets))))
    search.seen(board)
    return board


def turns(search: Aim) -> Iterator[Turn]:
    """Turns to try. Dearest first, memory paid for, or by that or memory, whichever is the larger share."""
    choices, prices, forms = search.choices, search.prices, search.choices.forms
    room, items = choices.room.sum(axis=1), choices.items
    size = choices.rules.merged(forms.taken[0, forms.first[:-1], DEVICE]) / room[0]
    cost = choices.rules.merged(prices.least)
    cost = cost / max(cost.sum(), 1e-300)
    steep = search.unit * forms.taken.any(axis=(1, 2)) / choices.room.mean(axis=1).repeat(2)[:2]
    if not search.adds_up:
        order = items[np.argsort(-cost[items], kind="stable")]
        to_come = 1 - cost[order].cumsum()
        for dearer, times, least in _settings(search):
            yield Turn(dearer * prices.price, order, times * to_come + least)
    for rise, key in product(RISES, (cost, np.maximum(cost, size))):
        order = items[np.argsort(-key[items], kind="stable")]
        yield Turn(prices.price + rise * steep, order, np.full(len(items), LIFT))


def _settings(search: Aim) -> tuple[tuple[float, float, float], ...]:
    """Settings to try where costs do not add up: memory that costs nothing cannot be dearer."""
    return TIGHT if search.prices.price.any() else LOOSE


def _whole(search: Aim) -> list[Board]:
    """A board of whole tables, costliest first, each where the device's cost stays lowest; none if that leads nowhere.

    It is cost-greedy as whole tables have it, so that more kinds never make a plan worse.
    """
    choices, planner, board = search.choices, search.costs.planner, search.board(search.prices.price)
    forms = choices.forms.first[:-1] + [name for name, _ in choices.forms.residences].index("hbm")
    least = choices.size[:, forms[choices.items], DEVICE].min(axis=2).sum(axis=1)
    if not choices.may[forms, DEVICE][choices.items].all() or (least > choices.room.sum(axis=1)).any():
        return []
    rows, sums = choices.piece_rows()[forms], np.zeros_like(board.sums)
    alone = costs_alone(planner, search.task, rows)
    for item in choices.items[np.argsort(-alone[choices.items], kind="stable")].tolist():
        cost = np.where(board.open(item, forms[item]), costs_with(search.task, planner, sums, rows[item]), np.inf)
        device = int(cost.argmin())
        if cost[device] == np.inf:
            return []
        board.put(item, Option(0.0, int(forms[item]), DEVICE, (device,)))
        sums[device] += rows[item]
    search.seen(board)
    return [board]


def _staying(search: Aim) -> list[Board]:
    """A board with no table moved that need not be, where only so many may; none if that leads nowhere."""
    if search.choices.rules.away is None:
        return []
    turn = next(turns(search))
    board = search.board(turn.price)
    board.moves = 0
    for item in turn.order.tolist():
        if (option := board.best(item)) is None:
            return []
        board.put(item, option)
    board.moves = int(search.choices.rules.moves[0])
    search.seen(board)
    return [board]


def _in_turns(search: Aim) -> Iterator[Board]:
    """Boards of all turns. In numpy, those of `_settings` are made side by side: their order is the same."""
    left = turns(search)
    at_once = len(_settings(search)) if core.name() == "numpy" and not search.adds_up else 1
    while several := list(islice(left, at_once)):
        boards = [search.board(turn.price) for turn in several]
        put_side_by_side(boards, several[0].order, [turn.lift for turn in several])
        yield from boards
        at_once = 1


def in_turn(search: Aim, turn: Turn, may: np.ndarray | None = None) -> Board:
    """A board with items in turn in their best options, or the best of those that may be, (R, 4)."""
    board = search.board(turn.price)
    if may is not None:
        board.narrow(may)
    board.put_in_turn(turn.order, turn.lift)
    search.seen(board)
    return board


def seeded(search: Aim, board: Board, rng: np.random.Generator) -> Board:
    """The best of this board and those of random greedies, shards traded, in a share of the budget.

    Each is of some kinds, as each kind may have a price of its own, such as one more collective that all wait for.
    """
    choices, first = search.choices, next(turns(search))
    kinds, cost = (
        np.flatnonzero(np.bincount(choices.kinds[choices.may])),
        choices.rules.merged(search.prices.least)[first.order],
    )
    to_come = 1 - cost.cumsum() / max(cost.sum(), 1e-300)
    search.polish(board, rng)
    search.seen(board)
    search.near(board)
    while not search.spent(SEEDING) and not search.budget.stopped:
        may = choices.may & np.isin(choices.kinds, kinds[rng.random(len(kinds)) < KEPT])
        dearer, lift = float(np.exp(rng.uniform(*DEARER))), rng.choice(OFTEN) * to_come + rng.choice(RAISED)
        other = in_turn(search, Turn(dearer * search.prices.price, first.order, lift), may)
        if len(other.chosen) < len(choices.items):
            continue
        search.polish(other, rng)
        search.seen(other)
        if _amiss(other) < _amiss(board):
            board = other
            board.narrow(choices.may)
    return board


def _amiss(board: Board) -> tuple[int, float]:
    """Items without room, then the slowest device, or what is told of the sums: the less, the better."""
    return -len(board.chosen), board.longest if board.ask is None else board.asked_value
