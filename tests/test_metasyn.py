from itertools import pairwise

import numpy as np
import pytest

from shard_gym.errors import CorruptFile, InvalidPool
from shard_gym.tables.histograms import NUM_BINS, use_histogram
from shard_gym.tables.metasyn import BASE_2021, LocalityStats, load_metasyn, metasyn, pack, parse_locality_stats, unpack
from shard_gym.tables.traces import trace

POOLS = {"shipped": load_metasyn, "built": lambda: metasyn(11)}


@pytest.fixture(params=POOLS)
def pool(request):
    return POOLS[request.param]()


def test_totals_are_the_published_ones(pool):
    assert len(pool) == 856
    assert pool.lookups.sum() == pytest.approx(887_017_990, rel=0.005)
    assert pool.distinct.sum() == pytest.approx(128_435_723, rel=0.005)


def test_histograms_are_the_published_ones(pool):
    touched, looked_up = (counts.sum(axis=0) for counts in pool.use_counts())
    assert looked_up / looked_up.sum() == pytest.approx(np.array(BASE_2021.accesses), abs=0.001)
    assert touched / touched.sum() == pytest.approx(np.array(BASE_2021.uses), abs=0.003)


def test_rows_used_once_and_twice_make_that_many_lookups(pool):
    touched, looked_up = pool.use_counts()
    assert (looked_up[:, 0] == touched[:, 0]).all()
    assert (looked_up[:, 1] == 2 * touched[:, 1]).all()


def test_rows_and_pooling_have_the_published_range(pool):
    assert (pool.rows.max(), pool.rows.min()) == (12_543_670, 1)
    assert pool.rows.mean() == pytest.approx(4_107_458, rel=0.01)
    assert (pool.pooling.max(), pool.pooling.min()) == (193, 0)
    assert pool.pooling.mean() == pytest.approx(15.8, abs=0.05)
    assert abs(np.corrcoef(pool.rows, pool.pooling)[0, 1]) < 0.1


def test_every_table_is_possible(pool):
    touched, looked_up = pool.use_counts()
    assert (pool.distinct <= pool.rows).all()
    assert (touched.sum(axis=1) == pool.distinct).all()
    assert (looked_up.sum(axis=1) == pool.lookups).all()


def test_the_shipped_pool_is_the_one_that_is_built():
    assert (pack(load_metasyn(0)) == pack(metasyn(0))).all()


def test_seeds_differ_and_repeat():
    assert metasyn(5, 64) == metasyn(5, 64)
    assert metasyn(5, 64) != metasyn(6, 64)


def test_pack_loses_nothing():
    pool = metasyn(3, 40)
    assert unpack(pack(pool), "metasyn3") == pool


@pytest.mark.parametrize("n", [32, 100, 1000])
def test_pools_of_other_sizes_scale_the_totals(n):
    assert metasyn(0, n).lookups.sum() == pytest.approx(887_017_990 * n / 856, rel=1e-6)


def test_too_small_and_unknown_pools_are_refused():
    with pytest.raises(InvalidPool, match="at least 32"):
        metasyn(0, 8)
    with pytest.raises(InvalidPool, match="no frozen"):
        load_metasyn(99)


SKEWED = LocalityStats(
    indices=468_084_223,
    distinct=61_644_628,
    uses=(0.423, 0.165, 0.167, 0.121, 0.073, 0.031, 0.011, 0.004, 0.002, 0.001, 0.001, *[0.0] * 6),
    accesses=(
        *(0.056, 0.043, 0.075, 0.099, 0.112, 0.091, 0.064, 0.052, 0.049),
        *(0.050, 0.054, 0.058, 0.061, 0.052, 0.038, 0.026, 0.020),
    ),
)


