"""Bars of a plan: what each device costs, phase by phase, and what it holds of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.pictures.phases import Phase, phases
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import expanded
from shard_gym.plan.violations import plan_bytes, violations_of
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import latency_of
from shard_gym.task.task import Task


@dataclass(frozen=True, eq=False)
class Bars:
    """All that a picture of a plan shows; a bar for each of K devices."""

    title: str
    about: str  # objective and judge
    phases: tuple[Phase, ...]
    cost: np.ndarray  # ms (K,), the sum of the phases
    used: np.ndarray  # bytes (K,)
    capacity: np.ndarray  # bytes (K,)
    host_share: float  # of host memory, that the fullest device's part has in use; 0 where nothing lies there
    bound: float | None  # ms that no plan of the task beats, if known
    violations: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of bars."""
        return len(self.cost)

    @property
    def makespan(self) -> float:
        """The longest bar, ms."""
        return float(self.cost.max())

    @property
    def headline(self) -> str:
        """The makespan in words, beside the bound where there is one."""
        slowest = f"makespan {self.makespan:.2f} ms (device {self.cost.argmax()})"
        over = f", {self.makespan / self.bound - 1:.1%} above the bound" if self.bound else ""
        host = f", host memory {self.host_share:.0%} used" if self.host_share else ""
        return slowest + over + host + (", cannot be used" if self.violations else "")

    def told(self, device: int) -> str:
        """All figures of one device in a line."""
        parts = [f"{phase.name} {phase.ms[device]:.3f} ms" for phase in self.phases]
        share = self.used[device] / self.capacity[device]
        return f"device {device}: {self.cost[device]:.3f} ms ({', '.join(parts)}); memory {share:.0%}"


def bars(task: Task, plan: Plan, judge: Simulator, *, title: str = "", bound: float | None = None) -> Bars:
    """The bars of a plan by a simulator; `bound` is what no plan of the task beats, ms."""
    placed, (used, in_host) = expanded(task, plan), plan_bytes(task, plan)
    latency = latency_of(judge, task, plan, placed)
    return Bars(
        title=title or task.name or task.hash,
        about=f"{task.objective} objective, by {judge.id}",
        phases=phases(latency, task.objective),
        cost=latency.cost(task.objective),
        used=used,
        capacity=np.array(task.memory),
        host_share=float(in_host.max() / task.host_memory) if task.host_memory else 0.0,
        bound=bound,
        violations=tuple(violations_of(task, plan, placed)),
    )


def longest(plans: Sequence[Bars]) -> float:
    """The scale that plans side by side share, ms: the longest bar, or the bound."""
    return max(max(plan.makespan, plan.bound or 0.0) for plan in plans) or 1.0
