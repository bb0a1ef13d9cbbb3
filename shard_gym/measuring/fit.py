"""Fit a cost network to measured shards: python -m shard_gym.measuring.fit --data FILE.npz --out FILE.safetensors"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.measuring.drift import settled
from shard_gym.measuring.host import one_thread
from shard_gym.measuring.measurements import Measurements, at_pace_of
from shard_gym.measuring.predictors import FOLDS, NORMAL_90, Shards, bounds, errors, of_pools, predicted_by, shards_of
from shard_gym.records import commands
from shard_gym.records.files import read_json
from shard_gym.records.guard import guarded
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
    Weights,
    inputs_of,
    is_ours,
    links_of,
    on_grid,
)

ROLES = ("planner", "judge")
Net: TypeAlias = "OurNet | PublishedNet"
# Of our networks, per member: units of the table network, and of the correction.
SIZES = {"ours": (32, 8), "ours-wide": (64, 12), "physics": (128, 12), "physics-wide": (96, 20)}
MEMBERS, FEWER = 5, 3  # FEWER where each has more units
MIN_SHARDS = 40  # below, nothing can be held out
Tell = Callable[[int, int, float], None]  # epoch, epochs, held-out loss


@dataclass(frozen=True)
class Fitting:
    """Effort of a fit."""

    epochs: int = 200
    batch: int = 256  # shards a step
    learning_rate: float = 3e-3  # falls to 0 as a cosine
    patience: int = 60  # epochs without a better held-out loss
    model_error: float = math.inf  # relative; shards that are noisier than it count less


OURS = Fitting()
RELATIVE = "autoshard-relative"
LEAST_MS = 0.02  # of a pass: what is predicted below is pulled up
TO_RELATIVE = Fitting(epochs=300, batch=256, learning_rate=3e-3, model_error=0.04)
PHYSICS = Fitting(epochs=200, batch=512, learning_rate=5e-3, model_error=0.04)
PUBLISHED = Fitting(epochs=300, batch=512, learning_rate=1e-3)  # AutoShard's rate and batch


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


def fit(
    measured: Measurements,
    architecture: str = "ours",
    seed: int = 0,
    settings: Fitting | None = None,
    without: str = "",
    tell: Tell | None = None,
) -> Weights:
    """Weights fitted to measurements; equal arguments give equal weights.

    Early stopping looks at shards with held-out tables: each member of an ensemble holds out other tables, so
    that members disagree where a table is new. `without` leaves out a group of features (published nets).
    """
    if architecture not in ARCHITECTURES:
        raise UnknownName("architecture", architecture, ARCHITECTURES)
    shards = shards_of(measured)
    if len(shards) < MIN_SHARDS:
        raise InvalidPool(f"a fit needs at least {MIN_SHARDS} measured shards, got {len(shards)}")
    # the order of sums, and so the result, must not depend on the machine; nor may a fit disturb its caller
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = net_of(architecture, shards, without)
        held = _held_out(shards, net.members, seed)
        effort = settings or effort_of(architecture)
        epochs = _train(net, shards, held, effort, seed, tell)
        found = _calibrate(net, shards, held, effort.model_error < math.inf)
    tensors = net.export() | {"ranges": bounds(shards.tables), "sigma": np.array(found.pop("sigma"))}
    card = {
        "architecture": architecture,
        "features": list(inputs_of(architecture)),
        "without": without,
        "batch": shards.batch,
        "shards": len(shards),
        "tables": len(np.unique(shards.origin)),
        "seed": seed,
        "epochs": epochs,
        "held_out": found,
        "data": measured.content_hash,
        "measured": measured.card,
    }
    if shards.caches != features.Caches():
        card["caches"] = asdict(shards.caches)
    return Weights(tensors, card)


def net_of(architecture: str, shards: Shards, without: str = "") -> Net:
    """A network that has learned nothing yet, for these shards."""
    if is_ours(architecture):
        return OurNet(shards, architecture)
    if ARCHITECTURES[architecture] is Loads:
        return LoadsNet(shards)
    return PublishedNet(shards, ARCHITECTURES[architecture], without, architecture == RELATIVE)


def effort_of(architecture: str) -> Fitting:
    """The effort that an architecture is fitted with unless told."""
    if is_ours(architecture):
        return OURS if ARCHITECTURES[architecture] is Ours else PHYSICS
    return TO_RELATIVE if architecture in (RELATIVE, "loads") else PUBLISHED


@dataclass
class _Best:
    """The best parameters of each member so far."""

    loss: Tensor
    epoch: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)

    def update(self, net: Net, loss: Tensor, epoch: int) -> None:
        better = loss < self.loss
        for name, value in net.state_dict().items():
            kept = self.state.setdefault(name, value.clone())
            kept[better] = value[better]
        self.loss = torch.where(better, loss, self.loss)
        self.epoch[better] = epoch


def _held_out(shards: Shards, members: int, seed: int) -> Tensor:
    """Shards that a member does not learn from, (members, S) bool."""
    folds = shards.folds(seed)
    held = np.stack(folds[:members])
    if not held.any(axis=1).all() or held.all(axis=1).any():
        raise InvalidPool(f"these shards have too few different tables to hold out one in {FOLDS}")
    return torch.from_numpy(held)


def _train(net: Net, shards: Shards, held: Tensor, settings: Fitting, seed: int, tell: Tell | None) -> list[int]:
    """Adam until held-out losses stop falling; leaves every member at its best and says at which epoch that was."""
    optimizer = torch.optim.Adam(net.parameters(), settings.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    batches = _Batches(shards)
    worth = torch.from_numpy(1 / (1 + (shards.noise / settings.model_error) ** 2)).float()
    learns = (~held).float() * worth
    best = _Best(torch.full((net.members,), math.inf), torch.zeros(net.members, dtype=torch.long))
    for epoch in range(settings.epochs):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        for picked in torch.randperm(len(shards), generator=generator).split(settings.batch):
            sums = batches.sums(net, picked)
            loss = (net.loss(sums, batches.times[picked]) * learns[:, picked]).sum() / learns[:, picked].sum()
            if isinstance(net, PublishedNet) and "comm" in net.heads:
                loss = loss + batches.plan_loss(net, sums, picked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            losses = torch.cat([net.loss(batches.sums(net, p), batches.times[p]) for p in batches.everything], 1)
        mean = (losses * held * worth).sum(1) / (held * worth).sum(1)
        best.update(net, mean, epoch)
        if tell:
            tell(epoch + 1, settings.epochs, float(best.loss.mean()))
        if epoch - int(best.epoch.max()) >= settings.patience:
            break
    net.load_state_dict(best.state)
    return (best.epoch + 1).tolist()


class _Batches:
    """Sums of embeddings of any shards."""

    def __init__(self, shards: Shards) -> None:
        self.links = links_of(shards.card)
        self.row = torch.from_numpy(shards.row)
        self.size = torch.from_numpy(np.bincount(shards.shard, minlength=len(shards)))
        self.offset = torch.cumsum(self.size, 0) - self.size
        self.times = torch.from_numpy(shards.times.astype(np.float32))
        self.batch = shards.batch
        self.everything = torch.arange(len(shards)).split(2048)

    def tables(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the tables of these shards, and which of the shards each is in."""
        size = self.size[picked]
        owner = torch.repeat_interleave(torch.arange(len(picked)), size)
        within = torch.arange(len(owner)) - (torch.cumsum(size, 0) - size)[owner]
        return self.row[self.offset[picked][owner] + within], owner

    def sums(self, net: Net, picked: Tensor) -> Tensor:
        """Sums of the shards picked, (members, B, width)."""
        rows, owner = self.tables(picked)
        tables = net.embed(rows)
        out = torch.zeros(tables.shape[0], len(picked), tables.shape[2])
        return out.index_add(1, owner, tables)

    def plan_loss(self, net: PublishedNet, sums: Tensor, picked: Tensor, devices: int = 4) -> Tensor:
        """DreamShard's other heads: shards are dealt to plans of four devices, their all-to-all is the links'."""
        plans = len(picked) // devices
        if not plans:
            return torch.zeros(())
        rows, owner = self.tables(picked)
        dims = torch.zeros(len(picked)).index_add(0, owner, net.dims[rows])[: plans * devices]
        wire = self.links.all_to_all_ms(dims.reshape(plans, devices).double().numpy(), self.batch)
        comm = torch.from_numpy(wire.astype(np.float32))
        forward, backward = self.times[picked][: plans * devices].reshape(plans, devices, 2).unbind(-1)
        cost = (forward.amax(dim=1, keepdim=True) + 2 * comm + backward).amax(dim=1)
        used = sums[:, : plans * devices]
        most = used.reshape(plans, devices, -1).amax(dim=1)[None]
        comm_gap, cost_gap = net.cost("comm", used)[0] - comm.ravel(), net.cost("overall", most)[0] - cost
        return (comm_gap**2).mean() + (cost_gap**2).mean()


