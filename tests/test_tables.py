import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool
from shard_gym.tables.histograms import NUM_BINS, bin_of, use_histogram
from shard_gym.tables.pool import FEATURES, TablePool, make_pool


def test_bins_are_autoshards():
    counts = np.array([1, 2, 3, 4, 5, 8, 9, 16_384, 16_385, 32_768, 32_769, 10**9])
    assert bin_of(counts).tolist() == [0, 1, 2, 2, 3, 3, 4, 14, 15, 15, 16, 16]


def test_a_histogram_by_hand():
    distinct, uses, accesses = use_histogram(np.array([1, 1, 2, 4, 0]))
    assert distinct == 4
    assert uses[:3].tolist() == [0.5, 0.25, 0.25]
    assert accesses[:3].tolist() == [0.25, 0.25, 0.5]


def test_features_are_raw_and_in_order():
    pool = make_pool(rows=2**20, dim=32, pooling=3, dtype="fp16")
    features = dict(zip(FEATURES, pool.features()[0], strict=True))
    assert len(FEATURES) == 21
    assert (features["dim"], features["rows"], features["pooling"]) == (32, 2**20, 3)
    assert features["size_gb"] == 2**20 * 32 * 2 / 2**30
    assert sum(features[f"uses_{b}"] for b in range(NUM_BINS)) == pytest.approx(1)


def test_unknown_reuse_is_taken_as_uniform():
    pool = make_pool(rows=[100, 10**6], pooling=[2, 2], reference_batch=75)  # 150 lookups
    assert pool.distinct.tolist() == [100, 150]
    assert pool.uses[0, :2].tolist() == [0.5, 0.5]  # 50 rows once, 50 rows twice
    assert pool.accesses[0, :2] == pytest.approx([1 / 3, 2 / 3])
    assert pool.uses[1, 0] == 1


def test_an_unused_table_is_legal():
    pool = make_pool(rows=5, pooling=0)
    assert pool.distinct.tolist() == [0]
    assert pool.features()[0, 4:].sum() == 0


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=300))
def test_shares_give_the_counts_back(counts):
    counts = np.array(counts)
    distinct, uses, accesses = use_histogram(counts)
    pool = make_pool(
        rows=5_000, pooling=counts.sum(), reference_batch=1, distinct=[distinct], uses=[uses], accesses=[accesses]
    )
    touched, looked_up = pool.use_counts()
    bins = bin_of(counts)
    assert touched[0].tolist() == np.bincount(bins, minlength=NUM_BINS).tolist()
    assert looked_up[0].tolist() == np.bincount(bins, counts, minlength=NUM_BINS).tolist()


def test_columns_cannot_be_written():
    pool = make_pool(rows=[1, 2])
    with pytest.raises(ValueError, match="read-only"):
        pool.rows[0] = 7


def test_take_keeps_order_and_repeats():
    pool = make_pool(rows=[10, 20, 30], name=("a", "b", "c"))
    assert pool.take([2, 0, 2]).rows.tolist() == [30, 10, 30]
    assert pool.take([2, 0, 2]).name == ("c", "a", "c")
    assert pool.take([0, 1, 2]) == pool


def test_bags_are_one_unless_told_and_stay_with_their_table():
    pool = make_pool(rows=[10, 20, 30], dim=[4, 8, 16])
    assert pool.bags.tolist() == [1, 1, 1] and pool.columns_sent.tolist() == [4, 8, 16]
    several = pool.with_(bags=[1, 3, 0.3])
    assert several != pool and several.with_(bags=1.0) == pool
    assert several.take([1, 1, 0]).columns_sent.tolist() == [24, 24, 4]
    assert several.columns_sent[2] == pytest.approx(4.8, rel=1e-4)
    assert (several.columns_sent * 2**14 % 1 == 0).all()  # sums of them, and of halves, are exact
    assert (several.features() == pool.features()).all()


