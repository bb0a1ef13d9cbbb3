import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import score
from shard_gym_agents import AGENTS, make
from tests.pool_helpers import fp16_pool as make_pool
from tests.search_helpers import SIMULATOR, best_by_force, draw_task

GREEDIES = [*(name for name in AGENTS if name.endswith("-greedy")), "ladder"]


def makespan(task, plan, planner=SIMULATOR):
    return score(task, plan, planner).makespan


def best_greedy(task, planner=SIMULATOR):
    found = []
    for name in GREEDIES:
        try:
            found.append(makespan(task, make(name)(task, planner), planner))
        except InfeasibleTask:
            continue
    return min(found, default=np.inf)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["kernel", "iteration"]),
    st.sampled_from([1.1, 1.5, 9.0]),
    st.booleans(),
)
def test_auto_is_never_worse_than_a_greedy_in_prediction(seed, objective, room, splits):
    task = draw_task(seed, objective, room, splits, tables=15)
    try:
        plan = make("auto", calls=500)(task, SIMULATOR)
    except InfeasibleTask:
        assert best_greedy(task) == np.inf
        return
    found = score(task, plan, SIMULATOR)
    assert found.feasible and found.makespan <= best_greedy(task)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]))
def test_auto_finds_the_best_placement_of_a_tiny_task(seed, objective):
    task = draw_task(seed, objective, room=1.3)
    best = best_by_force(task)
    if best < np.inf:
        assert makespan(task, make("auto", calls=2_000)(task, SIMULATOR)) == pytest.approx(best, rel=1e-9)


class Unsure(simulators.FastSimulator):
    """Another simulator that knows how unsure it is: so many milliseconds on every device."""

    def __init__(self, spread):
        self.spread, self.id = spread, f"unsure:{spread}"

    def embed(self, task):
        return SIMULATOR.embed(task)

    def decode(self, task, sums):
        latency = SIMULATOR.decode(task, sums)
        return dataclasses.replace(latency, spread=np.full(sums.shape[:-1], self.spread))


def test_a_gain_within_the_spread_is_not_believed():
    task = suites.get("core-80x8").tasks("val")[0]
    searched, greedy = makespan(task, make("auto", calls=10_000)(task, SIMULATOR)), best_greedy(task)
    gain = greedy - searched
    assert gain > 0
    for spread, expected in ((0.9 * gain, searched), (1.1 * gain, None)):
        plan = make("auto", calls=10_000)(task, Unsure(spread))
        if expected is None:  # a greedy's plan, no worse than the named ones
            assert searched < makespan(task, plan) <= greedy
        else:
            assert makespan(task, plan) == expected
    assert makespan(task, make("auto", calls=10_000, sure=0.0)(task, Unsure(1e9))) == searched


def test_what_the_planner_doubts_of_both_plans_keeps_nothing_from_being_halved():
    """A table far outside the fit takes about half as long in halves, however long that is."""
    planner = simulators.make("learned:cpu-v1")
    task = Task(make_pool(rows=10**7, dim=64, pooling=[2_000.0]), (10**10,) * 2, splits_allowed=True)
    whole, halves = (planner.latency(task.split(splits), np.arange(1 + len(splits))) for splits in ((), (0,)))
    gain = whole.makespan("kernel") - halves.makespan("kernel")
    assert planner.distance(task)[0] > 1 and gain < halves.spread.max()
    plan = make("auto", calls=500)(task, simulators.Counted(planner))
    assert plan.splits == (0,) and sorted(plan.device) == [0, 1]
    in_use = dataclasses.replace(task, constraints=Constraints(base=(0,)))
    assert make("reshard", calls=500, horizon=1e9)(in_use, planner).splits == (0,)


def test_a_dead_end_of_all_greedies_leaves_nothing_to_believe_instead():
    """Sizes 5, 4, 4, 3, 2, 2 fill two devices of 10 in one way only, 5 3 2 and 4 4 2: greedies go 5 | 4 4 first."""
    tables = make_pool(rows=[500, 400, 400, 300, 200, 200], dim=4, pooling=[1, 9, 1, 9, 1, 9])
    task = Task(tables, memory=(8_000,) * 2)
    plan = make("auto", calls=500)(task, Unsure(1e9))
    assert score(task, plan, SIMULATOR).feasible


def test_headroom_stays_free():
    task = suites.get("core-80x8").tasks("val")[0]
    plan = make("auto", calls=2_000, headroom=0.2)(task, SIMULATOR)
    assert (device_bytes(task, np.array(plan.device)) <= 0.8 * task.capacity).all()
    for headroom in (0.999, 1 - 1e-12):
        with pytest.raises(InfeasibleTask, match=r"memory kept free: .* too few"):
            make("auto", calls=2_000, headroom=headroom)(task, SIMULATOR)


@pytest.mark.parametrize("settings", [{"headroom": 1.0}, {"headroom": -0.1}, {"sure": -1.0}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(InvalidTask, match="headroom"):
        make("auto", **settings)


def test_seed_and_calls_decide():
    task = suites.get("tightmix-80x8").tasks("val")[0]
    planner = simulators.make(suites.get("tightmix-80x8").planner)
    one, same, other = (make("auto", calls=8_000, seed=s)(task, planner) for s in (1, 1, 2))
    assert one == same != other


def test_on_fitted_costs_the_judge_likes_its_plans_as_much_as_cost_greedys():
    suite = suites.get("metasyn-80x8")
    planner, judge = simulators.make(suite.planner), simulators.make(suite.judge)
    tasks = suite.tasks("test")[:5]
    auto, greedy = (
        np.mean([makespan(task, solve(task, planner), judge) for task in tasks])
        for solve in (make("auto", calls=3_000), make("cost-greedy"))
    )
    assert auto <= 1.002 * greedy


def test_many_tables_on_many_devices_are_planned_in_a_moment():
    rng = np.random.default_rng(0)
    tables = make_pool(rows=10_000, dim=16, pooling=rng.exponential(9, 3_000))
    task = Task(tables, memory=(10**9,) * 300)
    assert makespan(task, make("auto", calls=1_000)(task, SIMULATOR)) <= best_greedy(task)
