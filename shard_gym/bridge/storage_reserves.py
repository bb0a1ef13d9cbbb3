"""What TorchRec keeps of each device before it places tables: `torchrec.distributed.planner.storage_reservations`.

| TorchRec | here |
|---|---|
| `FixedPercentageStorageReservation(p)` | `Reserve(share=p)` |
| `FixedAbsoluteStorageReservation(bytes)` | `Reserve(fixed_bytes=bytes)` |
| `HeuristicalStorageReservation(p)` | `Reserve(p, dense_bytes(model, collections), kjt_bytes(tables, batch))` |
| `InferenceStorageReservation(p)` | the same, both with `inference=True` |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shard_gym.bridge.storage_shards import DEVICES, Table
from shard_gym.bridge.storage_torchrec import ID_BYTES
from shard_gym.errors import InvalidTask, UnknownName

if TYPE_CHECKING:
    from torch import nn

DENSE_COPIES = 6  # of dense parameters in training: themselves, 2 of the optimizer's, 3 of distributed training's
KJT_COPIES = 20  # of a batch's ids: 2 batches under way, 10 copies each


@dataclass(frozen=True)
class Reserve:
    """What is not for tables on each device: a share of its memory, and bytes besides."""

    share: float = 0.0  # of HBM; TorchRec takes no share of a host's memory
    dense_bytes: int = 0
    kjt_bytes: int = 0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidTask(f"a reserve is a share of memory from 0 to 1, got {self.share}")

    def left(self, memory_bytes: int, device: str = "cuda") -> int:
        """Bytes of a device left for its tables; below 0, the bytes that are missing for the reserve itself."""
        if device not in DEVICES:
            raise UnknownName("device", device, DEVICES)
        if device == "cuda":
            memory_bytes = int((1 - self.share) * memory_bytes)
            memory_bytes = max(0, memory_bytes - self.fixed_bytes) if self.fixed_bytes else memory_bytes
        return memory_bytes - self.dense_bytes - self.kjt_bytes


def dense_bytes(model: nn.Module, collections: Iterable[nn.Module], inference: bool = False) -> int:
    """Bytes of all parameters outside the embedding collections, several copies in training, and of all buffers."""
    copies, held = 1 if inference else DENSE_COPIES, 0
    for sign, part in ((1, model), *((-1, collection) for collection in collections)):
        held += sign * copies * sum(p.numel() * p.element_size() for p in part.parameters())
        held += sign * sum(b.numel() * b.element_size() for b in part.buffers())
    return held


def kjt_bytes(tables: Sequence[Table], batch: int, inference: bool = False) -> int:
    """Bytes of the ids of one rank's samples, several copies in training."""
    told = [(feature.pooling, feature.batch or batch) for table in tables for feature in table.features]
    ids = sum(pooling * samples for pooling, samples in told)
    return math.ceil(ids * float(ID_BYTES)) * (1 if inference else KJT_COPIES)
