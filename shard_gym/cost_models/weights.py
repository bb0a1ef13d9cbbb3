"""Fitted weights in a safetensors file, with a card that says where they come from."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from shard_gym.errors import CorruptFile
from shard_gym.files import write_whole
from shard_gym.links import Links

SCHEMA = "shard-gym/weights/1"
# Where nobody measured the wires of an all-to-all: 10 Gbit/s Ethernet as TCP gets it.
ETHERNET = Links(port=1.1e6, latency_ms=0.2)


@dataclass(frozen=True, eq=False)
class Weights:
    """The numbers of a fitted network, and its card: architecture, features, hardware, batch, counts, errors."""

    tensors: dict[str, np.ndarray]  # float64
    card: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Of card and tensors."""
        digest = hashlib.sha256(json.dumps(self.card, sort_keys=True).encode())
        for name in sorted(self.tensors):
            array = np.array(self.tensors[name], "<f8", order="C")
            digest.update(f"{name}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        metadata = {"schema": SCHEMA, "card": json.dumps(self.card, sort_keys=True), "sha256": self.sha256}
        tensors = {name: np.array(array, np.float64, order="C") for name, array in self.tensors.items()}
        write_whole(path, save(tensors, metadata))

    @classmethod
    def load(cls, path: str | Path) -> Weights:
        """Read what `save` wrote; refuses a file that is cut short or does not match its hash."""
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            if metadata.get("schema") != SCHEMA:
                raise CorruptFile(f"{path} has schema {metadata.get('schema')}, expected {SCHEMA}: fit it again")
            loaded = cls(tensors, json.loads(metadata["card"]))
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise CorruptFile(f"{path} is not a whole weights file, fetch or fit it again: {error}") from error
        if loaded.sha256 != metadata.get("sha256"):
            raise CorruptFile(
                f"{path} should hash to {metadata.get('sha256')} but its content hashes to {loaded.sha256}: "
                "it was changed or damaged, fetch or fit it again"
            )
        return loaded


def links_of(card: dict[str, Any]) -> Links:
    """The wires that a card tells of, as keywords of Links with null for a rate without bound; else Ethernet's."""
    if not card.get("links"):
        return ETHERNET
    given: dict[str, Any] = {name: math.inf if value is None else value for name, value in card["links"].items()}
    return Links(**given)
