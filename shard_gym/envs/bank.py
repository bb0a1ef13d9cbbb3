"""Banks of tasks: the tasks that episodes are drawn from."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Space

from shard_gym.envs.episodes import FIXED_ORDERS, Episode, Prepared
from shard_gym.envs.observations import OBSERVATIONS, SPLIT_OBSERVATIONS, Observation
from shard_gym.envs.rewards import REWARDS, Reward
from shard_gym.errors import FeaturesUnscaled, InvalidTask, UnknownName
from shard_gym.plan.nodes import Nodes
from shard_gym.simulators import Simulator
from shard_gym.tables.pool import FEATURES
from shard_gym.task import suites
from shard_gym.task.suite import SuiteTasks
from shard_gym.task.suites import SPLITS, Suite
from shard_gym.task.task import Task, beyond_columns, mixed

if TYPE_CHECKING:  # what only tasks of all kinds need is imported for them
    from shard_gym.plan.ways import Actions

RAW = (
    "the features of these tasks are shown unscaled, as no suite is named: use shard_gym.env_for(task, suite) to play "
    "them as a suite's, or Bank(tasks, scaling) with constants of your training tables"
)
_UNSCALED = (np.zeros(len(FEATURES)), np.ones(len(FEATURES)))


@dataclass(frozen=True, eq=False)
class Bank:
    """Tasks that episodes are drawn from, all with the same number of devices, and what they share.

    `scaling` is the mean and the standard deviation of each of the 21 features: constants, never computed
    from the tasks themselves; take a suite's, `suites.get("core-80x8").feature_scaling()`. The default leaves
    features raw.
    """

    tasks: Sequence[Task]
    scaling: tuple[np.ndarray, np.ndarray] = _UNSCALED
    suite: Suite | None = None
    split: str = "train"  # of the suite
    split_action: bool = False  # whether episodes may halve tables, where their task allows splits

    def __post_init__(self) -> None:
        if not self.tasks or not all(isinstance(task, Task) for task in self._told):
            raise InvalidTask(f"tasks are a suite's name or at least one shard_gym.Task, got {self.tasks!r:.80}")
        if len(devices := {task.num_devices for task in self._told}) > 1:
            raise InvalidTask(f"tasks of one environment have the same number of devices, got {sorted(devices)}")
        self._check_kinds()
        _check_scaling(self.scaling)

    @property
    def _told(self) -> Sequence[Task]:
        """The tasks to check: of a suite's the first, which the others are like; they are made when they are drawn."""
        return self.tasks[:1] if isinstance(self.tasks, SuiteTasks) else self.tasks

    @property
    def kinds(self) -> bool:
        """True if episodes may shard tables by more than columns, as all tasks of the bank then do."""
        return beyond_columns(self.tasks[0])

    @property
    def num_actions(self) -> int:
        """Actions of an episode."""
        return self.actions.count if self.kinds else self.tasks[0].num_devices + self.split_action

    @property
    def actions(self) -> Actions:
        """Actions of its tasks, where they may be of all kinds."""
        return _actions(self.tasks[0])

    def refuse_other_actions(self, task: Task) -> None:
        """Refuse a task whose actions differ from those of the bank's tasks."""
        first = self.tasks[0]
        if (beyond_columns(task), mixed(task)) != (self.kinds, mixed(first)):
            raise InvalidTask(
                "tasks of one environment have the same actions: all may be sharded by more than columns (kinds, "
                "residences), or none"
            )
        if self.kinds and _actions(task) != self.actions:
            raise InvalidTask(
                "tasks of one environment have the same actions, and so the same hosts: links.group is "
                f"{self.actions.per_host if self.actions.hosts else 'none'} in the first"
            )

    def _check_kinds(self) -> None:
        for task in self._told:
            self.refuse_other_actions(task)
        if self.kinds and self.split_action:
            raise InvalidTask("tasks of more kinds of sharding have an action that halves: leave out split_action")

    @classmethod
    def of(cls, tasks: str | Suite | Bank | Sequence[Task], split: str) -> Bank:
        """Make one of a suite or its name, of tasks, or of a bank."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        if isinstance(tasks, Bank):
            return tasks
        if not isinstance(tasks, str | Suite):
            told: Any = tasks
            bank = cls(tuple(told) if isinstance(told, Iterable) and not isinstance(told, Task) else (told,))
            warnings.warn(RAW, FeaturesUnscaled, stacklevel=3)
            return bank
        suite = suites.get(tasks) if isinstance(tasks, str) else tasks
        return cls(suite.bank_of(split), suite.feature_scaling(), suite, split, suite.split_action)

    def standardised(self, task: Task) -> np.ndarray:
        """Features of a task's tables by the scaling, (N, 21) float32."""
        mean, deviation = self.scaling
        return ((task.tables.features() - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)

    def random_makespan(self, index: int, simulator_id: str) -> float | None:
        """Mean makespan of random plans of a task, ms, where a suite holds it for that simulator; else None."""
        if self.suite is None:
            return None
        try:
            return float(self.suite.random_makespans(self.split, simulator_id)[index])
        except UnknownName:
            return None

    def most_nodes(self) -> int:
        """Nodes of the task that has the most of them; its tables where there are no split actions."""
        if isinstance(self.tasks, SuiteTasks) and not self.split_action:
            return self.tasks.most_tables
        return max(len(Nodes.of(task, self.split_action)) for task in self.tasks)

    def prepared(self, task: Task, simulator: Simulator, index: int | None = None) -> Prepared:
        """A task for episodes; `index` is its place in the bank, if it is there and rewards need its reference."""
        nodes = Nodes.of(task, self.split_action)
        reference = None if index is None else self.random_makespan(index, simulator.id)
        told = (nodes, simulator, self.standardised(nodes.pieces), self.split_action, reference)
        if not beyond_columns(task):
            return Prepared(*told)
        from shard_gym.envs.kinds import PreparedForms

        return PreparedForms(*told, self.standardised)


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings of an environment: tasks, observation, reward, order of tables, and simulator."""

    bank: Bank
    observation: str
    reward: str
    order: str
    simulator: Simulator

    @property
    def shown(self) -> Observation:
        """The observation that was asked for."""
        if self.bank.kinds:
            from shard_gym.envs.kind_observations import KIND_OBSERVATIONS

            return KIND_OBSERVATIONS[self.observation]
        return (SPLIT_OBSERVATIONS if self.bank.split_action else OBSERVATIONS)[self.observation]

    @property
    def paid(self) -> Reward:
        """The reward that was asked for."""
        return REWARDS[self.reward]

    @cached_property
    def most_nodes(self) -> int:
        """Nodes of the task of the bank that has the most of them."""
        return self.bank.most_nodes()

    def space(self) -> Space:
        """The space of what is shown."""
        return self.shown.space(self.bank.prepared(self.bank.tasks[0], self.simulator), self.most_nodes)

    def episode(self, task: Task, index: int | None) -> Episode:
        """A task in the order that its episodes share; `index` is its place in the bank, if it is there."""
        prepared = self.bank.prepared(task, self.simulator, index if self.paid.scored else None)
        return Episode(prepared, FIXED_ORDERS["given" if self.order == "random" else self.order](prepared))

    def find(self, task: Any) -> int | None:
        """The place of a caller's task in the bank, None if it is not there; refuses one that cannot be played."""
        devices = self.bank.tasks[0].num_devices
        if not isinstance(task, Task) or task.num_devices != devices:
            raise InvalidTask(f"options['task'] must be a shard_gym.Task with {devices} devices")
        self.bank.refuse_other_actions(task)
        nodes = len(Nodes.of(task, self.bank.split_action))
        if self.observation == "set" and nodes > self.most_nodes:
            kind = "tables and halves" if self.bank.split_action else "tables"
            raise InvalidTask(f'"set" shows {self.most_nodes} {kind} at most, not {nodes}')
        return next((i for i, t in enumerate(self.bank.tasks) if t == task), None)


def _actions(task: Task) -> Actions:
    from shard_gym.plan.ways import Actions

    return Actions.of(task)


def _check_scaling(scaling: Any) -> None:
    try:
        values = np.array(scaling, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"scaling is two arrays of {len(FEATURES)} numbers: {error}") from error
    if values.shape != (2, len(FEATURES)) or not np.isfinite(values).all() or (values[1] < 0).any():
        raise InvalidTask(
            f"scaling is the mean and the deviation of {len(FEATURES)} features, finite, deviations not negative; "
            f"got {values!r:.80}"
        )
