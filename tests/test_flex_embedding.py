"""A table in tiers on four processes: equal to an unsharded one, and its traffic as predicted."""

import numpy as np
import pytest

from examples import flexshard_lookup as example
from shard_gym.errors import RankFailed
from shard_gym.flexshard.curves import power_law
from shard_gym.flexshard.tiers import RowTask, SequenceTable
from shard_gym.torchrec.launch import launch
from shard_gym_agents.solvers.flexshard import Frontier

pytestmark = pytest.mark.usefixtures("warm_ranks")
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


def trained(steps, per_node, cuts, begun=None):
    """Whole weights and Adagrad's state after more steps on this many processes; `begun` is what went before."""
    import torch
    from torch import distributed

    from shard_gym.flexshard.embedding import TieredEmbedding

    rank, world = distributed.get_rank(), distributed.get_world_size()
    shared = torch.Generator().manual_seed(2)
    weight, order = torch.randn(ROWS, DIM, generator=shared), torch.randperm(ROWS, generator=shared)
    table = TieredEmbedding(weight if begun is None else torch.from_numpy(begun[0]), order, *cuts, per_node)
    parameters = table.dp, table.flex, table.rw
    optimizer = torch.optim.Adagrad(parameters, lr=0.1)
    if begun is not None:
        for parameter, state in zip(parameters, table.kept(torch.from_numpy(begun[1])), strict=True):
            optimizer.state[parameter]["sum"].copy_(state)
    for step in steps:
        ids = torch.randint(0, ROWS, (80,), generator=torch.Generator().manual_seed(step))[rank::world]
        optimizer.zero_grad()
        table(ids).square().sum().backward()
        optimizer.step()
    return table.whole().numpy(), table.whole(tuple(optimizer.state[p]["sum"] for p in parameters)).numpy()


def unsharded(steps):
    """The same training by torch's own embedding on one process."""
    import torch

    weight = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(2))
    whole = torch.nn.Embedding.from_pretrained(weight, freeze=False)
    optimizer = torch.optim.Adagrad([whole.weight], lr=0.1)
    for step in steps:
        ids = torch.randint(0, ROWS, (80,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        whole(ids).square().sum().backward()
        optimizer.step()
    return whole.weight.detach().numpy(), optimizer.state[whole.weight]["sum"].numpy()


def refused(wrong):
    """Errors of each rank where the last one is given wrong ids, one after the other, or skips a backward pass."""
    import torch
    from torch import distributed

    from shard_gym.errors import InvalidTask, RankFailed
    from shard_gym.flexshard.embedding import TieredEmbedding

    table = TieredEmbedding(torch.zeros(9, 2), torch.arange(9), 2, 3, 2)
    last, told = distributed.get_rank() == distributed.get_world_size() - 1, []
    for ids in wrong:
        with pytest.raises((InvalidTask, RankFailed)) as error:
            table(torch.tensor(ids) if last else torch.tensor([1]))
        told.append(f"{error.type.__name__}: {error.value}")
    found = table(torch.tensor([0, 3, 8]))
    with pytest.raises(RankFailed) as error:
        table(torch.tensor([1])) if last else found.sum().backward()
    return [*told, str(error.value)]


def test_ids_that_are_no_rows_and_skipped_passes_are_told_on_every_process():
    wrong = {"got -1..-1": [-1], "the rows of the table, got 3..9": [3, 9], "flatten": [[1, 2]], "float32": [0.5]}
    first, last = launch(refused, 2, list(wrong.values()))
    for word, error in zip(wrong, last, strict=False):
        assert error.startswith("InvalidTask: ids are") and word in error
    assert first[:-1] == ["RankFailed: rank 1 was given ids that are not in the table"] * len(wrong)
    assert all("rank 0 at backward pass of lookup 5, rank 1 at lookup 6" in told[-1] for told in (first, last))


def test_training_goes_on_with_other_processes_and_cuts():
    begun = launch(trained, 4, range(3), 2, (20, 101))[0]
    weight, state = launch(trained, 2, range(3, 6), 1, (7, 40), begun)[0]
    all_along, all_state = unsharded(range(6))
    np.testing.assert_allclose(weight, all_along, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, all_state, rtol=1e-4, atol=1e-6)


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
