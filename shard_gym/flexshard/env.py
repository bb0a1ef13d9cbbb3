"""Tiers one stretch of rows at a time, as a Gymnasium environment: `gym.make("ShardGym-Flex-4x8")`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shard_gym.envs.env import BadAction, NoEpisode
from shard_gym.envs.episodes import task_index
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard.bank import FlexBank, flex_bank
from shard_gym.flexshard.pictures import letters, picture
from shard_gym.flexshard.states import WIDTH, States
from shard_gym.flexshard.tiers import TIERS, RowTask

NUMBERS = {"comm_ms": 0.0, "memory_bytes": 0.0, "feasible": False}  # that infos tell of ends, as before them
_CHOICES = "choose 0 for DP, 1 for Flex, 2 for RW"
_ONE = np.zeros(1, np.int64)


class FlexEnv(gym.Env[np.ndarray, np.int64]):
    """Give each stretch of a task's rows, most frequent first, a tier: 0 DP, 1 Flex, 2 RW.

    **Observation**, `Box[11]`: of the next stretch the logarithm of its rows' mean probability (over 6), its share of
    lookups and of rows, what DP and Flex would add to RW's memory and to RW's communication (over all of RW's);
    the memory left if all other stretches were RW, the memory that would be left after the least they can take, the
    communication so far, the share of stretches done. At the end the first seven are 0.

    **Reward**, 0 before the end: minus the step's communication over that of RW; if a GPU is over its memory, minus the
    worst that any plan could take and the overshoot, below every plan that fits. `info["action_mask"]` and
    `action_masks()` leave the tiers after which all rows can still be held. Every `info` has `task`, the index in the
    bank, and `comm_ms`, `memory_bytes` and `feasible`, which are 0 before the end; `tiers` are those chosen so far.

    `gym.make_vec` steps many together (`FlexVectorEnv`).
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}  # noqa: RUF012  # gymnasium's own declaration

    def __init__(
        self, tasks: str | Sequence[RowTask] = "4x8", split: str = "train", render_mode: str | None = None
    ) -> None:
        self.bank = flex_bank(tasks, split) if isinstance(tasks, str) else FlexBank(tasks)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UnknownName("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(TIERS))
        self.observation_space = spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
        self._states = States(self.bank, 1)
        self._seed, self._episode, self._begun = -1, 0, False

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode, the first one of `seed`, or that of `options={"task": index}`."""
        super().reset(seed=seed)
        if not isinstance(options, Mapping | None):
            raise InvalidTask(f"reset options are a dict, {{'task': an index}}, got {options!r:.80}")
        for option in (options or {}).keys() - {"task"}:
            raise UnknownName("reset option", option, ["task"])
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed < 0:
            self._seed = int(self.np_random.integers(2**63))
        if options and "task" in options:
            index = self.bank.index(options["task"])
        else:
            index = task_index(self._seed, self._episode, len(self.tasks))
            self._episode += 1
        self._states.begin(_ONE, np.array([index]))
        self._begun = True
        return self._states.shown()[0], self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Put the next stretch in a tier."""
        if self._started().over()[0]:
            raise NoEpisode("every stretch has its tier and the episode is over: call reset() before the next step")
        self._states.put(np.array([_tier(action)]))
        shown, info = self._states.shown()[0], self._info()
        if not self._states.over()[0]:
            return shown, 0.0, False, False, info
        ends = self._states.ends(_ONE)
        return shown, float(ends.reward[0]), True, False, info | {key: getattr(ends, key)[0].item() for key in NUMBERS}

    @property
    def tasks(self) -> tuple[RowTask, ...]:
        """The tasks of the bank."""
        return self.bank.tasks

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers chosen so far in this episode."""
        return self._started().tiers(0)

    def action_masks(self) -> np.ndarray:
        """`info["action_mask"]` as bools. The name is sb3-contrib's."""
        return self._started().masks()[0].astype(bool)

    def render(self) -> str | np.ndarray | None:  # type: ignore[override]
        """The tiers so far: D, F and R, or a picture (height, width, 3) uint8."""
        return None if self.render_mode is None else self.draw(self._started(), 0)

    def draw(self, states: States, i: int) -> str | np.ndarray:
        """Text or picture of the i-th of some states, as `render` shows it."""
        if self.render_mode == "ansi":
            return letters(states.tiers(i))
        return picture(states.tiers(i), *states.shares(i))

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._states.masks()[0], **NUMBERS, "task": int(self._states.task[0])}

    def _started(self) -> States:
        if not self._begun:
            raise NoEpisode("there is no episode yet: call reset() first")
        return self._states


def _tier(action: Any) -> int:
    try:
        tier = operator.index(action)
    except TypeError as error:
        raise BadAction(f"an action is an int, not {action!r:.80}: {_CHOICES}") from error
    if not 0 <= tier < len(TIERS):
        raise BadAction(f"there is no action {tier}: {_CHOICES}")
    return tier
