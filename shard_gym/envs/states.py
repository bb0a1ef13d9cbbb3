"""An episode under way: which options were taken, what its devices hold, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shard_gym.envs.episodes import Episode
from shard_gym.plan.placing import Placing
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Latency


class State:
    """An episode under way; plain ints and lists beside its `Placing`, so that a step costs microseconds.

    Pieces wait at the positions of the episode's order. The next one is at the first position where any waits. Halves
    go to a later position, so the order is walked once.
    """

    __slots__ = ("actions", "episode", "halved", "nodes", "placing", "position", "waiting")

    def __init__(self, episode: Episode, track: bool = False) -> None:
        p = episode.prepared
        self.episode = episode
        self.placing = Placing(p.options, track=track and p.embedding is not None)
        self.waiting = episode.waiting.copy()  # pieces at each position; 1 at the end
        self.position = 0  # of the next piece; the number of positions at the end
        self.nodes: list[int] = []  # of the piece at each step
        self.actions: list[int] = []  # what was done with it
        self.halved = 0  # steps that halved a piece

    @classmethod
    def replayed(cls, episode: Episode, actions: Iterable[int]) -> State:
        """The state that these actions lead to."""
        state = cls(episode)
        for action in actions:
            state.place(action)
        return state

    @property
    def done(self) -> bool:
        """True if every piece is placed."""
        return self.position == len(self.episode.nodes)

    @property
    def free(self) -> np.ndarray:
        """Bytes left on each device, (K,) int64; negative when over."""
        return self.placing.free[0]

    @property
    def sums(self) -> np.ndarray:
        """Running sums of embeddings, (K, H), if each step needs them."""
        return self.placing.sums[0]

    @property
    def num_placed(self) -> int:
        """Pieces that are on a device."""
        return len(self.actions) - self.halved

    @property
    def num_pieces(self) -> int:
        """The tables, and one more for each that was halved."""
        return self.episode.prepared.task.num_tables + self.halved

    def row(self) -> np.ndarray:
        """The next piece's features and the share of pieces placed, a fresh (22,) float32."""
        row = self.episode.rows[self.position].copy()
        if self.episode.prepared.split_action:
            row[-1] = self.num_placed / self.num_pieces
        return row

    def remaining(self) -> np.ndarray:
        """Shares of the task before any split that are left, a fresh (5,) float32.

        Pieces, their summed single cost, bytes and columns, which splits add to; the dearest over the dearest of all:
        without split actions of the tables left, with them of the next piece and the tables still whole.
        """
        episode, p = self.episode, self.episode.prepared
        if not p.split_action:
            return episode.remaining[self.position].copy()
        left = np.array(self.waiting[:-1]) @ p.values[episode.order]  # exact, whatever the order
        shown = np.empty(5, np.float32)
        shown[:4] = left / np.where(episode.total > 0, episode.total, 1)
        shown[4] = episode.dearest[self.position]
        return shown

    def place(self, action: int) -> None:
        """Put the next piece on a device, whether it fits or not, or halve it (action K).

        A piece that must not be halved goes to the device with most bytes left instead.
        """
        position, waiting, node = self.position, self.waiting, self.episode.nodes[self.position]
        if action == self.episode.num_devices:
            halves = self.episode.halves[position]
            if halves >= 0:
                waiting[halves] += 2
                self.halved += 1
            else:
                action = int(self.free.argmax())
        self.placing.put(node, action)
        self.nodes.append(node)
        self.actions.append(action)
        waiting[position] -= 1
        while not waiting[position]:
            position += 1
        self.position = position

    def mask(self) -> np.ndarray:
        """Devices where the next piece may go and, with split actions, whether it may be halved: int8 (K or K + 1,).

        Where it may go nowhere: the split alone if it may be halved, else every device.
        """
        position, nodes = self.position, self.episode.nodes
        return self.placing.mask(nodes[position]) if position < len(nodes) else self.episode.last_mask.copy()

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Node and device of each piece that is placed, in the order they were."""
        nodes, actions = np.array(self.nodes, np.int64), np.array(self.actions, np.int64)
        placed = actions < self.episode.num_devices
        return nodes[placed], actions[placed]

    def plan(self) -> Plan:
        """The plan so far; the pieces of a node are taken first in, first out."""
        waiting: dict[int, list[int]] = {node: [t] for t, node in enumerate(self.episode.prepared.nodes.whole.tolist())}
        device, splits = [-1] * len(waiting), []
        for node, action in zip(self.nodes, self.actions, strict=True):
            piece = waiting[node].pop(0)
            if action < self.episode.num_devices:
                device[piece] = action
                continue
            splits.append(piece)
            waiting.setdefault(node + 1, []).extend((piece, len(device)))
            device.append(-1)
        return Plan(tuple(device), tuple(splits))

    def latency(self) -> Latency:
        """Latency of the pieces placed so far."""
        p = self.episode.prepared
        if p.embedding is None:
            plan = self.plan()
            return p.simulator.latency(p.task.split(plan.splits), np.array(plan.device))
        if self.placing.tracks:
            return p.decode(self.sums)
        nodes, devices = self.held()
        holds = np.zeros((self.episode.num_devices, len(nodes)))
        holds[devices, np.arange(len(nodes))] = 1
        return p.decode(holds @ p.embedding[nodes])  # exact
