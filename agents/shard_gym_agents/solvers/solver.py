"""Tools of every solver: its own rng, and refusals of what it does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidPlan, InvalidTask, SimulatorError
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.records.guard import expect
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.task import Constraints, Task

Solver = Callable[[Task, Simulator], Plan]
"""Solver: called with a task and the simulator that it may ask, it returns a plan."""
Progress = Callable[[float, float], bool | None]  # (best makespan, seconds so far) -> True to stop

OF_ALL_KINDS = "auto, beam, cost-greedy, local-search and milp choose among all kinds that a task allows"

# glibc gives freed memory back, and arrays are paged in again each time, until a block this large was freed once.
np.empty(2**24, np.uint8)


def task_rng(seed: int, task: Task) -> np.random.Generator:
    """Seeded by (seed, task), so that a task is solved the same way in any order."""
    expect(task, Task, InvalidTask)
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidTask(f"a seed is a whole number from 0, got {seed!r}")
    return np.random.default_rng([int(seed), int(task.hash, 16)])


def refuse_constraints(task: Task) -> None:
    """Refuse constraints, for solvers that place by memory alone."""
    if task.constraints != Constraints():
        raise InvalidTask("this solver does not honour constraints (pin, together, apart, moves)")


def no_luck(what: str) -> InfeasibleTask:
    """The error of a solver that found no plan of a task of more kinds of sharding, and knows no proof."""
    return InfeasibleTask(f"{what}, which does not prove that there is no plan; {OF_ALL_KINDS}")


def of_columns(task: Task, solver: str) -> Task:
    """The task as one of whole tables and their columns, for a solver that knows no other kinds of sharding."""
    if not beyond_columns(task):
        return task
    c = task.constraints
    kinds = [task.kinds_of(table) for table in range(task.num_tables)]
    if "hbm" not in task.residences:
        raise InvalidTask(f"{solver} keeps rows in the devices' memory, which this task does not allow; {OF_ALL_KINDS}")
    if other := [table for table, allowed in enumerate(kinds) if "tw" not in allowed]:
        what = f"table {other[0]} ({task.tables.name[other[0]]!r}) may only be {', '.join(kinds[other[0]])}"
        raise InvalidTask(f"{solver} shards whole tables by their columns, and {what}; {OF_ALL_KINDS}")
    if away := [table for table, _ in c.residences if "hbm" not in task.residences_of(table)]:
        what = f"table {away[0]} ({task.tables.name[away[0]]!r}) in its device's memory, which it may not be"
        raise InvalidTask(f"{solver} keeps {what}; {OF_ALL_KINDS}")
    whole = {table for table, allowed in enumerate(kinds) if "cw" not in allowed} if task.splits_allowed else set()
    whole |= {table for table, _ in c.least_columns}
    held = replace(c.beside_forms, no_split=tuple(sorted({*c.no_split, *whole})))
    return replace(task, kinds=(), residences=("hbm",), constraints=held)


@contextmanager
def others_named(task: Task) -> Iterator[None]:
    """Name solvers that know more kinds of sharding where one that does not finds no plan that the task allows."""
    try:
        yield
    except (InfeasibleTask, InvalidPlan) as error:
        if beyond_columns(task) and OF_ALL_KINDS not in str(error):
            raise InfeasibleTask(f"{error}; {OF_ALL_KINDS}") from error
        raise


def require_fast(planner: Simulator) -> FastSimulator:
    """The planner, if it can be asked on running sums."""
    if not isinstance(planner, FastSimulator):
        raise SimulatorError(
            f"this solver keeps running sums of embeddings and {getattr(planner, 'id', planner)!s:.60} has none: "
            "plan with a roofline or a learned simulator, and let this one judge"
        )
    return planner


def require_number(cost: float, planner: Simulator) -> None:
    """Refuse NaN as a predicted cost: comparisons with it go wrong without a word."""
    if cost != cost:
        raise SimulatorError(f"{planner.id} predicts NaN for this task")
