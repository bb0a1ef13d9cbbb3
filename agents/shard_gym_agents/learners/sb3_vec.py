"""Stable-Baselines3's VecEnv over `ShardingVectorEnv`: Python is touched for finished environments only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.rewards import NUMBERS
from shard_gym.envs.vector_env import SAME_STEP, ShardingVectorEnv
from shard_gym.errors import InvalidTask, MissingDependency
from shard_gym.records.installing import install

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise MissingDependency(install("sb3")) from error


class ShardingVecEnv(VecEnv):
    """`PPO("MultiInputPolicy", ShardingVecEnv(ShardingEnv("metasyn-80x8", observation="full"), num_envs=256))`.

    Does what a `DummyVecEnv` of so many `Monitor`ed environments does, to the bit, but infos tell no mask before the
    end: MaskablePPO asks for them. At ends they are the last info of `ShardingEnv`, `terminal_observation` and
    Monitor's `episode`.
    """

    def __init__(self, env: ShardingEnv, num_envs: int) -> None:
        self.env = ShardingVectorEnv(env, num_envs, SAME_STEP)
        super().__init__(num_envs, self.env.single_observation_space, self.env.single_action_space)
        self._actions = np.zeros(num_envs, np.int64)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._started = time.time()

    def reset(self) -> Any:
        """First observations, of the seeds and options that were set before."""
        if any(options != self._options[0] for options in self._options):
            raise InvalidTask("environments that are stepped together are reset with the same options: set one dict")
        seeds = None if all(seed is None for seed in self._seeds) else self._seeds
        shown, _ = self.env.reset(seed=seeds, options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0, 0
        return shown

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        shown, rewards, over, _, told = self.env.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        under_way = {**NUMBERS, "TimeLimit.truncated": False}
        infos = [under_way] * self.num_envs  # one dict, shared
        if "final_info" in told:
            finished = np.flatnonzero(over)
            for i in finished.tolist():
                infos[i] = self._ended(told, i)
            self._returns[finished], self._lengths[finished] = 0, 0
        return shown, rewards.astype(np.float32), over, infos

    def _ended(self, told: dict[str, Any], i: int) -> dict[str, Any]:
        last, seconds = told["final_info"], round(time.time() - self._started, 6)
        own = {key: values[i] for key, values in last.items() if not key.startswith("_")}
        own = {key: value.item() if isinstance(value, np.generic) else value for key, value in own.items()}
        episode = {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": seconds}
        ended = {"episode": episode, "terminal_observation": told["final_obs"][i], "TimeLimit.truncated": False}
        return own | ended

    def close(self) -> None:
        self.env.close()

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """`action_masks`, one of each environment; there is no other method of single environments."""
        if method_name != "action_masks":
            raise AttributeError(f"environments that are stepped together have no {method_name}, only action_masks")
        return self.env.action_masks()[list(self._get_indices(indices))]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A value that all environments share: an attribute of the vector environment, or else of `ShardingEnv`."""
        value = getattr(self.env, attr_name) if hasattr(self.env, attr_name) else getattr(self.env.env, attr_name)
        return [value] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Environments that are stepped together have nothing to set."""
        raise AttributeError(f"{attr_name} cannot be set: environments that are stepped together share all they have")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """True of `Monitor`, since infos tell what it tells, and of no other wrapper."""
        return [wrapper_class is Monitor] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        return list(self.env.render() or [None] * self.num_envs)
