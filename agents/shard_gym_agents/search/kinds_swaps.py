"""Swaps of shards between two devices, up to two for two: what makes loads even when no other option helps."""

from __future__ import annotations

from functools import cache

import numpy as np

from shard_gym.plan.forms import DEVICE
from shard_gym_agents.search.choices import Option
from shard_gym_agents.search.kinds_board import Board

PARTNERS = 12  # devices, the emptiest, that the slowest one swaps with
PAIRED = 12  # shards of a device, drawn at random, that go by two as well as one by one
GAIN = 1e-9  # of the bound: the least that a swap must win


def even_out(board: Board, rng: np.random.Generator) -> bool:
    """Swap shards of the slowest device, until no swap tried helps; True if one did."""
    helped = False
    while _swapped(board, int(board.time.argmax()), rng):
        helped = True
    return helped


def _swapped(board: Board, slow: int, rng: np.random.Generator) -> bool:
    """Swap shards of the slowest device with another's, where both are then faster than the slowest was."""
    mine, load = _Groups(board, slow, rng), board.time
    for other in np.argsort(load)[:PARTNERS].tolist():
        if other == slow:
            continue
        theirs, both = _Groups(board, other, rng), [slow, other]
        less = mine.load(both)[..., None] - theirs.load(both)[..., None, :]
        bytes_less = mine.size(both)[..., None] - theirs.size(both)[..., None, :]
        worst = np.maximum(load[slow] - less[0], load[other] + less[1])
        free = board.free[:, both, None, None]
        fits = ((bytes_less[:, 0] >= -free[:, 0]) & (bytes_less[:, 1] <= free[:, 1])).all(axis=0)
        worst[~fits] = np.inf
        i, j = divmod(int(worst.argmin()), worst.shape[1])
        if worst[i, j] < load[slow] - GAIN:
            for item in mine.items(i):
                _move(board, item, slow, other)
            for item in theirs.items(j):
                _move(board, item, other, slow)
            return True
    return False


def _move(board: Board, item: int, old: int, new: int) -> None:
    """Move one piece of an item to another device."""
    option = board.chosen[item]
    targets = list(option.targets)
    targets[targets.index(old)] = new
    board.take(item)
    board.put(item, Option(0.0, option.form, DEVICE, tuple(sorted(targets))))


class _Groups:
    """Groups of none, one or two shards that a device could give away, each piece of a table by itself."""

    def __init__(self, board: Board, device: int, rng: np.random.Generator) -> None:
        self.shards = rng.permutation(np.flatnonzero(board.movable(device)))
        self.groups = _groups(len(self.shards))
        self.board, self.form = board, board.form[self.shards]

    def load(self, devices: list[int]) -> np.ndarray:
        """Loads that the groups add to devices, (D, G)."""
        return self._sums(self.board.loads[0][self.form[:, None], DEVICE, devices].T)

    def size(self, devices: list[int]) -> np.ndarray:
        """Bytes that the groups take of devices, (Q, D, G)."""
        return self._sums(self.board.choices.size[:, self.form[:, None], DEVICE, devices].swapaxes(1, 2))

    def items(self, group: int) -> list[int]:
        """The items whose pieces are in a group."""
        return [int(self.shards[i]) for i in self.groups[:, group] if i < len(self.shards)]

    def _sums(self, values: np.ndarray) -> np.ndarray:
        one = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)
        return one[..., self.groups[0]] + one[..., self.groups[1]]


@cache
def _groups(count: int) -> np.ndarray:
    """Pairs of indexes of shards, `count` standing for none; (2, G)."""
    singles = np.stack([np.arange(count + 1), np.full(count + 1, count)])
    return np.concatenate([singles, np.stack(np.triu_indices(min(count, PAIRED), 1))], axis=1)
