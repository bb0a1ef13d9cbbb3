"""Statistics of gaps against closed forms, and against rliable 1.2.0."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shard_gym.errors import InvalidResult
from shard_gym_agents.leaderboard.statistics import (
    holm,
    improvement,
    improvement_interval,
    interval,
    iqm,
    mean,
    paired,
    profile,
    rank_groups,
)

RNG = np.random.default_rng(7)
X, Y = RNG.exponential(0.10, (40, 3)).round(3), RNG.exponential(0.12, (40, 5)).round(3)
TABLES = arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 3)), elements=st.integers(-3, 9).map(float))


def test_means_that_can_be_told_by_hand():
    runs = np.array([[100.0, 1], [2, 3], [4, 5], [6, -50]])
    assert (mean(runs), iqm(runs)) == (71 / 8, (2 + 3 + 4 + 5) / 4)
    assert (iqm(runs[:, :1]), iqm(runs[:1, :1])) == ((4 + 6) / 2, 100)  # nothing to cut from one run


def test_the_interval_of_two_tasks_has_a_binomial_in_it():
    runs = np.array([[0.0], [1.0]])  # a resample's mean is 0, 1/2 or 1, with 1/4, 1/2 and 1/4
    assert interval(runs, mean, level=0.95) == (0, 1)
    assert interval(runs, mean, level=0.4) == (0.5, 0.5)


def test_the_interval_of_a_mean_is_what_the_central_limit_says():
    low, high = interval(X[:, :1], mean)
    half = 1.96 * X[:, 0].std() / np.sqrt(len(X))
    assert np.allclose([low, high], [X[:, 0].mean() - half, X[:, 0].mean() + half], atol=0.2 * half)
    assert interval(X, mean) == interval(X, mean) != interval(X, mean, seed=1)


def test_the_spread_of_seeds_is_in_the_interval():
    noisy = np.tile([0.0, 1.0], (40, 1))  # tasks are all alike, seeds are not
    low, high = interval(noisy, mean)
    assert np.allclose([low, high], 0.5 + np.array([-1.96, 1.96]) * 0.5 / np.sqrt(80), atol=0.02)
    assert interval(noisy[:, :1], mean) == (0, 0)


@settings(max_examples=50, deadline=None)
@given(TABLES, st.randoms())
def test_improvement_counts_pairs_of_runs(x, random):
    y = np.array([[float(random.randint(-3, 9)) for _ in range(2)] for _ in x])
    pairs = [[(a < b) + (a == b) / 2 for a in xs for b in ys] for xs, ys in zip(x, y, strict=True)]
    assert improvement(x, y) == pytest.approx(np.mean([np.mean(p) for p in pairs]))
    assert improvement(x, y) + improvement(y, x) == pytest.approx(1)
    low, high = improvement_interval(x, y, resamples=50)
    assert 0 <= low <= high <= 1


def test_a_profile_is_the_share_of_runs_up_to_a_gap():
    assert profile([[0, 0.1], [0.1, 0.4]], [-0.01, 0, 0.1, 0.39, 1]).tolist() == [0, 0.25, 0.75, 0.75, 1]


def test_a_paired_test_is_exact_where_few_tasks_differ():
    same, other = np.zeros((100, 1)), np.zeros((100, 1))
    other[:5, 0] = 1, 2, 3, 4, 5
    found = paired(other, same)
    assert (found.difference, found.p) == (15 / 100, 2 / 2**5)  # all signs alike, either way
    assert paired(same, same) == paired(other, other)
    assert (paired(same, same).low, paired(same, same).high, paired(same, same).p) == (0, 0, 1)


def test_a_paired_test_of_many_tasks_is_the_sign_test_where_all_differ_by_as_much():
    signs = np.repeat([1.0, -1.0], [15, 5])[:, None]  # 15 of 20: two-sided binomial 0.0414
    found = paired(signs, np.zeros((20, 1)))
    assert found.p == pytest.approx(0.0414, abs=0.005)
    assert found.low < found.difference == 0.5 < found.high


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.7, 0.9]), holm([])) == ([1, 1], [])


def test_groups_hold_whom_the_tasks_do_not_tell_apart():
    base = np.linspace(0, 0.1, 50)[:, None]
    wobble = np.tile([[0.02], [-0.0199]], (25, 1))
    gaps = {"far": base + 0.5, "near": base + 0.001, "same": base + wobble, "best": base}
    assert rank_groups(gaps) == [["best", "same"], ["near"], ["far"]]
    assert rank_groups(gaps, resolution=0.001001) == [["best", "same", "near"], ["far"]]
    assert rank_groups({}) == []


@pytest.mark.parametrize("bad", [[], [0.1], [[np.nan]], [[np.inf]], np.zeros((3, 0)), np.zeros((1, 1, 1))])
def test_only_tables_of_finite_gaps_have_statistics(bad):
    for statistic in (lambda g: interval(g, mean), lambda g: profile(g, [0]), lambda g: paired(g, g)):
        with pytest.raises(InvalidResult, match="finite numbers"):
            statistic(bad)
    with pytest.raises(InvalidResult, match="40 and 39"):
        improvement(X, X[1:])


# What rliable 1.2.0 gives for X and Y: its tables are (seeds, tasks), higher is better, 20,000 resamples of both.
RLIABLE = {
    "mean": 0.102375,
    "iqm": 0.0788166667,
    "improvement": 0.5383333333,
    "profile": [0.0083333333, 0.35, 0.6083333333, 0.95],
    "mean interval": [0.08178333, 0.12565062],
    "iqm interval": [0.06226667, 0.09846667],
}
AT = [0, 0.05, 0.1, 0.3]


def test_the_numbers_are_those_of_rliable():
    assert (mean(X), iqm(X)) == pytest.approx((RLIABLE["mean"], RLIABLE["iqm"]))
    assert improvement(X, Y) == pytest.approx(RLIABLE["improvement"])
    assert profile(X, AT) == pytest.approx(RLIABLE["profile"])
    for statistic in (mean, iqm):
        theirs = RLIABLE[f"{statistic.__name__} interval"]
        assert np.allclose(interval(X, statistic, resamples=8_000), theirs, atol=0.03 * np.ptp(theirs))
    low, high = improvement_interval(X, Y)
    assert low < 0.468 and high > 0.599  # theirs resamples seeds only; tasks are drawn here as well


@pytest.mark.skipif(importlib.util.find_spec("rliable") is None, reason="pip install rliable==1.2.0 'pandas<3'")
def test_the_numbers_above_come_from_rliable():
    from rliable import library, metrics

    def both(scores):
        return np.array([metrics.aggregate_mean(scores), metrics.aggregate_iqm(scores)])

    told, found = library.get_interval_estimates({"x": X.T}, both, task_bootstrap=True, reps=2_000)
    assert told["x"] == pytest.approx([RLIABLE["mean"], RLIABLE["iqm"]])
    for name, interval_of in zip(("mean", "iqm"), found["x"].T, strict=True):
        theirs = RLIABLE[f"{name} interval"]
        assert np.allclose(interval_of, theirs, atol=0.1 * np.ptp(theirs))
    assert metrics.probability_of_improvement(-X.T, -Y.T) == pytest.approx(RLIABLE["improvement"])
    above = library.create_performance_profile({"x": X.T}, np.array(AT))[0]["x"]
    assert 1 - above == pytest.approx(RLIABLE["profile"])