ONCE = {"uses": np.eye(1, 17), "accesses": np.eye(1, 17)}
BAD = {
    "rows": dict(rows=[0]),
    "dim": dict(rows=[1], dim=-4),
    "whole": dict(rows=[1.5]),
    "fit int32": dict(rows=[1], dim=2**32 + 16),
    "expected one number or 2": dict(rows=[1, 2], dim=[4, 4, 4]),
    "cannot be read": dict(rows=[1], pooling="x"),
    "not be negative": dict(rows=[1], pooling=-1),
    "bags must not be negative": dict(rows=[1], bags=-1),
    "more than 0 where there are lookups": dict(rows=[1, 1], bags=[1, 0]),
    "bags times dim must stay below": dict(rows=[1], dim=2**10, bags=2**21),
    "column bags has shape": dict(rows=[1, 1], bags=[1, 1, 1]),
    "column bags holds NaN": dict(rows=[1], bags=float("inf")),
    "NaN": dict(rows=[1], pooling=float("nan")),
    "pooling times reference_batch must stay below 2\\*\\*53": dict(rows=[1], pooling=1e38),
    "bytes .* must stay below 2\\*\\*53: table 1": dict(rows=[1, 2**60], dim=64),
    "bytes of": dict(rows=[2**46], dim=16, dtype="int8"),  # its weights would fit, with Adam's state they do not
    "not exceed the lookups": dict(rows=[9], pooling=2, reference_batch=1, distinct=[3], **ONCE),
    "at least 1 where": dict(rows=[9], distinct=[0], **ONCE),
    "sum to 1 where": dict(rows=[9], distinct=[1], uses=np.zeros((1, 17)), accesses=np.eye(1, 17)),
    "reference_batch must be a positive int": dict(rows=[1], reference_batch=2.5),
    "reference_batch must be positive": dict(rows=[1], reference_batch=0),
    "dtype": dict(rows=[1], dtype="fp13"),
    "names": dict(rows=[1], name=("a", "b")),
    "all three": dict(rows=[1], distinct=[1]),
    "distinct": dict(rows=[1], distinct=[2], uses=np.eye(1, 17), accesses=np.eye(1, 17)),
    "sum to 1": dict(rows=[9], distinct=[2], uses=np.full((1, 17), 0.5), accesses=np.eye(1, 17)),
    "shape": dict(rows=[9], distinct=[2], uses=np.eye(1, 16), accesses=np.eye(1, 17)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_columns_are_named(message):
    with pytest.raises(InvalidPool, match=message):
        make_pool(**BAD[message])


def test_a_mask_picks_where_it_is_true():
    pool = make_pool(rows=[10, 20, 30])
    assert pool.take(pool.rows > 15).rows.tolist() == [20, 30]
    assert pool.take([True, False, True]) == pool.take([0, 2])
    assert len(pool.take([])) == 0


@pytest.mark.parametrize("picked", [[3], [-1], [True, False], [0.5], 1, [[0]], [[0], [1, 2]], ["a"], None])
def test_what_picks_no_tables_is_refused(picked):
    with pytest.raises(InvalidPool):
        make_pool(rows=[10, 20, 30]).take(picked)


def test_the_largest_table_is_exact():
    pool = make_pool(rows=2**46, dim=8, dtype="fp32")  # 12 bytes a weight with Adam's state
    assert pool.weight_bytes.tolist() == [2**51]


def test_pooling_in_float32_never_leaves_fewer_lookups_than_rows():
    lookups = 2**24 + 1  # not a float32
    pool = make_pool(rows=lookups, pooling=lookups, reference_batch=1, distinct=[lookups], **ONCE)
    assert pool.lookups.tolist() == [lookups]
    assert [counts[0, 0] for counts in pool.use_counts()] == [lookups, lookups]


def test_more_lookups_than_float32_counts_exactly():
    rows, each = np.array([12_345_671, 3_333_333, 2_222_221, 100_003]), np.array([1, 7, 100, 5_000])
    lookups = rows * each
    uses, accesses = np.zeros((2, 1, NUM_BINS))
    uses[0, bin_of(each)], accesses[0, bin_of(each)] = rows / rows.sum(), lookups / lookups.sum()
    pool = make_pool(
        rows=2**25,
        pooling=lookups.sum() / 64,
        reference_batch=64,
        distinct=[rows.sum()],
        uses=uses,
        accesses=accesses,
    )
    touched, looked_up = pool.use_counts()
    assert (touched.sum(), looked_up.sum()) == (rows.sum(), pool.lookups[0])
    assert abs(touched[0, bin_of(each)] - rows).max() <= 64
    assert touched[0, 0] == looked_up[0, 0]


def test_a_histogram_that_contradicts_the_lookups_is_named():
    """Two rows used once cannot make a thousand lookups."""
    table = make_pool(rows=9, pooling=1_000, reference_batch=1, distinct=[2], name=("odd",), **ONCE)
    with pytest.raises(InvalidPool, match=r"table 0 \('odd'\).*1,000 lookups"):
        table.use_counts()


def test_one_table_that_needs_repair_leaves_the_others_alone():
    tables = [np.array([1, 1, 2, 4]), np.repeat([1, 2], [12_345, 7_656])]
    distinct, uses, accesses = map(np.stack, zip(*map(use_histogram, tables), strict=True))
    pooling = [counts.sum() for counts in tables]
    pool = make_pool(
        rows=30_000, pooling=pooling, reference_batch=1, distinct=distinct, uses=uses, accesses=accesses.round(4)
    )
    touched, looked_up = pool.use_counts()
    assert touched[:, :3].tolist() == [[2, 1, 1], [12_345, 7_656, 0]]
    assert looked_up[:, :3].tolist() == [[2, 2, 4], [12_345, 15_312, 0]]  # not 0.4464 of them, which is one more


def test_equality_sees_every_column():
    pool = make_pool(rows=[5, 6])
    assert pool == make_pool(rows=[5, 6])
    assert pool != pool.with_(dim=np.array([16, 32]))
    assert pool != pool.with_(name=("x", "y"))
    assert isinstance(pool, TablePool)
