"""Fitted weights in a safetensors file, with a card that says where they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import card_files
from shard_gym.links import Links

SCHEMA = "shard-gym/weights/1"
# Where nobody measured the wires of an all-to-all: 10 Gbit/s Ethernet as TCP gets it.
ETHERNET = Links(port=1.1e6, latency_ms=0.2)


@dataclass(frozen=True, eq=False)
class Weights:
    """The numbers of a fitted network, and its card: architecture, features, hardware, batch, counts, errors."""

    tensors: dict[str, np.ndarray]  # float64
    card: dict[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", {name: np.array(a, np.float64) for name, a in self.tensors.items()})

    @property
    def sha256(self) -> str:
        """Of card and tensors."""
        return card_files.sha256(self.tensors, self.card)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        card_files.write(path, SCHEMA, self.tensors, self.card)

    @classmethod
    def load(cls, path: str | Path) -> Weights:
        """Read what `save` wrote; refuses a file that is cut short or does not match its hash."""
        return cls(*card_files.read(path, SCHEMA, "fit it again"))


def links_of(card: dict[str, Any]) -> Links:
    """The wires that a card tells of, as keywords of Links with null for a rate without bound; else Ethernet's."""
    if not card.get("links"):
        return ETHERNET
    given: dict[str, Any] = {name: math.inf if value is None else value for name, value in card["links"].items()}
    return Links(**given)
