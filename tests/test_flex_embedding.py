"""A table in tiers on four processes: equal to an unsharded one, and its traffic as predicted."""

import numpy as np
import pytest

from examples import flexshard_lookup as example
from shard_gym.errors import RankFailed
from shard_gym.flexshard.curves import power_law
from shard_gym.flexshard.tiers import RowTask, SequenceTable
from shard_gym.torchrec.launch import launch
from shard_gym_agents.solvers.flexshard import Frontier

ROWS, DIM = 300, 8
CUTS = [(0, 0), (20, 0), (0, 31), (20, 101), (300, 0), (0, 300), (7, 293)]  # DP and Flex rows


def as_unsharded(cuts):
    """Rows found on each rank, and gradients of two backward passes, against torch's own embedding."""
    import torch
    from torch import distributed

    from shard_gym.flexshard.embedding import TieredEmbedding

    rank, world, per_node = distributed.get_rank(), distributed.get_world_size(), 2
    shared = torch.Generator().manual_seed(1)
    weight, order = torch.randn(ROWS, DIM, generator=shared), torch.randperm(ROWS, generator=shared)
    ids = [torch.randint(0, ROWS, (50 * r,), generator=shared) for r in range(world)]  # rank 0 looks nothing up
    factor = [torch.randn(len(i), DIM, generator=shared) for i in ids]
    whole = torch.nn.Embedding.from_pretrained(weight.clone(), freeze=False)
    sum((whole(i) * f).sum() for i, f in zip(ids, factor, strict=True)).backward()
    expected = whole.weight.grad[order]
    for dp, flex in cuts:
        table = TieredEmbedding(weight, order, dp, flex, per_node)
        found = table(ids[rank])
        assert torch.equal(found, weight[ids[rank]])
        (found * factor[rank]).sum().backward()
        of_dp, of_flex, of_rw = expected.tensor_split((dp, dp + flex))
        kept = (of_dp, of_flex[rank % per_node :: per_node], of_rw[rank::world])
        for parameter, gradient in zip((table.dp, table.flex, table.rw), kept, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    assert {tensor.device.type for tensor in table.to("meta").state_dict().values()} == {"meta"}  # all goes along
    assert table.position.device.type == "meta"
    return True


def with_bad_cuts():
    import torch

    from shard_gym.flexshard.embedding import TieredEmbedding

    TieredEmbedding(torch.zeros(4, 2), torch.arange(4), 3, 2, 2)


def test_rows_and_gradients_are_those_of_an_unsharded_table():
    assert launch(as_unsharded, 4, CUTS) == [True] * 4


def test_a_plan_that_is_none_ends_all_processes_with_the_reason():
    with pytest.raises(RankFailed, match="3 DP and 2 Flex rows are not part of 4 rows"):
        launch(with_bad_cuts, 2)


def test_traffic_is_within_a_percent_of_what_was_predicted():
    curve = power_law(example.ROWS, example.LENGTH, 1.0)
    task = RowTask((SequenceTable("history", curve, example.DIM),), example.NETWORK, example.BATCH)
    plan = Frontier(task).best("flex3")
    assert plan.dp_rows[0] and plan.flex_rows[0]
    seen, predicted = example.run(curve, plan), example.predict(task, plan)
    for kind in predicted:
        assert np.isclose(seen[kind], predicted[kind], rtol=0.01), kind
