"""Infos: numbers with the same keys at every step, objects for those who ask."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from benchmarks.make.thresholds import flex_threshold, threshold
from shard_gym import Plan, suites
from shard_gym.envs.env import NoEpisode
from shard_gym.envs.rewards import NUMBERS
from shard_gym.envs.vector_env import BadBatch
from shard_gym.errors import UnknownName
from shard_gym.simulators import Latency
from tests.env_helpers import PoolingMs, tiny_env, tiny_task
from tests.vector_helpers import MODES, pair, play_alike, reset_alike


def told_by(env, actions):
    """The infos of an episode, the first one that of its reset."""
    infos = [env.reset(seed=0)[1]]
    return infos + [env.step(action)[4] for action in actions]


@pytest.mark.parametrize(
    "env_id", ["ShardGym-DLRM-10x2", "ShardGym-Mixed-10to59x4-Split", "ShardGym-MetaSyn-80x8-Flat"]
)
def test_every_step_tells_the_same_keys_of_the_same_types(env_id):
    env = gym.make(env_id)
    (_, info), over = env.reset(seed=0), False
    kinds = {key: type(value) for key, value in info.items()}
    assert kinds == {"action_mask": np.ndarray, **{key: type(value) for key, value in NUMBERS.items()}}
    while not over:
        assert {key: info[key] for key in NUMBERS} == NUMBERS
        _, _, over, _, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        assert {key: type(value) for key, value in info.items()} == kinds
    assert info["makespan"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_many_tell_what_each_would(mode):
    scalar, ours = pair([tiny_task()], 3, mode, info="numbers", simulator=PoolingMs())
    reset_alike(scalar, ours, seed=0)
    play_alike(scalar, ours, 9)
    _, info = ours.reset(seed=0)
    for step in range(7):
        assert type(info) is dict and {"action_mask", *NUMBERS} <= info.keys() and "plan" not in info
        assert all(info[f"_{name}"].all() and info[name].dtype != object for name in NUMBERS)
        if mode == "Disabled" and step == 3:
            break
        info = ours.step(np.zeros(3, int))[4]


def test_objects_are_told_of_ends_if_asked_for():
    *before, last = told_by(tiny_env(), [0, 1, 1])
    assert all(info.keys() == {"action_mask", *NUMBERS} for info in before)
    assert (last["plan"], last["task"]) == (Plan((1, 1, 0)), tiny_task().hash)
    assert last.keys() == {"action_mask", *NUMBERS, "plan", "latency", "task"}
    with pytest.raises(UnknownName, match="unknown info 'all'; choose one of: full, numbers"):
        tiny_env(info="all")


def test_the_environment_has_them_too():
    env = tiny_env(info="numbers")
    with pytest.raises(NoEpisode):
        _ = env.plan
    told_by(env, [0])
    assert (env.plan, env.task) == (Plan((-1, -1, 0)), tiny_task())
    assert env.latency.compute.tolist() == [4, 0]
    env.step(1), env.step(1)
    assert env.plan == Plan((1, 1, 0)) and env.latency.compute.tolist() == [4, 3]


def test_latencies_compare_by_value():
    one, same, other = (told_by(tiny_env(), actions)[-1] for actions in ([0, 1, 1], [0, 1, 1], [0, 1, 0]))
    assert one["latency"] == same["latency"] != other["latency"] and one["latency"] != 7
    assert data_equivalence(one, same) and not data_equivalence(one, other)
    spread = Latency(*np.ones((4, 2)), spread=np.ones(2))
    assert Latency(*np.ones((4, 2))) != spread == Latency(*np.ones((4, 2)), spread=np.ones(2))


def test_values_of_each_environment():
    _, ours = pair([tiny_task()], 3, simulator=PoolingMs(), render_mode="ansi")
    ours.reset(seed=0)
    ours.step(np.array([0, 1, 1]))
    scalar, _ = pair([tiny_task()], 3, simulator=PoolingMs(), render_mode="ansi")
    scalar.reset(seed=0)
    scalar.step(np.array([0, 1, 1]))
    for name in ("plan", "latency", "task", "reward", "render", "num_devices"):
        assert ours.call(name) == scalar.call(name)
    np.testing.assert_array_equal(ours.call("action_masks"), scalar.call("action_masks"))
    ours.set_attr("level", [1, 2, 3])
    assert ours.get_attr("level") == (1, 2, 3) and ours.get_attr("order") == ("cost",) * 3
    for wrong, error in (("reward", AttributeError), ("step", AttributeError)):
        with pytest.raises(error, match="stepped together share"):
            ours.set_attr(wrong, 1)
    with pytest.raises(BadBatch, match="each of 3 environments, got 2"):
        ours.set_attr("level", [1, 2])
    with pytest.raises(AttributeError, match="have no step of their own"):
        ours.call("step", 0)


def test_thresholds_are_what_cost_greedy_returns():
    suite = suites.get("dlrm-10x2")
    assert threshold(suite) == gym.spec(suite.env_id).reward_threshold
    assert all(gym.spec(suite.env_id).reward_threshold is not None for suite in suites.SUITES.values())


def test_thresholds_of_tiers_are_what_the_optimum_returns_in_stretches():
    assert flex_threshold("RM") == gym.spec("ShardGym-Flex-RM").reward_threshold


def test_specs_tell_what_clients_ask():
    spec = gym.spec("ShardGym-Core-60x4-Flat")
    assert -0.8 < spec.reward_threshold < -0.7
    assert spec.max_episode_steps == 61 and gym.spec("ShardGym-Mixed-10to59x4-Split").max_episode_steps == 59 * 15 + 1
    env = gym.make("ShardGym-DLRM-10x2", render_mode="rgb_array_list")  # which the entry point's metadata allow
    assert env.unwrapped.render_mode == "rgb_array"
    with pytest.raises(BadBatch, match="take up to 60 steps and are never cut short, not after 9"):
        gym.make_vec("ShardGym-Core-60x4", num_envs=2, max_episode_steps=9)
    env.reset(seed=0)
    for _ in range(10):
        _, _, over, truncated, _ = env.step(0)
    assert over and not truncated
