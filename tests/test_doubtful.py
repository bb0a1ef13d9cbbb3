"""Searches on planners that charge for their doubt, and the expected slowest of several devices."""

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


def test_the_expected_largest_by_hand():
    """Of two equal ones it is 1 / sqrt(pi) deviations above, of one certain and one far below nothing."""
    assert expected_max([10, 10], [2, 2]) == pytest.approx(10 + 2 / np.pi**0.5, rel=1e-6)
    assert expected_max([10, 3], [0, 0.1]) == pytest.approx(10, rel=1e-9)
    assert expected_max([5.0], [1.0]) == 5


def test_the_expected_largest_of_eight_is_that_of_draws():
    rng = np.random.default_rng(0)
    mean, spread = rng.uniform(9, 10, (5, 8)), rng.uniform(0.1, 1, (5, 8))
    drawn = (mean + spread * rng.normal(size=(20_000, 5, 8))).max(axis=-1)
    assert expected_max(mean, spread) == pytest.approx(drawn.mean(axis=0), abs=0.03)
    assert (expected_max(mean, spread) >= mean.max(axis=-1)).all()
    np.testing.assert_allclose(expected_max(mean[:, ::-1], spread[:, ::-1]), expected_max(mean, spread), rtol=1e-12)


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
