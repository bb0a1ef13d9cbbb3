"""Rewards of episodes. The formulas take numbers or arrays, so that every environment can share them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shard_gym.envs.episodes import Prepared
from shard_gym.envs.states import State
from shard_gym.errors import SimulatorError
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import broken_constraints
from shard_gym.simulators import Latency
from shard_gym.task.task import Task

INFOS = ("numbers", "full")
# What infos tell of ends, as it is before them.
NUMBERS: dict[str, Any] = {"makespan": 0.0, "balance": 0.0, "feasible": False, "spread": 0.0, "distance": 0.0}


class Outcome(NamedTuple):
    """The end of an episode."""

    plan: Plan
    latency: Latency
    makespan: float  # ms
    balance: float
    excess: float  # 0 if the plan can be used; else how badly it breaks memory and constraints

    def numbers(self, task: Task) -> dict[str, Any]:
        """NUMBERS of the end; "spread" and "distance" are the slowest device's, 0 where the simulator knows none."""
        told = NUMBERS | {"makespan": self.makespan, "balance": self.balance, "feasible": self.excess == 0}
        known = {"spread": self.latency.spread, "distance": self.latency.distance}
        if any(values is not None for values in known.values()):
            slowest = self.latency.cost(task.objective).argmax()
            told |= {name: float(values[slowest]) for name, values in known.items() if values is not None}
        return told

    def objects(self, task: Task) -> dict[str, Any]:
        """Plan, latency and the task's hash, which the environment tells too if asked for."""
        return {"plan": self.plan, "latency": self.latency, "task": task.hash}


def outcome(state: State) -> Outcome:
    """Judge a finished episode."""
    task, plan, latency = state.episode.prepared.task, state.plan(), state.latency()
    makespan, balance = float(latency.makespan(task.objective)), float(latency.balance)
    if not math.isfinite(makespan):
        raise SimulatorError(f"the simulator gives this plan a makespan of {makespan} ms")
    # and one for each broken constraint
    return Outcome(plan, latency, makespan, balance, state.excess + len(broken_constraints(task, plan)))


def balance_reward(makespan: Any, balance: Any, excess: Any, worst: Any, reference: Any) -> Any:
    """AutoShard's reward: balance, or minus the excess."""
    return np.where(excess > 0, -excess, balance)


def latency_reward(makespan: Any, balance: Any, excess: Any, worst: Any, reference: Any) -> Any:
    """Minus the makespan over the reference; a plan that cannot be used scores below every one that can.

    Hence no usable plan may cost more than all tables on one device (`worst`). Without splits the roofline's never
    do, since its costs grow with every sum; where halves or a fitted simulator cost more, `worst` counts.
    """
    feasible = np.minimum(makespan, worst) / reference
    return -np.where(excess > 0, worst / reference + excess, feasible)


class Reward(NamedTuple):
    """A reward: the whole return of an episode, from numbers or arrays, and how it is paid."""

    worth: Callable[[Any, Any, Any, Any, Any], Any]  # of makespan, balance, excess, and the task's worst and reference
    scored: bool = True  # False: it does without worst and reference, which are not worked out for it
    dense: bool = False  # paid step by step, as `latency_reward` of the partial plan changes; else at the end


REWARDS = {
    "balance": Reward(balance_reward, scored=False),
    "latency": Reward(latency_reward),
    "dense": Reward(latency_reward, dense=True),
}


def end_reward(reward: Reward, prepared: Prepared, end: Outcome) -> float:
    """The whole return of an episode."""
    scale = (prepared.worst, prepared.reference) if reward.scored else (0.0, 1.0)
    return float(reward.worth(end.makespan, end.balance, end.excess, *scale))


def return_so_far(state: State) -> float:
    """The "dense" rewards of an unfinished episode, summed: its partial plan, whether or not it fits."""
    p = state.episode.prepared
    makespan = state.latency().makespan(p.task.objective)
    return float(latency_reward(makespan, None, 0.0, p.worst, p.reference))
