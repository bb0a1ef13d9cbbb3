"""Rewards of episodes. The formulas take numbers or arrays, so that every environment can share them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.envs.episodes import Prepared
from shard_gym.envs.states import State
from shard_gym.errors import SimulatorError
from shard_gym.memory.usage import overshoot
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import broken_constraints
from shard_gym.simulators import Latency
from shard_gym.task.task import Task

REWARDS = ("balance", "latency", "dense")


@dataclass(frozen=True)
class Outcome:
    """The end of an episode."""

    plan: Plan
    latency: Latency
    makespan: float  # ms
    balance: float
    excess: float  # 0 if the plan can be used; else how badly it breaks memory and constraints

    def info(self, prepared: Prepared, mask: np.ndarray) -> dict[str, Any]:
        """The final info of the environment; "spread" and "distance" are the slowest device's, where known."""
        told = {
            "action_mask": mask,
            "plan": self.plan,
            "latency": self.latency,
            "makespan": self.makespan,
            "balance": self.balance,
            "feasible": self.excess == 0,
            "task": prepared.task.hash,
        }
        for name in ("spread", "distance"):
            values = getattr(self.latency, name)
            if values is not None:
                told[name] = float(values[self.latency.cost(prepared.task.objective).argmax()])
        return told


def outcome(task: Task, plan: Plan, latency: Latency, free: np.ndarray) -> Outcome:
    """Judge a finished episode; `free` is what each device has left, in bytes, negative when over."""
    makespan, balance = float(latency.makespan(task.objective)), float(latency.balance)
    if not math.isfinite(makespan):
        raise SimulatorError(f"the simulator gives this plan a makespan of {makespan} ms")
    return Outcome(plan, latency, makespan, balance, _excess(task, plan, free))


def _excess(task: Task, plan: Plan, free: np.ndarray) -> float:
    """max_k (used_k - capacity_k) / capacity_k if positive, and one for each broken constraint."""
    over = max(0.0, float(overshoot(task, task.capacity - free))) if free.min() < 0 else 0.0
    return over + len(broken_constraints(task, plan))


def balance_reward(balance: Any, excess: Any) -> Any:
    """AutoShard's reward: balance, or minus the excess."""
    return np.where(np.asarray(excess) > 0, -np.asarray(excess), balance)


def latency_reward(makespan: Any, excess: Any, worst: Any, reference: Any) -> Any:
    """Minus the makespan over the reference; a plan that cannot be used scores below every one that can.

    Hence no usable plan may cost more than all tables on one device (`worst`). Without splits the roofline's never
    do, since its costs grow with every sum; where halves or a fitted simulator cost more, `worst` counts.
    """
    feasible = np.minimum(makespan, worst) / reference
    return -np.where(np.asarray(excess) > 0, worst / reference + excess, feasible)


def end_reward(name: str, prepared: Prepared, end: Outcome) -> float:
    """The whole return of an episode under any of the rewards: "dense" sums to "latency"."""
    if name == "balance":
        return float(balance_reward(end.balance, end.excess))
    return float(latency_reward(end.makespan, end.excess, prepared.worst, prepared.reference))


def return_so_far(state: State) -> float:
    """The "dense" rewards of an unfinished episode, summed: its partial plan, whether or not it fits."""
    p = state.episode.prepared
    makespan = state.latency().makespan(p.task.objective)
    return float(latency_reward(makespan, 0.0, p.worst, p.reference))
