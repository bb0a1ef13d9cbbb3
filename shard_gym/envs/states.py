"""An episode under way: which options were taken, what its devices hold, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.envs.episodes import Episode
from shard_gym.memory.usage import overshoot, piece_bytes
from shard_gym.plan.placing import one
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Latency


@dataclass(frozen=True)
class Waiting:
    """Tables still to be placed: the one that comes next, or the piece of one, and how much there is in all."""

    name: str
    rows: int
    dim: int
    pooling: float
    size: int  # bytes on its device
    alone: float | None  # ms on a device of its own; None where the simulator would have to measure it
    shares: np.ndarray  # (2, 17) of the rows touched, and of the lookups, by uses of a row in a batch
    count: int  # tables that wait, this one among them
    total: int  # bytes of all that wait


class State:
    """An episode under way; plain ints and lists beside its placing, so that a step costs microseconds.

    Pieces wait at the positions of the episode's order. The next one is at the first position where any waits. Halves
    go to a later position, so the order is walked once.
    """

    __slots__ = ("actions", "done", "episode", "halved", "nodes", "placing", "position", "waiting")

    def __init__(self, episode: Episode, track: bool = False) -> None:
        p = episode.prepared
        self.episode = episode
        self.placing = one(p.options, track and p.embedding is not None)
        self.waiting = episode.waiting  # pieces at each position; 1 at the end
        if episode.split_action:
            self.waiting = self.waiting.copy()
        self.position = 0  # of the next piece; the number of positions at the end
        self.done = False  # True if every piece is placed
        self.nodes: list[int] = []  # of the piece at each step; with split actions
        self.actions: list[int] = []  # what was done with it
        self.halved = 0  # steps that halved a piece

    @property
    def excess(self) -> float:
        """max_k (used_k - capacity_k) / capacity_k if positive, else 0."""
        if self.placing.least >= 0:
            return 0.0
        task = self.episode.prepared.task
        return float(overshoot(task, task.capacity - self.free))

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
        episode, position = self.episode, self.position
        node, after = episode.nodes[position], position + 1
        if episode.split_action:
            action, after = self._halve(action, position), position
            self.nodes.append(node)
            self.waiting[position] -= 1
            while not self.waiting[after]:
                after += 1
        self.placing.put(node, action)
        self.actions.append(action)
        self.position, self.done = after, after == len(episode.nodes)

    def _halve(self, action: int, position: int) -> int:
        """Let halves wait if that is the action; the action, or what is done instead."""
        if action < self.episode.num_devices:
            return action
        halves = self.episode.halves[position]
        if halves < 0:
            return int(self.free.argmax())
        self.waiting[halves] += 2
        self.halved += 1
        return action

    def mask(self) -> np.ndarray:
        """Devices where the next piece may go and, with split actions, whether it may be halved: int8 (K or K + 1,).

        Where it may go nowhere: the split alone if it may be halved, else every device.
        """
        episode = self.episode
        return episode.last_mask.copy() if self.done else self.placing.mask(episode.nodes[self.position])

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Node and device of each piece that is placed, in the order they were."""
        actions = np.array(self.actions, np.int64)
        if not self.episode.split_action:
            return self.episode.order[: self.position], actions
        nodes = np.array(self.nodes, np.int64)
        placed = actions < self.episode.num_devices
        return nodes[placed], actions[placed]

    def coming(self) -> Waiting | None:
        """Tables still to be placed; None at the end."""
        if self.done:
            return None
        p, node = self.episode.prepared, int(self.episode.order[self.position])
        tables, level, plan = p.nodes.pieces.tables, int(p.nodes.level[node]), self.plan()
        left, (source, _, dim) = np.array(plan.device) < 0, p.task.pieces(plan.splits)
        return Waiting(
            name=tables.name[node] if level == 0 else f"1/{2**level} of {tables.name[node]}",
            rows=int(tables.rows[node]),
            dim=int(tables.dim[node]),
            pooling=float(tables.pooling[node]),
            size=int(p.sizes[node]),
            alone=None if p.embedding is None else float(p.alone[node]),
            shares=np.stack([tables.uses[node], tables.accesses[node]]),
            count=int(left.sum()),
            total=int(piece_bytes(p.task, *(np.array(column)[left] for column in (source, dim))).sum()),
        )

    def bytes_by_choice(self) -> np.ndarray:
        """Bytes that each choice of sharding takes of each device, (1, K): all are whole tables or columns."""
        return (self.episode.prepared.task.capacity - self.free)[None]

    def host_free(self) -> list[float]:
        """Share of its memory that each host has left; none where nothing is kept there."""
        return []

    def plan(self) -> Plan:
        """The plan so far; the pieces of a node are taken first in, first out."""
        device: list[int] = [-1] * self.episode.prepared.task.num_tables
        if not self.episode.split_action:  # nodes are tables
            for table, action in zip(self.episode.nodes, self.actions, strict=False):
                device[table] = action
            return Plan(tuple(device))
        waiting: dict[int, list[int]] = {node: [t] for t, node in enumerate(self.episode.prepared.nodes.whole.tolist())}
        splits: list[int] = []
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
        return p.decode(holds @ p.embedding.take(nodes, axis=0))  # exact
