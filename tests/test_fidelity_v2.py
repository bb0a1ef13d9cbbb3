"""The page of the second edition of costs: figures by hand, and the committed page."""

import argparse
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fidelity_v2 import apart, as_measured, check, measure, noise_scale, of_plans, page

from shard_gym.errors import CorruptFile
from shard_gym.measuring import chosen
from shard_gym.measuring.measurements import Measurements, pool_named
from shard_gym.plan.plan import Plan
from shard_gym.task.task import Task


def test_optimism_and_speedup_by_hand():
    """A random plan of 20 ms and a greedy one of 10 and 10 that takes 11: twice as fast by what is said."""
    expected = np.array([[[20.0, 1.0], [10.0, 10.0]]])
    measured = np.array([[[20.0, 1.0], [9.0, 11.0]]])
    found = of_plans(("random", "cost-greedy"), expected, np.full_like(expected, 0.5), measured)
    random, greedy = found["rows"]
    assert random["largest"]["optimism"] == pytest.approx(0) and greedy["largest"]["optimism"] == pytest.approx(0.1)
    assert greedy["E[max]"]["optimism"] == pytest.approx(11 / (10 + 0.5 / np.sqrt(np.pi)) - 1, abs=1e-4)
    assert greedy["largest"]["speedup"] == 2 and greedy["measured_speedup"] == pytest.approx(20 / 11)


def test_devices_are_told_apart_where_deviations_agree():
    expected = np.array([[10.0, 11.0, 12.0], [12.0, 11.0, 10.0], [0.0, 1.0, 2.0]])
    found = apart(expected, expected**2)
    assert found == {"correlation": pytest.approx(1), "slowest_right": 1.0, "plans": 2}  # an empty device has no log
    assert apart(expected, 1 / np.maximum(expected, 1))["correlation"] == pytest.approx(-1)


def test_repeats_tell_the_scale_of_the_noise():
    one = as_measured([("metasyn_3_856", (5,), (16,))])
    twice = Measurements.concat([one, replace(one, forward_ms=one.forward_ms * 1.2)])
    total = twice.total_ms
    said = 0.06  # the most that the spread of runs says
    assert noise_scale(twice) == pytest.approx(total.std(ddof=1) / total.mean() / said, rel=1e-5)
    assert noise_scale(one) == 1.0


def test_shards_of_split_plans_are_pieces():
    tables = pool_named("metasyn_3_856").take([4, 9]).with_(dim=np.array([64, 32], np.int32))
    task = Task(tables, memory=(2**40,) * 2, splits_allowed=True)
    found = list(chosen.shards_of(task, Plan((0, 1, 1), (0,))))
    assert found == [((4,), (32,)), ((9, 4), (32, 32))]


def test_the_committed_page_is_what_the_data_give():
    text = page(measure(argparse.Namespace()))
    check(text)
    with pytest.raises(CorruptFile, match="fidelity_v2"):
        check(text + "more")
