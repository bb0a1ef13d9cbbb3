"""Policies of PPO and of behaviour cloning: networks, and the solvers that plan with them. Needs torch, and no SB3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.envs.bank import Bank
from shard_gym.envs.episodes import FIXED_ORDERS, Episode, Prepared
from shard_gym.envs.observations import device_rows
from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import Placing, one
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.single import costs_with
from shard_gym.tables.pool import FEATURES
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.action_policy import CARD, ActionPolicy
from shard_gym_agents.learners.action_policy import KIND as ACTIONS
from shard_gym_agents.learners.learner import holds, load_tensors, num_weights, save_tensors
from shard_gym_agents.learners.rollouts import Choose, Rollout
from shard_gym_agents.learners.trained import read_card
from shard_gym_agents.solvers.solver import require_fast, require_number, task_rng

TABLE = "ppo-table"  # the kind of file of a `TablePolicy`; that of a `DevicePolicy` is who trained it
ROW = len(FEATURES) + 1  # the "table" observation
DEVICE = 9  # what is told of each device, beside its load by the simulator's measures
KNOWN = (0, 3, ROW - 1)  # of the row, what scores see: dim, size, share placed; the value sees all of it
STATE = 5 + 6  # what is told once: what remains, the devices summed up
FARTHEST = 10.0  # features are cut off there: standardised ones of tables never seen may be anything
TINY = 1e-6


class DeviceNet(nn.Module):
    """Scores of devices from the observation "ahead", and the value of the state.

    All devices go through the same layers, which see them beside the state and the mean of all of them: it does not
    matter how devices are numbered, and weights serve any number of tables and devices; but a planner must embed tables
    in as many numbers (`loads`) as the one it was trained with. With `residual` a score is what the layers say, next to
    nothing at first, minus `sharpness` times asinh(how much dearer the device is than the cheapest, in units of what
    the table adds), which ends like a logarithm: the policy begins as cost-greedy with some noise, and learns where to
    deviate from it.
    """

    scaling: Tensor  # (2, 21) of features; kept with the weights, used by whoever shows them tasks

    def __init__(
        self, scaling: np.ndarray, loads: int, hidden: int = 64, residual: bool = True, sharpness: float = 6.0
    ) -> None:
        super().__init__()
        self.loads, self.hidden, self.residual = loads, hidden, residual
        self.of_device = nn.Linear(DEVICE + loads, hidden)
        self.of_state = nn.Linear(len(KNOWN) + STATE, hidden, bias=False)
        self.own, self.pooled = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1)
        self.value = nn.Sequential(
            nn.Linear(ROW + STATE + 2 * (DEVICE + loads), hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(sharpness)))
        self.register_buffer("scaling", torch.tensor(np.asarray(scaling), dtype=torch.float64))
        nn.init.orthogonal_(self.score.weight, 0.01)
        nn.init.zeros_(self.score.bias)

    def forward(self, shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (B, K), masked or not as the caller likes, and values (B,)."""
        devices, state = _seen(shown)
        everything = torch.cat([_row(shown), state, devices.mean(1), devices.amax(1)], -1)
        return self._scores(shown, devices, state), self.value(everything)[..., 0]

    def scores(self, shown: Mapping[str, Tensor]) -> Tensor:
        """The scores alone."""
        return self._scores(shown, *_seen(shown))

    def _scores(self, shown: Mapping[str, Tensor], devices: Tensor, state: Tensor) -> Tensor:
        seen = torch.cat([_row(shown)[:, KNOWN], state], -1)
        first = torch.relu(self.of_device(devices) + self.of_state(seen)[:, None])  # (B, K, hidden)
        second = torch.relu(self.own(first) + self.pooled(first.mean(1))[:, None])
        scores = self.score(second)[..., 0]
        return scores - self.log_sharpness.exp() * _behind(shown).asinh() if self.residual else scores

    __repr__ = num_weights


def _row(shown: Mapping[str, Tensor]) -> Tensor:
    return shown["table"].clamp(-FARTHEST, FARTHEST)


def _behind(shown: Mapping[str, Tensor]) -> Tensor:
    """Cost of each device above the cheapest one's, over what the table itself adds, (B, K)."""
    ahead = shown["ahead"]
    adds = (ahead - shown["devices"][..., 2]).mean(1, keepdim=True).clamp(min=1e-4)
    return (ahead - ahead.amin(1, keepdim=True)) / adds


