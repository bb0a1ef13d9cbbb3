"""The networks while they are fitted, in torch. The first dimension of every parameter is the ensemble's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.cost_models import features
from shard_gym.cost_models.data import Shards
from shard_gym.cost_models.networks import LOWEST_FACTOR, ROOT_OFFSET, WEIGHT_GRAIN, on_grid

# Of our networks, per member: units of the table network, and of the correction.
SIZES = {"ours": (32, 8), "ours-wide": (64, 12)}
MEMBERS = 5


def tensor(array: np.ndarray) -> Tensor:
    """As float32."""
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


class Layer(nn.Module):
    """M dense layers side by side: (M or 1, n, a) -> (M, n, b)."""

    def __init__(self, members: int, a: int, b: int) -> None:
        super().__init__()
        bound = a**-0.5  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, a, b).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, b).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def export(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and biases on the grid."""
        return _array(self.weight), _array(self.bias)[:, 0]


class Head(nn.Module):
    """32-64-1: (1, B, 32) -> (1, B)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Layer(1, 32, 64), Layer(1, 64, 1)

    def forward(self, sums: Tensor) -> Tensor:
        return self.last(F.relu(self.first(sums)))[..., 0]


class PublishedNet(nn.Module):
    """AutoShard's and DreamShard's networks."""

    members = 1

    def __init__(self, shards: Shards, heads: tuple[str, ...], without: str = "") -> None:
        super().__init__()
        raw = features.published(shards.tables)
        used = np.bincount(shards.row, minlength=len(raw))[:, None] / len(shards.row)
        self.mean, self.scale = np.zeros(raw.shape[1]), np.ones(raw.shape[1])
        self.mean[:3] = (raw * used).sum(axis=0)[:3]  # sizes in GB and shares stay raw, as published
        deviation = np.sqrt((((raw - self.mean) ** 2) * used).sum(axis=0))[:3]
        self.scale[:3] = 1 / np.where(deviation > 0, deviation, 1)
        if without:
            self.scale[features.GROUPS[without]] = 0
        self.heads = heads
        self.inputs = tensor((raw - self.mean) * self.scale)
        self.forward_share = float(shards.times[:, 0].sum() / shards.times.sum())
        self.dims = tensor(shards.tables.dim)
        self.table0, self.table1 = Layer(1, raw.shape[1], 128), Layer(1, 128, 32)
        names = (*heads, "overall") if "comm" in heads else heads
        self.head = nn.ModuleDict({f"{n}_ms": Head() for n in names})

    def embed(self, rows: Tensor) -> Tensor:
        """(n,) -> (1, n, 32)."""
        return self.table1(F.relu(self.table0(self.inputs[rows][None])))

    def cost(self, name: str, sums: Tensor) -> Tensor:
        """One head, (1, B, 32) -> (1, B)."""
        return self.head[f"{name}_ms"](sums)

    def decode(self, sums: Tensor) -> Tensor:
        """(1, B, 32) -> (1, B, 2) forward and backward ms."""
        if "total" in self.heads:
            total = self.cost("total", sums)
            return torch.stack([total * self.forward_share, total * (1 - self.forward_share)], -1)
        return torch.stack([self.cost("forward", sums), self.cost("backward", sums)], -1)

    def loss(self, sums: Tensor, times: Tensor) -> Tensor:
        """Squared error in ms, (1, B)."""
        if "total" in self.heads:
            return (self.cost("total", sums) - times.sum(-1)) ** 2
        return ((self.decode(sums) - times) ** 2).sum(-1)

    def export(self) -> dict[str, np.ndarray]:
        """Tensors of `networks.Published`."""
        out = {"mean": self.mean, "scale": self.scale, "forward_share": np.array(self.forward_share)}
        layers: dict[str, Any] = {"table/0": self.table0, "table/1": self.table1}
        for name, head in self.head.items():
            layers |= {f"{name[:-3]}/0": head.first, f"{name[:-3]}/1": head.last}
        for name, layer in layers.items():
            weight, bias = layer.export()
            out |= {f"{name}/weight": weight[0], f"{name}/bias": bias[0]}
        return out


class OurNet(nn.Module):
    """See `networks.Ours`; positive weights are kept as the softplus of what is fitted."""

    def __init__(self, shards: Shards, architecture: str = "ours", members: int = MEMBERS) -> None:
        super().__init__()
        hidden, units = SIZES[architecture]
        found = features.work(shards.tables, shards.batch)
        x, used = found.inputs, np.bincount(shards.row, minlength=len(found.unit)) > 0
        self.members = members
        self.low, self.high = x[used].min(axis=0), x[used].max(axis=0)
        deviation = x[used].std(axis=0)
        self.mean, self.scale = x[used].mean(axis=0), 1 / np.where(deviation > 0, deviation, 1)
        self.totals_scale = 1 / np.maximum(found.totals[used].mean(axis=0), 1e-9)
        self.inputs = tensor((x - self.mean) * self.scale)
        self.unit, self.totals = tensor(found.unit), tensor(found.totals * self.totals_scale)
        self.table0, self.table1 = Layer(members, x.shape[1], hidden), Layer(members, hidden, 2)
        self.factor0, self.factor1 = Layer(members, self.totals.shape[1], units), Layer(members, units, 2)
        self.fixed = nn.Parameter(torch.full((members, 1, 2), -2.0))  # softplus, tens of us
        self._start(shards, found.unit)

    def _start(self, shards: Shards, unit: np.ndarray) -> None:
        """Begin at the best proportional fit, factors near one and their knots spread over the data."""
        scale = shards.times.sum(axis=0) * 1e3 / shards.sums(unit[:, None]).sum()
        with torch.no_grad():
            self.table1.weight.mul_(0.3)
            self.table1.bias.copy_(tensor(np.log(np.expm1(scale))))
            self.factor0.weight.sub_(1.5)
            self.factor0.bias.uniform_(-3.0, 0.5)
            self.factor1.weight.sub_(4.0)
            self.factor1.bias.fill_(0.7)

    def embed(self, rows: Tensor) -> Tensor:
        """(n,) -> (M, n, totals + 2)."""
        level = self.table1(F.relu(self.table0(self.inputs[rows][None])))
        base = self.unit[rows][:, None] * F.softplus(level)
        totals = self.totals[rows].expand(self.members, -1, -1)
        return torch.cat([totals, base], dim=-1)

    def decode(self, sums: Tensor) -> Tensor:
        """(M, B, totals + 2) -> (M, B, 2) forward and backward ms."""
        roots = (sums[..., :-2] + ROOT_OFFSET) ** 0.25
        hidden = F.relu(roots @ F.softplus(self.factor0.weight) + self.factor0.bias)
        factor = hidden @ F.softplus(self.factor1.weight) + self.factor1.bias
        fixed = 10 * F.softplus(self.fixed)
        return factor.clamp(min=LOWEST_FACTOR) * (sums[..., -2:] + fixed) / 1e3

    def loss(self, sums: Tensor, times: Tensor) -> Tensor:
        """Huber's error of the logarithms of both passes and of their sum, (M, B)."""
        predicted = self.decode(sums)
        gap = torch.log(predicted) - torch.log(times)
        whole = torch.log(predicted.sum(-1)) - torch.log(times.sum(-1))
        huber = F.smooth_l1_loss(gap, torch.zeros_like(gap), beta=0.1, reduction="none")
        return huber @ torch.tensor([0.2, 0.3]) + F.smooth_l1_loss(
            whole, torch.zeros_like(whole), beta=0.1, reduction="none"
        )

    def export(self) -> dict[str, np.ndarray]:
        """Tensors of `networks.Ours`."""
        out = {n: getattr(self, n) for n in ("low", "high", "mean", "scale", "totals_scale")}
        for name, layer in (("table/0", self.table0), ("table/1", self.table1)):
            out[f"{name}/weight"], out[f"{name}/bias"] = layer.export()
        for name, layer in (("factor/0", self.factor0), ("factor/1", self.factor1)):
            out[f"{name}/weight"] = _array(F.softplus(layer.weight))
            out[f"{name}/bias"] = _array(layer.bias)[:, 0]
        out["fixed"] = _array(10 * F.softplus(self.fixed))[:, 0]
        return out


def _array(parameter: Tensor) -> np.ndarray:
    return on_grid(parameter.detach().numpy().astype(np.float64), WEIGHT_GRAIN)
