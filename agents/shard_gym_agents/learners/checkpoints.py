"""What learners keep in files: networks, optimizers, generators and counters, with a card. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shard_gym import card_files
from shard_gym.errors import CorruptFile
from shard_gym.tables import FEATURES
from shard_gym_agents.trained import SCHEMA

__all__ = ["load_tensors", "packed", "save_tensors", "under", "unpack"]


def packed(**parts: nn.Module | torch.optim.Optimizer | torch.Generator | int) -> dict[str, Tensor]:
    """Copies of networks, optimizers, generators and counters as one flat dict of tensors; see `unpack`."""
    out: dict[str, Tensor] = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            out |= {f"{name}/{key}": value.detach().cpu().clone() for key, value in part.state_dict().items()}
        elif isinstance(part, torch.optim.Optimizer):
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


def unpack(state: Mapping[str, Tensor], **parts: nn.Module | torch.optim.Optimizer | torch.Generator) -> None:
    """Put what `packed` copied back into the same parts; counters are the caller's to read."""
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            _require_scaling(part, under(state, name))
    try:
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                part.load_state_dict(under(state, name))
            elif isinstance(part, torch.optim.Optimizer):
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


def _restore_optimizer(optimizer: torch.optim.Optimizer, held: dict[str, Tensor]) -> None:
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
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}, card
