"""The environment in use: seeds, other simulators, bad input, rendering, a learner."""

import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from shard_gym import suites
from shard_gym.envs.env import BadAction, NoEpisode, ShardingEnv
from shard_gym.envs.episodes import task_index
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from shard_gym.task.task import Task
from tests.env_helpers import PoolingMs, Slow, play, play_where_it_fits, tiny_env, tiny_task


def test_episodes_follow_the_hash():
    env = ShardingEnv("dlrm-20x4", reward="balance", info="full")
    actions = [0] * 20
    played = [play(env, actions, seed=7 if k == 0 else None)[2]["task"] for k in range(6)]
    n = len(env.bank.tasks)
    assert played == [env.bank.tasks[task_index(7, k, n)].hash for k in range(6)]
    assert len(set(played)) > 2


def test_a_replayed_task_takes_no_number():
    env = ShardingEnv("dlrm-20x4", reward="balance", info="full")
    task, n = env.bank.tasks[3], len(env.bank.tasks)
    assert play(env, [0] * 20, seed=7, options={"task": task})[2]["task"] == task.hash
    assert play(env, [0] * 20)[2]["task"] == env.bank.tasks[task_index(7, 0, n)].hash


def test_a_replayed_task_of_the_suite_keeps_its_reference():
    env = ShardingEnv("core-60x4")
    again = Task.from_json(env.bank.tasks[2].to_json())
    reward, info = play_where_it_fits(env, options={"task": again})
    assert info["feasible"]
    reference = suites.get("core-60x4").random_makespans("train")[2]
    assert reward == pytest.approx(-info["makespan"] / reference)


def test_an_environment_never_seeded_draws_a_seed():
    drawn = set()
    for _ in range(4):
        env = ShardingEnv("dlrm-20x4", reward="balance", info="full")
        drawn.add(tuple(play(env, [0] * 20)[2]["task"] for _ in range(4)))
    assert len(drawn) > 1


TRAJECTORY = """
import hashlib, numpy as np
from shard_gym.envs.env import ShardingEnv
env = ShardingEnv("core-60x4", observation="full", reward="dense", order={order!r}, info="full")
digest = hashlib.sha256()
actions = np.random.default_rng(0).integers(4, size=120)
shown, _ = env.reset(seed=11)
for action in actions:
    shown, reward, over, _, info = env.step(action)
    digest.update(b"".join(v.tobytes() for v in shown.values()) + repr((reward, over)).encode())
    if over:
        digest.update(info["task"].encode())
        env.reset()
result = digest.hexdigest()
"""


@pytest.mark.parametrize("order", ["cost", "random"])
def test_same_seed_same_trajectory_in_another_process(order):
    program, here = TRAJECTORY.format(order=order), {}
    exec(program, here)
    command = [sys.executable, "-c", program + "print(result)"]
    there = subprocess.run(command, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here["result"]


@pytest.mark.parametrize("reward", ["balance", "latency", "dense"])
@pytest.mark.parametrize("observation", ["table", "set"])
def test_a_simulator_that_is_not_fast_gives_the_same(observation, reward):
    fast, slow = (
        play(tiny_env(simulator=s, reward=reward, observation=observation), [0, 1, 1]) for s in (PoolingMs(), Slow())
    )
    assert fast[1] == slow[1]
    assert str(fast[0]) == str(slow[0])
    assert fast[2]["plan"] == slow[2]["plan"]


@pytest.mark.parametrize("observation", ["full", "ahead", "flat"])
def test_embeddings_need_a_fast_simulator(observation):
    with pytest.raises(ShardGymError, match=f'"{observation}" needs embeddings, slow has none: use "table"'):
        tiny_env(simulator=Slow(), observation=observation)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"observation": "pixels"}, "unknown observation 'pixels'; choose one of: ahead, flat, full, set, table"),
        ({"reward": "money"}, "unknown reward 'money'; choose one of: balance, dense, latency"),
        ({"order": "alphabet"}, "unknown order 'alphabet'; choose one of: cost, given, random, size"),
        ({"split": "holdout"}, "unknown split 'holdout'; choose one of: test, train, val"),
        ({"simulator": "crystal"}, "unknown simulator 'crystal'; choose one of: .*roofline:rtx2080ti-x4-v1"),
        ({"render_mode": "opera"}, "unknown render_mode 'opera'; choose one of: None, ansi"),
    ],
)
def test_unknown_names_list_the_known(setting, message):
    with pytest.raises(UnknownName, match=message):
        ShardingEnv(tasks=[tiny_task()], **setting)


