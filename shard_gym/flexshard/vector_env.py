"""Many tier environments at once, as arrays."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shard_gym.envs.vector.ends import last_told, spread_out, told_where
from shard_gym.envs.vector.turns import NEXT_STEP, SAME_STEP, Attributes, Turns, never_cut
from shard_gym.flexshard.env import NUMBERS, FlexEnv
from shard_gym.flexshard.states import States
from shard_gym.flexshard.stretches import STRETCHES
from shard_gym.flexshard.tiers import TIERS


class FlexVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` copies of a `FlexEnv`, stepped together in numpy: `gym.make_vec("ShardGym-Flex-4x8", num_envs=1024)`.

    Observations, rewards, masks and infos are those of `FlexEnv`, to the bit. Seeds, ends, `reset_mask` and infos are
    as `shard_gym.envs.vector_env.ShardingVectorEnv` has them; `options={"task": index}` plays one task everywhere.
    """

    def __init__(self, env: FlexEnv, num_envs: int = 1, autoreset_mode: str | AutoresetMode = NEXT_STEP) -> None:
        self.env, self._turns = env, Turns(num_envs, autoreset_mode, len(TIERS))
        self.num_envs, self.autoreset_mode = self._turns.num_envs, self._turns.mode
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        self.single_action_space, self.single_observation_space = env.action_space, env.observation_space
        self._states, self._attributes = States(env.bank, self.num_envs), Attributes(env, self.num_envs)

    @cached_property
    def action_space(self) -> gym.Space:  # type: ignore[override]
        """One action for each environment."""
        return batch_space(self.single_action_space, self.num_envs)

    @cached_property
    def observation_space(self) -> gym.Space:  # type: ignore[override]
        """One observation of each environment."""
        return batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:  # type: ignore[override]
        """Begin episodes: the next ones, the first ones of seeds, or of a given task; of all or by `reset_mask`."""
        envs, seeds, task = self._turns.asked(seed, options)
        index = None if task is None else self.env.bank.index(task)
        if isinstance(seed, SupportsIndex):
            super().reset(seed=operator.index(seed))
        self._turns.seed(envs, seeds, self)
        self._begin(envs, index)
        self._turns.begun(envs)
        return self._states.shown(), self._infos()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Put the next stretch of each environment in a tier; an episode that is over begins anew by the mode."""
        states = self._states
        states.put(self._turns.checked(actions))
        terminated, rewards, told = states.over(), np.zeros(self.num_envs), {}
        if len(over := np.flatnonzero(terminated)):
            ends = states.ends(over)
            rewards[over] = ends.reward
            told = self._told(over, {name: getattr(ends, name) for name in NUMBERS}, terminated.copy())
        if len(again := self._turns.ended(over)):
            self._begin(again)
        return states.shown(), rewards, terminated, np.zeros(self.num_envs, bool), self._infos() | told

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Values of each environment: its mask, picture or tiers, or an attribute that all share."""
        if name == "action_masks":
            return tuple(self.action_masks())
        if name == "render":
            return self.render() or (None,) * self.num_envs
        if name == "tiers":
            self._turns.check_started()
            return tuple(self._states.tiers(i) for i in range(self.num_envs))
        return self._attributes.get(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A value of each environment, see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of the caller's own, one value or a list with one for each; `get_attr` tells it."""
        self._attributes.set(name, values)

    def action_masks(self) -> np.ndarray:
        """Masks of each next stretch, bool (n, 3). The name is sb3-contrib's."""
        self._turns.check_started()
        return self._states.masks().astype(bool)

    def render(self) -> tuple[Any, ...] | None:
        """Text or pictures of each environment, as `FlexEnv.render` shows them."""
        if self.render_mode is None:
            return None
        self._turns.check_started()
        return tuple(self.env.draw(self._states, i) for i in range(self.num_envs))

    def _begin(self, envs: np.ndarray, index: int | None = None) -> None:
        """New episodes, of one task if it is told."""
        drawn = self._turns.drawn(envs, len(self.env.bank)) if index is None else np.full(len(envs), index)
        self._states.begin(envs, drawn)

    def _infos(self) -> dict[str, Any]:
        """Infos of all environments, but for ends."""
        numbers = {name: np.full(self.num_envs, value) for name, value in NUMBERS.items()}
        told = {"action_mask": self._states.masks(), **numbers, "task": self._states.task.copy()}
        return told_where(told, np.ones(self.num_envs, bool))

    def _told(self, envs: np.ndarray, ends: dict[str, np.ndarray], over: np.ndarray) -> dict[str, Any]:
        """Infos of ends; where new episodes follow in the same step, beside what ended."""
        n, states = self.num_envs, self._states
        numbers = {name: spread_out(values, envs, n) for name, values in ends.items()}
        if self.autoreset_mode is not SAME_STEP:
            return numbers
        masks, task = (spread_out(values[envs], envs, n) for values in (states.masks(), states.task))
        told = told_where({"action_mask": masks, **numbers, "task": task}, over)
        return last_told(list(states.shown()[envs]), told, envs, over)


def make_flex_vector_env(
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = NEXT_STEP,
    max_episode_steps: int | None = None,
    **settings: Any,
) -> FlexVectorEnv:
    """The vector environment of a Flex id. Settings are `FlexEnv`'s arguments; episodes are never cut short."""
    never_cut(max_episode_steps, STRETCHES)
    return FlexVectorEnv(FlexEnv(**settings), num_envs, autoreset_mode)
