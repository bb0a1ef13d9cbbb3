"""Tools of every solver: its own rng, and refusals of what it does not support."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shard_gym.errors import InvalidTask, SimulatorError
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.task import Constraints, Task

Solver = Callable[[Task, Simulator], Plan]
Progress = Callable[[float, float], bool | None]  # (best makespan, seconds so far) -> True to stop

# glibc gives freed memory back, and arrays are paged in again each time, until a block this large was freed once.
np.empty(2**24, np.uint8)


def task_rng(seed: int, task: Task) -> np.random.Generator:
    """Seeded by (seed, task), so that a task is solved the same way in any order."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidTask(f"a seed is a whole number from 0, got {seed!r}")
    return np.random.default_rng([int(seed), int(task.hash, 16)])


def refuse_constraints(task: Task) -> None:
    """Refuse constraints, for solvers that place by memory alone."""
    if task.constraints != Constraints():
        raise InvalidTask("this solver does not honour constraints (pin, together, apart, moves)")


def require_fast(planner: Simulator) -> FastSimulator:
    """The planner, if it can be asked on running sums."""
    if not isinstance(planner, FastSimulator):
        raise SimulatorError(
            f"this solver keeps running sums of embeddings and {planner.id} has none: "
            "plan with a roofline or a learned simulator, and let this one judge"
        )
    return planner


def require_number(cost: float, planner: Simulator) -> None:
    """Refuse NaN as a predicted cost: comparisons with it go wrong without a word."""
    if cost != cost:
        raise SimulatorError(f"{planner.id} predicts NaN for this task")
