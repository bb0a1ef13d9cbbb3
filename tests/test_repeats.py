"""Shards measured more than once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool
from shard_gym.measuring.measurements import MIN_SHARED, Measurements, at_pace_of, merged, pace, repeat_noise
from shard_gym.measuring.noise import floor_of_means
from tests.test_measurements import measured

SHARDS = [([1], [4]), ([2], [4]), ([1], [4]), ([1], [8])]


def test_noise_is_the_difference_between_repeats():
    noise = repeat_noise(measured([1.0, 5.0, 1.1, 9.0], SHARDS))
    assert noise["pairs"] == 1
    assert noise["median_relative_difference"] == pytest.approx(0.1 / 1.05, rel=1e-5)
    assert noise["mean_relative_difference"] == pytest.approx(0.1 / 1.05, rel=1e-5)
    assert noise["relative_std"] == pytest.approx(0.1 / 1.05 / 0.954, rel=1e-3)
    assert repeat_noise(measured([1.0, 2.0])) == {"pairs": 0}


def test_all_pairs_of_three_repeats_count():
    noise = repeat_noise(measured([1.0, 1.0, 3.0], [([1], [4])] * 3))
    assert noise["pairs"] == 3 and noise["mean_relative_difference"] == pytest.approx(2 / 3)


def test_merged_shards_have_mean_times_and_the_unmeasured_are_left_out():
    once = merged(measured([1.0, 5.0, 2.0, np.nan], SHARDS))
    assert once.forward_ms.tolist() == [1.5, 5.0] and once.backward_ms.tolist() == [15, 50]
    assert [once.key(i) for i in range(2)] == [("metasyn_0_856", (1,), (4,)), ("metasyn_0_856", (2,), (4,))]


@given(st.floats(0.2, 5), st.integers(0, 100))
def test_a_campaign_on_a_slower_day_is_brought_to_the_pace_of_another(slower, seed):
    rng = np.random.default_rng(seed)
    times = rng.uniform(1, 9, MIN_SHARED + 10)
    other = measured(times * slower)
    assert pace(other, measured(times[:MIN_SHARED])) == pytest.approx(slower, rel=1e-5)
    (found,) = at_pace_of(measured(times), [other])
    assert np.allclose(found.forward_ms, times, rtol=1e-5) and found.card["pace"] == pytest.approx(slower, rel=1e-5)


def test_one_odd_measurement_does_not_change_the_pace():
    times = np.ones(MIN_SHARED)
    odd = times.copy()
    odd[0] = 50
    assert pace(measured(odd), measured(times)) == 1


def test_campaigns_of_other_settings_have_no_common_pace():
    one, other = (replace(measured(np.ones(40)), card={"settings": {"batch": batch}}) for batch in (1024, 2048))
    with pytest.raises(InvalidPool, match="batch 1024 and 2048"):
        pace(one, other)


def test_campaigns_that_share_too_little_have_no_common_pace():
    with pytest.raises(InvalidPool, match="measure some shards of each again"):
        pace(measured([1.0, 2.0]), measured(np.ones(40)))


def test_noise_leaves_an_error_that_no_prediction_can_be_without():
    """Normal noise of 6 %: the mean of three keeps 6 / sqrt(3), and its mean size is sqrt(2 / pi) of that."""
    rng, shards = np.random.default_rng(0), 3_000
    once = rng.uniform(10, 90, shards)
    noisy = [measured(once * (1 + rng.normal(0, 0.06, shards))) for _ in range(3)]
    assert floor_of_means(Measurements.concat(noisy)) == pytest.approx(0.06 / 3**0.5 * (2 / np.pi) ** 0.5, rel=0.03)
    with pytest.raises(InvalidPool, match="measured twice"):
        floor_of_means(noisy[0])
