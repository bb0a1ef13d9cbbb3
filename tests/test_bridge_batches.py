"""Profiles of batches: what is looked up, counted as batches stream by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import make_pool
from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.tables.configs import Lookup, pool_of_configs
from shard_gym.tables.histograms import use_histogram
from shard_gym.task.own import make_task
from shard_gym.torchrec.batches import Profiler
from tests.test_own_tables import bag

A = {"f": (np.array([0, 0, 2]), np.array([2, 0, 1])), "g": (np.array([2]), np.array([0, 0, 1]))}
B = {"f": (np.array([9]), np.array([0, 1, 0])), "g": (np.array([], np.int32), np.array([0, 0, 0]))}


def test_two_batches_by_hand():
    profiler = Profiler({"t": ["f", "g"], "u": ["f"]})
    for batch in (A, B):
        profiler.add(batch)
    features = profiler.features()
    assert (features["f"].rows_seen, features["g"].rows_seen) == (10, 3)
    assert profiler.pooling() == {"f": pytest.approx(4 / 6), "g": pytest.approx(1 / 6)}
    assert features["f"].pooling_p50 == pytest.approx(2 / 3)
    assert features["f"].pooling_p95 == pytest.approx(1 / 3 + 0.95 * 2 / 3)  # between means of 1/3 and 1
    assert (features["f"].distinct, features["g"].distinct) == (1.5, 0.5)
    pool = profiler.pool(dim=[4, 8])
    assert (pool.name, pool.reference_batch) == (("t", "u"), 3)
    assert (pool.rows.tolist(), pool.dim.tolist()) == ([10, 10], [4, 8])
    assert pool.pooling.tolist() == pytest.approx([5 / 6, 4 / 6])
    # t: batch A uses rows 0 and 2 twice each, B row 9 once: means 1.5 rows, 2.5 lookups
    assert pool.distinct.tolist() == [2, 2]
    assert pool.lookups.tolist() == [2, 2]


def test_one_batch_is_counted_exactly():
    rng = np.random.default_rng(0)
    lengths = rng.poisson(4, 512)
    ids = rng.zipf(1.3, int(lengths.sum())) % 3000
    profiler = Profiler({"t": ["f"]})
    profiler.add({"f": (ids, lengths)})
    pool = profiler.pool()
    distinct, uses, accesses = use_histogram(np.bincount(ids))
    assert (pool.distinct[0], pool.rows[0]) == (distinct, ids.max() + 1)
    assert np.array_equal(pool.uses[0], uses)
    assert np.array_equal(pool.accesses[0], accesses)
    assert pool.pooling[0] == np.float32(len(ids) / 512)


@st.composite
def streams(draw):
    """Batches of one size, with few or many ids, for a table of two features."""
    samples = draw(st.integers(1, 6))
    bags = st.lists(st.lists(st.integers(0, draw(st.integers(0, 40))), max_size=60), min_size=samples, max_size=samples)
    return draw(st.lists(st.tuples(bags, bags), min_size=1, max_size=4))


@settings(max_examples=75, deadline=None)
@given(streams())
def test_means_make_a_pool_whose_counts_add_up(stream):
    profiler = Profiler({"t": ["f", "g"]})
    total = distinct = 0
    for batch in stream:
        arrays = [
            (np.array([i for bag in bags for i in bag], np.int64), np.array([len(b) for b in bags])) for bags in batch
        ]
        profiler.add(dict(zip("fg", arrays, strict=True)))
        ids = np.concatenate([values for values, _ in arrays])
        total += len(ids)
        distinct += len(np.unique(ids))
    pool = profiler.pool()
    touched, looked_up = pool.use_counts()  # refuses shares that no counts explain
    assert touched.sum() == pool.distinct[0]
    assert abs(pool.distinct[0] - distinct / len(stream)) <= 1
    assert looked_up.sum() == pool.lookups[0]
    assert abs(pool.lookups[0] - total / len(stream)) <= 0.5 + 1e-6
    samples = len(stream[0][0])
    assert sum(profiler.pooling().values()) == pytest.approx(total / len(stream) / samples)


def test_keyed_jagged_tensors_are_read_as_dicts_are():
    torch, torchrec = pytest.importorskip("torch"), pytest.importorskip("torchrec")
    configs = [bag(name="t", feature_names=["f", "g"], num_embeddings=12), bag(name="u", feature_names=["h"])]
    values, lengths = torch.tensor([0, 0, 2, 2, 7, 8]), torch.tensor([2, 0, 1, 0, 0, 1, 1, 1, 0])
    tensors, arrays = Profiler.of_configs(configs), Profiler.of_configs(configs)
    tensors.add(torchrec.KeyedJaggedTensor(["f", "g", "h"], values, lengths=lengths))
    arrays.add({**A, "h": (np.array([7, 8]), np.array([1, 1, 0]))})
    assert tensors.features() == arrays.features()
    assert tensors.pool(configs) == arrays.pool(configs)
    assert tensors.pool(configs).rows.tolist() == [12, 1000]
    assert tensors.pool(configs).dtype == ("fp32", "fp32")

    weighted = torchrec.KeyedJaggedTensor(["f", "g", "h"], values, torch.rand(6), lengths=lengths)
    tensors.add(weighted)
    assert tensors.features()["f"].weighted
    assert tensors.pool(configs).weighted.tolist() == [True, True]
    assert not arrays.pool(configs).weighted.any()
    varying = torchrec.KeyedJaggedTensor(
        ["f", "g", "h"], values, lengths=torch.tensor([2, 1, 0, 0, 1, 2]), stride_per_key_per_rank=[[3], [1], [2]]
    )
    with pytest.raises(InvalidPool, match="samples of their own for each feature"):
        tensors.add(varying)


def test_memory_does_not_grow_with_the_ids():
    profiler = Profiler({"t": ["f"]})
    for start in range(0, 10**6, 1000):
        profiler.add({"f": (np.arange(start, start + 1000), np.ones(1000, int))})
    assert profiler.pool().rows[0] == 10**6
    held = vars(profiler._features["f"])
    assert len(held.pop("pooling")) == 1000
    assert set(map(type, held.values())) <= {int, bool}


def test_a_smaller_last_batch_tells_of_rows_only():
    profiler = Profiler({"t": ["f"]})
    profiler.add({"f": (np.array([1, 2, 3]), np.array([1, 2]))})
    profiler.add({"f": (np.array([50]), np.array([1]))})
    pool = profiler.pool()
    assert (pool.rows[0], pool.pooling[0], pool.distinct[0]) == (51, 1.5, 3)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"f": A["f"]}, UnknownName, "feature in batch 0 'g'; choose one of: f"),
        ({"f": ([1], [1]), "g": ([1], [1, 0])}, InvalidPool, r"features of \[1, 2\] samples"),
        ({"f": ([1], [2]), "g": ([1], [1])}, InvalidPool, "lengths sum to 2, not to 1 values"),
        ({"f": ([-1], [1]), "g": ([1], [1])}, InvalidPool, "feature 'f': -1 is no row of 't', which has rows 0 to 9"),
        ({"f": ([10], [1]), "g": ([1], [1])}, InvalidPool, "feature 'f': 10 is no row of 't'"),
        ({"f": ([0.5], [1]), "g": ([1], [1])}, InvalidPool, "flat array of whole numbers is wanted, got float64"),
        ({"f": ([], []), "g": ([], [])}, InvalidPool, "has 0 samples"),
        ([1, 2], InvalidPool, "no KeyedJaggedTensor and no dict"),
    ],
)
def test_batches_that_are_refused(batch, error, message):
    profiler = Profiler({"t": ["f", "g"]}, {"t": 10})
    with pytest.raises(error, match=message):
        profiler.add(batch)
    with pytest.raises(InvalidPool, match="no batches"):
        profiler.pool()


def test_a_larger_batch_is_refused():
    profiler = Profiler({"t": ["f"]})
    profiler.add({"f": ([1], [1])})
    with pytest.raises(InvalidPool, match="batch 1 has 2 samples, the first 1"):
        profiler.add({"f": ([1], [1, 0])})


def test_profiles_that_are_refused():
    for tables, rows, message in (({}, {}, "one feature or more"), ({"t": []}, {}, "one feature or more")):
        with pytest.raises(InvalidPool, match=message):
            Profiler(tables, rows)
    with pytest.raises(UnknownName, match="table in rows 'u'"):
        Profiler({"t": ["f"]}, {"u": 3})
    profiler = Profiler({"t": ["f"]})
    profiler.add({"f": ([1], [1])})
    with pytest.raises(InvalidPool, match="'other' is in the configs, but not in the profile"):
        profiler.pool([bag(name="t"), bag(name="other")])
    with pytest.raises(InvalidPool, match=r"'t' has the features \['f', 'g'\], the profile counted \['f'\]"):
        profiler.pool([bag(name="t", feature_names=["f", "g"])])
    with pytest.raises(InvalidPool, match="'t' has 1 rows, but row 1 was looked up"):
        profiler.pool([bag(name="t", num_embeddings=1)])
    with pytest.raises(InvalidPool, match="'t' is in the profile only"):
        profiler.pool([bag(name="zzz")])


def test_features_with_bags_of_their_own():
    configs = [bag(name="t", feature_names=["f", "g"])]
    told = {"f": Lookup(pooling=3, num_poolings=2), "g": Lookup(pooling=8, batch=512)}
    tables = make_task(configs, 1, 1, pooling=told, batch=1024).tables
    assert tables.pooling.tolist() == [3 * 2 + 8 * 0.5]
    assert tables.bags.tolist() == [2 + 0.5]
    assert pool_of_configs(configs, {"f": Lookup(2)}) == pool_of_configs(configs, {"f": 2})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"f": Lookup(batch=8)}, "batch of its own: the task's must be told"),
        ({"f": Lookup(pooling=-1)}, "numbers from 0"),
        ({"f": Lookup(num_poolings="2")}, "numbers from 0"),
        ({"f": Lookup(batch=0)}, "a whole number from 1"),
        ({"f": Lookup(batch=True)}, "a whole number from 1"),
        ({"t": Lookup()}, "pooling of 't' is a number"),
    ],
)
def test_features_that_are_refused(told, message):
    with pytest.raises(InvalidPool, match=message):
        pool_of_configs([bag(name="t", feature_names=["f"])], told)


def test_profiled_statistics_reach_the_pool():
    profiler = Profiler({"t": ["f"]})
    profiler.add({"f": ([1, 1, 1, 5], [4])})
    assert profiler.pool(dtype="fp32", dim=8) == make_pool(
        [6], [8], [4], dtype="fp32", reference_batch=1, name=("t",), distinct=[2],
        uses=[[0.5, 0, 0.5] + [0] * 14], accesses=[[0.25, 0, 0.75] + [0] * 14],
    )  # fmt: skip
