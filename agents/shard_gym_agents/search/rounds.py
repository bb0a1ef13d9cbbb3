"""Greedy placement on many devices in rounds: as many pieces at once as do not get into each other's way.

A greedy puts each piece on the device with the least load. While the devices of a round carry more with their pieces
than the one whose turn comes, the next piece goes there: the planner is asked about all of them at once.
"""

from __future__ import annotations

import heapq

import numpy as np

from shard_gym_agents.search.state import Board, Pace

MANY = 64  # devices from where rounds are faster than a look at all of them for each piece
FIRST, FEWEST = 64, 2  # pieces of the first round, and of later ones at least

Turn = tuple[float, int]  # what a device computes, and the device


class Rounds:
    """A greedy over a board without rules: each piece to the device that computes least so far and has room.

    No device holds more columns than `limit`. Where none qualifies, a piece goes where most bytes are free.
    """

    def __init__(self, board: Board, sums: np.ndarray, limit: float) -> None:
        self.board, self.sums, self.limit = board, sums, limit  # sums (K, H) are kept up to date
        self.free, self.columns = board.task.capacity.tolist(), [0] * len(sums)
        self.turns: list[Turn] = [(0.0, device) for device in range(len(sums))]  # a heap
        self.feasible = True

    def deal(self, nodes: np.ndarray, pace: Pace | None = None) -> np.ndarray:
        """Devices of pieces, (P,), in turn; `pace` is told of them."""
        sizes, dims = self.board.size[nodes].tolist(), self.board.dim[nodes].tolist()
        device: list[int] = []
        most = FIRST
        while (start := len(device)) < len(nodes):
            part = slice(start, start + most)
            turns = self._next(sizes[part], dims[part])
            taken = np.array([d for _, d in turns])
            sums = self.sums[taken] + self.board.embedding[nodes[start : start + len(turns)]]
            after = list(zip(self.board.costs.compute(sums, taken).tolist(), taken.tolist(), strict=True))
            count = _undisturbed(turns, after)
            self.sums[taken[:count]] = sums[:count]
            for turn in (*after[:count], *turns[count:]):
                heapq.heappush(self.turns, turn)
            for (_, d), size, dim in zip(turns[:count], sizes[part], dims[part], strict=False):
                self.free[d] -= size
                self.columns[d] += dim
                device.append(d)
            most = max(FEWEST, 2 * count)
            if pace is not None:
                pace.step(count)
        return np.array(device, np.int64)

    def _next(self, sizes: list[int], dims: list[int]) -> list[Turn]:
        """Turns of these pieces, or of the first of them, if no device comes twice; they leave the heap."""
        taken = [self._first(sizes[0], dims[0])]
        for size, dim in zip(sizes[1:], dims[1:], strict=True):
            if not self.turns or not self._fits(self.turns[0][1], size, dim):
                break
            taken.append(heapq.heappop(self.turns))
        return taken

    def _first(self, size: int, dim: int) -> Turn:
        """The first turn of a device with room, else that of the roomiest."""
        full = []
        while self.turns and not self._fits(self.turns[0][1], size, dim):
            full.append(heapq.heappop(self.turns))
        if self.turns:
            found = heapq.heappop(self.turns)
        else:
            self.feasible, roomiest = False, self.free.index(max(self.free))
            found = next(turn for turn in full if turn[1] == roomiest)
            full.remove(found)
        for turn in full:
            heapq.heappush(self.turns, turn)
        return found

    def _fits(self, device: int, size: int, dim: int) -> bool:
        return self.free[device] >= size and self.columns[device] + dim <= self.limit


def _undisturbed(turns: list[Turn], after: list[Turn]) -> int:
    """Turns that come before all that those before them will have next."""
    least = after[0]
    for i in range(1, len(turns)):
        if turns[i] > least:
            return i
        least = min(least, after[i])
    return len(turns)
