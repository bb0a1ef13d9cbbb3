"""Move tables to other ranks while a DLRM trains: `python examples/torchrec_move.py`.

Two processes train the model of `torchrec_dlrm` for ten steps by one plan and for ten by another. Where TorchRec can
it moves the tables itself; else they are saved, and restored under the new plan. Losses are those of a model that
stayed where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import distributed
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import KeyedOptimizer

from examples.torchrec_dlrm import OPTIMIZERS, RANKS, STEPS, batches, initialise, make_model, optimizers_of, shard, step
from shard_gym import Plan
from shard_gym.errors import InvalidPlan
from shard_gym.torchrec.checkpoints import restore, save
from shard_gym.torchrec.launch import launch
from shard_gym.torchrec.modules import task_of_module
from shard_gym.torchrec.moves import reshard
from shard_gym.torchrec.plans import to_torchrec

TABLES = range(8)
EVERY = tuple(range(RANKS))
FIRST = Plan(tuple(t % RANKS for t in TABLES))
SWAPPED = Plan(tuple((t + 1) % RANKS for t in TABLES))
BY_ROWS = Plan((0,) * 8, kind=("rw",) * 8, devices=(EVERY,) * 8)


def sharding_plan_of(plan: Plan) -> ShardingPlan:
    """A plan as TorchRec takes it."""
    model = make_model()
    task = task_of_module(model, RANKS, 1, objective="iteration", kinds=("tw", "cw", "rw"))
    return to_torchrec(plan, task, model, device="cpu")


def moved(
    model: DistributedModelParallel, optimizers: Sequence[KeyedOptimizer], plan: ShardingPlan, folder: Path
) -> tuple[DistributedModelParallel, Sequence[KeyedOptimizer], str]:
    """The model and its optimizers under another plan, and in which way they came there."""
    try:
        reshard(model, plan)
    except InvalidPlan as why:  # on every rank, before anything moved
        save(folder, model, *optimizers)
        model = shard(make_model(), plan)
        optimizers = optimizers_of(model, OPTIMIZERS["rowwise_adagrad"])
        restore(folder, model, *optimizers)
        return model, optimizers, f"restored: {why}"
    return model, optimizers, "moved by TorchRec"


def train(folder: str, second: Plan | None) -> tuple[list[float], str]:
    """Losses of 20 steps, ten by each plan; all by the first if there is no second."""
    model, way = shard(make_model(), sharding_plan_of(FIRST)), "stayed"
    initialise(model)
    losses = []
    optimizers: Sequence[KeyedOptimizer] = optimizers_of(model, OPTIMIZERS["rowwise_adagrad"])
    for number, batch in enumerate(batches(distributed.get_rank())):
        if number == STEPS // 2 and second is not None:
            model, optimizers, way = moved(model, optimizers, sharding_plan_of(second), Path(folder))
        losses.append(step(model, optimizers, batch))
    return losses, way


def train_each(folder: str) -> list[tuple[list[float], str]]:
    """Losses without a move, of one that TorchRec makes, and of one by a checkpoint."""
    return [train(f"{folder}/{number}", second) for number, second in enumerate((None, SWAPPED, BY_ROWS))]


def main() -> None:
    """Train three times, and tell how far losses are from those without a move."""
    with tempfile.TemporaryDirectory() as folder:
        (stayed, _), *others = launch(train_each, RANKS, folder)[0]
    for losses, way in others:
        print(f"{way}\n  losses differ by {max(abs(a - b) for a, b in zip(losses, stayed, strict=True)):.1e} at most")


if __name__ == "__main__":
    main()
