"""Tasks drawn from a suite's distribution: frozen banks come out again, and other seeds give other tasks alike."""

import numpy as np
import pytest
from benchmarks.freeze import DATA, OWN

from shard_gym import suites
from shard_gym.errors import InvalidTask
from shard_gym.generator import drawn, own_memory, tasks
from shard_gym.memory.usage import table_bytes
from shard_gym.tables.metasyn import load_metasyn, metasyn
from shard_gym.task.suite import SPLITS, Suite

BANK = np.load(DATA / "banks.npz")


@pytest.mark.parametrize(
    "key", ["metasyn-80x8-unseen40", "dlrm-10x2", "mixed-10to59x4", "tightmix-80x8", "hetero-80x8"]
)
def test_a_frozen_bank_comes_out_again(key):
    suite, number = suites.get(key), [s.key for s in OWN].index(key)
    for split in ("val", "test"):
        rng = np.random.default_rng([2021, number, SPLITS.index(split)])
        pool = load_metasyn(*suite.pools[SPLITS.index(split)])
        columns = drawn(suite, split, pool, suite.num_tasks(split), rng)
        for name, column in columns.items():
            frozen = BANK[f"{key}/{split}/{name}"]
            assert column.dtype == frozen.dtype
            assert np.array_equal(column, frozen)


def test_memory_of_a_suite_with_tables_of_another_comes_out_again():
    suite = suites.get("tight-80x8-allkinds")
    found = own_memory(suite, suites.get("tight-80x8").bank_of("val"))
    assert np.array_equal(found["memory"], BANK["tight-80x8-allkinds/val/memory"])
    assert own_memory(suites.get("core-80x8-allkinds"), suites.get("core-80x8").bank_of("val")) == {}


@pytest.mark.parametrize("key", ["core-80x8", "tightmix-80x8-split", "tight-80x8-allkinds", "hetero-80x8"])
def test_fresh_tasks_are_like_the_suite_and_none_of_it(key):
    suite, pool = suites.get(key), metasyn(12345, 856)
    fresh = tasks(suite, "test", pool, 3, np.random.default_rng(7))[:]
    again = tasks(suite, "test", pool, 3, np.random.default_rng(7))[:]
    known = suite.tasks("test")[0]
    assert fresh == again
    for task in fresh:
        assert task.num_tables == known.num_tables
        for name in (
            "num_devices",
            "objective",
            "speed",
            "links",
            "accounting",
            "splits_allowed",
            "kinds",
            "residences",
        ):
            assert getattr(task, name) == getattr(known, name)
        filled, usual = (table_bytes(t).sum() / sum(t.memory) for t in (task, known))
        assert filled == pytest.approx(usual, rel=0.5)
    assert {task.hash for task in fresh}.isdisjoint(task.hash for task in suite.tasks("test"))


def test_a_suite_of_somebody_else_is_refused():
    own = Suite("Mine-2x2", 2, 2, "kernel", "roofline:h100-v1", "roofline:h100-v1", (1,), folder="somewhere")
    with pytest.raises(InvalidTask, match="was not drawn by this package"):
        tasks(own, "test", metasyn(1, 64), 1, np.random.default_rng(0))
