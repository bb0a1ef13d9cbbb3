"""Beam search over all kinds of sharding: the few best partial plans side by side, each with the next table in turn."""

from __future__ import annotations

import numpy as np

from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST
from shard_gym.plan.plan import Plan
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.search.kinds_greedy import greedy_board
from shard_gym_agents.solvers.solver import no_luck


def beam_plan(search: Search, width: int, share: float, rng: np.random.Generator) -> Plan:
    """The best plan of a search that begins where a beam of partial plans ends, in a share of the budget."""
    board = greedy_board(search)
    try:
        best = None if search.budget.stopped else _best(search, board, width, share)
        if best is not None:
            search.seen(best)
            board = best if len(best.chosen) > len(board.chosen) or best.worth < board.worth else board
        if not search.budget.stopped:
            search.run(board, rng)
    except KeyboardInterrupt:
        if search.progress is None or not search.chosen:
            raise
    if not search.chosen:
        raise no_luck("some tables found no room")
    return search.plan


def _best(search: Search, greedy: Board, width: int, share: float) -> Board | None:
    """The board at the end of a beam of `width` boards; None without time, or where all run into dead ends.

    Items come in greedy's order, those that it found no room for first.
    """
    missing = [item for item in search.choices.items.tolist() if item not in greedy.chosen]
    items, empty = [*missing, *greedy.chosen], greedy.copy()
    for item in list(empty.chosen):
        empty.take(item)
    empty.settle()
    ways = [search.choices.may & (np.arange(4) == choice) for choice in (DEVICE, HOST, ALL, COPY)]
    beam = [empty]
    for item in items:
        if search.budget.over(search.costs, share):
            return None
        beam = _next(beam, item, ways, width)
    for board in beam[:1]:
        board.narrow(search.choices.may)
    return beam[0] if beam else None


def _next(beam: list[Board], item: int, ways: list[np.ndarray], width: int) -> list[Board]:
    """The best boards with one more item, by its best option of each choice."""
    tried = []
    for number, board in enumerate(beam):
        for way in ways:
            board.narrow(way)
            if (option := board.best(item)) is not None:
                board.put(item, option)
                tried.append((board.worth, number, option))
                board.take(item)
    found = []
    for _, number, option in sorted(tried, key=lambda one: one[:2])[:width]:
        found.append(beam[number].copy())
        found[-1].put(item, option)
    return found
