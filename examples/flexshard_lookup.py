"""A sequence table in FlexShard's tiers, for real: `python examples/flexshard_lookup.py`.

Four processes on this host stand for two nodes of two GPUs. Plans are made by the table's row frequencies, the table is
looked up and its gradients go back, and the bytes that the collectives carried are held against what was predicted.
"""

from __future__ import annotations

import numpy as np

from shard_gym.flexshard.curves import Curve, power_law
from shard_gym.flexshard.network import Network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym.torchrec.launch import launch
from shard_gym_agents.solvers.flexshard import Frontier

NODES, PER_NODE = 2, 2
ROWS, DIM, LENGTH, BATCH, STEPS = 20_000, 32, 50.0, 256, 4  # batch and steps of each process
NETWORK = Network(NODES, PER_NODE, a2a_global=1e6, a2a_intra=8e6, ar_global=3e6, ar_cross=1e6)


def main() -> None:
    """Plan, run, compare."""
    curve = power_law(ROWS, LENGTH, 1.0)
    task = RowTask((SequenceTable("history", curve, DIM),), NETWORK, BATCH)
    frontier = Frontier(task)
    plans = {"RW": TieredPlan.uniform(task, "rw"), "flex2": frontier.best("flex2"), "flex3": frontier.best("flex3")}
    print(f"{'plan':6} {'DP rows':>8} {'Flex rows':>9}  bytes a step and process, seen / predicted")
    for name, plan in plans.items():
        seen = run(curve, plan)
        predicted = predict(task, plan)
        told = [f"{kind} {seen[kind]:,.0f} / {predicted[kind]:,.0f}" for kind in predicted if predicted[kind]]
        print(f"{name:6} {plan.dp_rows[0]:8,} {plan.flex_rows[0]:9,}  {', '.join(told)}")


def run(curve: Curve, plan: TieredPlan) -> dict[str, float]:
    """Bytes that each collective carried, the mean of a step and a process."""
    of_ranks = launch(look_up, NODES * PER_NODE, curve.probability, curve.rows, plan.dp_rows[0], plan.flex_rows[0])
    return {kind: sum(traffic[kind] for traffic in of_ranks) / len(of_ranks) / STEPS for kind in of_ranks[0]}


def predict(task: RowTask, plan: TieredPlan) -> dict[str, float]:
    """The same from the curve: what is looked up goes to and fro, gradients of replicated rows are reduced once."""
    row, lookups = task.tables[0].row_bytes, worth(task, plan).lookups
    return {
        "a2a_global": 2 * BATCH * lookups["rw"] * row,
        "a2a_intra": 2 * BATCH * lookups["flex"] * row,
        "ar_global": plan.dp_rows[0] * row,
        "ar_cross": plan.flex_rows[0] / PER_NODE * row,
    }


def look_up(probability: np.ndarray, rows: np.ndarray, dp_rows: int, flex_rows: int) -> dict[str, int]:
    """One process: look random samples up, check the rows, send gradients back; returns its traffic."""
    import torch
    from torch import distributed

    from shard_gym.flexshard.embedding import TieredEmbedding

    shared, rank = torch.Generator().manual_seed(0), distributed.get_rank()
    weight, order = torch.randn(ROWS, DIM, generator=shared), torch.randperm(ROWS, generator=shared)
    table = TieredEmbedding(weight, order, dp_rows, flex_rows, PER_NODE)
    p, rng = np.repeat(probability, rows).astype(np.float32), np.random.default_rng(rank)
    for _ in range(STEPS):
        samples = rng.random((BATCH, ROWS), np.float32) < p  # each row by its own probability
        ids = order[torch.from_numpy(np.nonzero(samples)[1])]
        found = table(ids)
        assert torch.equal(found, weight[ids])
        found.sum().backward()
    return table.traffic


if __name__ == "__main__":
    main()
