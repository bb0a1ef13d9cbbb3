import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.tables.histograms import (
    HIGH,
    LOW,
    agree,
    bin_of,
    fitted_counts,
    largest_remainders,
    share_out,
    use_histogram,
)


def test_bins_hold_from_low_to_high():
    assert (bin_of(LOW) == np.arange(17)).all() and (bin_of(HIGH) == np.arange(17)).all()


def test_largest_remainders_by_hand():
    shares = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.0, 0.0, 0.0]])
    assert largest_remainders(shares, np.array([3, 7, 0])).tolist() == [[1, 1, 1], [4, 2, 1], [0, 0, 0]]


def test_sharing_out_by_hand():
    value, low, high = np.array([[5, 5]]), np.array([[3, 0]]), np.array([[6, 9]])
    assert share_out(np.array([5]), value, low, high).tolist() == [[1, 4]]
    assert share_out(np.array([-7]), value, low, high).tolist() == [[-2, -5]]
    assert share_out(np.array([9]), value, low, high).tolist() == [[1, 4]]  # as far as there is room


def test_counts_agree_when_every_row_is_inside_its_bin():
    touched, looked_up = np.zeros((2, 3, 17), np.int64)
    touched[:, 2], looked_up[:, 2] = 2, [6, 9, 6]  # two rows of bin 2 make 6 to 8 lookups
    assert agree(touched, looked_up, np.array([2, 2, 3]), looked_up.sum(axis=1)).tolist() == [True, False, False]


counted = st.one_of(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=300),
    st.builds(lambda n, hot: [1] * n + [hot] * 2, st.integers(20_000, 60_000), st.integers(2, 10**6)),
    st.builds(lambda once, twice: [1] * once + [2] * twice, st.integers(0, 50_000), st.integers(1, 50_000)),
)


@settings(deadline=None)
@given(counted, st.integers(4, 6))
def test_rounded_shares_give_whole_numbers_close_to_them(counts, digits):
    counts = np.array(counts)
    distinct, uses, accesses = use_histogram(counts)
    uses, accesses = uses.astype(float).round(digits)[None], accesses.astype(float).round(digits)[None]
    rows, lookups = np.array([distinct]), np.array([counts.sum()])
    touched, looked_up, hopeless = fitted_counts(uses, accesses, rows, lookups)
    assert not hopeless[0] and agree(touched, looked_up, rows, lookups)[0]
    assert abs(touched / rows - uses).max() < 0.02 + 2 / rows
    assert abs(looked_up / lookups - accesses).max() < 0.02 + 2 / lookups


def test_rows_whose_share_was_rounded_to_nothing_come_back():
    """One row of 30,000 makes a quarter of the lookups: its share of the rows, 0.00003, has no fourth digit."""
    uses, accesses = np.zeros((2, 1, 17))
    uses[0, 0] = 1
    accesses[0, [0, 14]] = 0.75, 0.25
    touched, looked_up, hopeless = fitted_counts(uses, accesses, np.array([30_000]), np.array([40_000]))
    assert (touched[0, 14], looked_up[0, 14]) == (1, 10_001) and not hopeless[0]
