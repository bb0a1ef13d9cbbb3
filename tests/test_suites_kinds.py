"""Suites of all kinds of sharding: whose tables, how much memory, and what random plans of them are worth."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import make_pool, simulators
from shard_gym.errors import InfeasibleTask
from shard_gym.generator import SHARE_OF_LOAD
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.simulators.random_plans import PLANS_OF_KINDS, random_makespans
from shard_gym.simulators.roofline import PRESETS_V2
from shard_gym.task.suite import MOST_ROWS, with_doubled_rows
from shard_gym.task.suites import ROCE, SPLITS, SUITES, TWO_HOSTS
from shard_gym.task.task import CACHE_SHARES, Task

ALL_KINDS = [suite for suite in SUITES.values() if suite.kinds]
# Share of test tasks with tables larger than a device.
LARGER = {
    "core-80x8-allkinds": 0.65,
    "tight-80x8-allkinds": 0,
    "tightmix-80x8-allkinds": 0.88,
    "wide-300x16-allkinds": 1,
    "prod-1000x128-allkinds": 0.97,
}
ROOFLINE = simulators.make("roofline:h100-v2")


def small(memory, *rows, **settings):
    """Tables of 64 bytes a row on two devices of so many bytes."""
    pool = make_pool(rows=rows, dim=16, pooling=4.0, dtype="fp32")
    told = {"kinds": ("tw", "rw"), "accounting": "weights"} | settings
    return Task(pool, (memory, memory), "iteration", 65_536, **told)


@pytest.mark.parametrize("suite", [s for s in ALL_KINDS if s.tables], ids=lambda s: s.key)
def test_tables_are_those_of_another_suite(suite):
    base = SUITES[suite.tables]
    assert suite.name == f"{base.name}-AllKinds"
    for split in SPLITS:
        pairs = list(zip(suite.tasks(split), base.tasks(split), strict=True))
        assert all(ours.tables == theirs.tables for ours, theirs in pairs)
    np.testing.assert_array_equal(suite.feature_scaling(), base.feature_scaling())
    assert suite.planner != base.planner
    assert (suite.random_makespans() != base.random_makespans("test", base.judge)).all()


@pytest.mark.parametrize("suite", ALL_KINDS, ids=lambda s: s.key)
def test_memory_is_a_share_of_the_mean_load_or_the_same_for_all(suite):
    share, larger, short = SHARE_OF_LOAD.get(suite.key), [], []
    for task in suite.tasks("test"):
        size = table_bytes(task)
        expected = 2**30 * suite.memory_gb[0] if share is None else int(share * size.sum() / task.num_devices)
        assert set(task.memory) == {expected}
        larger.append((size > expected).any())
        short.append(size.sum() > sum(task.memory))
    in_devices = suite.residences == ("hbm",)  # there all tables have room, elsewhere not
    assert not any(short) if in_devices else np.mean(short) > 0.95
    assert np.mean(larger) == LARGER[suite.key]


def test_tasks_allow_what_the_links_do():
    for suite in ALL_KINDS:
        task = suite.tasks("val")[0]
        hosts = task.devices_per_host < task.num_devices
        assert task.kinds_allowed == ("tw", "cw", "rw", *(("twrw", "grid") if hosts else ()), "dp")
        assert suite.most_steps == 11 * suite.num_tables and task.objective == "iteration"
    assert PRESETS_V2["a100-x32-roce"].links == ROCE
    wires = PRESETS_V2["h100"].links
    assert replace(wires, group=4, uplink=4 * wires.port) == TWO_HOSTS  # NVLink from end to end


def test_wide_tables_are_larger_than_a_device():
    suite = SUITES["wide-300x16-allkinds"]
    tasks = [task for split in SPLITS for task in suite.tasks(split)]
    assert {4, 8, 16, 32, 64, 128, 256, 512} == {dim for task in tasks for dim in task.tables.dim.tolist()}
    assert all((table_bytes(task) > max(task.memory)).any() and task.devices_per_host == 8 for task in tasks)
    most = [task.tables.rows.max() for task in tasks]
    assert max(most) == MOST_ROWS and min(most) > 12_543_670


def test_rows_are_doubled_and_lookups_stay():
    pool = make_pool(rows=[10, 10, 600_000_000], dim=16, pooling=[2.0, 3.0, 4.0])
    doubled = with_doubled_rows(pool, np.array([0, 3, 1]))
    assert doubled.rows.tolist() == [10, 80, 10**9]
    np.testing.assert_array_equal(doubled.lookups, pool.lookups)
    np.testing.assert_array_equal(doubled.distinct, pool.distinct)


@pytest.mark.parametrize("suite", ALL_KINDS, ids=lambda s: s.key)
def test_random_references_of_all_kinds_are_means_of_random_plans(suite):
    task, judge = suite.tasks("test")[0], simulators.make(suite.judge)
    makespans = random_makespans(task, judge, 300, np.random.default_rng(5))
    frozen = len(makespans) / 300 * PLANS_OF_KINDS  # plans that it is the mean of, about
    assert suite.random_makespans()[0] == pytest.approx(makespans.mean(), abs=5 * makespans.std() / np.sqrt(frozen))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_plans_are_those_with_room(seed):
    def drawn(task):
        return set(random_makespans(task, ROOFLINE, 50, np.random.default_rng(seed)).tolist())

    def worth(task, *plan, **told):
        return score(task, Plan(*plan, **told), ROOFLINE).makespan

    apart, roomy = small(64_000, 1_000, 1_000), small(128_000, 1_000, 1_000)
    assert drawn(apart) == {worth(apart, (0, 1))}
    assert drawn(roomy) == {worth(roomy, (0, 1)), worth(roomy, (0, 0))}
    large = small(70_000, 2_000, 10)
    assert drawn(large) == {worth(large, (0, 0), (), ("rw", "tw"), ((0, 1), (0,)))}
    rest = small(140_000, 2_200, 1_400)  # larger than a device, and then than what that leaves
    assert drawn(rest) == {worth(rest, (0, 0), (), ("rw", "rw"), ((0, 1), (0, 1)))}
    cached = small(20_000, 1_000, residences=("hbm", "cached"), host_memory=2**20)
    by_rows = {"kind": ("rw",), "devices": ((0, 1),), "residence": ("cached",)}
    assert drawn(cached) == {worth(cached, (0,), **by_rows, share=(share,)) for share in CACHE_SHARES}
    with pytest.raises(InfeasibleTask, match="find no room"):
        drawn(small(64_000, 2_000, 2_000))
