"""Episodes small enough to check by hand, and ways to play them."""

import numpy as np

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import GRAIN
from shard_gym.task.task import Task
from tests.pool_helpers import fp16_pool

TABLE_BYTES = 100 * 16 * 2


class PoolingMs(FastSimulator):
    """A table costs as many milliseconds as its pooling, over the device's speed; nothing else costs."""

    id = "pooling-ms"

    def embed(self, task):
        return np.rint(task.tables.pooling[:, None] * GRAIN) / GRAIN

    def decode(self, task, sums):
        ms = sums[..., 0] / np.array(task.speed)
        return Latency(ms, np.zeros_like(ms), np.zeros_like(ms), np.zeros_like(ms))


class Slow:
    """The same costs from a simulator that only answers `latency`."""

    id = "slow"

    def latency(self, task, placements):
        return PoolingMs().latency(task, placements)


def tiny_task(**settings):
    """Tables of 1, 2 and 4 ms; each device has room for two of them."""
    pool = fp16_pool(rows=[100, 100, 100], dim=16, pooling=[1, 2, 4])
    return Task(pool, **{"memory": (2 * TABLE_BYTES,) * 2, **settings})


def tiny_env(task=None, **settings):
    return ShardingEnv(tasks=[task or tiny_task()], **{"simulator": PoolingMs(), "info": "full", **settings})


def split_env(task, **settings):
    """An environment whose last action halves the next table."""
    bank = Bank((task,), split_action=True)
    return ShardingEnv(bank, **{"simulator": PoolingMs(), "reward": "balance", "info": "full", **settings})


def play(env, actions, **reset):
    """Reset and step through; all observations, rewards and the last info."""
    observation, info = env.reset(**reset)
    seen, rewards = [observation], []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(observation)
        rewards.append(reward)
        assert not truncated
    assert terminated
    return seen, rewards, info


def play_where_it_fits(env, **reset):
    """Go round the devices that have room; the last reward and info."""
    _, info = env.reset(**reset)
    for step in range(10_000):
        room = np.flatnonzero(info["action_mask"])
        _, reward, over, _, info = env.step(room[step % len(room)])
        if over:
            return reward, info
    raise AssertionError("the episode did not end")
