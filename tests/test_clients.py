"""Other people's code on our environments: gymnasium's wrappers, and the learners of `examples`."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import flatten_space
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics
from gymnasium.wrappers import vector as many

from shard_gym import suites
from tests.env_helpers import play_where_it_fits

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ["DLRM-10x2", "Mixed-10to59x4-Split"]  # the shortest, and one with splits and tasks of different length
OBSERVATIONS = ["table", "full", "ahead", "flat", "set"]


def example(name):
    """The module of an example, as `import` would give it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("name", SMALL)
def test_flattened_observations_hold_the_same_numbers(name, observation):
    env = gym.make(f"ShardGym-{name}", observation=observation)
    flat = FlattenObservation(env)
    seen, info = flat.reset(seed=0)
    for _ in range(5):
        assert flat.observation_space.contains(seen)
        action = int(np.flatnonzero(info["action_mask"])[-1])
        assert seen.shape == flatten_space(env.observation_space).shape
        seen, *_, info = flat.step(action)
    inside = env.unwrapped
    shown = inside._observe(inside._state, inside.most_nodes)
    parts = [shown] if isinstance(shown, np.ndarray) else [shown[key] for key in env.observation_space]
    assert np.array_equal(seen, np.concatenate([np.ravel(part) for part in parts]))


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("name", SMALL)
def test_flattened_environments_together_are_those_alone(name, observation):
    env_id = f"ShardGym-{name}"
    together = many.FlattenObservation(gym.make_vec(env_id, num_envs=3, observation=observation))
    alone = FlattenObservation(gym.make(env_id, observation=observation))
    seen, _ = together.reset(seed=4)
    assert together.observation_space.contains(seen)
    assert np.array_equal(seen[2], alone.reset(seed=6)[0])
    seen, *_ = together.step(np.zeros(3, np.int64))
    assert np.array_equal(seen[2], alone.step(0)[0])


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("reward", ["latency", "dense"])
def test_episode_statistics(observation, reward):
    env = RecordEpisodeStatistics(gym.make("ShardGym-DLRM-10x2", observation=observation, reward=reward, info="full"))
    _, info = play_where_it_fits(env, seed=0)
    reference = suites.get("dlrm-10x2").random_makespans("train")
    played = [task.hash for task in env.unwrapped.bank.tasks].index(info["task"])
    assert info["feasible"]
    assert info["episode"]["l"] == 10
    assert info["episode"]["r"] == pytest.approx(-info["makespan"] / reference[played])
    assert env.return_queue[-1] == info["episode"]["r"]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_episode_statistics_of_many(mode):
    envs = gym.make_vec("ShardGym-DLRM-10x2", num_envs=4, observation="full", reward="dense", autoreset_mode=mode)
    envs = many.RecordEpisodeStatistics(envs)
    envs.reset(seed=0)
    total = np.zeros(4)
    for _ in range(10):
        _, rewards, over, _, infos = envs.step(np.zeros(4, np.int64))
        total += rewards
    assert over.all() and infos["_episode"].all()
    assert infos["episode"]["l"].tolist() == [10] * 4
    assert infos["episode"]["r"] == pytest.approx(total)


@pytest.mark.parametrize("name", SMALL)
def test_a_task_is_replayed_through_wrappers(name):
    env_id = f"ShardGym-{name}"
    task = suites.get(env_id).tasks("test")[1]
    env = RecordEpisodeStatistics(FlattenObservation(gym.make(env_id, observation="full", info="full")))
    assert play_where_it_fits(env, options={"task": task})[1]["task"] == task.hash


@pytest.mark.parametrize("name", SMALL)
def test_a_pickled_episode_goes_on_where_it_was(name):
    env = gym.make(f"ShardGym-{name}-Flat")
    env.reset(seed=3)
    env.step(1)
    again = pickle.loads(pickle.dumps(env))
    assert data_equivalence(env.step(0), again.step(0), exact=True)
    assert data_equivalence(env.reset(), again.reset(), exact=True)


def test_cleanrl_ppo_as_a_command():
    pytest.importorskip("torch")
    settings = "--env-id ShardGym-DLRM-10x2-Flat --num-envs 4 --num-steps 20 --total-steps 240 --hidden 8"
    command = [sys.executable, EXAMPLES / "cleanrl_ppo.py", *settings.split()]
    baselines, *updates = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert baselines.split()[::2] == ["random", "cost-greedy"]
    random, greedy = map(float, baselines.split()[1::2])
    assert random == pytest.approx(-1, abs=0.05) and greedy > random + 0.1
    assert [int(line.split()[1]) for line in updates] == [80, 160, 240]
    ppo = example("cleanrl_ppo")
    again = ppo.main(ppo.Args("ShardGym-DLRM-10x2-Flat", num_envs=4, num_steps=20, total_steps=240, hidden=8))
    assert [line.split()[3] for line in updates] == [f"{value:.3f}" for value in again]  # it is seeded


@pytest.mark.slow
def test_cleanrl_ppo_learns():
    pytest.importorskip("torch")
    ppo = example("cleanrl_ppo")
    curve = ppo.main(ppo.Args(env_id="ShardGym-DLRM-50x4-Flat", num_steps=50, total_steps=100_000))
    assert curve[0] < -0.95
    assert curve[-1] > -0.8


def test_sb3_recurrent_ppo_runs():
    pytest.importorskip("sb3_contrib")
    before, after = example("sb3_recurrent_ppo").main("dlrm-10x2", steps=80, num_envs=4, episodes=2)
    assert all(np.isfinite((before, after))) and max(before, after) < 0


def test_sb3_ppo_runs():
    pytest.importorskip("stable_baselines3")
    before, after = example("sb3_ppo").main("ShardGym-DLRM-10x2-Flat", steps=80, num_envs=2, episodes=2)
    assert all(np.isfinite((before, after))) and max(before, after) < 0
