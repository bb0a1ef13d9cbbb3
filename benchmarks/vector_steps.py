"""Steps of vector environments, counted and timed; shared by the reports."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

LEAST_STEPS = 50_000  # of a repeat, all environments together
LONGEST = 15.0  # seconds of CPU time after which there are no more repeats, once there are three


def make(name: str, num_envs: int, **settings: Any) -> gym.vector.VectorEnv:
    """A vector environment by the public way, every task prepared before anything is timed."""
    env = gym.make_vec(f"shard_gym:ShardGym-{name}", num_envs=num_envs, **settings)
    for task in env.unwrapped.bank.tasks:  # type: ignore[attr-defined]
        env.reset(options={"task": task})
    env.reset(seed=0)
    return env


def cart_pole(num_envs: int) -> gym.vector.VectorEnv:
    """Gymnasium's own example of a vector environment in numpy, for comparison."""
    env = gym.make_vec("CartPole-v1", num_envs=num_envs)
    env.reset(seed=0)
    return env


def calls(env: gym.vector.VectorEnv, longest: int) -> int:
    """Calls of `step` in a repeat: whole episodes of so many tables, resets with them."""
    episodes = max(1, -(-LEAST_STEPS // (longest * env.num_envs)))
    return episodes * (longest + 1)


class Player:
    """Random actions for an environment, drawn before the clock starts."""

    def __init__(self, env: gym.vector.VectorEnv, count: int) -> None:
        rng, number = np.random.default_rng(0), int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.env, self.count = env, count
        self.actions = rng.integers(number, size=(min(count, 256), env.num_envs))

    def rate(self) -> float:
        """Steps a second of CPU time, of all environments together; steps that only begin an episode do not count.

        CPU time, not wall time: on a busy machine the slower of two environments would be interrupted more often.
        """
        env, actions, over = self.env, self.actions, []
        start = time.thread_time()
        for i in range(self.count):
            over.append(env.step(actions[i % len(actions)])[2])
        spent = time.thread_time() - start
        begun = sum(int(ended.sum()) for ended in over)
        return (self.count * env.num_envs - begun) / spent


def rates(player: Player, repeats: int) -> np.ndarray:
    """Steps a second of so many repeats, or fewer if they take long; after one to warm up."""
    player.rate()
    found, start = [], time.thread_time()
    while len(found) < repeats and (len(found) < 3 or time.thread_time() - start < LONGEST):
        found.append(player.rate())
    return np.array(found)
