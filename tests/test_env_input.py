"""Input that is wrong, or odd but legal: an error of ours that says what to do, or a sensible episode."""

import gymnasium as gym
import numpy as np
import pytest

from shard_gym import Task
from shard_gym.envs.bank import Bank
from shard_gym.envs.env import BadAction, NoEpisode, ShardingEnv
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.envs.rewards import REWARDS
from shard_gym.errors import InvalidPool, InvalidTask, ShardGymError, SimulatorError, UnknownName
from shard_gym.simulators import FastSimulator, Latency
from tests.env_helpers import TABLE_BYTES, PoolingMs, play, split_env, tiny_env, tiny_task
from tests.pool_helpers import fp16_pool as make_pool


class Broken(FastSimulator):
    """Costs nothing that is a number."""

    id = "broken"

    def embed(self, task):
        return np.ones((task.num_tables, 1))

    def decode(self, task, sums):
        ms = np.full(sums.shape[:-1], np.nan)
        return Latency(ms, ms, ms, ms)


@pytest.mark.parametrize("action", [2, -1, 10**20, 1.0, np.float32(1), np.nan, "0", None, [0], np.array([0, 1])])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_what_is_no_action_is_refused_and_changes_nothing(action, observation):
    env = tiny_env(observation=observation)
    env.reset(seed=0)
    with pytest.raises(BadAction, match=r"choose a device, 0\.\.1$") as refused:
        env.step(action)
    assert isinstance(refused.value, ShardGymError) and isinstance(refused.value, gym.error.InvalidAction)
    assert [env.step(a)[1] for a in (np.int8(0), np.uint64(1), np.array(1))] == [0.0, 0.0, 0.75]


@pytest.mark.parametrize("made", [tiny_env, lambda: split_env(tiny_task(splits_allowed=True))])
def test_steps_outside_an_episode_are_refused(made):
    env = made()
    for call in (lambda: env.step(0), env.action_masks):
        with pytest.raises(NoEpisode, match=r"call reset\(\) first"):
            call()
    play(env, [0, 1, 1])
    for _ in range(2):
        with pytest.raises(NoEpisode, match=r"the episode is over: call reset\(\)"):
            env.step(0)
    assert play(env, [0, 1, 1])[2]["feasible"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "a suite's name or at least one"),
        (None, "a suite's name or at least one"),
        (5, "a suite's name or at least one"),
        (["core-60x4"], "a suite's name or at least one"),
    ],
)
def test_what_are_no_tasks(tasks, message):
    with pytest.raises(InvalidTask, match=message):
        ShardingEnv(tasks=tasks)


def test_a_task_without_tables_or_devices():
    with pytest.raises(InvalidTask, match="at least one table"):
        Task(make_pool(rows=[]), memory=(1,))
    with pytest.raises(InvalidTask, match="at least one device"):
        tiny_task(memory=())


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_one_device_is_an_environment_too(observation, reward):
    task = tiny_task(memory=(3 * TABLE_BYTES,), splits_allowed=True, objective="iteration")
    settings = {"observation": observation, "reward": reward}
    env = ShardingEnv([task], **settings, info="full")
    assert env.action_space == gym.spaces.Discrete(1)
    seen, rewards, info = play(env, [0, 0, 0])
    assert (info["feasible"], info["balance"]) == (True, 1.0)
    assert sum(rewards) == pytest.approx(1.0 if reward == "balance" else -1.0)
    assert not info["latency"].forward_comm.any()
    assert all(shown in env.observation_space for shown in seen)
    env = split_env(task, **settings, simulator=None)
    seen, _, info = play(env, [1, 0, 0, 0, 0])
    assert (info["feasible"], info["plan"].device, len(info["plan"].splits)) == (True, (0,) * 4, 1)
    assert all(shown in env.observation_space for shown in seen)


@pytest.mark.parametrize("reward", REWARDS)
def test_a_table_larger_than_every_device_may_be_placed_and_scores_below_what_fits(reward):
    env = tiny_env(tiny_task(memory=(TABLE_BYTES - 1, TABLE_BYTES - 1)), reward=reward)
    assert env.reset(seed=0)[1]["action_mask"].tolist() == [1, 1]
    _, rewards, info = play(env, [0, 1, 0])
    assert not info["feasible"]
    assert sum(rewards) < -(reward != "balance")


@pytest.mark.parametrize("column", ["rows", "dim", "pooling", "uses"])
def test_features_that_are_not_numbers_never_reach_an_environment(column):
    pool = tiny_task().tables
    values = getattr(pool, column).astype(float)
    values[..., 0] = np.nan
    with pytest.raises(InvalidPool, match=f"column {column}"):
        pool.with_(**{column: values})


@pytest.mark.parametrize(
    "scaling",
    [
        (np.full(21, np.nan), np.ones(21)),
        (np.zeros(21), np.full(21, np.inf)),
        (np.zeros(21), -np.ones(21)),
        (np.zeros(20), np.ones(20)),
        (np.zeros(21), np.ones(3)),
        np.zeros(21),
        "core-80x8",
    ],
)
def test_scaling_that_would_spoil_features_is_refused(scaling):
    with pytest.raises(InvalidTask, match=r"scaling is .* 21 "):
        Bank((tiny_task(),), scaling=scaling)


def test_costs_that_are_not_numbers_are_told():
    env = tiny_env(simulator=Broken(), order="given", reward="balance")
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    with pytest.raises(SimulatorError, match="makespan of nan"):
        env.step(0)


@pytest.mark.parametrize(
    ("setting", "valid"),
    [
        ("observation", "ahead, flat, full, set, table"),
        ("reward", "balance, dense, latency"),
        ("order", "cost, given, random, size"),
        ("split", "test, train, val"),
        ("simulator", ".*fbgemm:cpu, .*roofline:rtx2080ti-x4-v1"),
        ("render_mode", "None, .*ansi"),
    ],
)
@pytest.mark.parametrize("name", ["nonsense", "", ["full"], 5])
def test_unknown_names_list_the_known(setting, valid, name):
    with pytest.raises(UnknownName, match=f"unknown {setting} .*; choose one of: {valid}"):
        ShardingEnv(tasks=[tiny_task()], **{setting: name})


def test_a_simulator_is_an_instance():
    with pytest.raises(UnknownName, match="unknown simulator <class"):
        tiny_env(simulator=PoolingMs)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tasks": []}, UnknownName, "unknown reset option 'tasks'; choose one of: task"),
        ({"task": "core-60x4"}, InvalidTask, "must be a shard_gym.Task with 2 devices"),
        ({"task": tiny_task(memory=(1,) * 3)}, InvalidTask, "must be a shard_gym.Task with 2 devices"),
        ("task", InvalidTask, "reset options are a dict"),
        ([], InvalidTask, "reset options are a dict"),
    ],
)
def test_reset_options(options, error, message):
    env = tiny_env()
    with pytest.raises(error, match=message):
        env.reset(options=options)
    assert play(env, [0, 1, 1], options={})[2]["feasible"]


def test_unknown_ids_are_told_by_gymnasium_and_keys_by_us():
    with pytest.raises(gym.error.Error, match="ShardGym-MetaSyn-80x8"):
        gym.make("ShardGym-MetaSyn-80x88")
    with pytest.raises(UnknownName, match="tightmix-80x8-split"):
        ShardingEnv("core-80x8-split")
