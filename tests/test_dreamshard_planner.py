from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task, simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask, SimulatorError
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import run, score
from shard_gym_agents.solvers.greedy import CostGreedy, costs_with
from tests.env_helpers import PoolingMs
from tests.pool_helpers import fp16_pool as make_pool

torch = pytest.importorskip("torch")
from shard_gym_agents.learners.dreamshard_planner import (  # noqa: E402
    FEATURES,
    Config,
    Costed,
    DreamShardPlanner,
    Forecast,
    Learner,
    load,
    log_policy,
    new_net,
    play,
)
from shard_gym_agents.learners.learner import save_tensors  # noqa: E402
from tests.learner_helpers import assert_reproducible, fresh_net  # noqa: E402
from tests.test_dreamshard import SCALING, ToySuite, relative, toy  # noqa: E402

fresh = partial(fresh_net, new_net, SCALING)

SMALL = Config(updates=10, tasks=3, episodes=8, learning_rate=4e-3, horizon=8)
H100 = "roofline:h100-v1"


class Planned:
    """A solver that is asked without a planner plans by the toy's."""

    def __init__(self, solver):
        self.solver = solver

    def __call__(self, task, planner):
        return self.solver(task, PoolingMs())


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, "pooling-ms", PoolingMs)
    return ToySuite()


def costed(tasks, planner=None, lean=0.0):
    return Costed.of(tasks, planner or PoolingMs(), SCALING, np.full(len(tasks), lean))


def test_it_learns_the_best_plans_of_a_toy_from_nothing(suite):
    learner = Learner(suite, replace(SMALL, greedy=False), seed=0)
    assert relative(Planned(learner.solver()), suite) > 1.5
    for _ in range(SMALL.horizon):
        told = learner.iterate()
    assert relative(Planned(learner.solver()), suite) < 1.02
    assert told["over_memory"] == 0


@pytest.mark.parametrize("key", ["dlrm-50x4", "core-60x4", "metasyn-80x8"])
def test_before_training_it_is_cost_greedy(key):
    suite = suites.get(key)
    planner, task = simulators.make(suite.planner), suite.tasks("val")[0]
    solver = DreamShardPlanner(new_net(np.stack(suite.feature_scaling())))
    plans = solver(task, planner), CostGreedy()(task, planner)
    assert score(task, plans[0], planner) == score(task, plans[1], planner)


@pytest.mark.parametrize("key", ["dlrm-50x4", "metasyn-80x8", "hetero-80x8"])
def test_costs_with_the_next_table_are_those_of_whole_plans(key):
    suite = suites.get(key)
    planner, task, rng = simulators.make(suite.planner), suite.tasks("val")[0], np.random.default_rng(0)
    state = Forecast(costed([task, task], planner), planner)
    order, k = state.rows[0], task.num_devices
    plans = np.full((2, task.num_tables), -1)
    for step in range(12):
        seen = state.look(step)
        cost, places = state.next_cost, np.argsort(state.seen)
        for i, d in ((0, 1), (1, k - 1)):
            tried = plans[i].copy()
            tried[order[step]] = d
            latency = planner.latency(task, tried)
            phases = [latency.forward_compute[d], latency.backward_comm[d], latency.backward_compute[d]]
            assert np.allclose(seen[i, places[d], 2:5] * state.costed.unit[i], phases)
            whole = state.costs_with(step)[i, d]
            assert whole[1] == latency.makespan(task.objective)
            assert whole[0] == cost[i, d] == latency.cost(task.objective)[d]
        table = state.placing.options.vector[order[step], 0]
        assert np.array_equal(cost[0], costs_with(task, planner, state.placing.sums[0], table))
        chosen = rng.integers(k, size=2)
        state.take(chosen)
        state.placing.place(state.rows[:, step], state.seen[chosen])
        plans[[0, 1], order[step]] = state.seen[chosen]
    assert np.array_equal(state.placing.free, task.capacity - device_bytes(task, plans))


def test_what_is_seen_by_hand():
    """Tables of 6, 3 and 3 ms on two devices, each with room for two; the first is placed on device 0."""
    state = Forecast(costed([toy([3, 6, 3], room=2)]), PoolingMs())
    state.look(0)
    state.take(np.array([0]))
    first, second, _ = state.rows[0].tolist()
    state.placing.put(first, int(state.seen[0]))
    seen, legal = state.look(1), state.placing.legal(second)
    named = dict(zip(FEATURES, seen[0].T.tolist(), strict=True))
    assert state.costed.unit.tolist() == [6] and state.next_cost.tolist() == [[9, 3]] and legal.all()
    assert named["cost"] == [1.5, 0.5] and named["cost_excess"] == [10, 0]
    assert named["makespan_excess"] == [5, 0]  # 9 ms or 6
    assert named["room"] == pytest.approx([0, 2 / 3], abs=1e-3)  # 0 or 1 table's bytes beside half a table's to come
    assert named["fill"] == [1, 0.5]
    assert named["table"] == [2.5, 2.5] and named["to_come"] == [0.25, 0.25]
    assert named["tightness"] == pytest.approx([0.5, 0.5])  # one table is to come; there would be room for two


