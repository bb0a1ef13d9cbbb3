"""Input that a vector environment refuses, in words that say what to do; and refusing changes nothing."""

import gymnasium as gym
import numpy as np
import pytest

from shard_gym.envs.env import BadAction, NoEpisode, ShardingEnv
from shard_gym.envs.vector_env import BadBatch, ShardingVectorEnv
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from tests.env_helpers import PoolingMs, tiny_task
from tests.vector_helpers import assert_same


def tiny(mode="NextStep", num_envs=3, **settings):
    env = ShardingEnv([tiny_task()], **{"simulator": PoolingMs(), **settings})
    return ShardingVectorEnv(env, num_envs, mode)


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, None])
def test_numbers_of_environments(number):
    with pytest.raises(BadBatch, match="num_envs"):
        tiny(num_envs=number)


def test_unknown_names_list_the_known():
    with pytest.raises(
        UnknownName, match="unknown autoreset_mode 'Never'; choose one of: Disabled, NextStep, SameStep"
    ):
        tiny("Never")
    with pytest.raises(UnknownName, match="unknown observation 'pixels'; choose one of: ahead, flat, full, set, table"):
        gym.make_vec("ShardGym-MetaSyn-80x8", num_envs=2, observation="pixels")
    with pytest.raises(UnknownName, match="unknown reset option 'tasks'; choose one of: reset_mask, task"):
        tiny().reset(options={"tasks": []})
    with pytest.raises(InvalidTask, match="reset options are a dict"):
        tiny().reset(options=3)


@pytest.mark.parametrize("observation", ["full", "ahead", "set"])
@pytest.mark.parametrize("suite", ["dlrm-10x2", "mixed-10to59x4-split"])
def test_observations_list_their_parts_as_the_space_does(suite, observation):
    env = ShardingVectorEnv(ShardingEnv(suite, observation=observation), 2, "SameStep")
    shown, _ = env.reset(seed=0)
    assert list(shown) == list(env.single_observation_space) == list(env.env.reset(seed=0)[0])


def test_steps_outside_an_episode():
    env = tiny(render_mode="ansi")
    for call in (lambda: env.step([0, 0, 0]), env.action_masks, env.render):
        with pytest.raises(NoEpisode, match=r"call reset\(\) first"):
            call()
    with pytest.raises(NoEpisode, match="first reset is of all"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    env = tiny("Disabled")
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([False, True, False])})
    for _ in range(3):
        env.step([0, 0, 0])
    with pytest.raises(gym.error.ResetNeeded, match=r"environments \[0, 1, 2\] are over: call reset.*reset_mask"):
        env.step([0, 0, 0])
    env.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(NoEpisode, match=r"environments \[1\] are over"):
        env.step([0, 0, 0])


BAD_ACTIONS = [0, [0, 1], [[0, 1, 0]], [0.0, 1.0, 0.0], [True, False, True], ["0", "1", "0"], [0, 1, None], None]


@pytest.mark.parametrize("actions", [*BAD_ACTIONS, [0, 2, 0], [0, 1, -1], np.array([0, 2**64 - 1, 1], np.uint64)])
def test_what_is_no_action_is_refused_and_changes_nothing(actions):
    env, other = tiny(), tiny()
    for e in (env, other):
        e.reset(seed=0)
        e.step([0, 1, 0])
    with pytest.raises(BadAction, match=r"0\.\.1"):
        env.step(actions)
    assert_same(other.step([1, 1, 0]), env.step([1, 1, 0]))
    assert issubclass(BadAction, ShardGymError)


def test_every_kind_of_int_is_an_action():
    torch = pytest.importorskip("torch")
    results = []
    for kind in (list, np.uint8, np.int32, np.uint64, torch.tensor):
        env = tiny()
        env.reset(seed=0)
        for actions in ([0, 0, 1], [1, 0, 1], [1, 1, 0]):
            made = kind(actions) if kind in (list, torch.tensor) else np.array(actions, kind)
            result = env.step(made)
        results.append(result)
    for result in results[1:]:
        assert_same(results[0], result)


def test_what_environments_that_only_begin_are_told_does_not_matter():
    env = tiny()
    env.reset(seed=0)
    for _ in range(3):
        env.step([0, 1, 0])
    _, rewards, terminated, _, _ = env.step([7, -1, 2**40])
    assert not rewards.any() and not terminated.any()
    with pytest.raises(BadAction, match=r"there is no action 7 \(environment 0\): choose one of 0..1"):
        env.step([7, -1, 1])


@pytest.mark.parametrize("seed", [-1, "3", 1.5, [1, 2], [1, 2, -3], [1, 2, "3"], range(4)])
def test_seeds(seed):
    with pytest.raises(BadBatch, match="seed"):
        tiny().reset(seed=seed)


@pytest.mark.parametrize(
    "mask", [[True, False, True], np.ones(2, bool), np.ones(3, int), np.zeros(3, bool), np.ones((3, 1), bool)]
)
def test_reset_masks(mask):
    env = tiny()
    env.reset()
    with pytest.raises(BadBatch, match=r"reset_mask is a bool array of shape \(3,\), True at least once"):
        env.reset(options={"reset_mask": mask})


def test_tasks_that_do_not_fit():
    env = tiny(observation="set")
    env.reset(seed=0)
    shown = env.step([0, 1, 0])[0]
    for bad, why in (("metasyn-80x8", "2 devices"), (tiny_task(memory=(1,) * 3), "2 devices")):
        with pytest.raises(InvalidTask, match=why):
            env.reset(seed=4, options={"task": bad})
    assert_same(shown["position"], np.full((3, 1), 1))
    assert env.step([0, 0, 0])[0]["position"].tolist() == [[2]] * 3
