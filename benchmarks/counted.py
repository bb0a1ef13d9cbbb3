"""Searches with a number of questions to the planner instead of a time: a busy machine does not change their plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents import make

CALLS = 2_000  # about 10 ms of CPU, of 80 tables on 8 devices


@dataclass(frozen=True)
class Auto:
    """`auto`, by its number of questions."""

    search: ClassVar[str] = "auto"
    deterministic: ClassVar[bool] = True
    calls: int = CALLS

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        """The best plan that so many questions find."""
        plan: Plan = make(self.search, calls=self.calls)(task, planner)
        return plan


class Beam(Auto):
    """`beam`, likewise."""

    search = "beam"


class LocalSearch(Auto):
    """`local-search`, likewise."""

    search = "local-search"