def _calibrate(net: Net, shards: Shards, held: Tensor, noise_apart: bool) -> dict[str, Any]:
    """Errors on shards with held-out tables, each by a member that held them out, and what spread explains them.

    `noise_apart`: without the noise of the measurements, which no plan takes longer for, and of the longer half of the
    shards, as a plan's slowest devices are.
    """
    batches = _Batches(shards)
    with torch.no_grad():
        times = torch.cat([net.decode(batches.sums(net, p)) for p in batches.everything], 1).clamp(min=1e-6)
    predicted = times.sum(-1).double().numpy()  # (members, S)
    measured = shards.times.sum(axis=1)
    spread = predicted.std(axis=0) / predicted.mean(axis=0)
    member, shard = np.nonzero(held.numpy())
    ratio = measured[shard] / predicted[member, shard] - 1
    # the variance that must come on top of the members' for 90 % to lie inside
    known = spread[shard] ** 2 + (shards.noise[shard] ** 2 if noise_apart else 0)
    counted = measured[shard] >= (np.median(measured) if noise_apart else 0)
    extra = np.quantile(((ratio / NORMAL_90) ** 2 - known)[counted], 0.9)
    sigma = math.sqrt(max(float(extra), 1e-6))
    return errors(predicted[member, shard], measured[shard]) | {"shards": len(shard), "sigma": sigma}


