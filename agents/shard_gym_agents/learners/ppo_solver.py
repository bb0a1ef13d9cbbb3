"""Trained policies of PPO and of behaviour cloning as solvers. Needs torch, and no reinforcement learning library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from shard_gym.bank import Bank
from shard_gym.episodes import FIXED_ORDERS, Episode, Prepared
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan
from shard_gym.room import Room, dead_end
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.base import costs_with
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.checkpoints import load_tensors, save_tensors
from shard_gym_agents.learners.ppo_network import DeviceNet, TableNet
from shard_gym_agents.solver import require_fast, require_number, task_rng
from shard_gym_agents.trained import read_card

TABLE = "ppo-table"  # the kind of file of a `TablePolicy`; that of a `DevicePolicy` is who trained it
CARD = ("order", "suite", "planner", "seed", "config")  # what a card tells


@dataclass(frozen=True, eq=False)
class DevicePolicy:
    """Each table to the device that the network likes best of those where it may go; it sees the planner's costs.

    Tables come in the order of training, and by size where that runs into a dead end. `card` says what it was
    trained on.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    net: DeviceNet
    card: dict[str, Any]
    kind: str = "ppo"

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        """Plan a task."""
        game = self._played(task, planner, 1, None)
        if not game.alive.any():
            raise game.stuck
        return Plan(tuple(game.placements()[0].tolist()))

    def samples(self, task: Task, planner: Simulator, n: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, side by side; those that ran into a dead end are left out: (n or fewer, N)."""
        if n < 1:
            raise InvalidTask(f"the number of samples is 1 or more, got {n}")
        generator = torch.Generator().manual_seed(int(task_rng(seed, task).integers(2**62)))
        game = self._played(task, planner, n, generator)
        return game.placements()[game.alive]

    def _played(self, task: Task, planner: Simulator, n: int, generator: torch.Generator | None) -> Game:
        """Episodes, in the order that fewer dead ends: the one of training, then by size."""
        fast, scaling = require_fast(planner), self.net.scaling.numpy()
        prepared = Bank((task,), (scaling[0], scaling[1])).prepared(task, fast)
        require_number(float(prepared.alone.sum()), fast)
        self._require_loads(prepared)
        for order in dict.fromkeys((self.card["order"], "size")):
            game = Game(Episode(prepared, FIXED_ORDERS[order](prepared)), fast, n)
            game.play(self.net, generator)
            if game.alive.any():
                break
        return game

    def _require_loads(self, prepared: Prepared) -> None:
        """Refuse planners whose embeddings are of another width."""
        assert prepared.embedding is not None
        if (found := prepared.embedding.shape[1]) != self.net.loads:
            known = f"{self.net.loads} measures of load ({self.card['planner']})"
            raise InvalidTask(
                f"this network was trained on {known}, {prepared.simulator.id} has {found}: train on that"
            )

    def save(self, path: str | Path, **card: Any) -> None:
        """Write weights and card."""
        shape = {"loads": self.net.loads, "hidden": self.net.hidden, "residual": self.net.residual}
        save_tensors(path, self.net.state_dict(), {**self.card, **card, "kind": self.kind, **shape})

    @classmethod
    def load(cls, path: str | Path, kind: str = "ppo") -> DevicePolicy:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, kind)
        try:
            net = DeviceNet(np.zeros((2, len(FEATURES))), card["loads"], card["hidden"], card["residual"])
            net.load_state_dict(tensors)
            kept = {name: card[name] for name in CARD}
            _ = FIXED_ORDERS[kept["order"]]
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CorruptFile(f"{path} holds another network than the device network: {error}") from error
        return cls(net, kept, kind)


class Game:
    """Episodes of one task side by side, as the environment's observation "ahead" shows them."""

    def __init__(self, episode: Episode, planner: FastSimulator, n: int) -> None:
        p = episode.prepared
        assert p.embedding is not None
        self.episode, self.planner, self.task = episode, planner, p.task
        self.free, self.room = np.tile(p.task.capacity, (n, 1)), Room(p.task, n)
        self.sums = np.zeros((n, p.task.num_devices, p.embedding.shape[1]))
        self.cost = self._costs()
        self.actions = np.zeros((n, len(episode.order)), np.int64)
        self.alive = np.ones(n, bool)
        self.stuck = InfeasibleTask("")  # of the episode that came farthest, if all are dead
        self.seats = boards.device_order(p.task)

    def play(self, net: DeviceNet, generator: torch.Generator | None) -> None:
        """Place all tables; what is drawn, or the best. Where a table has no room its episode is dead."""
        with torch.inference_mode():
            for step, table in enumerate(self.episode.order.tolist()):
                room = self.room.legal(table)
                fits = room.any(axis=1)
                if not (self.alive & fits).any():
                    self.stuck = dead_end(self.room, table, int(self.alive.argmax()))
                    self.alive[:] = False
                    return
                self.alive &= fits
                room[~fits] = True
                scores = net.scores(self.shown(step, room)).masked_fill(~torch.from_numpy(room), boards.ILLEGAL)
                self.place(step, self.seats[boards.choose(scores[:, self.seats], generator).numpy()])

    def shown(self, step: int, room: np.ndarray) -> dict[str, Tensor]:
        """The observation at a step."""
        p, n, k = self.episode.prepared, *self.free.shape
        devices = np.empty((n, k, 4 + self.sums.shape[2]), np.float32)
        devices[..., 0] = 1 - self.free / p.task.capacity
        devices[..., 1] = self.free / max(p.task.memory)
        devices[..., 2] = self.cost * k / p.total_cost
        devices[..., 3] = p.speed
        devices[..., 4:] = self.sums / p.even_share
        ahead = costs_with(p.task, self.planner, self.sums, self._table(step))
        require_number(float(ahead.sum()), self.planner)
        rows, remaining = self.episode.rows[step], self.episode.remaining[step]
        return {
            "table": torch.from_numpy(np.broadcast_to(rows, (n, len(rows))).copy()),
            "devices": torch.from_numpy(devices),
            "remaining": torch.from_numpy(np.broadcast_to(remaining, (n, len(remaining))).copy()),
            "action_mask": torch.from_numpy(room),
            "ahead": torch.from_numpy((ahead * k / p.total_cost).astype(np.float32)),
        }

    def place(self, step: int, devices: np.ndarray) -> None:
        """Put a step's table on a device of each episode."""
        each = np.arange(len(devices))
        self.actions[:, step] = devices
        self.free[each, devices] -= self.episode.prepared.sizes[self.episode.order[step]]
        self.room.place(self.episode.order[step], devices)
        self.sums[each, devices] += self._table(step)[0]
        self.cost = self._costs()

    def placements(self) -> np.ndarray:
        """The device of each table in the order of the task, (n, N)."""
        placements = np.empty_like(self.actions)
        placements[:, self.episode.order] = self.actions
        return placements

    def _costs(self) -> np.ndarray:
        """What each device costs now, (n, K) ms."""
        return self.planner.decode(self.task, self.sums).cost(self.task.objective)

    def _table(self, step: int) -> np.ndarray:
        embedding = self.episode.prepared.embedding
        assert embedding is not None
        return np.broadcast_to(embedding[self.episode.order[step]], (len(self.free), embedding.shape[1]))


@dataclass(frozen=True, eq=False)
class TablePolicy:
    """Each table to the device that a network likes best of those where it may go; it sees tables only.

    It has one output a device: it cannot serve another number of devices, and it matters how they are numbered.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    net: TableNet
    card: dict[str, Any]

    @torch.inference_mode()
    def __call__(self, task: Task, planner: object) -> Plan:
        """Plan a task."""
        if task.num_devices != (known := self.net.num_devices):
            raise InvalidTask(f"this network was trained for {known} devices and cannot serve {task.num_devices}")
        room, placement = Room(task), [-1] * task.num_tables
        order = np.argsort(-table_bytes(task), kind="stable")
        for t, scores in zip(order.tolist(), self.net(self._rows(task, order)).numpy(), strict=True):
            legal = room.legal(t)[0]
            if not legal.any():
                raise dead_end(room, t)
            placement[t] = d = int(np.where(legal, scores, -np.inf).argmax())
            room.place(t, d)
        return Plan(tuple(placement))

    def _rows(self, task: Task, order: np.ndarray) -> Tensor:
        """What the environment shows of each table in turn, (N, 22)."""
        mean, deviation = self.net.scaling.numpy()
        features = Bank((task,), (mean, deviation)).standardised(task)[order]
        share = np.arange(task.num_tables, dtype=np.float32)[:, None] / task.num_tables
        return torch.from_numpy(np.concatenate([features, share], 1).astype(np.float32))

    def save(self, path: str | Path, **card: Any) -> None:
        """Write weights and card."""
        devices, hidden = self.net.num_devices, self.net.head.in_features
        shape = {"devices": devices, "hidden": hidden, "recurrent": self.net.lstm is not None}
        save_tensors(path, self.net.state_dict(), {**self.card, **card, "kind": TABLE, **shape})

    @classmethod
    def load(cls, path: str | Path) -> TablePolicy:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, TABLE)
        try:
            net = TableNet(np.zeros((2, len(FEATURES))), card["devices"], card["hidden"], card["recurrent"])
            net.load_state_dict(tensors)
            return cls(net, {name: card[name] for name in CARD})
        except (KeyError, RuntimeError, TypeError) as error:
            raise CorruptFile(f"{path} holds another network than the table network: {error}") from error


def kind_of(path: str | Path) -> str:
    """What kind of policy a file holds."""
    return str(read_card(Path(path)).get("kind"))
