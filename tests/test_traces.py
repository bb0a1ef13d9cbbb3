import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool
from shard_gym.tables.histograms import use_histogram
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import make_pool
from shard_gym.tables.traces import trace


def user_pool(counts, batch=1, spare=0):
    """A pool as users write it: of a table whose rows are used that often, shares with four digits."""
    distinct, uses, accesses = use_histogram(np.array(counts))
    return make_pool(
        rows=distinct + spare,
        pooling=sum(counts) / batch,
        reference_batch=batch,
        distinct=[distinct],
        uses=[uses.astype(float).round(4)],
        accesses=[accesses.astype(float).round(4)],
    )


counted = st.one_of(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=200),
    st.builds(lambda n, hot: [1] * n + [hot], st.integers(1, 30_000), st.integers(1, 60_000)),
)


@settings(deadline=None)
@given(st.builds(user_pool, counted, st.sampled_from([1, 7, 512]), st.integers(0, 1_000)), st.integers(0, 9))
@example(user_pool([1] * 30_000 + [20_000]), 0)  # the share of the hot row is rounded to nothing
@example(user_pool([1, 2, 5] * 100 + [3_000] * 50), 0)
def test_a_trace_of_a_users_table_has_its_rows_and_lookups(pool, seed):
    indices, offsets = trace(pool, 0, seed=seed)
    assert len(offsets) == pool.reference_batch + 1 and offsets[0] == 0
    assert offsets[-1] == len(indices) == pool.lookups[0]
    assert len(np.unique(indices)) == pool.distinct[0]
    assert indices.min() >= 0 and indices.max() < pool.rows[0]


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidPool, match="seed"):
        trace(load_metasyn(), 0, 4, seed=-1)


@pytest.mark.parametrize("table", [-1, 856])
def test_a_table_that_is_not_there_is_refused(table):
    with pytest.raises(InvalidPool, match=f"table {table} is not in a pool of 856"):
        trace(load_metasyn(), table)
