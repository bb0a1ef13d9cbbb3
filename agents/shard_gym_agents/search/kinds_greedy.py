"""First plans of all kinds of sharding: tables in turn, each in its best option; and of the few kinds worth it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from shard_gym.plan.fitting import even_choices
from shard_gym.plan.forms import DEVICE
from shard_gym_agents.search.choices import Option
from shard_gym_agents.search.kinds_aim import Aim
from shard_gym_agents.search.kinds_board import LIFT, Board

RISES = 0, 0.1, 0.3, *(4.0**n for n in range(12))  # of the price of memory, in units of what a device costs
ENOUGH, DESPERATE = 4, 8  # greedy plans tried, at least; those where none has room for all
NEAR = 1.03  # of the bound: good enough for a greedy
FEW = 0.3  # share of the budget in which kinds are left out


class Turn(NamedTuple):
    """Settings of a greedy: what loads are raised by, the price of memory, and the order of items."""

    lift: float
    price: np.ndarray
    order: np.ndarray


def greedy_board(search: Aim) -> Board:
    """A board with every item in turn in its best option: of a few orders and prices of memory, the best.

    The first will do if it is near the bound. Where some items have found no room, the price rises on.
    """
    found: list[Board] = []
    for turn in turns(search):
        found.append(in_turn(search, turn))
        enough = len(found) >= (ENOUGH if search.chosen else DESPERATE)
        near = search.makespan <= search.prices.bound * NEAR
        if (search.chosen and near) or (enough and (search.chosen or search.over)):
            break
    return min(found, key=_amiss) if search.chosen else _evenly(search) or min(found, key=_amiss)


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
    lifts = (LIFT,) if search.pieces is None else (LIFT, 0.0)
    for rise, lift, key in product(RISES, lifts, (cost, np.maximum(cost, size))):
        yield Turn(lift, prices.price + rise * steep, items[np.argsort(-key[items], kind="stable")])


def in_turn(search: Aim, turn: Turn, may: np.ndarray | None = None) -> Board:
    """A board with items in turn in their best options, or the best of those that may be, (R, 4)."""
    board = search.board(turn.price)
    board.raised(turn.lift)
    if may is not None:
        board.narrow(may)
    for item in turn.order.tolist():
        if (option := board.best(item)) is not None:
            board.put(item, option)
    search.seen(board)
    return board


def of_few_kinds(search: Aim, board: Board, rng: np.random.Generator) -> tuple[Board, np.ndarray]:
    """A board of the kinds of sharding that are worth it, and the choices of them: one after another is left out.

    Where costs do not add up each kind may have a price of its own, such as one more collective that all wait for.
    """
    choices, turn = search.choices, next(turns(search))._replace(lift=board.lift)
    may, left = choices.may, np.unique(choices.kinds[choices.may])
    search.polish(board, rng)
    while len(left) > 1:
        found = []
        for kind in left.tolist():
            mask = may & (choices.kinds != kind)
            if choices.suffice(mask) and not search.spent(FEW):
                other = in_turn(search, turn, mask)
                search.polish(other, rng)
                found.append((_amiss(other), kind, other))
        if not found or (best := min(found, key=lambda tried: tried[0]))[0] >= _amiss(board):
            break
        _, kind, board = best
        may, left = may & (choices.kinds != kind), left[left != kind]
    search.seen(board)
    return board, may


def _amiss(board: Board) -> tuple[int, float]:
    """Items without room, then the aim: the less of either, the better."""
    return -len(board.chosen), board.worth
