"""Train a small DLRM by a plan of ShardGym's: `python examples/torchrec_dlrm.py`, or `torchrun --nproc-per-node 2` it.

Two processes on this host, no GPU: `plan_model` plans, once for all ranks, and DistributedModelParallel does the rest.
To train your own model, copy `planned` and `shard`, with device="cuda" where there are GPUs.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from shard_gym.torchrec.launch import launch
from shard_gym_agents.models import PlannedModel, plan_model

RANKS, SAMPLES, STEPS = 2, 64, 20  # samples of one rank in one step
ROWS = (1_000, 5_000, 20_000, 300, 8_000, 2_000, 12_000, 700)
IDS = {f"feature_{i}": ids for i, ids in enumerate((1, 3, 8, 2, 20, 5, 1, 12))}  # of one sample
COLUMNS, DENSE = 32, 13
OPTIMIZERS: dict[str, Any] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "rowwise_adagrad": (RowWiseAdagrad, {"lr": 0.05, "eps": 1e-8}),  # FBGEMM's eps, for tables that it does not train
}
Shards = dict[str, list[tuple[int, int, int, int]]]


def make_model(optimizer: str = "rowwise_adagrad") -> DLRM:
    """A model whose tables are on the meta device, where they take no memory: they are made once they are sharded."""
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name=f"table_{i}", num_embeddings=rows, embedding_dim=COLUMNS, feature_names=[feature])
        for i, (rows, feature) in enumerate(zip(ROWS, IDS, strict=True))
    ]
    model = DLRM(
        EmbeddingBagCollection(tables, device=torch.device("meta")),
        dense_in_features=DENSE,
        dense_arch_layer_sizes=[64, COLUMNS],
        over_arch_layer_sizes=[64, 1],
    )
    kind, settings = OPTIMIZERS[optimizer]
    apply_optimizer_in_backward(kind, model.sparse_arch.parameters(), dict(settings))  # TorchRec writes into it
    return model


def planned(model: nn.Module) -> PlannedModel:
    """The model's tables on the ranks that train it; the simulator is that of the hardware that comes closest."""
    return plan_model(model, RANKS, memory_gb=1, pooling=IDS, batch=RANKS * SAMPLES, device="cpu")


def shard(model: nn.Module, sharding_plan: ShardingPlan) -> DistributedModelParallel:
    """The model, each rank with its part of the tables and all of the rest."""
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(distributed.group.WORLD),
        device=torch.device("cpu"),
        plan=sharding_plan,
        sharders=[EmbeddingBagCollectionSharder()],
    )


def of_table(name: str) -> bool:
    """True if a parameter is a table's."""
    return ".embedding_bags." in name or ".embeddings." in name


def initialise(model: nn.Module) -> None:
    """The same weights however they are sharded: drawn for the whole table, by its name."""
    for key, value in model.state_dict().items():
        if not of_table(key):
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(key.split(".")[-2].encode()))
        table = torch.empty(value.shape).uniform_(-0.1, 0.1, generator=generator)
        if isinstance(value, ShardedTensor):
            for local in value.local_shards():
                (row, column), (rows, columns) = local.metadata.shard_offsets, local.metadata.shard_sizes
                local.tensor.copy_(table[row : row + rows, column : column + columns])
        else:
            value.copy_(table)


def batches(rank: int, steps: int = STEPS) -> Any:
    """Random samples: dense features, ids, and whether there was a click."""
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        each = zip(ROWS, IDS.values(), strict=True)
        ids = torch.cat([torch.randint(rows, (SAMPLES * n,), generator=generator) for rows, n in each])
        lengths = torch.cat([torch.full((SAMPLES,), n) for n in IDS.values()])
        sparse = KeyedJaggedTensor(list(IDS), ids, lengths=lengths)
        dense = torch.rand((SAMPLES, DENSE), generator=generator)
        yield dense, sparse, (dense[:, 0] > 0.5).float()


def held(model: DistributedModelParallel) -> Shards:
    """What this rank holds of each table: first row, rows, first column, columns of each shard."""
    found: Shards = {}
    for key, value in model.state_dict().items():
        if isinstance(value, ShardedTensor):
            for local in value.local_shards():
                (row, column), (rows, columns) = local.metadata.shard_offsets, local.tensor.shape
                found.setdefault(key.split(".")[-2], []).append((row, rows, column, columns))
    return found


def optimizers_of(model: nn.Module, of_tables: Any, dense: float = 0.5) -> list[KeyedOptimizer]:
    """Optimizers of what no fused kernel trains: the dense part, and tables that are copied to all ranks."""
    parameters = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {name: parameters.pop(name) for name in list(parameters) if of_table(name)}
    kind, settings = of_tables
    found = [KeyedOptimizerWrapper(parameters, lambda own: torch.optim.SGD(own, lr=dense))]
    return [*found, KeyedOptimizerWrapper(tables, lambda own: kind(own, **settings))] if tables else found


def train() -> tuple[list[float], list[Shards]]:
    """What each rank runs: mean losses over all ranks, and what each of them holds."""
    model = make_model()
    return run_steps(shard(model, planned(model).sharding_plan))


def step(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], batch: Any) -> float:
    """Train one step: tables in the backward pass, the rest by optimizers, gradients averaged. The mean loss."""
    features, ids, clicks = batch
    loss = nn.functional.binary_cross_entropy_with_logits(model(features, ids).reshape(-1), clicks)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    mean = loss.detach()
    if distributed.is_initialized():
        distributed.all_reduce(mean.div_(distributed.get_world_size()))
    return float(mean)


def run_steps(model: DistributedModelParallel, optimizer: str = "rowwise_adagrad") -> tuple[list[float], list[Shards]]:
    """Train; losses, and what each rank holds."""
    initialise(model)
    optimizers = optimizers_of(model, OPTIMIZERS[optimizer])
    losses = [step(model, optimizers, batch) for batch in batches(distributed.get_rank())]
    shards: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(shards, held(model))
    return losses, shards


def main() -> None:
    """Plan, train, and print losses and what each rank holds."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    losses, shards = launch(train, RANKS)[0]
    if os.environ.get("RANK", "0") != "0":  # under torchrun
        return
    for step, loss in enumerate(losses, start=1):
        print(f"step {step:2}: loss {loss:.4f}")
    for rank, tables in enumerate(shards):
        print(f"rank {rank} holds (first row, rows, first column, columns)")
        print("\n".join(f"  {name}: {parts}" for name, parts in sorted(tables.items())))


if __name__ == "__main__":
    main()
