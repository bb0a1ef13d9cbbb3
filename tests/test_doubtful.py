"""Searches on planners that charge for their doubt."""

import numpy as np
import pytest

from shard_gym import Plan, simulators, suites
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import plan_latency
from shard_gym.simulators.expected import expected_max
from shard_gym_agents import make
from shard_gym_agents.search.doubtful import Charged, Expected

PLANNER = simulators.make("learned:cpu-v1")
TASK = suites.get("metasyn-80x8").tasks("val")[0]


def test_plans_are_charged_for_their_spread():
    plan = Plan(tuple(np.arange(TASK.num_tables) % TASK.num_devices))
    told = plan_latency(PLANNER, TASK, plan)
    charged = score(TASK, plan, Charged(PLANNER, 2.0)).makespan
    assert charged == pytest.approx((told.compute + 2 * told.spread).max())
    expected = score(TASK, plan, Expected(PLANNER, TASK)).makespan
    assert expected == pytest.approx(expected_max(told.compute, told.spread))
    assert expected > told.compute.max()


@pytest.mark.parametrize("planner", [Charged(PLANNER, 1.0), Expected(PLANNER, TASK)], ids=lambda planner: planner.id)
def test_a_search_finds_better_plans_by_what_it_is_charged(planner):
    start, found = (
        make(name, **o)(TASK, planner) for name, o in (("cost-greedy", {}), ("local-search", {"calls": 400}))
    )
    assert score(TASK, found, planner).makespan <= score(TASK, start, planner).makespan
