"""A base class of all learners, and the files that states and networks are kept in.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shard_gym import simulators
from shard_gym.envs.episodes import hashed
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.records import tensors as card_files
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import counted
from shard_gym.tables.pool import FEATURES
from shard_gym.task.suites import Suite
from shard_gym_agents.learners.trained import SCHEMA

PLACE: Mapping[str, bool] = {"place": True}  # of a config's field that says where a run takes place, not what it is


class SuiteLearner:
    """A learner on a suite's training tasks, from the answers of its planner.

    Each adds `iterate`, `solver`, and the networks and optimizers in `parts`, by the names that files know them by.
    """

    splits: ClassVar[bool] = True  # it can be trained on suites whose actions halve tables
    kinds: ClassVar[bool] = True  # and on those of all kinds of sharding
    on_ray: ClassVar[bool] = False  # it takes a cluster, where its actors play

    def __init__(
        self, suite: Suite, config: Any, seed: int, device: str = "cpu", planner: str | Simulator = ""
    ) -> None:
        if not self.splits and suite.split_action:
            raise InvalidTask(f"this learner does not split tables: train on {suite.frozen_as}, not {suite.key}")
        if not self.kinds and suite.kinds:
            others = "train dreamshard-planner, maskable-ppo or autoshard"
            raise InvalidTask(
                f"this learner places whole tables: {others} on {suite.key}, which choose among all kinds"
            )
        self.suite, self.config, self.seed, self.device = suite, config, seed, device
        made = simulators.make(planner or suite.planner) if isinstance(planner, str) else planner
        self.tasks, self.planner = suite.tasks("train"), counted(made)
        self.iteration = 0
        self.parts: dict[str, nn.Module | Optimizer] = {}

    def iterate(self) -> dict[str, float]:
        """Play whole episodes and learn from them; numbers to log, "steps" and "simulator_calls" among them."""
        raise NotImplementedError

    def solver(self) -> Any:
        """The policy as it is now, a solver with `save(path)`; it does not change when the learner goes on."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All that `restore` needs to go on as if nothing had happened; generators are seeded anew each iteration."""
        return packed(**self.parts, iteration=self.iteration)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Return to a state."""
        unpack(state, **self.parts)
        self.iteration = int(state["iteration"])

    def end(self) -> None:
        """End what plays for the learner elsewhere; it may go on, then with others."""

    def card(self, order: str) -> dict[str, Any]:
        """The origin of a policy that wants tables in this order."""
        told = {"order": order, "suite": self.suite.key, "planner": self.planner.id, "seed": self.seed}
        return {**told, "config": asdict(self.config)}

    @property
    def iteration_seed(self) -> int:
        """The seed of this iteration."""
        return episode_seeds(self.seed, self.iteration, 1)[0]

    def generator(self, device: str = "") -> torch.Generator:
        """The random numbers of this iteration, on the learner's device unless said otherwise."""
        return torch.Generator(device or self.device).manual_seed(self.iteration_seed)

    @contextmanager
    def seeded(self, seed: int | None = None) -> Iterator[None]:
        """Seed torch's and numpy's global generators for a while, which networks and SB3 draw from."""
        seed, before = self.seed if seed is None else seed, np.random.get_state()  # noqa: NPY002  # SB3 has no other
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            try:
                yield
            finally:
                np.random.set_state(before)  # noqa: NPY002


def episode_seeds(seed: int, iteration: int, num_envs: int) -> list[int]:
    """A seed for each environment of an iteration, so that no state of environments has to be kept."""
    return [int(hashed(hashed(seed, iteration), i)) for i in range(num_envs)]


def to_a_tenth(rate: float, done: int, horizon: int) -> float:
    """A learning rate that falls linearly to a tenth, where it stays."""
    return rate * (1 - 0.9 * min(1.0, done / horizon))


def descend(optimizer: Optimizer, loss: Tensor) -> float:
    """One step of the optimizer; the loss as a number."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def mlp(*widths: int) -> nn.Sequential:
    """Dense layers with ReLU between them."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def num_weights(net: nn.Module) -> str:
    """A network in a word; results of solvers hold it."""
    return f"{sum(p.numel() for p in net.parameters())} weights"


def packed(**parts: nn.Module | Optimizer | torch.Generator | int) -> dict[str, Tensor]:
    """Copies of networks, optimizers, generators and counters as one flat dict of tensors; see `unpack`."""
    out: dict[str, Tensor] = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            out |= {f"{name}/{key}": value.detach().cpu().clone() for key, value in part.state_dict().items()}
        elif isinstance(part, Optimizer):
            held = part.state_dict()
            for i, values in held["state"].items():
                out |= {f"{name}/{i}/{key}": torch.as_tensor(v).detach().cpu().clone() for key, v in values.items()}
            rates = [group["lr"] for group in held["param_groups"]]
            out[f"{name}/rates"] = torch.tensor(rates, dtype=torch.float64)
        elif isinstance(part, torch.Generator):
            out[name] = part.get_state().clone()
        else:
            out[name] = torch.tensor(part, dtype=torch.int64)
    return out


def unpack(state: Mapping[str, Tensor], **parts: nn.Module | Optimizer | torch.Generator) -> None:
    """Put what `packed` copied back into the same parts; counters are the caller's to read."""
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            _require_scaling(part, under(state, name))
    try:
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                part.load_state_dict(under(state, name))
            elif isinstance(part, Optimizer):
                _restore_optimizer(part, under(state, name))
            else:
                part.set_state(state[name])
    except (KeyError, RuntimeError, ValueError) as error:
        raise CorruptFile(f"this state is of another learner or another configuration: {error}") from error


def under(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one part, by their names within it."""
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}


def _require_scaling(part: nn.Module, held: Mapping[str, Tensor]) -> None:
    """Refuse to go on with features that are scaled in another way than they were."""
    for name, ours in part.named_buffers():
        if name.rpartition(".")[2] == "scaling" and name in held and not torch.allclose(ours.cpu(), held[name]):
            raise CorruptFile("this state was trained on features of another scaling: train again")


def _restore_optimizer(optimizer: Optimizer, held: dict[str, Tensor]) -> None:
    into = optimizer.state_dict()
    for group, rate in zip(into["param_groups"], held.pop("rates").tolist(), strict=True):
        group["lr"] = rate
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in held.items():
        i, _, what = key.partition("/")
        states.setdefault(int(i), {})[what] = value.clone()
    optimizer.load_state_dict({**into, "state": states})


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """A safetensors file with a card, whole or not at all."""
    kept = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    card_files.write(path, SCHEMA, kept, {"features": list(FEATURES), **card})


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and card of a file whose card has this `kind`; what is damaged or something else is refused.

    Shipped weights are of half precision: they come back as float32.
    """
    arrays, card = card_files.read(path, SCHEMA, "train it again")
    if card.get("kind") != kind:
        raise CorruptFile(f"{path} holds a {card.get('kind')}, expected a {kind}")
    if card.get("features") != list(FEATURES):
        raise CorruptFile(f"{path} expects features {card.get('features')}, here they are {list(FEATURES)}")
    if odd := [name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]:
        raise CorruptFile(f"{path}: {odd[0]!r} holds a number that is none")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}, card


@contextmanager
def holds(path: str | Path, what: str) -> Iterator[None]:
    """Refuse a file whose tensors or card are not those of the network that is made from it."""
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path} holds another network than {what}: {error}") from error
