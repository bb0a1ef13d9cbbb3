"""Fit a cost network to measured shards: python -m shard_gym.cost_models.fit --data FILE.npz --out FILE.safetensors"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shard_gym.cost_models.data import FOLDS, Shards, bounds, shards_of
from shard_gym.cost_models.metrics import NORMAL_90, errors
from shard_gym.cost_models.networks import ARCHITECTURES, Ours, Published
from shard_gym.cost_models.torch_networks import OurNet, PublishedNet
from shard_gym.cost_models.weights import Weights, links_of
from shard_gym.errors import InvalidPool, ShardGymError, UnknownName
from shard_gym.files import read_json
from shard_gym.measurements import Measurements
from shard_gym.repeats import at_pace_of

ROLES = ("planner", "judge")
Net = OurNet | PublishedNet
Tell = Callable[[int, int, float], None]  # epoch, epochs, held-out loss


@dataclass(frozen=True)
class Settings:
    """How a fit is done."""

    epochs: int = 200
    batch: int = 256  # shards a step
    learning_rate: float = 3e-3  # falls to 0 as a cosine
    patience: int = 60  # epochs without a better held-out loss


OURS = Settings()
PUBLISHED = Settings(epochs=300, batch=512, learning_rate=1e-3)  # AutoShard's rate and batch


def fit(
    measured: Measurements,
    architecture: str = "ours",
    seed: int = 0,
    settings: Settings | None = None,
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
    with _one_thread():
        torch.manual_seed(seed)
        ours = ARCHITECTURES[architecture] is Ours
        net: Net = OurNet(shards, architecture) if ours else PublishedNet(shards, ARCHITECTURES[architecture], without)
        held = _held_out(shards, net.members, seed)
        epochs = _train(net, shards, held, settings or (OURS if ours else PUBLISHED), seed, tell)
        found = _calibrate(net, shards, held)
    tensors = net.export() | {"ranges": bounds(shards.tables), "sigma": np.array(found.pop("sigma"))}
    card = {
        "architecture": architecture,
        "features": list(Ours.inputs if ours else Published.inputs),
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
    return Weights(tensors, card)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of sums, and so the result, must not depend on the machine; nor may a fit disturb its caller."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


@dataclass
class _Best:
    """The best parameters of each member so far."""

    loss: torch.Tensor
    epoch: torch.Tensor
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    def update(self, net: Net, loss: torch.Tensor, epoch: int) -> None:
        better = loss < self.loss
        for name, value in net.state_dict().items():
            kept = self.state.setdefault(name, value.clone())
            kept[better] = value[better]
        self.loss = torch.where(better, loss, self.loss)
        self.epoch[better] = epoch


def _held_out(shards: Shards, members: int, seed: int) -> torch.Tensor:
    """(members, S) bool: the shards that a member does not learn from."""
    folds = shards.folds(seed)
    held = np.stack(folds[:members])
    if not held.any(axis=1).all() or held.all(axis=1).any():
        raise InvalidPool(f"these shards have too few different tables to hold out one in {FOLDS}")
    return torch.from_numpy(held)


def _train(net: Net, shards: Shards, held: torch.Tensor, settings: Settings, seed: int, tell: Tell | None) -> list[int]:
    """Adam until held-out losses stop falling; leaves every member at its best and says at which epoch that was."""
    optimizer = torch.optim.Adam(net.parameters(), settings.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    batches = _Batches(shards)
    learns = (~held).float()
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
        mean = (losses * held).sum(1) / held.sum(1)
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

    def tables(self, picked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the tables of these shards, and which of the shards each is in."""
        size = self.size[picked]
        owner = torch.repeat_interleave(torch.arange(len(picked)), size)
        within = torch.arange(len(owner)) - (torch.cumsum(size, 0) - size)[owner]
        return self.row[self.offset[picked][owner] + within], owner

    def sums(self, net: Net, picked: torch.Tensor) -> torch.Tensor:
        """(members, B, width)."""
        rows, owner = self.tables(picked)
        tables = net.embed(rows)
        out = torch.zeros(tables.shape[0], len(picked), tables.shape[2])
        return out.index_add(1, owner, tables)

    def plan_loss(self, net: PublishedNet, sums: torch.Tensor, picked: torch.Tensor, devices: int = 4) -> torch.Tensor:
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


def _calibrate(net: Net, shards: Shards, held: torch.Tensor) -> dict[str, Any]:
    """Errors on shards with held-out tables, each by a member that held them out, and what spread explains them."""
    batches = _Batches(shards)
    with torch.no_grad():
        times = torch.cat([net.decode(batches.sums(net, p)) for p in batches.everything], 1).clamp(min=1e-6)
    predicted = times.sum(-1).double().numpy()  # (members, S)
    measured = shards.times.sum(axis=1)
    spread = predicted.std(axis=0) / predicted.mean(axis=0)
    member, shard = np.nonzero(held.numpy())
    ratio = measured[shard] / predicted[member, shard] - 1
    # the variance that must come on top of the members' for 90 % to lie inside
    extra = np.quantile((ratio / NORMAL_90) ** 2 - spread[shard] ** 2, 0.9)
    sigma = math.sqrt(max(float(extra), 1e-6))
    return errors(predicted[member, shard], measured[shard]) | {"shards": len(shard), "sigma": sigma}


def _tell(epoch: int, epochs: int, loss: float) -> None:
    terminal = sys.stderr.isatty()
    if terminal or epoch % 20 == 0 or epoch == epochs:
        end = "\r" if terminal and epoch < epochs else "\n"
        sys.stderr.write(f"epoch {epoch}/{epochs}, held-out loss {loss:.5f}{end}")
        sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Fit as told on the command line; what the user can put right is told in one line, with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="measurements, .npz; several are joined")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="ours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", choices=ROLES, default="planner")
    parser.add_argument("--id", help="of a fit to be published; else its simulator is called by its hash")
    parser.add_argument("--comm", type=Path, help="what python -m shard_gym.simulators.comm wrote; its links are kept")
    parser.add_argument(
        "--pace", type=Path, help="a campaign that shares shards with each of --data: its pace is taken"
    )
    parser.add_argument("--epochs", type=int, help="default: 200 of ours, 300 of the published networks")
    parser.add_argument("--out", type=Path, required=True)
    given = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(given)
    try:
        measured = _joined(options.data, options.pace)
        settings = OURS if ARCHITECTURES[options.architecture] is Ours else PUBLISHED
        if options.epochs:
            settings = replace(settings, epochs=options.epochs)
        weights = fit(measured, options.architecture, options.seed, settings, tell=_tell)
        if options.id:
            weights.card["id"] = options.id
        weights.card["role"] = options.role
        if options.comm:
            weights.card["links"] = read_json(options.comm)["fit"]["all"]["links"]
        weights.card["command"] = shlex.join(["python", "-m", "shard_gym.cost_models.fit", *given])
        weights.save(options.out)
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"fit: {error}\n")
        return 2
    sys.stderr.write(f"{options.out}: {json.dumps(weights.card['held_out'])}\n")
    return 0


def _joined(paths: Sequence[Path], reference: Path | None) -> Measurements:
    """All measurements of files and folders, at the pace of the reference if there is one."""
    parts = [Measurements.load(path) for path in _files(paths)]
    return Measurements.concat(parts if reference is None else at_pace_of(Measurements.load(reference), parts))


def _files(paths: Sequence[Path]) -> list[Path]:
    """The files given, and every .npz in the folders given."""
    found = [file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    if not found:
        raise InvalidPool(f"no measurements (.npz) in {', '.join(map(str, paths))}")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