def as_text(name: str, stats: LocalityStats) -> str:
    edges = [0, *(2**b for b in range(16))]
    labels = [*(f"({a}, {b}]" for a, b in pairwise(edges)), "(32768+"]
    block = [name, f"Locality stats after processing 1 batches of size {stats.batch}"]
    block += [f"Avg # of indices: {stats.indices}", f"Avg # of unique cols: {stats.distinct}", "Avg col size: 7.6"]
    block += ["Histogram of col sizes:", *(f"{a}: {v:.3f}" for a, v in zip(labels, stats.uses, strict=True))]
    block += ["Ratio of index distribution at different column sizes:"]
    block += [*(f"{a}: {v:.3f}" for a, v in zip(labels, stats.accesses, strict=True)), str(edges), ""]
    return "\n".join(block)


def test_another_files_statistics_give_another_pool():
    text = as_text("fbgemm_t856_bs65536.pt", BASE_2021) + as_text("fbgemm_t856_bs65536_0.pt", SKEWED)
    parsed = parse_locality_stats(text)
    assert parsed == {"fbgemm_t856_bs65536.pt": BASE_2021, "fbgemm_t856_bs65536_0.pt": SKEWED}
    pool = metasyn(0, stats=parsed["fbgemm_t856_bs65536_0.pt"])
    assert pool.pooling.mean() == pytest.approx(8.345, abs=0.01)
    touched, looked_up = (counts.sum(axis=0) for counts in pool.use_counts())
    assert touched.sum() == pytest.approx(SKEWED.distinct, rel=0.005)
    assert looked_up / looked_up.sum() == pytest.approx(np.array(SKEWED.accesses), abs=0.001)


@pytest.mark.parametrize("text", ["", "nonsense", as_text("x_t8_bs16.pt", BASE_2021).replace("(4, 8]", "(4; 8]")])
def test_text_that_is_no_statistics_is_refused(text):
    with pytest.raises(CorruptFile):
        parse_locality_stats(text)


def test_a_trace_has_the_features_of_its_table():
    pool = load_metasyn()
    tables = [int(i) for i in (pool.pooling.argmin(), pool.rows.argmin(), 0, 1, 2, 3)]
    for table in tables:
        indices, offsets = trace(pool, table, seed=4)
        distinct, uses, accesses = use_histogram(np.unique(indices, return_counts=True)[1])
        assert distinct == pool.distinct[table]
        assert (uses == pool.uses[table]).all()
        assert (accesses == pool.accesses[table]).all()
        assert len(offsets) == 65_537 and offsets[0] == 0 and offsets[-1] == len(indices)
        assert (np.diff(offsets) >= 0).all()
        assert not len(indices) or (indices.min() >= 0 and indices.max() < pool.rows[table])


def test_a_smaller_batch_is_a_draw_of_samples():
    pool = load_metasyn()
    table = 3
    full = np.unique(trace(pool, table)[0], return_counts=True)[1]
    sizes, rows = [], []
    for seed in range(20):
        indices, offsets = trace(pool, table, batch=2_048, seed=seed)
        assert len(offsets) == 2_049
        sizes.append(len(indices))
        rows.append(len(np.unique(indices)))
    # a row used c times in the whole batch is missed by a 1/32 draw with probability (31/32)**c
    expected_rows = (1 - (31 / 32) ** full).sum()
    assert np.mean(sizes) == pytest.approx(full.sum() / 32, rel=0.01)
    assert np.mean(rows) == pytest.approx(expected_rows, rel=0.01)


def test_traces_repeat_with_their_seed():
    pool = load_metasyn()
    assert all((a == b).all() for a, b in zip(trace(pool, 1, 64, 9), trace(pool, 1, 64, 9), strict=True))
    assert not np.array_equal(trace(pool, 1, 64, 9)[0], trace(pool, 1, 64, 8)[0])


@pytest.mark.parametrize("batch", [0, 65_537])
def test_batches_beyond_the_reference_are_refused(batch):
    with pytest.raises(InvalidPool, match="reference batch"):
        trace(load_metasyn(), 0, batch)


def test_bins_are_seventeen():
    assert len(BASE_2021.uses) == len(BASE_2021.accesses) == NUM_BINS
