"""Stable-Baselines3 over the vector environment learns what it learns over scalar ones, to the bit."""

import numpy as np
import pytest

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import InvalidTask
from tests.env_helpers import PoolingMs, tiny_task
from tests.vector_helpers import assert_same

sb3 = pytest.importorskip("stable_baselines3")
sb3_contrib = pytest.importorskip("sb3_contrib")
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # quicker for networks this small
    yield
    torch.set_num_threads(threads)


def both(tasks="mixed-10to59x4-split", num_envs=3, **settings):
    """Scalar environments in SB3's own adapter, and ours."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from shard_gym_agents.learners.sb3_vec import ShardingVecEnv

    scalar = DummyVecEnv([lambda: Monitor(ShardingEnv(tasks, **settings))] * num_envs)
    return scalar, ShardingVecEnv(ShardingEnv(tasks, **settings), num_envs)


@pytest.mark.parametrize("observation", ["table", "full"])
def test_rollouts_are_those_of_scalar_environments(observation):
    scalar, ours = both(observation=observation, reward="dense")
    rng, ended = np.random.default_rng(0), 0
    for env in (scalar, ours):
        env.seed(5)
    assert_same(dict(enumerate(_arrays(scalar.reset()))), dict(enumerate(_arrays(ours.reset()))))
    for _ in range(150):
        masks = ours.env_method("action_masks")
        assert_same(np.stack(scalar.env_method("action_masks")), np.stack(masks))
        actions = (rng.random(masks.shape) * masks).argmax(axis=1)
        (shown, *theirs, infos), (our_shown, *result, our_infos) = scalar.step(actions), ours.step(actions)
        assert_same(tuple(_arrays(shown)), tuple(_arrays(our_shown)))
        assert_same(tuple(theirs), tuple(result))
        for i in np.flatnonzero(result[1]):
            infos[i]["episode"].pop("t"), our_infos[i]["episode"].pop("t")
            assert_same(infos[i], dict(our_infos[i]))
            ended += 1
    assert ended >= 3


def _arrays(shown):
    return list(shown.values()) if isinstance(shown, dict) else [shown]


@pytest.mark.parametrize("algorithm", ["PPO", "MaskablePPO"])
def test_learners_learn_the_same(algorithm):
    learner = sb3.PPO if algorithm == "PPO" else sb3_contrib.MaskablePPO
    weights = []
    for env in both("tight-80x8", 2, observation="full", reward="balance"):
        model = learner("MultiInputPolicy", env, n_steps=100, batch_size=100, n_epochs=2, seed=3, device="cpu")
        model.learn(400)
        assert len(model.ep_info_buffer) == 4 and model.num_timesteps == 400
        weights.append(torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy())
    assert_same(*weights)


def test_what_the_adapter_can_and_cannot_do():
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    scalar, ours = both(Bank((tiny_task(),)), 2, simulator=PoolingMs(), observation="full")
    assert ours.has_attr("action_masks") and not ours.has_attr("nonsense")
    assert ours.get_attr("num_devices") == [2, 2] and ours.get_attr("order", indices=[1]) == ["cost"]
    assert ours.env_is_wrapped(Monitor) == [True, True]
    ours.set_options({"task": tiny_task(speed=(1.0, 0.5))})
    ours.reset()
    assert [ours.step(np.array([0, 1]))[2].any() for _ in range(3)] == [False, False, True]
    returns = [evaluate_policy(sb3.PPO("MultiInputPolicy", e, seed=0, device="cpu"), e, 4)[0] for e in (scalar, ours)]
    assert returns[0] == returns[1]
    for refused in (lambda: ours.set_attr("order", "size"), lambda: ours.env_method("render")):
        with pytest.raises(AttributeError, match="stepped together"):
            refused()
    ours.set_options([{}, {"task": tiny_task()}])
    with pytest.raises(InvalidTask, match="same options"):
        ours.reset()
