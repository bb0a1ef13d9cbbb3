"""The environment by example: every id, and spaces, masks and rewards checked by hand."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation

from shard_gym import suites
from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.episodes import task_index
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.errors import InvalidTask
from shard_gym.plan.plan import Plan
from shard_gym.task.task import Constraints, Task
from tests.env_helpers import TABLE_BYTES, PoolingMs, play, play_where_it_fits, tiny_env, tiny_task
from tests.pool_helpers import fp16_pool

# the checkers would rather have bounds, which standardised features do not have, and flat arrays
unbounded_features = pytest.mark.filterwarnings("ignore:.*(Box observation space|unconventional shape)")


@unbounded_features
@pytest.mark.parametrize("key", suites.SUITES)
def test_every_id_passes_the_checkers(key):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(suites.get(key).env_id, render_mode="ansi").unwrapped
    check_env(env, skip_render_check=True)  # tests/test_render.py has it
    sb3.check_env(env)


@unbounded_features
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("key", ["mixed-10to59x4", "metasyn-80x8", "hetero-80x8", "tight-80x8"])
def test_every_observation_passes_the_checkers(key, observation):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(suites.get(key).env_id, observation=observation, render_mode="ansi")
    check_env(env.unwrapped, skip_render_check=True)
    sb3.check_env(env.unwrapped)
    flat = FlattenObservation(env)
    assert flat.reset(seed=0)[0] in flat.observation_space


def test_cost_order_and_rewards_by_hand():
    _, rewards, info = play(tiny_env(), [0, 1, 1])  # 4 ms, then 2 ms and 1 ms
    assert info["plan"] == Plan((1, 1, 0))
    assert rewards == [0.0, 0.0, 0.75]
    assert (info["makespan"], info["balance"], info["feasible"]) == (4.0, 0.75, True)
    assert info["latency"].compute.tolist() == [4.0, 3.0]
    assert info["task"] == tiny_task().hash
    assert play(tiny_env(reward="latency"), [0, 1, 1])[1] == [0.0, 0.0, -4 / 7]  # 7 ms: all on one device
    assert play(tiny_env(reward="dense"), [0, 1, 1])[1] == [-4 / 7, 0.0, 0.0]
    assert play(tiny_env(reward="dense"), [0, 1, 0])[1] == [-4 / 7, 0.0, pytest.approx(-1 / 7)]


def test_an_overfull_device_is_punished_at_the_end():
    _, rewards, info = play(tiny_env(), [0, 0, 0])
    assert rewards == [0.0, 0.0, -0.5]  # three tables where two fit
    assert not info["feasible"]
    assert play(tiny_env(reward="latency"), [0, 0, 0])[1] == [0.0, 0.0, -1.5]
    assert play(tiny_env(reward="dense"), [0, 0, 0])[1] == pytest.approx([-4 / 7, -2 / 7, -9 / 14])


def test_the_worst_single_device_bounds_every_feasible_plan():
    task = tiny_task(speed=(1.0, 0.5), memory=(3 * TABLE_BYTES, 2 * TABLE_BYTES))
    assert play(tiny_env(task, reward="latency"), [0, 0, 0])[1][-1] == -7 / 14  # the slow device would need 14 ms
    assert play(tiny_env(task, reward="latency"), [1, 1, 1])[1][-1] == -1.5


def test_a_broken_constraint_is_an_infeasible_end():
    task = tiny_task(constraints=Constraints(apart=((1, 2),)))
    assert play(tiny_env(task), [0, 1, 1])[2]["feasible"]
    _, rewards, info = play(tiny_env(task), [0, 0, 1])
    assert (rewards[-1], info["feasible"]) == (-1.0, False)
    assert play(tiny_env(task), [0, 0, 0])[1][-1] == -1.5


def test_a_constraint_that_is_kept_changes_no_reward():
    for part in range(1, 40):  # overshoots that floats round
        memory = (TABLE_BYTES * part // 41, TABLE_BYTES)
        plain, kept = (tiny_task(memory=memory, constraints=Constraints(no_split=whole)) for whole in ((), (0,)))
        assert play(tiny_env(plain), [0, 0, 0])[1] == play(tiny_env(kept), [0, 0, 0])[1]


def test_orders():
    pool = fp16_pool(rows=[100, 300, 200, 300], dim=16, pooling=[2, 1, 4, 4])
    task = Task(pool, memory=(10**6,) * 2)
    tables = {name: tiny_env(task, order=name) for name in ("cost", "size", "given", "random")}
    order = {name: play(env, [0, 0, 0, 0], seed=1)[0] for name, env in tables.items()}
    rows = {name: [int(o[1]) for o in seen[:-1]] for name, seen in order.items()}
    assert rows["cost"] == [200, 300, 100, 300]  # 4, 4, 2, 1 ms; ties by index
    assert rows["size"] == [300, 300, 200, 100]
    assert rows["given"] == [100, 300, 200, 300]
    assert sorted(rows["random"]) == sorted(rows["given"])


def test_random_order_differs_between_episodes_and_repeats_with_the_seed():
    env = ShardingEnv("core-80x8", order="random", reward="balance")
    task = env.bank.tasks[0]
    first, _ = env.reset(seed=3, options={"task": task})
    env.reset()
    later, _ = env.reset(options={"task": task})
    again, _ = env.reset(seed=3, options={"task": task})
    assert not np.array_equal(first, later)
    assert np.array_equal(first, again)


def test_defaults_come_from_the_suite():
    kernel, iteration, tight = (ShardingEnv(k) for k in ("metasyn-80x8", "core-80x8", "tight-80x8"))
    assert (kernel.reward, kernel.order) == ("balance", "cost")
    assert (iteration.reward, iteration.order) == ("latency", "cost")
    assert (tight.reward, tight.order) == ("latency", "size")
    assert kernel.simulator.id == suites.get("metasyn-80x8").planner
    assert kernel.action_space == gym.spaces.Discrete(8)


def test_latency_of_a_suite_is_in_units_of_its_random_plans():
    env = ShardingEnv("core-60x4", split="test")
    index = task_index(5, 0, len(env.bank.tasks))
    reward, info = play_where_it_fits(env, seed=5)
    assert info["feasible"]
    reference = suites.get("core-60x4").random_makespans("test")[index]
    assert reward == pytest.approx(-info["makespan"] / reference)


def test_table_observation_is_standardised_and_ends_in_zeros_and_one():
    env = ShardingEnv("metasyn-80x8")
    task = env.bank.tasks[0]
    mean, deviation = suites.get("metasyn-80x8").feature_scaling()
    seen, _, _ = play(ShardingEnv("metasyn-80x8", order="given"), [0] * 80, options={"task": task})
    expected = (task.tables.features() - mean) / deviation
    np.testing.assert_allclose(np.stack(seen)[:-1, :21], expected, rtol=1e-5)
    np.testing.assert_array_equal(np.stack(seen)[:, 21], np.float32(np.arange(81) / 80))
    assert not seen[-1][:21].any()


def test_own_tasks_are_raw_unless_scaled():
    raw, _ = tiny_env().reset(seed=0)
    assert raw[:3].tolist() == [16, 100, 4]
    scaled = Bank((tiny_task(),), scaling=(np.full(21, 2.0), np.r_[4.0, np.zeros(20)]))
    shown, _ = ShardingEnv(scaled, simulator=PoolingMs()).reset(seed=0)
    assert shown[:3].tolist() == [3.5, 98, 2]  # a deviation of zero counts as one


def test_full_observation_by_hand():
    env = tiny_env(tiny_task(memory=(2 * TABLE_BYTES, 4 * TABLE_BYTES), speed=(1.0, 0.5)), observation="full")
    env.reset(seed=0)
    shown, *_ = env.step(1)  # the 4 ms table on the slow, large device
    # used, free over the largest, cost over an even share of 7 ms on two devices, speed, sum over its share
    np.testing.assert_allclose(shown["devices"], [[0, 0.5, 0, 1, 0], [0.25, 0.75, 16 / 7, 0.5, 8 / 7]], rtol=1e-6)
    np.testing.assert_allclose(shown["remaining"], [2 / 3, 3 / 7, 2 / 3, 2 / 3, 1 / 2], rtol=1e-6)
    assert shown["action_mask"].tolist() == [1, 1]
    env.step(0)
    shown, *_ = env.step(0)
    assert shown["table"].tolist() == [0] * 21 + [1]
    assert not shown["remaining"].any()


def test_set_observation_by_hand():
    small = Task(tiny_task().tables.take([0, 2]), memory=(2 * TABLE_BYTES,) * 2)
    env = ShardingEnv(tasks=[tiny_task(), small], observation="set", simulator=PoolingMs())
    env.reset(options={"task": small})
    shown, *_ = env.step(1)
    assert shown["placement"].tolist() == [-1, 1, -1]
    assert shown["order"].tolist() == [1, 0, -1]
    assert shown["position"].tolist() == [1]
    assert shown["sizes"].tolist() == [0.5, 0.5, 0]
    assert shown["tables"][:, 2].tolist() == [1, 4, 0]
    with pytest.raises(InvalidTask, match="3 tables at most, not 4"):
        env.reset(options={"task": Task(tiny_task().tables.take([0, 1, 2, 2]), memory=(1, 1))})


def test_masks_by_hand():
    env = tiny_env(tiny_task(memory=(TABLE_BYTES, 2 * TABLE_BYTES - 1)))
    assert env.reset(seed=0)[1]["action_mask"].tolist() == [1, 1]
    assert env.step(0)[4]["action_mask"].tolist() == [0, 1]
    assert env.action_masks().tolist() == [False, True]
    assert env.action_masks().dtype == bool
    assert env.step(1)[4]["action_mask"].tolist() == [1, 1]  # fits nowhere
    assert env.step(1)[4]["action_mask"].tolist() == [1, 1]  # the end


def test_masks_are_found_through_wrappers():
    env = gym.make("ShardGym-MetaSyn-80x8")
    env.reset(seed=0)
    assert env.get_wrapper_attr("action_masks")().tolist() == [True] * 8


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_what_is_returned_belongs_to_the_caller(observation):
    env = ShardingEnv("core-60x4", observation=observation, reward="balance")
    untouched = str(env.reset(seed=0))
    shown, info = env.reset(seed=0)
    for array in (*(shown.values() if isinstance(shown, dict) else [shown]), info["action_mask"]):
        array[...] = 0
    assert str((shown, info)) != untouched
    assert str(env.reset(seed=0)) == untouched