def test_the_loss_sees_the_policy_that_drew_and_its_masks():
    tasks = [toy([5, 4, 3, 2, 1], devices=3, room=2), toy([1, 2], devices=3, room=2)]
    net, board = fresh(random=True), costed(tasks)
    played = play(net, board, PoolingMs(), None)
    log = log_policy(net, board, played)
    assert torch.equal(log.argmax(-1)[board.tasks.real > 0], played.rollout.actions[board.tasks.real > 0])
    assert not played.rollout.legal[0].all() and (log[~played.rollout.legal] < -1e8).all()


def test_tasks_side_by_side_are_planned_as_alone():
    tasks, net = [toy([3, 1, 2]), toy([5, 4, 3, 2, 1, 1]), toy([2, 2])], fresh(random=True)
    board = costed(tasks)
    played = play(net, board, PoolingMs(), None)
    for i, task in enumerate(tasks):
        placement = played.rollout.devices()[i, : task.num_tables]
        assert tuple(placement.tolist()) == DreamShardPlanner(net)(task, PoolingMs()).device
        assert (
            played.forecast.makespan()[i]
            == score(task, DreamShardPlanner(net)(task, PoolingMs()), PoolingMs()).makespan
        )


def test_samples_are_around_the_plan_of_the_policy():
    """The largest table comes first, and one device is as good as another; the smallest has but one good one."""
    task = toy([8, 1, 5, 4])  # 8 + 1 | 5 + 4
    drawn = DreamShardPlanner(fresh()).samples(task, PoolingMs(), 200, seed=1)
    assert 60 < (drawn[:, 0] == 0).sum() < 140
    assert (drawn[:, 1] == drawn[:, 0]).mean() > 0.9 and (drawn[:, 2] == drawn[:, 3]).mean() > 0.9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_numbers_of_devices_do_not_matter(seed, shuffle):
    rng, planner = np.random.default_rng(seed), simulators.make(H100)  # its links have no groups
    tables = make_pool(rows=rng.integers(10, 200, 9), dim=16, pooling=rng.exponential(3, 9))
    memory = (tables.weight_bytes.sum() * rng.choice([0.4, 0.6, 1.0], 4)).astype(int)
    speed, solver = rng.choice([0.5, 1.0], 4), DreamShardPlanner(fresh(seed, random=True))
    one = Task(tables, tuple(memory), speed=tuple(speed), objective="iteration")
    other = replace(one, memory=tuple(memory[shuffle]), speed=tuple(speed[shuffle]))
    plan, moved = np.array(solver(one, planner).device), np.array(solver(other, planner).device)
    assert (device_bytes(one, plan) <= one.capacity).all()
    kinds = np.stack([memory, speed])
    assert np.array_equal(kinds[:, plan], kinds[:, shuffle][:, moved])


def test_training_orders_lean_to_size_where_cost_greedy_finds_no_room(monkeypatch, suite):
    dead_end = Task(make_pool(rows=[100, 100, 200], dim=16, pooling=[3, 2, 1]), memory=(6400, 6400))
    monkeypatch.setattr(ToySuite, "tasks", lambda self, split: (toy([3, 2, 1], room=2), dead_end))
    learner = Learner(suite, SMALL, seed=0)
    assert learner.played.tasks.row.tolist()[0] == [0, 1, 2]
    assert learner.played.tasks.row.tolist()[1] == [3, 5, 4]  # by the bytes of the large one as much as by costs
    plan = learner.solver()(dead_end, PoolingMs())
    assert (device_bytes(dead_end, np.array(plan.device)) <= dead_end.capacity).all()


def test_what_fits_nowhere_is_named_and_a_planner_without_sums_is_refused():
    with pytest.raises(InfeasibleTask, match="too few"):
        DreamShardPlanner(fresh())(toy([1] * 5, room=2), PoolingMs())
    with pytest.raises(SimulatorError, match="sums"):
        DreamShardPlanner(fresh())(toy([1] * 5), object.__new__(type("Slow", (), {"id": "slow"})))


def test_seeds_reproduce_and_a_restored_learner_goes_on_as_if_nothing_had_happened(suite):
    config = replace(SMALL, updates=3)
    assert_reproducible(lambda seed: Learner(suite, config, seed))


def test_a_saved_policy_plans_as_before_and_others_are_refused(tmp_path):
    path, task = tmp_path / "policy.safetensors", toy([5, 4, 3, 2, 1, 1, 6], devices=3)
    solver = DreamShardPlanner(fresh(5, random=True))
    solver.save(path)
    assert load(path)(task, PoolingMs()) == solver(task, PoolingMs())
    save_tensors(path, solver.net.state_dict(), {"kind": "dreamshard-planner", "seen": ["cost"]})
    with pytest.raises(CorruptFile, match="expects to see"):
        load(path)
    save_tensors(path, {"x": torch.zeros(3)}, {"kind": "dreamshard-planner", "seen": list(FEATURES)})
    with pytest.raises(CorruptFile, match="another network"):
        load(path)


@pytest.mark.parametrize("key", ["metasyn-80x8", "hetero-80x8", "mixed-10to59x4"])
def test_an_iteration_on_a_suite(key):
    learner = Learner(suites.get(key), Config(updates=1, tasks=2, episodes=2), seed=0)
    told = learner.iterate()
    assert all(map(np.isfinite, told.values()))
    done = run(learner.solver(), learner.planner.simulator, learner.tasks[0])
    assert done.error is None and done.simulator_calls > 0


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(InvalidTask, match="baseline"):
        Config(episodes=1)
    with pytest.raises(InvalidTask, match="one kind of hardware"):
        costed([toy([1, 2]), toy([1, 2], speed=(1.0, 0.5))])
