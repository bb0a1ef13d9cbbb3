"""The network that scores devices, or options, from what the planner says of each of them. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.tables.pool import FEATURES as TABLE
from shard_gym_agents.learners.learner import mlp, num_weights

WIDTH = 64
SHARP = 20.0  # what weighted sums are multiplied with: sampled plans are then about as good as the best


class ScoreNet(nn.Module):
    """21-128-64 a table, summed; F-64 what is seen; a candidate's and the mean of all, 64-64 each, 64-1.

    `seen` names what is shown of each candidate. The score begins as the sum of these, weighted as `first` says.
    """

    scaling: Tensor

    def __init__(self, scaling: np.ndarray, seen: Sequence[str], first: Mapping[str, float]) -> None:
        super().__init__()
        self.table, self.seen = mlp(len(TABLE), 128, WIDTH), nn.Linear(len(seen), WIDTH)
        self.inner, self.all = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last, self.weights = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(len(seen)))
        with torch.no_grad():
            for name, weight in first.items():
                self.weights[seen.index(name)] = weight
        self.register_buffer("scaling", torch.from_numpy(scaling))

    def forward(self, sums: Tensor, seen: Tensor, real: Tensor | None = None) -> Tensor:
        """Sums of tables (..., K, 64) and what is seen (..., K, F), of each candidate -> (..., K).

        The mean is that of candidates that are `real`, (..., K).
        """
        each = F.relu(sums + self.seen(seen))
        if real is None:
            mean = each.mean(dim=-2, keepdim=True)
        else:
            share = real / real.sum(dim=-1, keepdim=True).clamp(min=1)
            mean = share[..., None, :] @ each
        hidden = F.relu(self.inner(each) + self.all(mean))
        return SHARP * (seen @ self.weights) + hidden @ self.last

    __repr__ = num_weights


class Game(NamedTuple):
    """Tasks as a policy plays them."""

    new_net: Callable[[np.ndarray, bool], ScoreNet]  # by the scaling of features, and whether it begins as greedy
    begin: Callable[..., Any]  # training tasks, planner, scaling -> episodes that `take` rows
    sampled: Callable[..., Any]  # network, episodes, planner, generator -> `rollouts.Sampled`
    solver: Callable[[ScoreNet], Any]
