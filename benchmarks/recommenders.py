"""Five small recommenders that TorchRec shards, and what they are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

COLUMNS, DENSE, SAMPLES, LARGEST = 16, 13, 64, 2_000  # samples of a step, over all ranks; rows of a table at most
DISTINCT = 4  # steps
CRITEO = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306)
CRITEO += (10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # rows in Criteo's Kaggle data


@dataclass(frozen=True)
class Table:
    """A table, and how many ids a sample has of each of its features on average."""

    name: str
    rows: int
    ids: dict[str, int]


def collection(tables: Sequence[Table], pooled: bool = True, weighted: bool = False) -> Any:
    """TorchRec's collection of tables, without memory until they are sharded."""
    config: Any = EmbeddingBagConfig if pooled else EmbeddingConfig
    configs = [
        config(name=table.name, num_embeddings=table.rows, embedding_dim=COLUMNS, feature_names=list(table.ids))
        for table in tables
    ]
    meta = torch.device("meta")
    if not pooled:
        return EmbeddingCollection(configs, device=meta)
    return EmbeddingBagCollection(configs, is_weighted=weighted, device=meta)


def layers(columns: int, out: int) -> nn.Module:
    """A small dense network."""
    return nn.Sequential(nn.Linear(columns, 32), nn.ReLU(), nn.Linear(32, out))


def by_name(pooled: KeyedTensor, names: Sequence[str]) -> Tensor:
    """Pooled rows by the names of their features: the order in `values()` is that of the plan."""
    return torch.cat([pooled[name] for name in names], 1)


def mean(rows: JaggedTensor) -> Tensor:
    """Mean row of each sample's sequence, (B, COLUMNS)."""
    sample = torch.repeat_interleave(torch.arange(len(rows.lengths())), rows.lengths())
    summed = torch.zeros(len(rows.lengths()), COLUMNS).index_add(0, sample, rows.values())
    return summed / rows.lengths().clamp(min=1)[:, None]


class Towers(nn.Module):
    """A tower of the user and one of the item; both look up the country, and one table has two features."""

    def __init__(self, user: Sequence[Table], item: Sequence[Table]) -> None:
        super().__init__()
        self.user, self.item = collection(user), collection(item)
        self.names = [[name for table in tower for name in table.ids] for tower in (user, item)]
        widths = [COLUMNS * len(names) for names in self.names]
        self.of_user, self.of_item = layers(widths[0] + DENSE, 8), layers(widths[1], 8)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """Logits, (B,)."""
        user = by_name(self.user(features), self.names[0])
        item = by_name(self.item(features), self.names[1])
        return (self.of_user(torch.cat([user, dense], 1)) * self.of_item(item)).sum(1)


class Sequential(nn.Module):
    """The mean of each sequence's rows beside dense features, and beside pooled tables where there are some."""

    def __init__(self, sequences: Sequence[Table], pooled: Sequence[Table]) -> None:
        super().__init__()
        self.sequences = collection(sequences, pooled=False)
        self.pooled = collection(pooled) if pooled else None
        self.names = [[name for table in tables for name in table.ids] for tables in (sequences, pooled)]
        self.layers = layers(COLUMNS * sum(map(len, self.names)) + DENSE, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """Logits, (B,)."""
        found = self.sequences(features)
        parts = [dense, *(mean(found[name]) for name in self.names[0])]
        if self.pooled is not None:
            parts.append(by_name(self.pooled(features), self.names[1]))
        return self.layers(torch.cat(parts, 1))[:, 0]


class Processed(nn.Module):
    """Pooled tables whose ids are weighted by their positions, which is learned too."""

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__()
        self.names = [name for table in tables for name in table.ids]
        weights = PositionWeightedModuleCollection(
            {name: 2 * n + 1 for table in tables for name, n in table.ids.items()}
        )
        self.tables = FeatureProcessedEmbeddingBagCollection(collection(tables, weighted=True), weights)
        self.layers = layers(COLUMNS * len(self.names) + DENSE, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """Logits, (B,)."""
        return self.layers(torch.cat([dense, by_name(self.tables(features), self.names)], 1))[:, 0]


def dlrm(tables: Sequence[Table]) -> nn.Module:
    """TorchRec's DLRM."""
    return DLRM(collection(tables), DENSE, [32, COLUMNS], [32, 1])


CRITEO_TABLES = tuple(Table(f"table_{i}", min(rows, LARGEST), {f"cat_{i}": 1}) for i, rows in enumerate(CRITEO))
USER = (
    Table("users", 1_000, {"user": 1}),
    Table("clicked", 2_000, {"clicks": 5}),
    Table("countries", 40, {"country": 1}),
)
ITEM = (
    Table("goods", 2_000, {"item": 1, "last": 1}),
    Table("categories", 100, {"category": 2}),
    Table("homes", 40, {"country": 1}),
)
SEQUENCES = (
    Table("clicks", 2_000, {"clicks": 8, "views": 4}),
    Table("shops", 300, {"shops": 3}),
    Table("topics", 50, {"topics": 2}),
)
MODELS = {
    "DLRM": (partial(dlrm, CRITEO_TABLES), CRITEO_TABLES),
    "two towers": (partial(Towers, USER, ITEM), USER + ITEM),
    "sequence": (partial(Sequential, SEQUENCES, ()), SEQUENCES),
    "mixed": (partial(Sequential, SEQUENCES[1:], USER), SEQUENCES[1:] + USER),
    "feature-processed": (partial(Processed, USER), USER),
}


def make_model(name: str) -> nn.Module:
    """A model, its dense weights always the same, its tables on the meta device."""
    torch.manual_seed(0)
    model: nn.Module = MODELS[name][0]()
    return model


def batches(name: str, steps: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, KeyedJaggedTensor, Tensor]]:
    """A rank's part of the samples of each step: dense features, ids, and a click where the sum of ids is odd.

    Samples come again after some steps, so that there is something for tables to learn.
    """
    features = {feature: (table.rows, n) for table in MODELS[name][1] for feature, n in table.ids.items()}
    own = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step % DISTINCT)
        dense = torch.rand((SAMPLES, DENSE), generator=generator)
        ids, lengths, odd = [], [], torch.zeros(SAMPLES, dtype=torch.int64)
        for rows, n in features.values():
            many = torch.randint(2 * n + 1, (SAMPLES,), generator=generator)  # also none
            each = torch.randint(rows, (int(many.sum()),), generator=generator).split(many.tolist())
            ids += each[own]
            lengths.append(many[own])
            odd = odd + torch.tensor([int(one.sum()) for one in each])
        sparse = KeyedJaggedTensor(list(features), torch.cat(ids), lengths=torch.cat(lengths))
        yield dense[own], sparse, (odd[own] % 2).float()
