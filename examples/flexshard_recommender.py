"""Train a small sequence recommender in FlexShard's tiers: `python examples/flexshard_recommender.py`.

Four processes on this host stand for two nodes of two GPUs. Rows of the history are counted, `plan_model` shares them
out in less memory than rows split over all GPUs take and plans the pooled tables beside them, and the model trains as
it would unsharded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.optim import SGD

from shard_gym.flexshard.counts import RowCounter, count_batches
from shard_gym.flexshard.network import Network
from shard_gym.flexshard.tiers import RowTask, TieredPlan, worth
from shard_gym.torchrec.launch import launch
from shard_gym_agents.models import TieredModel, plan_model

NODES, PER_NODE = 2, 2
RANKS, SAMPLES, STEPS = NODES * PER_NODE, 128, 8  # samples of a process and step
ITEMS, USERS, COLUMNS, LENGTH, RATE = 20_000, 500, 16, 40, 0.5
NETWORK = Network(NODES, PER_NODE, a2a_global=1e6, a2a_intra=8e6, ar_global=3e6, ar_cross=4e6)
MEMORY = 0.9  # of what the history takes if its rows are split over all GPUs


def constant(weight: Tensor) -> Tensor:
    """Weights that do not depend on how their table is sharded."""
    return nn.init.constant_(weight, 0.1)


class Recommender(nn.Module):
    """A click or none, from the items that a user clicked before, and from who it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        item = EmbeddingConfig(name="item", num_embeddings=ITEMS, embedding_dim=COLUMNS, feature_names=["clicks"])
        user = EmbeddingBagConfig(name="users", num_embeddings=USERS, embedding_dim=COLUMNS, feature_names=["user"])
        user.init_fn = constant
        self.history, self.user = EmbeddingCollection([item]), EmbeddingBagCollection([user])
        self.layers = nn.Sequential(nn.Linear(2 * COLUMNS, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Logits of samples, (B,)."""
        clicks = self.history(features)["clicks"]
        sample = torch.repeat_interleave(torch.arange(len(clicks.lengths())), clicks.lengths())
        summed = torch.zeros(len(clicks.lengths()), COLUMNS).index_add(0, sample, clicks.values())
        mean = summed / clicks.lengths().clamp(min=1)[:, None]
        return self.layers(torch.cat([mean, self.user(features)["user"]], 1))[:, 0]


def batches(rank: int, world: int, first: int = 0) -> Any:
    """Samples of one process, step by step: some items are clicked far more often than others."""
    p = 1 / np.arange(1, ITEMS + 1) ** 1.1
    items = np.random.default_rng(1).permutation(ITEMS)
    for step in range(first, first + STEPS):
        rng = np.random.default_rng([2, step])
        lengths = rng.poisson(LENGTH, RANKS * SAMPLES)
        of_samples = [items[rng.choice(ITEMS, n, replace=False, p=p / p.sum())] for n in lengths]
        users, clicked = rng.integers(USERS, size=len(lengths)), rng.random(len(lengths)) < 0.5
        own = slice(rank * len(lengths) // world, (rank + 1) * len(lengths) // world)
        values = torch.from_numpy(np.concatenate([*of_samples[own], users[own]]))
        ones = np.ones(len(users[own]), np.int64)
        features = KeyedJaggedTensor(
            ["clicks", "user"], values, lengths=torch.from_numpy(np.concatenate([lengths[own], ones]))
        )
        yield features, torch.from_numpy(clicked[own]).float()


def counted() -> dict[str, RowCounter]:
    """How often rows of the history are looked up, in samples that are not trained on."""
    return count_batches((features for features, _ in batches(0, 1, STEPS)), {"item": ["clicks"]})


def least_memory(counts: dict[str, RowCounter]) -> float:
    """GiB of a GPU for all tables: less than rows split over all GPUs take."""
    from shard_gym.flexshard.tiers import SequenceTable

    history = SequenceTable("item", counts["item"].curve(ITEMS), COLUMNS)
    rows = RowTask((history,), NETWORK, SAMPLES, copies=1.0)
    return (MEMORY * rows.budget_bytes + USERS * COLUMNS * 4) / 2**30


def train(split: bool = False) -> tuple[list[float], float, TieredModel]:
    """Mean losses, bytes of the history that this process kept and had in flight, and plans; `split`: all RW."""
    model, counts = Recommender(), counted()
    planned = plan_model(
        model,
        RANKS,
        least_memory(counts),
        tiers=True,
        counts=counts,
        network=NETWORK,
        copies=1.0,
        device="cpu",
        batch=RANKS * SAMPLES,
        pooling={"user": 1.0},
    )
    if split:
        planned = planned._replace(tiers=TieredPlan.uniform(planned.rows, "rw"))
    planned.place(model)
    table: Any = model.history.embeddings["item"]
    apply_optimizer_in_backward(SGD, model.user.parameters(), {"lr": RATE})
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(distributed.group.WORLD),
        device=torch.device("cpu"),
        plan=planned.sharding_plan,
        sharders=[EmbeddingBagCollectionSharder()],
        init_data_parallel=False,  # gradients of the tiers are summed already
    )
    of_history = torch.optim.SGD(table.parameters(), lr=RATE / RANKS)  # of the mean of the processes' losses
    losses, replicated = [], 0
    for features, clicked in batches(distributed.get_rank(), RANKS):
        losses.append(step(parallel, features, clicked, model.layers, of_history))
        replicated += int((table.position[features["clicks"].values()] < table.cuts[0]).sum())
    kept = sum(parameter.numel() for parameter in table.parameters()) * 4
    moved = table.traffic["a2a_global"] + table.traffic["a2a_intra"] + replicated * COLUMNS * 4
    return losses, kept + moved / STEPS, planned


def step(model: nn.Module, features: Any, clicked: Tensor, layers: nn.Module, of_history: Any) -> float:
    """Train one step; gradients of the layers are averaged over processes. The mean of their losses."""
    loss = nn.functional.binary_cross_entropy_with_logits(model(features), clicked)
    loss.backward()
    told = [loss.detach(), *(parameter.grad for parameter in layers.parameters())]
    for one in told if distributed.is_initialized() else ():
        distributed.all_reduce(one.div_(distributed.get_world_size()))
    of_history.step()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter -= RATE * parameter.grad
            parameter.grad = None
    of_history.zero_grad()
    return float(told[0])


def unsharded() -> list[float]:
    """Losses of the same training on one process."""
    model = Recommender()
    of_tables = torch.optim.SGD([*model.history.parameters(), *model.user.parameters()], lr=RATE)
    return [step(model, features, clicked, model.layers, of_tables) for features, clicked in batches(0, 1)]


def saved() -> tuple[list[float], TieredModel, float, float]:
    """Losses, plans, and the share of RW's memory that they save: as seen in both runs, and as predicted."""
    ranks, of_split = launch(train, RANKS), launch(train, RANKS, True)
    losses, _, planned = ranks[0]
    seen = 1 - sum(found for _, found, _ in ranks) / sum(found for _, found, _ in of_split)
    rows = planned.rows
    told = worth(rows, planned.tiers).memory_bytes / worth(rows, TieredPlan.uniform(rows, "rw")).memory_bytes
    return losses, planned, seen, 1 - told


def main() -> None:
    """Train, and tell what was saved."""
    losses, planned, seen, told = saved()
    (dp,), (flex,) = planned.tiers.dp_rows, planned.tiers.flex_rows
    print(f"history: {dp:,} rows on every process, {flex:,} in every node, of {ITEMS:,}")
    print(f"memory of a process below that of split rows: {seen:.2%} seen, {told:.2%} predicted")
    for number, (loss, alone) in enumerate(zip(losses, unsharded(), strict=True), start=1):
        print(f"step {number:2}: loss {loss:.6f}, unsharded {alone:.6f}")


if __name__ == "__main__":
    main()
