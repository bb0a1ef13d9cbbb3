"""The largest of uncertain times."""

import numpy as np
import pytest

from shard_gym.simulators.base import Latency
from shard_gym.simulators.expected import expected_makespan, expected_max


def test_the_mean_of_the_largest_by_hand():
    """The largest of two equal normals is 1 / sqrt(pi) deviations above, of three 1.5 / sqrt(pi), of eight 1.4236."""
    for count, above in ((1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5), (8, 1.42360)):
        assert expected_max(np.full(count, 10.0), np.full(count, 2.0)) == pytest.approx(10 + 2 * above, abs=1e-3)


def test_a_device_far_below_does_not_count():
    assert expected_max([10.0, 1.0], [0.1, 0.1]) == pytest.approx(10.0, abs=1e-3)
    assert expected_max([[10.0, 1.0], [3.0, 4.0]], np.zeros((2, 2))) == pytest.approx([10.0, 4.0])


def test_it_is_what_draws_say():
    rng = np.random.default_rng(0)
    mean, spread = rng.uniform(30, 40, (4, 8)), rng.uniform(0.2, 3, (4, 8))
    drawn = rng.normal(mean, spread, (20_000, 4, 8)).max(axis=-1)
    assert expected_max(mean, spread) == pytest.approx(drawn.mean(axis=0), abs=4 * drawn.std() / 20_000**0.5)


def test_without_a_spread_it_is_the_plain_makespan():
    compute, nothing = np.array([3.0, 5.0]), np.zeros(2)
    assert expected_makespan(Latency(compute, nothing, nothing, compute), "kernel") == 10.0
    known = Latency(compute, nothing, nothing, compute, spread=np.full(2, 2.0))
    assert expected_makespan(known, "kernel") > 10.0
