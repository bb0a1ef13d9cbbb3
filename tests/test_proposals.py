"""Changes that would help a task without a plan: numbers that can be worked out by hand. A table has 64,000 bytes."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Constraints, Task, make_pool
from shard_gym.memory.usage import device_bytes
from shard_gym.plan.proposals import proposals, simple_plan
from shard_gym.plan.violations import violations
from shard_gym.task.links import Links
from shard_gym.torchrec.limits import limits

THREE = Task(make_pool([1_000] * 3, dim=16, dtype="fp32", name=("a", "b", "c")), memory=(64_000,) * 2)


def test_memory_and_devices_that_are_enough():
    memory, devices = proposals(THREE)
    assert memory == "memory: 0.00 GiB (128,000 bytes) a device are enough, now 0.00 GiB (64,000 bytes)"
    assert devices == "devices: 3 are enough, now 2"


def test_halves_need_less_memory_than_whole_tables():
    memory, _ = proposals(replace(THREE, splits_allowed=True))
    assert "(96,000 bytes) a device are enough" in memory


def test_splits_that_are_enough():
    """One table has to be halved on devices of a table and a half."""
    task = replace(THREE, memory=(96_000,) * 2)
    assert proposals(task)[0] == "splits: there is a plan with 1 halving of columns, of 'a' (--allow-splits)"
    allowed = replace(task, splits_allowed=True)
    plan = simple_plan(allowed)
    assert plan.splits == (0,) and not violations(allowed, plan)
    assert device_bytes(allowed.split(plan.splits), np.array(plan.device)).tolist() == [96_000, 96_000]
    assert proposals(allowed) == ("there is a plan with 1 halving of columns: a search such as auto finds one",)


def test_a_table_in_quarters():
    """A table of 64,000 bytes on four devices that hold 16,000 each: 3 halvings, and no fewer."""
    task = Task(make_pool([1_000], dim=16, dtype="fp32"), memory=(16_000,) * 4, splits_allowed=True)
    plan = simple_plan(task)
    assert len(plan.splits) == 3 and not violations(task, plan)
    assert task.split(plan.splits).tables.dim.tolist() == [4] * 4


def test_devices_that_differ_are_told_one_by_one():
    task = replace(THREE, memory=(100_000, 50_000), speed=(1, 1))
    assert proposals(task)[0] == (
        "memory: enough are 0.00 GiB (128,000 bytes) on device 0, now 0.00 GiB (100,000 bytes), "
        "0.00 GiB (64,000 bytes) on device 1, now 0.00 GiB (50,000 bytes)"
    )


BIG = Task(make_pool([1_000], dim=16, dtype="fp32"), (16_000,) * 4, "iteration", links=Links(1e8, group=2))


def test_kinds_that_are_enough():
    """A table of 64,000 bytes by rows on four devices of 16,000, or on those of a host where they have 32,000."""
    splits, rows, *_ = proposals(BIG)
    assert "3 halvings" in splits and rows == "kinds: there is a plan with rw (--kinds tw,rw)"
    allowed = replace(BIG, kinds=("tw", "rw"))
    assert proposals(allowed) == ("there is a plan: a search such as auto finds one",)
    assert simple_plan(allowed).kind == ("rw",) and not violations(allowed, simple_plan(allowed))
    one_host = replace(BIG, memory=(32_000,) * 2 + (1_000,) * 2)
    assert proposals(one_host)[1] == "kinds: there is a plan with twrw (--kinds tw,twrw)"


def test_memory_of_hosts_that_is_enough():
    """A table that fits on no device goes to a device's part of its host whole, by rows a quarter of it to each."""
    small = replace(BIG, memory=(15_000,) * 4)
    whole, _ = proposals(small)
    assert whole == ("host memory: 0.00 GiB (64,000 bytes) a device are enough (--residences hbm,uvm --host-memory-gb)")
    in_host, memory, devices = proposals(replace(small, kinds=("tw", "rw")))
    assert "(16,000 bytes) a device" in in_host and "(16,000 bytes) a device" in memory
    assert devices == "devices: 5 are enough, now 4"


def test_whole_hosts_are_proposed_where_kinds_need_them():
    tables = make_pool([1_000] * 3, dim=16, dtype="fp32")
    small = replace(BIG, tables=tables, memory=(40_000,) * 4, kinds=("tw", "twrw"))
    host, memory, devices = proposals(small)
    assert devices == "devices: 6 are enough, now 4"
    assert host.startswith("host memory: 0.00 GiB (32,000 bytes)") and "(64,000 bytes)" in memory


@pytest.mark.parametrize(
    ("constraints", "told"),
    [
        ({"pin": ((0, 0), (1, 1), (2, 1))}, "the pin of 'b' to device 1, or without the pin of 'c' to device 1"),
        ({"together": ((0, 1, 2),)}, "'a', 'b', 'c' together"),
        ({"base": (1, 1, 1), "max_moves": 1}, "max_moves = 1"),
        ({"pin": ((0, 1), (1, 1)), "together": ((0, 2), (1, 2))}, "any constraint (more than one is in the way)"),
    ],
)
def test_the_constraint_that_is_in_the_way(constraints, told):
    task = replace(THREE, memory=(128_000, 64_000), constraints=Constraints(**constraints))
    assert proposals(task)[0] == f"constraints: there is a plan without {told}"


def test_a_plan_that_a_simple_rule_finds_is_told():
    assert proposals(replace(THREE, memory=(128_000, 64_000))) == ("there is a plan: a search such as auto finds one",)


def test_limits_have_proposals_where_no_plan_is_known():
    assert limits(THREE).proposals == proposals(THREE)
    assert "\nwhat helps: devices: 3 are enough, now 2" in limits(THREE).text()
    assert limits(replace(THREE, memory=(128_000,) * 2)).proposals == ()
