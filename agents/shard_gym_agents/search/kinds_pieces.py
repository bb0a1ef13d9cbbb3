"""Pieces on single devices as the search of whole tables knows them: moves and swaps by asking the planner."""

from __future__ import annotations

import numpy as np

from shard_gym.plan.forms import DEVICE
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.search.moves import improve
from shard_gym_agents.search.state import Board as TableBoard
from shard_gym_agents.search.state import Budget, Costs, State


class Pieces(TableBoard):
    """The fixed part of that search, in the words of `state.Board`: nodes are forms, and no piece is halved."""

    standing = None

    def __init__(self, choices: Choices, costs: Costs) -> None:
        forms = choices.forms
        self.task, self.costs, self.none = choices.task, costs, len(forms.table)
        self.table = np.append(forms.table, -1)
        self.embedding = np.pad(choices.piece_rows(), ((0, 1), (0, 0)))
        self.size = np.append(choices.size[0, :, DEVICE, 0], 0).astype(np.int64)
        self.single = costs.compute(self.embedding, 0)
        self.may_split = np.zeros(self.none + 1, bool)


def improved(board: Board, pieces: Pieces, budget: Budget, rng: np.random.Generator) -> None:
    """Move and swap pieces in the devices' memory, all else staying where it is, until no change helps."""
    movable = [item for item, option in board.chosen.items() if _movable(board.choices, item, option)]
    if not movable:
        return
    options = [board.chosen[item] for item in movable]
    counts = [len(option.targets) for option in options]
    node = np.repeat([option.form for option in options], counts)
    state = State(
        pieces,
        node,
        np.concatenate([option.targets for option in options]),
        (board.sums.copy(), board.free[0].astype(np.int64)),
    )
    helped = False
    while not budget.over(pieces.costs) and improve(state, rng):
        helped = True
    if not helped:
        return
    parts = np.split(state.device, np.cumsum(counts)[:-1])
    for item, option, devices in zip(movable, options, parts, strict=True):
        targets = tuple(sorted(devices.tolist()))
        if targets != option.targets:
            board.take(item)
            board.put(item, Option(0.0, option.form, DEVICE, targets))


def _movable(choices: Choices, item: int, option: Option) -> bool:
    """True if an item's pieces are on single devices, in their memory, and may go to any."""
    forms = choices.forms
    in_memory = forms.residences[forms.residence[option.form]][0] == "hbm"
    return option.choice == DEVICE and in_memory and bool(choices.loose[item])
