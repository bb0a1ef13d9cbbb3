import dataclasses

import numpy as np
import pytest

from shard_gym import Constraints, Plan
from shard_gym.errors import CorruptFile, InvalidPlan
from shard_gym.plan.plan import check
from shard_gym.plan.violations import violations


def test_plans_round_trip(tmp_path):
    for plan in (
        Plan((0, 1, -1)),
        Plan((0, 1, 2), splits=(0,)),
        Plan((0, 1), kind=("dp", "tw"), devices=((0, 1), (1,))),
    ):
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("text", ["{", '{"schema": "x"}', '{"schema": "shard-gym/plan/1", "device": ["a"]}', "[1]"])
def test_broken_plan_files_are_named(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=r"plan\.json"):
        Plan.load(path)


@pytest.mark.parametrize(
    "broken",
    [
        {"device": 5},
        {"device": None},
        {"device": "01"},
        {"device": [[0], [1, 2]]},
        {"device": [0, True]},
        {"device": [0, 1.0]},
        {"splits": None},
        {"splits": 3},
        {"kind": [[1], "tw"]},
        {"kind": "tw"},
        {"kind": 4, "devices": 4},
        {"devices": [0, 1]},
        {"devices": [[0], None]},
        {"devices": [[0], [[1]]]},
    ],
)
def test_a_broken_plan_is_a_corrupt_file(broken):
    with pytest.raises(CorruptFile):
        Plan.from_dict({"schema": "shard-gym/plan/1", "device": [0, 1]} | broken)


def test_a_plan_must_fit_its_task(tiny_task):
    assert check(tiny_task, Plan((0, 1, 2, 0, 1, 2))) is tiny_task
    for plan in (Plan((0, 1)), Plan((0, 1, 2, 0, 1, 3)), Plan.empty(tiny_task), [0, 1, 2, 0, 1, 2], None):
        with pytest.raises(InvalidPlan):
            check(tiny_task, plan)
    with pytest.raises(InvalidPlan, match="does not allow splits"):
        check(tiny_task, Plan((0,) * 7, splits=(2,)))


def test_plan_fields_are_checked():
    for bad in (
        dict(device=(0.5,)),
        dict(device="01"),
        dict(device=(0,), kind=("x",)),
        dict(device=(0,), devices=((1,),)),
    ):
        with pytest.raises(InvalidPlan):
            Plan(**bad)


def test_numpy_placements_become_plain_ints():
    assert Plan(np.array([1, 0])) == Plan((1, 0))
    assert all(type(d) is int for d in Plan(np.array([1, 0])).device)


def test_violations_are_told_in_words(tiny_task):
    full = dataclasses.replace(tiny_task, memory=(1_000_000, 10_000_000, 10_000_000))
    assert violations(full, Plan((1, 1, 1, 1, 1, 1))) == []
    assert "device 0 needs" in violations(full, Plan((0,) * 6))[0]


def test_broken_constraints_are_told(tiny_task):
    rules = Constraints(pin=((0, 2),), together=((1, 2),), apart=((3, 4),), base=(0,) * 6, max_moves=1)
    task = dataclasses.replace(tiny_task, constraints=rules)
    told = violations(task, Plan((0, 0, 1, 2, 2, 0)))
    assert len(told) == 4
    assert violations(task, Plan((2, 0, 0, 0, 1, 0))) == ["2 tables move, at most 1 may"]
