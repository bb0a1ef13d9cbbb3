"""Seeds, ends and attributes of environments that are stepped together, and the input that they refuse."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from shard_gym.envs.env import BadAction, NoEpisode
from shard_gym.envs.episodes import hashed, task_index
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from shard_gym.records.numbers import whole

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
_NONE = np.zeros(0, np.int64)
_MASK = 2**64 - 1  # seeds are told apart by their last 64 bits


class BadBatch(ShardGymError, ValueError):
    """Seeds, a reset mask or a number that do not fit a number of environments."""


class Turns:
    """Seeds, episode numbers and ends of environments that are stepped together.

    `envs` are always indices of environments.
    """

    def __init__(self, num_envs: int, mode: str | AutoresetMode, num_actions: int) -> None:
        self.num_envs, self.mode, self.num_actions = _count(num_envs), _mode(mode), num_actions
        self.seeds, self.episodes = np.zeros((2, self.num_envs), np.uint64)
        self.over = _NONE  # environments whose episodes are over
        self._seeded = np.zeros(self.num_envs, bool)
        self._started = False

    def asked(self, seed: Any, options: Mapping[str, Any] | None) -> tuple[np.ndarray, list[int | None], Any]:
        """The environments that a reset begins, a seed for each of all, and the task to play; changes nothing."""
        if not isinstance(options, Mapping | None):
            raise InvalidTask(f"reset options are a dict with task and reset_mask, got {options!r:.80}")
        for option in (options := dict(options or {})).keys() - {"task", "reset_mask"}:
            raise UnknownName("reset option", option, ["reset_mask", "task"])
        envs = _masked(options.get("reset_mask"), self.num_envs)
        if not self._started and len(envs) < self.num_envs:
            raise NoEpisode("the first reset is of all environments: call reset() without reset_mask first")
        return envs, _checked_seeds(seed, self.num_envs), options.get("task")

    def seed(self, envs: np.ndarray, seeds: Sequence[int | None], env: VectorEnv) -> None:
        """Take seeds; environments that never had one draw theirs from `env`'s generator."""
        for i in envs.tolist() if any(seed is not None for seed in seeds) else ():
            if (seed := seeds[i]) is not None:
                self.seeds[i], self.episodes[i], self._seeded[i] = seed & _MASK, 0, True
        unseeded = envs[~self._seeded[envs]]
        if len(unseeded):
            self.seeds[unseeded] = env.np_random.integers(2**63, size=len(unseeded)).astype(np.uint64)
            self._seeded[unseeded] = True

    def begun(self, envs: np.ndarray) -> None:
        """Take in that episodes began with a reset."""
        self._started, self.over = True, np.setdiff1d(self.over, envs)

    def keys(self, envs: np.ndarray) -> np.ndarray:
        """Hashes of their next episodes, 64 bits each."""
        return hashed(self.seeds[envs], self.episodes[envs])

    def drawn(self, envs: np.ndarray, num_tasks: int) -> np.ndarray:
        """Indices of the tasks of their next episodes, whose numbers are taken."""
        numbers = self.episodes[envs]
        self.episodes[envs] = numbers + np.uint64(1)
        return task_index(self.seeds[envs], numbers, num_tasks).astype(np.int64)

    def ended(self, over: np.ndarray) -> np.ndarray:
        """Take in whose episodes ended with a step; the environments that begin one with the same step."""
        again, self.over = (over, _NONE) if self.mode is SAME_STEP else (self.over, over)
        return again

    def check_started(self) -> None:
        """Refuse what needs an episode before there is one."""
        if not self._started:
            raise NoEpisode("there is no episode yet: call reset() first")

    def checked(self, actions: Any) -> np.ndarray:
        """One action of each environment; what environments that only begin were told does not matter."""
        self.check_started()
        if self.mode is DISABLED and len(self.over):
            raise NoEpisode(
                f"the episodes of environments {self.over.tolist()!s:.80} are over: call "
                'reset(options={"reset_mask": ...}), True for each of them, before the next step'
            )
        given = np.asarray(actions)
        if given.shape != (self.num_envs,) or given.dtype.kind not in "iu":
            wanted = f"one of the ints 0..{self.num_actions - 1} for each of {self.num_envs} environments"
            raise BadAction(f"actions are {wanted}, got {given.dtype} of shape {given.shape}")
        chosen = given.astype(np.int64)
        if chosen.view(np.uint64).max() >= self.num_actions:  # so read, negative ones are large
            chosen[self.over] = 0
            bad = np.flatnonzero(chosen.view(np.uint64) >= self.num_actions)
            if len(bad):
                what = f"there is no action {given[bad[0]]} (environment {bad[0]})"
                raise BadAction(f"{what}: choose one of 0..{self.num_actions - 1}")
        return chosen


class Attributes:
    """Attributes of environments that are stepped together: those of the one they are like, and the caller's own."""

    def __init__(self, env: gym.Env, num_envs: int) -> None:
        self._env, self._count = env, num_envs
        self._own: dict[str, tuple[Any, ...]] = {}

    def get(self, name: str) -> tuple[Any, ...]:
        """A value of each environment."""
        if name in self._own:
            return self._own[name]
        if callable(value := getattr(self._env, name)):
            raise AttributeError(f"environments that are stepped together have no {name} of their own")
        return (value,) * self._count

    def set(self, name: str, values: Any) -> None:
        """Set an attribute of the caller's own, one value or a list with one for each."""
        if name in vars(self._env) or hasattr(type(self._env), name):
            raise AttributeError(f"environments that are stepped together share {name}: make others to change it")
        given = tuple(values) if isinstance(values, list | tuple) else (values,) * self._count
        if len(given) != self._count:
            raise BadBatch(f"values are a list with one for each of {self._count} environments, got {len(given)}")
        self._own[name] = given


def never_cut(max_episode_steps: int | None, longest: int) -> None:
    """Refuse a number of steps that would cut an episode short."""
    if max_episode_steps is not None and max_episode_steps < longest:
        raise BadBatch(f"episodes take up to {longest} steps and are never cut short, not after {max_episode_steps}")


def _count(num_envs: Any) -> int:
    try:
        count = whole(num_envs)
    except TypeError as error:
        raise BadBatch(f"num_envs is a whole number, got {num_envs!r:.80}") from error
    if count < 1:
        raise BadBatch(f"num_envs must be at least 1, got {count}")
    return count


def _mode(mode: Any) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise UnknownName("autoreset_mode", mode, [known.value for known in AutoresetMode]) from error


def _masked(mask: Any, num_envs: int) -> np.ndarray:
    """The environments that a reset mask names; all without one."""
    if mask is None:
        return np.arange(num_envs)
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (num_envs,) or not mask.any():
        raise BadBatch(f"reset_mask is a bool array of shape ({num_envs},), True at least once; got {mask!r:.80}")
    return np.flatnonzero(mask)


def _checked_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """One of each environment."""
    try:
        if seed is None or isinstance(seed, SupportsIndex):
            seeds = [None if seed is None else operator.index(seed) + i for i in range(num_envs)]
        else:
            seeds = [None if one is None else operator.index(one) for one in seed]
    except TypeError as error:
        raise BadBatch(f"seed is an int, None or one of them for each environment, got {seed!r:.80}") from error
    if len(seeds) != num_envs or any(one is not None and one < 0 for one in seeds):
        raise BadBatch(f"seeds are {num_envs} ints of 0 or more, or None; got {seed!r:.80}")
    return seeds
