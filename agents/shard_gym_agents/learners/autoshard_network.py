"""AutoShard's policy-value network. Needs torch."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.tables import FEATURES

TABLE, STATE = 32, 64


class Net(nn.Module):
    """The policy-value network, of any number of tables and devices; T steps of B episodes on K devices."""

    scaling: Tensor  # mean and deviation of the features it was trained on, (2, 21); kept with the weights

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Sequential(nn.Linear(len(FEATURES), 128), nn.ReLU(), nn.Linear(128, TABLE))
        self.share, self.cost = nn.Linear(1, STATE - TABLE), nn.Linear(1, STATE - TABLE)
        self.lstm = nn.LSTM(STATE, STATE, num_layers=2)
        self.first = nn.Linear(3 * STATE, 128)
        hidden = [m for a, b in pairwise((128, 128, 64)) for m in (nn.ReLU(), nn.Linear(a, b))]
        self.policy = nn.Sequential(*hidden, nn.ReLU(), nn.Linear(64, 1))
        self.worth = nn.Sequential(nn.Linear(STATE, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("scaling", torch.stack([torch.zeros(len(FEATURES)), torch.ones(len(FEATURES))]).double())

    def __repr__(self) -> str:
        """Tells weights apart; results hold it."""
        content = b"".join(value.cpu().numpy().tobytes() for value in self.state_dict().values())
        return f"Net({sha256(content).hexdigest()[:12]})"

    def states(self, shown: Tensor, memory: Any = None) -> tuple[Tensor, Tensor, Any]:
        """From features and share placed (T, B, 22): tables (T, B, 32), states (T, B, 64), and what the LSTM keeps."""
        tables = self.table(shown[..., :-1])
        states, memory = self.lstm(torch.cat([tables, self.share(shown[..., -1:])], -1), memory)
        return tables, states, memory

    def scores(self, states: Tensor, sums: Tensor, costs: Tensor) -> Tensor:
        """Of each device (..., K), from states (..., 64), the sum of its tables (..., K, 32) and its cost (..., K)."""
        actions = torch.cat([sums, self.cost(costs[..., None])], -1)
        # the first layer on [state, action, state * action]; a state's part is the same for all devices
        weight = self.first.weight
        here = F.linear(states, weight[:, :STATE], self.first.bias)
        both = torch.cat([actions, states[..., None, :] * actions], -1)
        return self.policy(F.linear(both, weight[:, STATE:]) + here[..., None, :])[..., 0]

    def values(self, states: Tensor) -> Tensor:
        """What is still to come, (...)."""
        return self.worth(states)[..., 0]

    def begin_values_at(self, level: float) -> None:
        """Make this what is still to come, about, whatever the state."""
        last = self.worth[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, level)