def _seen(shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs of the layers: of each device, (B, K, DEVICE), and of the state, (B, STATE)."""
    used, free, cost, speed = shown["devices"][..., :4].unbind(-1)
    ahead, legal = shown["ahead"], shown["action_mask"] > 0
    best = ahead.masked_fill(~legal, torch.inf).amin(1, keepdim=True)
    adds = (ahead - cost).mean(1, keepdim=True)  # how much the table costs
    slowest, mean = cost.amax(1, keepdim=True), cost.mean(1, keepdim=True)
    behind, raises = ahead - best, ahead - slowest
    room = _room(used, free, shown["remaining"][:, 2:3])
    columns = (10 * behind, behind / (adds + TINY), 10 * raises, raises / (adds + TINY), cost - mean)
    loads = shown["devices"][..., 4:]
    loads = 10 * (loads - loads.mean(1, keepdim=True))
    devices = torch.stack([*columns, free, room, speed, legal.to(free.dtype)], -1)
    devices = torch.cat([devices, loads], -1)
    summed = torch.cat([adds * 10, mean, slowest, best, free.mean(1, keepdim=True), free.amin(1, keepdim=True)], -1)
    state = torch.cat([shown["remaining"], summed], -1)
    return devices.clamp(-FARTHEST, FARTHEST), state.clamp(-FARTHEST, FARTHEST)


def _room(used: Tensor, free: Tensor, left: Tensor) -> Tensor:
    """Each device's free memory over an even share of the bytes still to come; at the start over nothing known."""
    capacity = (free + TINY) / (1 - used + TINY)
    placed = (capacity * used).sum(1, keepdim=True)
    to_come = placed * left / (1 - left + TINY)  # as `left` is their share of all bytes
    return torch.where(left < 1, free * free.shape[1] / (to_come + TINY), 0).clamp(max=FARTHEST)


class TableNet(nn.Module):
    """Scores of devices from the observation "table" alone, in the layers of SB3's MlpPolicy or MlpLstmPolicy.

    Without the LSTM it has no memory: each table's device depends on nothing but its features and its turn.
    """

    scaling: Tensor

    def __init__(self, scaling: np.ndarray, num_devices: int, hidden: int, recurrent: bool) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.lstm = nn.LSTM(ROW, hidden) if recurrent else None
        self.layers = nn.Sequential(
            nn.Linear(hidden if recurrent else ROW, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.head = nn.Linear(hidden, num_devices)
        self.register_buffer("scaling", torch.tensor(np.asarray(scaling), dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Scores at each step of an episode, (N, 22) -> (N, K)."""
        states = rows if self.lstm is None else self.lstm(rows[:, None])[0][:, 0]
        return self.head(self.layers(states))

    __repr__ = num_weights


class Ahead:
    """The environment's observation "ahead", of several placements of one task side by side."""

    def __init__(self, prepared: Prepared, planner: FastSimulator, order: str, n: int) -> None:
        self.prepared, self.planner, self.task = prepared, planner, prepared.task
        self.episode = Episode(prepared, FIXED_ORDERS[order](prepared))
        self.placing, self.rows = Placing(prepared.options, n, track=True), np.tile(self.episode.order, (n, 1))
        self.seats = rollouts.device_order(self.task)  # of devices with equal scores the first in this order is taken

    def shown(self, step: int, legal: np.ndarray) -> dict[str, Tensor]:
        """The observation at a step."""
        p, placing, (n, k) = self.prepared, self.placing, legal.shape
        ahead = costs_with(self.task, self.planner, placing.sums, placing.options.vector[self.rows[:, step], 0])
        require_number(float(ahead.sum()), self.planner)
        return {
            "table": torch.from_numpy(np.tile(self.episode.rows[step], (n, 1))),
            "devices": torch.from_numpy(device_rows(p.scales, placing.free, self.costs(), placing.sums)),
            "remaining": torch.from_numpy(np.tile(self.episode.remaining[step], (n, 1))),
            "action_mask": torch.from_numpy(legal),
            "ahead": torch.from_numpy((ahead * k / p.total_cost).astype(np.float32)),
        }

    def costs(self) -> np.ndarray:
        """Costs of devices now, (n, K) ms."""
        return self.planner.cost(self.task, self.placing.sums)

    def roll_out(self, choose: Choose, give_up: bool = False) -> Rollout:
        """Place all tables, see `rollouts.roll_out`; costs are numbers to the end."""
        rollout = rollouts.roll_out(self.placing, self.rows, choose, give_up=give_up)
        require_number(float(self.costs().sum()), self.planner)
        return rollout


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
        return self._placed(task, planner, 1, None).plan(task)

    def samples(self, task: Task, planner: Simulator, n: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, side by side; those that ran into a dead end are left out: (n or fewer, N)."""
        if n < 1:
            raise InvalidTask(f"the number of samples is 1 or more, got {n}")
        generator = torch.Generator().manual_seed(int(task_rng(seed, task).integers(2**62)))
        rollout = self._placed(task, planner, n, generator)
        return rollout.devices()[rollout.alive]

    @torch.inference_mode()
    def _placed(self, task: Task, planner: Simulator, n: int, generator: torch.Generator | None) -> Rollout:
        """Placements, in the order that fewer dead ends: the one of training, then by size."""
        fast, scaling = require_fast(planner), self.net.scaling.numpy()
        prepared = Bank((task,), (scaling[0], scaling[1])).prepared(task, fast)
        require_number(float(prepared.alone.sum()), fast)
        self._require_loads(prepared)
        for order in dict.fromkeys((self.card["order"], "size")):
            ahead = Ahead(prepared, fast, order, n)
            rollout = ahead.roll_out(partial(self._choose, ahead, generator), give_up=True)
            if rollout.alive.any():
                break
        return rollout

    def _choose(self, ahead: Ahead, generator: torch.Generator | None, step: int, legal: np.ndarray) -> np.ndarray:
        """Devices for the table of a step."""
        scores = self.net.scores(ahead.shown(step, legal))[:, ahead.seats]
        return ahead.seats[rollouts.choose(scores, legal[:, ahead.seats], generator).numpy()]

    def _require_loads(self, prepared: Prepared) -> None:
        """Refuse planners whose embeddings are of another width."""
        assert prepared.embedding is not None
        if (found := prepared.embedding.shape[1]) != self.net.loads:
            known = f"{self.net.loads} measures of load ({self.card['planner']})"
            raise InvalidTask(
                f"this network was trained on {known}, {prepared.simulator.id} has {found}: train on that"
            )

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        shape = {"loads": self.net.loads, "hidden": self.net.hidden, "residual": self.net.residual}
        save_tensors(path, self.net.state_dict(), {**self.card, **card, "kind": self.kind, **shape})

    @classmethod
    def load(cls, path: str | Path, kind: str = "ppo") -> DevicePolicy:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, kind)
        with holds(path, "the device network"):
            net = DeviceNet(np.zeros((2, len(FEATURES))), card["loads"], card["hidden"], card["residual"])
            net.load_state_dict(tensors)
            kept = {name: card[name] for name in CARD}
            _ = FIXED_ORDERS[kept["order"]]
        return cls(net, kept, kind)


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
        if task.num_devices != (known := self.net.num_devices):
            raise InvalidTask(f"this network was trained for {known} devices and cannot serve {task.num_devices}")
        order = np.argsort(-table_bytes(task), kind="stable")
        features = rollouts.standardised(task, self.net.scaling.numpy())[order]
        share = np.arange(task.num_tables)[:, None] / task.num_tables
        scores = self.net(torch.from_numpy(np.concatenate([features, share], 1).astype(np.float32))).numpy()

        def choose(step: int, legal: np.ndarray) -> np.ndarray:
            return np.where(legal, scores[step], -np.inf).argmax(axis=1)

        return rollouts.roll_out(one(Options.of(task)), order[None], choose, give_up=True).plan(task)

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        devices, hidden = self.net.num_devices, self.net.head.in_features
        shape = {"devices": devices, "hidden": hidden, "recurrent": self.net.lstm is not None}
        save_tensors(path, self.net.state_dict(), {**self.card, **card, "kind": TABLE, **shape})

    @classmethod
    def load(cls, path: str | Path) -> TablePolicy:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, TABLE)
        with holds(path, "the table network"):
            net = TableNet(np.zeros((2, len(FEATURES))), card["devices"], card["hidden"], card["recurrent"])
            net.load_state_dict(tensors)
            return cls(net, {name: card[name] for name in CARD})


def load(path: str | Path) -> DevicePolicy | ActionPolicy | TablePolicy:
    """A trained policy, of whichever algorithm."""
    kind = read_card(Path(path)).get("kind")
    if kind == TABLE:
        return TablePolicy.load(path)
    return ActionPolicy.load(path) if kind == ACTIONS else DevicePolicy.load(path)
