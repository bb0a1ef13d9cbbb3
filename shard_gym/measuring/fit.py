"""A cost network fitted to measured shards. Needs torch; `shard_gym.measuring.fitting` is the command."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.measuring.host import one_thread
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.nets import RELATIVE, Net, PublishedNet, net_of
from shard_gym.measuring.predictors import FOLDS, NORMAL_90, Shards, bounds, errors, shards_of
from shard_gym.simulators import features
from shard_gym.simulators.networks import ARCHITECTURES, Ours, Weights, inputs_of, is_ours, links_of

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
TO_RELATIVE = Fitting(epochs=300, batch=256, learning_rate=3e-3, model_error=0.04)
PHYSICS = Fitting(epochs=200, batch=512, learning_rate=5e-3, model_error=0.04)
PUBLISHED = Fitting(epochs=300, batch=512, learning_rate=1e-3)  # AutoShard's rate and batch


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
