"""Where episodes take their tasks from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym import suites
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.suites import SPLITS, Suite
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task

_UNSCALED = (np.zeros(len(FEATURES)), np.ones(len(FEATURES)))


@dataclass(frozen=True, eq=False)
class Bank:
    """Tasks that episodes are drawn from, all with the same number of devices, and what they share.

    `scaling` is the mean and the standard deviation of each of the 21 features: constants, never computed
    from the tasks themselves; take a suite's, `suites.get("core-80x8").feature_scaling()`. The default leaves
    features raw.
    """

    tasks: tuple[Task, ...]
    scaling: tuple[np.ndarray, np.ndarray] = _UNSCALED
    suite: Suite | None = None
    split: str = "train"  # of the suite

    def __post_init__(self) -> None:
        if not self.tasks or not all(isinstance(task, Task) for task in self.tasks):
            raise InvalidTask(f"an environment needs at least one shard_gym.Task, got {self.tasks!r:.80}")
        if len(devices := {task.num_devices for task in self.tasks}) > 1:
            raise InvalidTask(f"tasks of one environment have the same number of devices, got {sorted(devices)}")

    @classmethod
    def of(cls, tasks: str | Suite | Bank | Sequence[Task], split: str) -> Bank:
        """From a suite or its name, from tasks, or from a bank."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        if isinstance(tasks, Bank):
            return tasks
        if isinstance(tasks, Task):
            return cls((tasks,))
        if not isinstance(tasks, str | Suite):
            return cls(tuple(tasks))
        suite = suites.get(tasks) if isinstance(tasks, str) else tasks
        return cls(suite.tasks(split), suite.feature_scaling(), suite, split)

    def standardised(self, task: Task) -> np.ndarray:
        """Features of a task's tables by the scaling, (N, 21) float32."""
        mean, deviation = self.scaling
        return ((task.tables.features() - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)

    def random_makespan(self, index: int) -> float | None:
        """Mean makespan of random plans of a task, ms, as frozen with the suite; None outside suites."""
        return None if self.suite is None else float(self.suite.random_makespans(self.split)[index])
