"""Bytes of each shard, as TorchRec 1.8 counts them and as they are.

    from shard_gym.bridge.storage import storage
    from shard_gym.bridge.storage_shards import Feature, Setup, Table, shards

    setup = Setup(world_size=8, batch=4096)
    table = Table(rows=1_000_000, dim=64, features=(Feature(pooling=20.0),), optimizer="rowwise_adagrad")
    storage(shards([table], ["rw"], setup), setup).hbm.bytes  # (8,), as TorchRec's planner has it
    storage(shards([table], ["rw"], setup), setup, "true").hbm.bytes

What a rank holds is the sum over its shards. The formulas are in `storage_torchrec`, the corrections in `storage_true`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.bridge import storage_torchrec, storage_true
from shard_gym.bridge.storage_shards import Setup, Shards
from shard_gym.errors import UnknownName

FORMULAS = {"torchrec": storage_torchrec, "true": storage_true}


@dataclass(frozen=True, eq=False)
class Memory:
    """What one kind of memory holds of each shard, bytes, (S,) int64 each."""

    tensor: np.ndarray  # the weights; in HBM, of a table that is cached there, those in the cache
    optimizer: np.ndarray
    cache: np.ndarray  # what the cache keeps beside the weights
    gradient: np.ndarray  # of the whole shard; "torchrec" counts none
    buffers: np.ndarray  # inputs of the batches under way, and the output where it is counted

    @property
    def bytes(self) -> np.ndarray:
        """All of it, (S,) int64."""
        return self.tensor + self.optimizer + self.cache + self.gradient + self.buffers


@dataclass(frozen=True, eq=False)
class Storage:
    """Bytes of each shard in the device's memory and in the host's, and those of one batch's input and output."""

    hbm: Memory
    ddr: Memory
    input: np.ndarray  # (S,) int64
    output: np.ndarray


def storage(shards: Shards, setup: Setup, accounting: str = "torchrec") -> Storage:
    """Bytes of these shards: "torchrec" as its `EmbeddingStorageEstimator` says, "true" with its faults corrected."""
    if accounting not in FORMULAS:
        raise UnknownName("accounting", accounting, FORMULAS)
    formula = FORMULAS[accounting]
    tensor = formula.tensor_bytes(shards, setup)
    optimizer, cache, gradient = (
        (np.zeros_like(part) for part in tensor) if setup.inference else of(shards, setup, tensor)
        for of in (formula.optimizer_bytes, formula.cache_bytes, formula.gradient_bytes)
    )
    ids, output = formula.io_bytes(shards, setup)
    buffers = formula.buffer_bytes(shards, setup, ids, output)
    none = np.zeros_like(ids)
    buffers = (none, buffers) if setup.device == "cpu" else (buffers, none)
    hbm, ddr = (Memory(*parts) for parts in zip(tensor, optimizer, cache, gradient, buffers, strict=True))
    return Storage(hbm, ddr, ids, output)
