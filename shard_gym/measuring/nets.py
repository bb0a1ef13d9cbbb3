"""The networks as they are fitted, in torch; a test holds them to `simulators.networks`, which has them in numpy."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.measuring.predictors import Shards
from shard_gym.simulators import features
from shard_gym.simulators.networks import (
    ARCHITECTURES,
    HIGHEST,
    LOWEST_FACTOR,
    MOST_DEVIATIONS,
    ROOT_OFFSET,
    WEIGHT_GRAIN,
    Loads,
    Ours,
    is_ours,
    on_grid,
)

Net: TypeAlias = "OurNet | PublishedNet"
# Of our networks, per member: units of the table network, and of the correction.
SIZES = {"ours": (32, 8), "ours-wide": (64, 12), "physics": (128, 12), "physics-wide": (96, 20)}
MEMBERS, FEWER = 5, 3  # FEWER where each has more units
RELATIVE = "autoshard-relative"
LEAST_MS = 0.02  # of a pass: what is predicted below is pulled up


def net_of(architecture: str, shards: Shards, without: str = "") -> Net:
    """A network that has learned nothing yet, for these shards."""
    if is_ours(architecture):
        return OurNet(shards, architecture)
    if ARCHITECTURES[architecture] is Loads:
        return LoadsNet(shards)
    return PublishedNet(shards, ARCHITECTURES[architecture], without, architecture == RELATIVE)


def tensor(array: np.ndarray) -> Tensor:
    """A tensor of float32 from an array."""
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
    """Networks as AutoShard and DreamShard published them."""

    members = 1

    def __init__(self, shards: Shards, heads: tuple[str, ...], without: str = "", relative: bool = False) -> None:
        super().__init__()
        self.relative = relative
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
        made = {f"{n}_ms": Head() for n in names}
        self.head = nn.ModuleDict(made)
        if relative:  # begins at the mean, above 0
            for name, ms in zip(heads, shards.times.mean(axis=0), strict=True):
                nn.init.constant_(made[f"{name}_ms"].last.bias, float(ms))

    def embed(self, rows: Tensor) -> Tensor:
        """Embed tables, (n,) -> (1, n, 32)."""
        return self.table1(F.relu(self.table0(self.inputs[rows][None])))

    def cost(self, name: str, sums: Tensor) -> Tensor:
        """One head, (1, B, 32) -> (1, B)."""
        return self.head[f"{name}_ms"](sums)

    def decode(self, sums: Tensor) -> Tensor:
        """Cost of sums, (1, B, 32) -> (1, B, 2) forward and backward ms."""
        if "total" in self.heads:
            total = self.cost("total", sums)
            return torch.stack([total * self.forward_share, total * (1 - self.forward_share)], -1)
        return torch.stack([self.cost("forward", sums), self.cost("backward", sums)], -1)

    def loss(self, sums: Tensor, times: Tensor) -> Tensor:
        """Squared error in ms, or the error of logarithms; (1, B)."""
        if self.relative:
            passes = self.decode(sums)
            return error_of_logarithms(passes.clamp(min=LEAST_MS), times) + F.relu(LEAST_MS - passes).sum(-1)
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


class LoadsNet(PublishedNet):
    """Networks of loads, see `networks.Loads`."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards, Loads.heads)
        self.relative = True
        found = features.physics(shards.tables, shards.batch, shards.caches)
        used = np.bincount(shards.row, minlength=len(found.unit)) > 0
        deviation = found.inputs[used].std(axis=0)
        self.mean, self.scale = found.inputs[used].mean(axis=0), 1 / np.where(deviation > 0, deviation, 1)
        self.inputs = tensor(((found.inputs - self.mean) * self.scale).clip(-MOST_DEVIATIONS, MOST_DEVIATIONS))
        self.unit = tensor(found.unit * 1e-3)
        self.table0 = Layer(1, found.inputs.shape[1], 128)
        with torch.no_grad():  # loads of half the first guess, and costs that grow with them
            self.table1.bias.fill_(0.5)
            for head, part in zip(self.head.values(), shards.times.sum(axis=0) / shards.times.sum(), strict=True):
                assert isinstance(head, Head)
                head.first.weight.abs_()
                head.first.bias.fill_(0.0)
                head.last.weight.abs_().mul_(float(part) * 0.18)
                head.last.bias.fill_(0.1)

    def embed(self, rows: Tensor) -> Tensor:
        """Loads of tables, (n,) -> (1, n, 32)."""
        return F.relu(super().embed(rows)) * self.unit[rows][:, None]