def _tell(epoch: int, epochs: int, loss: float) -> None:
    terminal = sys.stderr.isatty()
    if terminal or epoch % 20 == 0 or epoch == epochs:
        end = "\r" if terminal and epoch < epochs else "\n"
        sys.stderr.write(f"epoch {epoch}/{epochs}, held-out loss {loss:.5f}{end}")
        sys.stderr.flush()


def write(options: argparse.Namespace) -> None:
    """Fit, and write the weights with their card."""
    measured = _joined(options.data, options.pace, options.trend)
    if options.pools:
        measured = of_pools(measured, options.pools)
    settings = effort_of(options.architecture)
    if options.epochs:
        settings = replace(settings, epochs=options.epochs)
    weights = fit(measured, options.architecture, options.seed, settings, tell=_tell)
    if options.id:
        weights.card["id"] = options.id
    weights.card["role"] = options.role
    if options.comm:
        weights.card["links"] = _links(options.comm)
    weights.card["command"] = options.command
    weights.save(options.out)
    sys.stderr.write(f"{options.out}: {json.dumps(weights.card['held_out'])}\n")


def _links(path: Path) -> dict[str, Any]:
    """The links of a file of all-to-alls."""
    with guarded(f"{path} holds no fit of all-to-alls"):
        links: dict[str, Any] = read_json(path)["fit"]["all"]["links"]
        links_of({"links": links})
        return links


def main(argv: Sequence[str] | None = None) -> int:
    """Fit as told on the command line."""
    given = sys.argv[1:] if argv is None else argv
    parser = commands.parser("fit", __doc__)
    parser.set_defaults(command=shlex.join(["shard-gym", "fit", *given]))
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="measurements, .npz; several are joined")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="ours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", choices=ROLES, default="planner")
    parser.add_argument("--id", help="of a fit to be published; else its simulator is called by its hash")
    parser.add_argument("--comm", type=Path, help="what shard-gym measure comm wrote; its links are kept")
    parser.add_argument(
        "--pace", type=Path, help="a campaign that shares shards with each of --data: its pace is taken"
    )
    parser.add_argument("--trend", help="id or file of a fit by which drift is seen and taken out; needs --pace")
    parser.add_argument("--pools", nargs="+", help="fit only shards of these pools; default all")
    parser.add_argument("--epochs", type=int, help="default: 200 of ours, 300 of the published networks")
    parser.add_argument("--out", type=Path, required=True)
    return commands.run(parser, write, given)


def _joined(paths: Sequence[Path], reference: Path | None, trend: str | None) -> Measurements:
    """Measurements of files, and of every .npz in folders, at the pace of the reference if there is one.

    `trend` is the fit by which the drift of their campaigns is seen.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    if not files:
        raise InvalidPool(f"no measurements (.npz) in {', '.join(map(str, paths))}")
    parts = [Measurements.load(file) for file in files]
    if reference is None:
        if trend:
            raise InvalidPool("--trend needs --pace: a level is not known without shards measured again")
        return Measurements.concat(parts)
    common = Measurements.load(reference)
    if not trend:
        return Measurements.concat(at_pace_of(common, parts))
    predict = predicted_by(simulators.make(trend))
    return Measurements.concat([settled(part, common, predict) for part in parts])


if __name__ == "__main__":
    raise SystemExit(main())
