"""Many environments at once, as arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.rewards import latency_reward
from shard_gym.envs.states import State
from shard_gym.envs.vector.ends import (
    Ends,
    RunningCosts,
    before_ends,
    end_rewards,
    judged,
    last_told,
    spread_out,
    told_where,
)
from shard_gym.envs.vector.kind_shelf import shelf_of
from shard_gym.envs.vector.kind_states import states_of
from shard_gym.envs.vector.states import Record
from shard_gym.envs.vector.turns import NEXT_STEP, SAME_STEP, Attributes, Turns, never_cut
from shard_gym.envs.vector.turns import BadBatch as BadBatch  # for who catches it
from shard_gym.envs.vector.views import each, make_view

# From here on sums of devices are kept, though no step needs them: with 80 that is 1.4 times as fast as adding them up
# at the end; with 8, at 65,536 environments, half as fast.
MANY_DEVICES = 16
# Bytes. glibc gives freed memory back to the system, and steps fault their arrays in again, until a block this large
# was freed once; then it keeps as much. Half as many steps a second again.
SPARE = 2**23
_OF_STATE: dict[str, Callable[[State], Any]] = {
    "task": lambda state: state.episode.prepared.task,
    "plan": lambda state: state.plan(),
    "latency": lambda state: state.latency(),
}


class ShardingVectorEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """`num_envs` copies of a `ShardingEnv`, stepped together in numpy.

    `gym.make_vec("ShardGym-MetaSyn-80x8", num_envs=1024)`, with any argument of `ShardingEnv`, or
    `ShardingVectorEnv(ShardingEnv(tasks=[my_task, ...]), num_envs=1024)`. Spaces, rewards, tasks and their order
    are those of `ShardingEnv`, to the bit: environment i does what `ShardingEnv` does with its seed and actions.

    **Seeds.** `reset(seed=s)` gives environment i the seed s + i. A list gives each its own seed. Where the list has
    None, and with `reset()`, an environment goes on to its next episode, or draws a seed if it never had one.
    `reset(options={"task": task})` plays one task everywhere. `reset(options={"reset_mask": mask})` begins
    episodes only where the bool array says so; observations and masks returned are those of all environments.

    **Ends.** `autoreset_mode` is gymnasium's `AutoresetMode`, or its value. `NEXT_STEP` (default): the step after the
    end begins the next episode, and its action is ignored. `SAME_STEP`: the next episode begins at once, and
    `info["final_obs"]` and `info["final_info"]` hold the last observation and info of the episode that ended.
    `DISABLED`: reset the episodes that are over, by `reset_mask`, before the next step.

    **Infos.** `info["action_mask"]` is one int8 array (n, K), or (n, K + 1) with split actions; `action_masks()`
    is the same as bool. There is an array for each key of `ShardingEnv`'s infos. Beside `info["makespan"]`, for
    example, `info["_makespan"]` is True where the value holds. With `info="full"` a plan is made for each episode that
    ends, which takes longer than its steps.

    **Arrays.** Returned arrays are copies, unless `copy=False`: then observations are views of arrays that the next
    `step` or `reset` overwrites, which saves time where they are large. The tables and devices that "set" shows do not
    change during an episode: these arrays are read-only, and the same from step to step.
    """

    def __init__(
        self, env: ShardingEnv, num_envs: int = 1, autoreset_mode: str | AutoresetMode = NEXT_STEP, copy: bool = True
    ) -> None:
        self.env, self.num_actions = env, int(env.action_space.n)  # type: ignore[attr-defined]
        self._turns = Turns(num_envs, autoreset_mode, self.num_actions)
        self.num_envs, self.autoreset_mode = self._turns.num_envs, self._turns.mode
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode, self.bank, self.simulator = env.render_mode, env.bank, env.simulator
        self.single_action_space, self.single_observation_space = env.action_space, env.observation_space
        self._dense, self._shelf = env.settings.paid.dense, shelf_of(env.settings)
        summed = self._dense or self._shelf.full
        track = summed or env.bank.split_action or env.num_devices >= MANY_DEVICES
        self._states = states = states_of(self._shelf, self.num_envs, track and self._shelf.width > 0)
        self._costs = RunningCosts(self._shelf, states) if summed else None
        self._view = make_view(self._shelf, states, self._costs, copy)
        self._paid = np.zeros(self.num_envs)  # dense rewards of these episodes so far
        self._attributes = Attributes(env, self.num_envs)
        np.empty(SPARE, np.uint8)  # freed at once

    @cached_property
    def action_space(self) -> gym.Space:  # type: ignore[override]
        """One action for each environment."""
        return batch_space(self.single_action_space, self.num_envs)

    @cached_property
    def observation_space(self) -> gym.Space:  # type: ignore[override]
        """Made when asked for: bounds of many environments take more memory than the environments."""
        return batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """Begin episodes: the next ones, the first ones of seeds, or of a given task; of all or by `reset_mask`."""
        envs, seeds, task = self._turns.asked(seed, options)
        slot = None
        if task is not None:
            slot = self._shelf.given(task, np.delete(self._states.slot, envs))
            self._states.widen()
        if isinstance(seed, SupportsIndex):
            super().reset(seed=operator.index(seed))
        self._turns.seed(envs, seeds, self)
        self._begin(envs, slot)
        self._turns.begun(envs)
        return self._shown()

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Carry out one action in each environment; the class says what happens at the end of an episode."""
        states = self._states
        states.place(self._turns.checked(actions))
        self._view.placed()
        terminated = states.over()
        rewards, over, infos = np.zeros(self.num_envs), np.flatnonzero(terminated), None
        if len(over):
            ends = judged(self._shelf, states, over)
            rewards[over] = end_rewards(self._shelf, states, ends) - self._paid[over]
            infos = self._told(ends, terminated.copy())
        again = self._turns.ended(over)
        if len(again):
            self._begin(again)
        shown, infos = self._shown(infos)
        if self._dense:
            self._pay(rewards, over, again)
        return shown, rewards, terminated, np.zeros(self.num_envs, bool), infos

    @property
    def longest_episode(self) -> int:
        """The most steps that an episode takes."""
        return self._shelf.most_steps

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Values of each environment: its mask, picture, task, plan or latency, or an attribute that all share."""
        if name == "action_masks":
            return tuple(self.action_masks())
        if name == "render":
            return self.render() or (None,) * self.num_envs
        if name in _OF_STATE:
            self._turns.check_started()
            record = Record.of(self._states, np.arange(self.num_envs))
            return tuple(_OF_STATE[name](record.state(i)) for i in range(self.num_envs))
        return self._attributes.get(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A value of each environment, see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of the caller's own, one value or a list with one for each; `get_attr` tells it."""
        self._attributes.set(name, values)

    def action_masks(self) -> np.ndarray:
        """Masks of each next piece, bool (n, K), or (n, K + 1) with split actions. The name is sb3-contrib's."""
        self._turns.check_started()
        return self._states.masks().astype(bool)

    def render(self) -> tuple[Any, ...] | None:
        """Pictures that `ShardingEnv.render` shows of each environment."""
        if self.render_mode is None:
            self.env.render()  # warns
            return None
        self._turns.check_started()
        record = Record.of(self._states, np.arange(self.num_envs))
        return tuple(self.env.draw(record.state(i)) for i in range(self.num_envs))

    def _shown(self, ended: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Observations and infos after a step or reset; `ended` is told of ends."""
        self._states.look()
        if self._costs is not None:
            self._costs.update()
        self._view.update()
        masks, everywhere = self._states.masks(), np.ones(self.num_envs, bool)
        infos = told_where({"action_mask": masks, **before_ends(self.num_envs)}, everywhere) | (ended or {})
        return self._view.show(masks), infos

    def _told(self, ends: Ends, over: np.ndarray) -> dict[str, Any]:
        """Infos of ends; where new episodes follow in the same step, beside what ended."""
        n, numbers = self.num_envs, ends.numbers(self.num_envs)
        told = told_where(ends.objects(n), over) if self.env.info == "full" else {}
        if self.autoreset_mode is not SAME_STEP:
            return numbers | told
        last, masks = self._view.final(ends.envs, ends.cost), self._states.final_masks(len(ends.envs))
        told |= told_where({"action_mask": spread_out(masks, ends.envs, n), **numbers}, over)
        return last_told(each(last), told, ends.envs, over)

    def _begin(self, envs: np.ndarray, slot: int | None = None) -> None:
        """New episodes, of the task in a slot if there is one."""
        keys = self._turns.keys(envs) if self.env.order == "random" else None
        if slot is None:
            slots = self._turns.drawn(envs, self._shelf.num_tasks)
            self._shelf.fill(slots)
        else:
            slots = np.full(len(envs), slot)
        self._states.begin(envs, slots, keys)
        if self._costs is not None:
            self._costs.begin(envs)
        self._view.begin(envs)
        self._paid[envs] = 0

    def _pay(self, rewards: np.ndarray, over: np.ndarray, again: np.ndarray) -> None:
        """The dense rewards of a step, kept so that those of an episode sum to its end's."""
        assert self._costs is not None
        of, slots = self._shelf.slots, self._states.slot
        so_far = latency_reward(self._costs.cost.max(axis=1), None, 0.0, of.worst[slots], of.reference[slots])
        ends = rewards[over]
        np.subtract(so_far, self._paid, out=rewards)
        rewards[again], so_far[again] = 0, 0
        rewards[over] = ends
        self._paid = so_far


def make_vector_env(
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = NEXT_STEP,
    copy: bool = True,
    max_episode_steps: int | None = None,
    **settings: Any,
) -> ShardingVectorEnv:
    """The vector environment of a suite; what the ids are registered with. Settings are `ShardingEnv`'s arguments.

    Episodes end by themselves: a `max_episode_steps` that would cut one short is refused.
    """
    env = ShardingVectorEnv(ShardingEnv(**settings), num_envs, autoreset_mode, copy)
    never_cut(max_episode_steps, env.longest_episode)
    return env
