"""Models whose sequence tables take tiers: counts, plans beside pooled tables, and training as if unsharded."""

from importlib.util import find_spec

import numpy as np
import pytest

from shard_gym.errors import InvalidPlan, InvalidPool, InvalidTask
from shard_gym.flexshard.counts import RowCounter, count_batches
from shard_gym.flexshard.network import Network
from shard_gym.flexshard.tiers import worth
from shard_gym.plan.violations import violations

pytestmark = pytest.mark.skipif(not find_spec("torchrec"), reason="needs TorchRec")
ON = Network(1, 2, a2a_global=1e6, a2a_intra=2e6, ar_global=3e6, ar_cross=1e6)


def model(pooled=True):
    from torch import nn
    from torchrec import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig

    item = EmbeddingConfig(name="item", num_embeddings=50, embedding_dim=8, feature_names=["clicks", "views"])
    bag = EmbeddingBagConfig(name="user", num_embeddings=40, embedding_dim=8, feature_names=["user"])
    parts = {"history": EmbeddingCollection([item])}
    return nn.ModuleDict(parts | ({"who": EmbeddingBagCollection([bag])} if pooled else {}))


def counts():
    """Row 3 in both samples, row 1 in the first one, twice, row 49 in the second."""
    clicks = np.array([3, 1, 3]), np.array([2, 1])
    views = np.array([1, 49]), np.array([1, 1])
    return count_batches([{"clicks": clicks, "views": views}], {"item": ["clicks", "views"]})


def plan(model, **settings):
    from shard_gym_agents.models import plan_model

    told = {"devices": 2, "network": ON, "batch": 64, "device": "cpu", "tiers": True}
    return plan_model(model, **told | settings)


def test_a_row_counts_once_in_a_sample_whichever_feature_looks_it_up():
    item = counts()["item"]
    assert (item.samples, item.lookups) == (2, 5)
    assert item.curve(50).probability.tolist() == [1, 0.5, 0]
    assert item.curve(50).rows.tolist() == [1, 2, 47]
    assert item.order(50).tolist() == [3, 1, 49, 0, 2, *range(4, 49)]
    with pytest.raises(InvalidPool, match="row 49 was looked up, of a table with 49 rows"):
        item.order(49)


def test_rows_of_a_sketch_are_ordered_by_what_is_counted():
    counter = RowCounter(16)
    for row in range(100):
        counter.add(np.array([7, row + 8]), np.array([1, 1]))
    assert not counter.exact
    assert counter.order(200)[0] == 7 and sorted(counter.order(200)) == list(range(200))


def test_pooled_tables_are_planned_beside_the_tiers():
    found = plan(model(), memory_gb=1e-4, counts=counts(), pooling={"user": 2.0})
    left = found.task.capacity + worth(found.rows, found.tiers).memory_bytes
    assert violations(found.task, found.plan) == [] and (left <= 1e-4 * 2**30 + 1).all()
    assert list(found.sharding_plan.plan) == ["who"] and list(found.sharding_plan.plan["who"]) == ["user"]
    alone = plan(model(pooled=False), memory_gb=1e-4, counts=counts())
    assert (alone.task, alone.plan, alone.sharding_plan) == (None, None, None)
    assert worth(alone.rows, alone.tiers).memory_bytes <= 1e-4 * 2**30


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InvalidTask, match="'item' is not counted"):
        plan(model(), memory_gb=1, counts={})
    with pytest.raises(InvalidTask, match="'other' is none of the model's"):
        plan(model(), memory_gb=1, counts=counts() | {"other": RowCounter()})
    with pytest.raises(InvalidTask, match="use plan_model"):
        plan(model()["who"], memory_gb=1, counts={})
    with pytest.raises(InvalidTask, match="a multiple of 2, got 3"):
        plan(model(), memory_gb=1, counts=counts(), batch=3)
    with pytest.raises(InvalidTask, match="the network has 2 GPUs, devices= says 4"):
        plan(model(), memory_gb=1, counts=counts(), devices=4)
    with pytest.raises(InvalidTask, match=r"tiers want counts= .*, and the network="):
        plan(model(), memory_gb=1)
    with pytest.raises(InvalidTask, match="planned by auto, got 'beam'"):
        plan(model(), memory_gb=1, counts=counts(), agent="beam")
    found = plan(model(pooled=False), memory_gb=1, counts=counts())
    with pytest.raises(InvalidPlan, match="no sequence table 'item'"):
        found.place(model()["who"])
    with pytest.raises(InvalidPlan, match="not on the meta device"):
        found.place(model(pooled=False).to("meta"))


@pytest.mark.slow
def test_a_recommender_trains_in_tiers_as_unsharded_and_saves_what_was_predicted():
    from examples import flexshard_recommender as example

    losses, planned, seen, told = example.saved()
    assert planned.tiers.dp_rows[0] and planned.tiers.flex_rows[0]
    assert seen == pytest.approx(told, rel=0.05)
    np.testing.assert_allclose(losses, example.unsharded(), rtol=1e-5)
