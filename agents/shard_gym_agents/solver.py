"""What every solver needs: its own rng, and a refusal of what it does not support."""

from __future__ import annotations

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.tasks import Constraints, Task


def task_rng(seed: int, task: Task) -> np.random.Generator:
    """Seeded by (seed, task), so that a task is solved the same way in any order."""
    return np.random.default_rng([seed, int(task.hash, 16)])


def refuse_constraints(task: Task) -> None:
    """These solvers place by memory alone; a plan that breaks a constraint would be useless."""
    if task.constraints != Constraints():
        raise InvalidTask("this solver does not honour constraints (pin, together, apart, moves)")
