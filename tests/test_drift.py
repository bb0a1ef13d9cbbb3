"""Drift of a machine, told from its neighbours in time and taken out of measured times."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool
from shard_gym.measuring.drift import FARTHEST, detrended, drift, turns
from shard_gym.measuring.measurements import Measurements, repeat_noise
from tests.test_measurements import measured


def test_neighbours_tell_the_pace_and_a_shard_itself_has_no_say():
    off = np.array([0.0, 0.1, 0.0])
    near, far = np.exp(-0.5 * np.array([1, 2]) ** 2)
    heard = np.array([near * 0.1 / (near + far), 0, near * 0.1 / (near + far)])
    assert drift(off, [np.arange(3)], width=1) == pytest.approx(heard - heard.mean())


def test_a_burst_counts_only_so_far():
    off = np.zeros(100)
    off[50] = 5.0
    burst = drift(off, [np.arange(100)])
    off[50] = FARTHEST
    assert np.array_equal(burst, drift(off, [np.arange(100)]))


@given(st.integers(0, 1000), st.integers(2, 60))
def test_a_level_stays_and_workers_are_kept_apart(seed, count):
    rng = np.random.default_rng(seed)
    off = rng.normal(size=count) * 0.05
    order = rng.permutation(count)
    sides = [order[: count // 2], order[count // 2 :]]
    found = drift(off, sides)
    assert found.mean() == pytest.approx(0, abs=1e-12)
    alone = drift(off[sides[0]], [np.arange(len(sides[0]))])
    assert np.diff(found[sides[0]]) == pytest.approx(np.diff(alone))


def test_repeats_of_a_drifting_campaign_agree_again():
    rng = np.random.default_rng(0)
    shards, passes = 200, 3
    work = np.tile(rng.uniform(5, 50, shards), passes)
    order = np.concatenate([rng.permutation(shards) + p * shards for p in range(passes)])
    pace = np.empty(shards * passes)
    pace[order] = np.exp(0.1 * np.sin(np.arange(shards * passes) / 40))
    noise = np.exp(0.01 * rng.normal(size=shards * passes))
    m = measured(work * pace * noise, [([i % shards], [16]) for i in range(shards * passes)])
    at = np.empty(len(m))
    at[order] = np.arange(len(m))
    m = replace(m, worker=np.zeros(len(m)), at=at)
    before = repeat_noise(m)["relative_std"]
    once = detrended(m, work * 11 * rng.uniform(0.97, 1.03, shards * passes))
    assert before > 0.05 and repeat_noise(once)["relative_std"] < 0.02
    assert np.log(once.total_ms / m.total_ms).mean() == pytest.approx(0, abs=1e-6)


def test_older_files_are_in_the_order_of_their_seeds():
    drawn = replace(measured(np.ones(6)), card={"shards": {"seed": 3}})
    assert [t.tolist() for t in turns(drawn)] == [[0, 2, 4], [1, 3, 5]]
    listed = replace(measured(np.ones(6)), card={"shards": {"seed": 3, "repeats": 2}})
    order = np.concatenate([np.random.default_rng([3, p]).permutation(3) + 3 * p for p in range(2)])
    assert [t.tolist() for t in turns(listed)] == [order[::2].tolist(), order[1::2].tolist()]


def test_who_measured_and_when_is_kept(tmp_path):
    old = measured([1.0, 2.0, 3.0])
    new = replace(old, worker=np.array([1, -1, 0]), at=np.array([2.0, np.nan, 1.0]))
    assert [t.tolist() for t in turns(new)] == [[2], [0]]
    for m in (old, new):
        m.save(tmp_path / "m.npz")
        assert Measurements.load(tmp_path / "m.npz") == m
    assert old.content_hash != new.content_hash
    both = Measurements.concat([old, new]).take([0, 3])
    assert both.worker.tolist() == [-1, 1] and both.at[1] == 2


def test_a_prediction_short_is_told():
    with pytest.raises(InvalidPool, match="each of 2 shards, got 1"):
        detrended(measured([1.0, 2.0]), np.ones(1))
