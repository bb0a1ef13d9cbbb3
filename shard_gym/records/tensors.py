"""Tensors in a safetensors file, with a card that says where they come from and a hash of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from shard_gym.errors import CorruptFile
from shard_gym.records.files import write_whole
from shard_gym.records.guard import guarded, parsed_json

Tensors = dict[str, np.ndarray]


def write(path: str | Path, schema: str, tensors: Mapping[str, np.ndarray], card: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    told = json.dumps(card, sort_keys=True)
    kept = {name: np.array(array, order="C") for name, array in tensors.items()}
    write_whole(path, save(kept, {"schema": schema, "card": told, "sha256": sha256(kept, card)}))


def read(path: str | Path, schema: str, again: str) -> tuple[Tensors, dict[str, Any]]:
    """Read what `write` wrote; refuse a file that is cut short or changed, and say how to make it `again`."""
    what = f"{path} is not a whole file of schema {schema}, fetch it or {again}"
    try:
        with guarded(what), safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("schema") != schema:
                raise CorruptFile(f"{path} has schema {metadata.get('schema')}, expected {schema}: {again}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            card = parsed_json(metadata["card"], f"{what}: its card")
            if not isinstance(card, dict):
                raise CorruptFile(f"{what}: its card is no object")
    except SafetensorError as error:
        raise CorruptFile(f"{what}: {error}") from error
    if (found := sha256(tensors, card)) != metadata.get("sha256"):
        raise CorruptFile(
            f"{path} should hash to {metadata.get('sha256')} but its content hashes to {found}: it was changed or "
            f"damaged, fetch it or {again}"
        )
    return tensors, card


def sha256(tensors: Mapping[str, np.ndarray], card: Mapping[str, Any]) -> str:
    """Hash of card and tensors, the same on every machine."""
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        little = np.array(array, array.dtype.newbyteorder("<"), order="C")
        digest.update(f"{name}{array.shape}".encode() + little.tobytes())
    return digest.hexdigest()
