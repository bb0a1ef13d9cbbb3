"""Networks of the PPO learners and of behaviour cloning. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.tables import FEATURES

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

    def __repr__(self) -> str:  # results of solvers hold it
        return f"{sum(p.numel() for p in self.parameters())} weights"


def _row(shown: Mapping[str, Tensor]) -> Tensor:
    return shown["table"].clamp(-FARTHEST, FARTHEST)


def _behind(shown: Mapping[str, Tensor]) -> Tensor:
    """How much dearer each device would be than the cheapest one, over what the table itself adds, (B, K)."""
    ahead = shown["ahead"]
    adds = (ahead - shown["devices"][..., 2]).mean(1, keepdim=True).clamp(min=1e-4)
    return (ahead - ahead.amin(1, keepdim=True)) / adds


def _seen(shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What the layers see of each device, (B, K, DEVICE), and of the state, (B, STATE)."""
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

    def __repr__(self) -> str:
        return f"{sum(p.numel() for p in self.parameters())} weights"
