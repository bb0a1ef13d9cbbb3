"""The environment: one table a step, onto one of K devices."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shard_gym import simulators
from shard_gym.envs import rewards
from shard_gym.envs.bank import Bank, Settings
from shard_gym.envs.begun import begun
from shard_gym.envs.episodes import ORDERS, Episode, hashed, shuffled, task_index
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.envs.rewards import INFOS, NUMBERS, REWARDS
from shard_gym.envs.states import State
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Latency, Simulator
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task

if TYPE_CHECKING:  # pictures are imported when one is drawn
    from shard_gym.pictures.canvas import Window

_TOLD = {"action_mask": None, **NUMBERS}  # copied by every step


class NoEpisode(ShardGymError, gym.error.ResetNeeded):
    """There is no episode under way: it has not begun, or it is over."""


class BadAction(ShardGymError, gym.error.InvalidAction):
    """An action is outside the environment's action space."""


class ShardingEnv(gym.Env[Any, Any]):
    """Place a task's embedding tables on K devices, one a step, so that the slowest device is fast.

    Make one with `gym.make("ShardGym-Core-60x4-Flat", split="train")`, or for your own tasks with
    `shard_gym.env_for(task, "core-60x4")`.

    An action is the device of the next table. On `-Split` ids action K halves its columns. Tasks of more kinds of
    sharding have more actions. `info["action_mask"]` and `action_masks()` say where the table may go. Other actions
    are carried out too, and the penalty comes at the end. The seed decides the task of an episode;
    `reset(options={"task": task})` plays a given task.

    `observation`: "table" (default; the papers' 22 numbers, which do not show the devices), "full", "ahead", "flat"
    (one row of numbers, for feed-forward policies) or "set" (all tables). `reward`: "latency" (at the end, minus the
    makespan over a random plan's), "dense" (the same in parts, at each step) or "balance". `order` of the
    tables: "cost", "size", "given" or "random". `simulator`: the one that predicts costs. `info`: "numbers", or "full"
    with plan and latency at the end, which are attributes too. `render_mode`: "ansi", "rgb_array" or "human".
    docs/environment.md has everything else.
    """

    metadata = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 8}  # noqa: RUF012  # gymnasium's own declaration

    def __init__(  # noqa: PLR0913  # what gymnasium.make takes
        self,
        tasks: str | Suite | Bank | Sequence[Task],
        split: str = "train",
        observation: str = "table",
        reward: str | None = None,
        order: str | None = None,
        simulator: str | Simulator | None = None,
        render_mode: str | None = None,
        info: str = "numbers",
    ) -> None:
        self.bank = bank = Bank.of(tasks, split)
        suite, task = bank.suite, bank.tasks[0]
        default_reward = "balance" if task.objective == "kernel" else "latency"
        default_order = suite.order if suite else "cost"
        default_simulator = suite.planner if suite else simulators.DEFAULT
        self.observation = _known("observation", observation, OBSERVATIONS)
        self.reward = _known("reward", default_reward if reward is None else reward, REWARDS)
        self.order = _known("order", default_order if order is None else order, ORDERS)
        self.info = _known("info", info, INFOS)
        self.render_mode = _known("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.simulator = _simulator(default_simulator if simulator is None else simulator)
        self.settings = settings = Settings(bank, self.observation, self.reward, self.order, self.simulator)
        self.most_nodes, shown = settings.most_nodes, settings.shown
        if shown.needs_sums and not isinstance(self.simulator, FastSimulator):
            raise InvalidTask(f'"{observation}" needs embeddings, {self.simulator.id} has none: use "table" or "set"')
        if bank.kinds and not isinstance(self.simulator, FastSimulator):
            raise InvalidTask(
                f"{self.simulator.id} costs whole tables only: tasks of more kinds or residences need a simulator that "
                "costs shards, roofline or torchrec for example"
            )
        self._observe, self._dense = shown.observe, settings.paid.dense
        self._track = self._dense or shown.needs_sums
        self._played: dict[int, Episode] = {}  # tasks of the bank that were drawn before
        self._seed, self._episode = -1, 0
        self._state: State | None = None
        self._window: Window | None = None
        self._paid = 0.0  # dense rewards of this episode so far
        self.num_devices = task.num_devices
        self._actions = bank.num_actions
        self.action_space = spaces.Discrete(self._actions)
        self.observation_space = settings.space()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, the first one of `seed`, or that of `options={"task": task}`."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed < 0:
            self._seed = int(self.np_random.integers(2**63))
        state = self._state = begun(self._next(options), self._track)
        self._paid = 0.0
        if self.render_mode == "human":
            self.render()
        return self._observe(state, self.most_nodes), {"action_mask": state.mask(), **NUMBERS}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Put the next table on device `action`; with split actions K halves it."""
        state = self._state
        if state is None or state.done:
            self._refuse_step()
        if action.__class__ is not int:
            action = self._index(action)
        if not 0 <= action < self._actions:
            raise BadAction(f"there is no action {action}: {self._choices()}")
        state.place(action)
        if self.render_mode == "human":
            self.render()
        shown = self._observe(state, self.most_nodes)
        told = _TOLD.copy()
        told["action_mask"] = state.mask()
        if not state.done:
            return shown, self._pay(state) if self._dense else 0.0, False, False, told
        p, end = state.episode.prepared, rewards.outcome(state)
        told |= end.numbers(p.task) if self.info == "numbers" else end.numbers(p.task) | end.objects(p.task)
        return shown, rewards.end_reward(self.settings.paid, p, end) - self._paid, True, False, told

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return self._started().episode.prepared.task

    @property
    def plan(self) -> Plan:
        """The plan so far, whole when the episode is over; -1 where nothing is placed yet."""
        return self._started().plan()

    @property
    def latency(self) -> Latency:
        """The latency of the plan so far."""
        return self._started().latency()

    def action_masks(self) -> np.ndarray:
        """`info["action_mask"]` as bools: where the next table may go. The name is sb3-contrib's."""
        return self._started().mask().astype(bool)

    def render(self) -> str | np.ndarray | None:  # type: ignore[override]
        """The devices and the next table: text, a picture (height, width, 3) uint8, or None and it is on the screen."""
        if self.render_mode is None:
            gym.logger.warn('render() shows nothing: make the environment with render_mode="ansi", or another one')
            return None
        return self.draw(self._started())

    def draw(self, state: State) -> str | np.ndarray | None:
        """A state as `render` shows it."""
        from shard_gym.envs.drawing import picture
        from shard_gym.envs.render import describe
        from shard_gym.pictures.canvas import Window

        if self.render_mode == "ansi":
            return describe(state)
        suite = self.bank.suite
        drawn = picture(state, suite.name if suite else "ShardGym")
        if self.render_mode == "rgb_array":
            return drawn.pixels()
        self._window = self._window or Window("ShardGym")
        self._window.show(drawn, self.metadata["render_fps"])
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _next(self, options: Mapping[str, Any] | None) -> Episode:
        """The episode to play now, its task prepared once if it is in the bank."""
        number, given = self._episode, None if options is None else _given(options)
        index = self._drawn() if given is None else self.settings.find(given)
        if index is None:
            episode = self.settings.episode(given, None)  # type: ignore[arg-type]  # `find` refuses what is no task
        elif index in self._played:
            episode = self._played[index]
        else:
            episode = self._played[index] = self.settings.episode(self.bank.tasks[index], index)
        if self.order == "random":
            p = episode.prepared
            return Episode(p, p.nodes.by_table(shuffled(p.task.num_tables, hashed(self._seed, number))))
        return episode

    def _drawn(self) -> int:
        """The place in the bank of the next episode's task."""
        self._episode += 1
        return task_index(self._seed, self._episode - 1, len(self.bank.tasks))

    def _pay(self, state: State) -> float:
        """The dense reward of a step, kept so that all of them sum to the end's."""
        before, self._paid = self._paid, rewards.return_so_far(state)
        return self._paid - before

    def _started(self) -> State:
        if self._state is None:
            raise NoEpisode("there is no episode yet: call reset() first")
        return self._state

    def _index(self, action: Any) -> int:
        try:
            return operator.index(action)
        except TypeError as error:
            raise BadAction(f"an action is an int, not {action!r:.80}: {self._choices()}") from error

    def _choices(self) -> str:
        if self.bank.kinds:
            return f"choose {self.bank.actions.words()}"
        split = f", or {self.num_devices} to split the table" if self.bank.split_action else ""
        return f"choose a device, 0..{self.num_devices - 1}{split}"

    def _refuse_step(self) -> NoReturn:
        self._started()
        raise NoEpisode("every table is placed and the episode is over: call reset() before the next step")


def _given(options: Mapping[str, Any]) -> Any:
    """The task that reset options ask for, or None."""
    if not isinstance(options, Mapping):
        raise InvalidTask(f"reset options are a dict, {{'task': a shard_gym.Task}}, got {options!r:.80}")
    for option in options.keys() - {"task"}:
        raise UnknownName("reset option", option, ["task"])
    return options.get("task")


def _known(kind: str, name: Any, valid: Any) -> Any:
    if name not in tuple(valid):
        raise UnknownName(kind, name, valid)
    return name


def _simulator(wanted: Any) -> Simulator:
    made = simulators.make(wanted) if isinstance(wanted, str) else wanted
    if isinstance(made, type) or not isinstance(made, Simulator):
        raise UnknownName("simulator", wanted, simulators.registered())
    return made
