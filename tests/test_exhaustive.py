"""Every plan of small tasks: how many there are, and that none is better than the best of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.results.evaluate import score
from shard_gym_agents.search.exhaustive import Exhaustive, every_placement, is_small
from tests.search_helpers import SIMULATOR, best_by_force, draw_task


def test_devices_that_can_be_exchanged_are_counted_once():
    """Ten tables in at most four heaps: Stirling's numbers 1 + 511 + 9,330 + 34,105."""
    assert len(every_placement(10, 4, 4)) == 43_947
    assert every_placement(3, 2, 2).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert every_placement(2, 4, 2).tolist() == [[0, 0], [0, 1], [0, 2]]  # beside it, in its group, in the other one
    assert every_placement(1, 3, 2).tolist() == [[0], [2]]  # the second group is smaller
    assert len(every_placement(3, 2, 0)) == 8


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from([1.05, 9.0]), st.booleans())
def test_no_plan_is_better(seed, objective, room, alike):
    task = draw_task(seed, objective, room, tables=5)
    task = replace(task, speed=()) if alike else task
    least = best_by_force(task)
    if least == float("inf"):
        with pytest.raises(InfeasibleTask):
            Exhaustive()(task, SIMULATOR)
    else:
        assert score(task, Exhaustive()(task, SIMULATOR), SIMULATOR).makespan == pytest.approx(least, rel=1e-12)


def test_small_tasks_are_those_of_dlrm_and_others_are_refused():
    assert all(is_small(suites.get(key).tasks("test")[0]) for key in ("dlrm-10x2", "dlrm-10x4"))
    splittable = next(t for t in suites.get("mixed-10to59x4").tasks("test") if t.num_tables <= 12)
    assert not is_small(splittable)
    with pytest.raises(InvalidTask, match="take milp"):
        Exhaustive()(suites.get("dlrm-20x2").tasks("test")[0], simulators.make(simulators.DEFAULT))
