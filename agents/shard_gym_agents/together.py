"""Sequence tables in tiers beside pooled tables on devices: one memory, shared out so that a step is shortest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.flexshard.tiers import RowTask, TieredPlan, worth
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import plan_latency
from shard_gym.task.task import Task
from shard_gym_agents.solvers.flexshard import Frontier

BUDGETS = 9  # amounts of memory for the tiers that are tried


@dataclass(frozen=True)
class Together:
    """A plan of the pooled tables and one of the sequence tables that fit on the same devices."""

    plan: Plan
    tiers: TieredPlan
    makespan_ms: float  # of the pooled tables, by the planner
    comm_ms: float  # of the sequence tables
    tiers_bytes: float  # a device's, for the sequence tables

    @property
    def step_ms(self) -> float:
        """Both, one after the other."""
        return self.makespan_ms + self.comm_ms


def plan_together(task: Task, rows: RowTask, planner: Simulator, seed: int = 0, budget: float = 1.0) -> Together:
    """The best of several ways to share the devices' memory, `task.memory`, out; `budget` seconds in all.

    More memory for the tiers means less communication for them and less room for the pooled tables. `extra_bytes` of
    the row task does not count here: what the pooled tables leave does.
    """
    from shard_gym_agents import make

    if rows.network.gpus != task.num_devices:
        raise InvalidTask(f"the network has {rows.network.gpus} GPUs, the task {task.num_devices} devices")
    solver, found = make("auto", seed=seed, budget=budget / BUDGETS), list[Together]()
    frontier, why = Frontier(rows), ""
    least, most = frontier.least_bytes(), worth(rows, frontier.best(budget_bytes=np.inf)).memory_bytes
    for given in np.linspace(least, max(least, min(most, min(task.memory))), BUDGETS):
        try:
            tiers = frontier.best(budget_bytes=given)
            took = worth(rows, tiers)
            left = tuple(int(m - took.memory_bytes) for m in task.memory)
            if min(left) <= 0:
                raise InfeasibleTask(f"sequence tables take {took.memory_bytes:,.0f} bytes of {min(task.memory):,}")
            smaller = replace(task, memory=left)
            plan = solver(smaller, planner)
        except InfeasibleTask as error:
            why = why or str(error)
            continue
        makespan = float(plan_latency(planner, smaller, plan).makespan(task.objective))
        found.append(Together(plan, tiers, makespan, took.comm_ms, took.memory_bytes))
    if not found:
        raise InfeasibleTask(f"no way found to keep both in memory: {why}")
    return min(found, key=lambda one: one.step_ms)