def test_unknown_suite():
    with pytest.raises(UnknownName, match="metasyn-80x8"):
        ShardingEnv("metasyn-81x8")


@pytest.mark.parametrize("action", [2, -1, 1.0, "0", None, np.array([0, 1]), np.float32(1)])
def test_what_is_no_device_is_refused_and_changes_nothing(action):
    env = tiny_env()
    env.reset(seed=0)
    with pytest.raises(BadAction, match=r"0\.\.1"):
        env.step(action)
    assert [env.step(a)[1] for a in (0, np.int64(1), np.array(1))] == [0.0, 0.0, 0.75]


def test_steps_outside_an_episode_are_refused():
    env = tiny_env(render_mode="ansi")
    for call in (lambda: env.step(0), env.action_masks, env.render):
        with pytest.raises(NoEpisode, match=r"call reset\(\) first"):
            call()
    play(env, [0, 1, 1])
    with pytest.raises(gym.error.ResetNeeded, match="the episode is over"):
        env.step(0)
    assert issubclass(NoEpisode, ShardGymError)


def test_tasks_that_do_not_fit_are_refused():
    env = tiny_env()
    for bad in ("metasyn-80x8", tiny_task(memory=(1,) * 3)):
        with pytest.raises(InvalidTask, match="2 devices"):
            env.reset(options={"task": bad})
    with pytest.raises(UnknownName, match="unknown reset option 'tasks'; choose one of: task"):
        env.reset(options={"tasks": []})
    for bad in ([], ["core-60x4"]):
        with pytest.raises(InvalidTask, match="at least one"):
            ShardingEnv(tasks=bad)
    with pytest.raises(InvalidTask, match=r"same number of devices, got \[2, 3\]"):
        ShardingEnv(tasks=[tiny_task(), tiny_task(memory=(1,) * 3)])


def test_rendering_by_hand():
    env = tiny_env(render_mode="ansi")
    env.reset(seed=0)
    assert "next: 'table_2' (100 rows of 16, pooling 4.0" in env.render()
    for action in (0, 0):
        env.step(action)
    _, first, second, following = env.render().splitlines()
    assert first.split() == ["0", "2", "0.000", "0.000", "#" * 30, "6.000"]
    assert second.split() == ["1", "0", "0.000", "0.000", "0.000"]
    assert following.endswith("3 of 3")
    env.step(0)
    assert env.render().splitlines()[1].endswith("7.000  OVER")
    assert env.render().endswith("all tables are placed")


def test_rendering_without_a_mode_shows_nothing():
    env = tiny_env()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match='render_mode="ansi"'):
        assert env.render() is None


def test_objective_of_own_tasks_decides_the_reward():
    assert tiny_env().reward == "balance"
    assert tiny_env(replace(tiny_task(), objective="iteration")).reward == "latency"


def test_a_maskable_learner_never_breaks_the_mask():
    sb3_contrib = pytest.importorskip("sb3_contrib")
    env = gym.make("ShardGym-Tight-80x8", reward="balance", observation="full", info="full")
    model = sb3_contrib.MaskablePPO(
        "MultiInputPolicy", env, n_steps=80, batch_size=80, n_epochs=1, seed=0, device="cpu"
    )
    model.learn(160)
    observation, info = env.reset(seed=0)
    over = False
    while not over:
        action, _ = model.predict(observation, action_masks=env.unwrapped.action_masks())
        assert info["action_mask"][action]
        observation, _, over, _, info = env.step(action)
    assert len(info["plan"].device) == 80
