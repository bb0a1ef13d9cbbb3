"""Shards measured in several visits: the lowest of all runs count, and small shards have a pace of their own."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.errors import InvalidPool
from shard_gym.measuring import predictors
from shard_gym.measuring.drift import settled
from shard_gym.measuring.measurements import Measurements, at_pace, pool_named
from shard_gym.measuring.rows import as_measurements
from shard_gym.measuring.shards import Shard
from shard_gym.measuring.visits import combined, pace_by_size

POOL = "metasyn_0_856"


def visits(totals):
    """Shard i in visits of runs with these totals, (S, V, R); a tenth of each is forward."""
    totals = np.asarray(totals, float)
    shards, times = [], []
    for i, of_shard in enumerate(totals):
        for v, runs in enumerate(of_shard):
            shards.append(Shard(POOL, np.array([i]), np.array([16])))
            run_ms = [(0.1 * ms, 0.9 * ms) for ms in runs]
            forward, backward = np.mean(run_ms, axis=0)
            spread = {"forward_spread": 0.0, "backward_spread": 0.0}
            when = {"worker": 0, "at": float(v)}
            times.append({"forward_ms": forward, "backward_ms": backward, "run_ms": run_ms} | spread | when)
    return as_measurements(shards, times, {"settings": {"batch": 2048}})


def test_runs_come_back_as_they_were_saved(tmp_path):
    m = visits([[[10, 11, 12], [20, 21, 22]], [[5, 5, 5], [5, 5, 5]]])
    m.save(tmp_path / "m.npz")
    loaded = Measurements.load(tmp_path / "m.npz")
    assert loaded == m and loaded.run_ms.shape == (4, 3, 2)
    assert loaded.take([2]).run_ms.sum(axis=-1).tolist() == [[5, 5, 5]]
    assert Measurements.concat([m, m]).run_ms.shape == (8, 3, 2)
    assert Measurements.concat([m, replace(m, run_ms=np.zeros(0))]).run_ms.shape == (8, 0, 2)


def test_the_lowest_runs_of_all_visits_count():
    one = combined(visits([[[10, 11, 40], [12, 30, 30], [50, 50, 50]]]))
    assert len(one) == 1 and one.total_ms[0] == pytest.approx(11.0)  # 10, 11 and 12
    assert one.forward_ms[0] == pytest.approx(1.1)
    assert one.backward_spread[0] == pytest.approx(0.9 * np.std([10, 12, 50], ddof=1), rel=1e-5)
    with pytest.raises(InvalidPool, match="each run"):
        combined(replace(one, run_ms=np.zeros(0)))


def test_small_shards_have_a_pace_of_their_own():
    ms = np.exp(np.linspace(0, 4, 240))
    reference = visits(ms[:, None, None])
    slow = visits((1.2 * ms**0.9)[:, None, None])
    found = at_pace(slow, pace_by_size(slow, reference))
    assert found.total_ms == pytest.approx(reference.total_ms, rel=1e-3)
    assert found.run_ms[:, 0].sum(axis=-1) == pytest.approx(reference.total_ms, rel=1e-3)
    with pytest.raises(InvalidPool, match="needs 200"):
        pace_by_size(slow.take(np.arange(9)), reference)


def test_a_settled_campaign_has_each_shard_once_at_the_pace_of_the_reference():
    """Shards of two visits, the later half of all a tenth slower: a drift that a fit sees."""
    ms = np.exp(np.linspace(0, 4, 240))
    reference = visits(ms[:, None, None])
    campaign = visits(np.repeat((1.3 * ms)[:, None, None], 2, axis=1))
    order = np.random.default_rng(0).permutation(480)
    slow = np.where(order < 240, 1.0, 1.1)
    campaign = replace(at_pace(campaign, 1 / slow), at=order)
    found = settled(campaign, reference, lambda m: ms[m.table])
    assert len(found) == 240 and found.total_ms == pytest.approx(ms, rel=0.03)
    assert found.card["pace"] == pytest.approx(1.36, rel=0.02)
    plain = settled(replace(campaign, run_ms=np.zeros(0)), reference, lambda m: ms[m.table])
    assert len(plain) == 480 and plain.total_ms == pytest.approx(ms[campaign.table], rel=0.06)


def test_pools_are_picked_with_their_blocks():
    both = Measurements.concat([Measurements.unmeasured(f"{POOL}_rows", [([1], [4])]), visits([[[1.0]]])])
    other = Measurements.concat([both, Measurements.unmeasured("metasyn_1_856", [([1], [4])])])
    assert len(predictors.of_pools(other, [POOL])) == 2 and len(predictors.of_pools(other, ["metasyn_1_856"])) == 1


def test_blocks_are_smaller_tables_of_the_same_table():
    whole, blocks = pool_named(POOL), pool_named(f"{POOL}_rows")
    n = len(whole)
    assert len(blocks) == 4 * n and blocks.name[3 * n + 5] == f"{whole.name[5]}/8"
    assert (blocks.rows[:n] == whole.rows).all() and (blocks.rows[n : 2 * n] >= -(-whole.rows // 2)).all()
    much = (whole.pooling > 1) & (whole.rows > 10_000)
    assert blocks.pooling[2 * n : 3 * n][much] == pytest.approx(whole.pooling[much] / 4, rel=0.05)
    shards = [([5, n + 5], [16, 16]), ([2 * n + 7], [16])]
    times = dict.fromkeys(("forward_ms", "backward_ms", "forward_spread", "backward_spread"), np.ones(2))
    found = predictors.shards_of(
        replace(Measurements.unmeasured(f"{POOL}_rows", shards), card={"batch": 2048}, **times)
    )
    assert found.origin.tolist() == [5, 5, 7]  # a table that is held out takes its blocks with it