class OurNet(nn.Module):
    """Our networks, see `networks.Ours`; positive weights are kept as the softplus of what is fitted."""

    def __init__(self, shards: Shards, architecture: str = "ours", members: int = 0) -> None:
        super().__init__()
        hidden, units = SIZES[architecture]
        made = ARCHITECTURES[architecture]
        self.highest = made.highest
        found = made.work(shards.tables, shards.batch, shards.caches)
        x, used = found.inputs, np.bincount(shards.row, minlength=len(found.unit)) > 0
        self.members = members = members or (MEMBERS if made is Ours else FEWER)
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
        """Start at the best proportional fit, factors near one and their knots spread over the data."""
        scale = shards.times.sum(axis=0) * 1e3 / shards.sums(unit[:, None]).sum()
        with torch.no_grad():
            self.table1.weight.mul_(0.3)
            self.table1.bias.copy_(tensor(np.log(np.expm1(scale))))
            if self.highest < HIGHEST:  # ramps, spread over the data
                self.factor0.weight.mul_(2).sub_(1.0 + math.log(self.totals.shape[1] / 6))
                self.factor0.bias.uniform_(-6.0, 1.0)
                self.factor1.weight.sub_(3.5)
                self.factor1.bias.fill_(0.7)
                self.fixed.fill_(15.0)
                return
            self.factor0.weight.sub_(1.5)
            self.factor0.bias.uniform_(-3.0, 0.5)
            self.factor1.weight.sub_(4.0)
            self.factor1.bias.fill_(0.7)

    def embed(self, rows: Tensor) -> Tensor:
        """Embed tables, (n,) -> (M, n, totals + 2)."""
        level = self.table1(F.relu(self.table0(self.inputs[rows][None])))
        base = self.unit[rows][:, None] * F.softplus(level)
        totals = self.totals[rows].expand(self.members, -1, -1)
        return torch.cat([totals, base], dim=-1)

    def decode(self, sums: Tensor) -> Tensor:
        """Cost of sums, (M, B, totals + 2) -> (M, B, 2) forward and backward ms."""
        roots = (sums[..., :-2] + ROOT_OFFSET) ** 0.25
        hidden = F.relu(roots @ F.softplus(self.factor0.weight) + self.factor0.bias).clamp(max=self.highest)
        factor = hidden @ F.softplus(self.factor1.weight) + self.factor1.bias
        fixed = 10 * F.softplus(self.fixed)
        return factor.clamp(min=LOWEST_FACTOR) * (sums[..., -2:] + fixed) / 1e3

    def loss(self, sums: Tensor, times: Tensor) -> Tensor:
        """Huber's error of the logarithms of both passes and of their sum, (M, B)."""
        return error_of_logarithms(self.decode(sums), times)

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


def error_of_logarithms(predicted: Tensor, times: Tensor) -> Tensor:
    """Huber's error of the logarithms of both passes and of their sum, (..., 2) -> (...)."""
    gap = torch.log(predicted) - torch.log(times)
    whole = torch.log(predicted.sum(-1)) - torch.log(times.sum(-1))
    huber = F.smooth_l1_loss(gap, torch.zeros_like(gap), beta=0.1, reduction="none")
    return huber @ torch.tensor([0.2, 0.3]) + F.smooth_l1_loss(
        whole, torch.zeros_like(whole), beta=0.1, reduction="none"
    )


def _array(parameter: Tensor) -> np.ndarray:
    return on_grid(parameter.detach().numpy().astype(np.float64), WEIGHT_GRAIN)
