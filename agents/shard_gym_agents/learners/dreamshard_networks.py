"""DreamShard's two networks (its appendix B.1, B.2), for any number of tables and devices. Needs torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.tables import FEATURES

LOUD = 10.0  # costs of 1 as the policy sees them: differences between nearly full devices have to show


def mlp(*widths: int) -> nn.Sequential:
    """Dense layers with ReLU between them."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class CostNet(nn.Module):
    """What a device's tables cost: 21-128-32 a table, summed; 32-64-1 for each phase, and for the whole plan."""

    PHASES = ("forward", "comm", "backward")  # comm is the backward one; the forward one mirrors it

    def __init__(self) -> None:
        super().__init__()
        self.table, self.makespan_head = mlp(len(FEATURES), 128, 32), mlp(32, 64, 1)
        self.heads = nn.Linear(32, 3 * 64)  # three heads in one go, initialised as three
        self.last = nn.Parameter(torch.empty(3, 64).uniform_(-1 / 8, 1 / 8))
        self.bias = nn.Parameter(torch.empty(3).uniform_(-1 / 8, 1 / 8))

    def phases(self, sums: Tensor, slowness: Tensor) -> Tensor:
        """Of each device, (..., K, 32) and (..., K) -> (..., K, 3)."""
        return self.read(self.heads(sums), self.last_layer()) * self.scale(slowness)

    def last_layer(self) -> Tensor:
        """The heads' last layers as one, (3, 3 * 64)."""
        return torch.block_diag(*self.last.split(1))

    def read(self, hidden: Tensor, last: Tensor) -> Tensor:
        """Phases on devices of speed 1, from what the heads' first layers give, (..., 3 * 64) -> (..., 3)."""
        return F.linear(F.relu(hidden), last, self.bias)

    def scale(self, slowness: Tensor) -> Tensor:
        """What phases take on devices of these speeds, (..., K) -> (..., K, 3); communication takes the same."""
        return torch.stack([slowness, torch.ones_like(slowness), slowness], -1)

    def makespan(self, sums: Tensor, slowness: Tensor) -> Tensor:
        """Of the plan, by the largest of each element over devices; half the speed counts as twice the work."""
        return self.makespan_head((sums * slowness[..., None]).amax(dim=-2))[..., 0]


class PolicyNet(nn.Module):
    """Scores a device by its own tables and costs: 21-128-32 a table, summed; 3-64-32 the costs; 64-1."""

    loud: Tensor

    def __init__(self, costs_shown: bool = True) -> None:
        super().__init__()
        self.table, self.cost, self.head = mlp(len(FEATURES), 128, 32), mlp(3, 64, 32), nn.Linear(64, 1)
        self.register_buffer("loud", torch.tensor(LOUD if costs_shown else 0.0))

    def forward(self, sums: Tensor, phases: Tensor) -> Tensor:
        """(..., K, 32) and (..., K, 3) with the table on each device -> (..., K)."""
        return self.head(F.relu(torch.cat([sums, self.cost(self.loud * phases)], -1)))[..., 0]


class Nets(nn.Module):
    """Both networks, with the mean, the deviation and the range of the features; for any number of tables and devices.

    Outside the range of the training tables features count as at its edge: networks have no idea what is beyond.
    """

    scaling: Tensor
    limits: Tensor

    def __init__(self, scaling: np.ndarray, costs_shown: bool = True, limits: np.ndarray | None = None) -> None:
        super().__init__()
        self.cost, self.policy = CostNet(), PolicyNet(costs_shown)
        limits = np.array([[-np.inf], [np.inf]]).repeat(len(FEATURES), axis=1) if limits is None else limits
        self.register_buffer("scaling", torch.from_numpy(scaling))
        self.register_buffer("limits", torch.from_numpy(limits))

    def __repr__(self) -> str:  # results of solvers hold it
        return f"{sum(p.numel() for p in self.parameters())} weights"


def composed(phases: Tensor, objective: str) -> Tensor:
    """The makespan that phases (..., K, 3) add up to; forward communication takes as long as backward."""
    forward, comm, backward = phases.unbind(-1)
    if objective == "kernel":
        return (forward + backward).amax(-1)
    return forward.amax(-1) + (2 * comm + backward).amax(-1)
