"""Attempts of headroom's searches: one call of a solver on a task, and the line that is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import shard_gym_agents
from benchmarks.headroom_cards import EVERY_PLAN
from shard_gym import simulators
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import run, score
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import packed, today
from shard_gym_agents.search.exact import Milp
from shard_gym_agents.search.exhaustive import Exhaustive

UNLIMITED = 2**50  # bytes of each device where memory is disregarded
Line = dict[str, Any]  # an attempt's fields, and what came of it
Call = Callable[[Task, "Attempt", str], Line]

_simulator = cache(simulators.make)


@dataclass(frozen=True)
class Attempt:
    """One call of a solver: an agent with a budget and a seed, and the simulator it searches on."""

    agent: str
    planner: str
    budget: float = 0.0  # seconds, where the agent takes one
    calls: int = 0  # plans asked of the planner, instead of seconds
    seed: int = 0
    unlimited: bool = False  # memory disregarded

    @property
    def label(self) -> str:
        """Agent and budget: "beam 10s" or "beam 500 calls"; the agent alone where it takes none."""
        if self.calls:
            return f"{self.agent} {self.calls} calls"
        return f"{self.agent} {self.budget:g}s" if self.budget else self.agent

    def solver(self) -> Any:
        """The agent, made with what it takes of this."""
        if self.agent == EVERY_PLAN:
            return Exhaustive()
        offered = {"budget": self.budget, "calls": self.calls, "seed": self.seed}
        takes = shard_gym_agents.options(self.agent)
        return make(self.agent, **{k: v for k, v in offered.items() if v and k in takes})


class Certified:
    """A solver that tells a bound, too: keeps what it said, as a solver returns a plan and nothing else."""

    def __init__(self, milp: Milp) -> None:
        self.milp, self.bound = milp, 0.0

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        solved = self.milp.solve(task, planner)
        if not task.splits_allowed:  # the program does not know all plans with splits
            self.bound = solved.bound
        return solved.plan


def same_tasks(task: Task) -> str:
    """A key that tasks share when they differ in name only."""
    return replace(task, name="").hash


def line_of(task: Task, attempt: Attempt, judge: str) -> Line:
    """The line of an attempt that found nothing, in no time."""
    line = {"task": same_tasks(task), **asdict(attempt), "judge": judge, "seconds": 0.0, "cpu": 0.0}
    return line | {"date": today(), "error": None, "makespan": None}


def try_on(task: Task, attempt: Attempt, judge: str) -> Line:
    """Call the solver once; what came of it, by the judge, as a line."""
    used = replace(task, memory=(UNLIMITED,) * task.num_devices) if attempt.unlimited else task
    solver = attempt.solver()
    solver = Certified(solver) if isinstance(solver, Milp) and attempt.planner == judge else solver
    before = time.process_time()
    done = run(solver, _simulator(attempt.planner), used)
    spent = {"seconds": round(done.wall_seconds, 3), "cpu": round(time.process_time() - before, 3)}
    line = line_of(task, attempt, judge) | spent | {"error": done.error}
    if bound := getattr(solver, "bound", 0.0):
        line["bound"] = bound
    if done.plan is not None:
        found = score(used, done.plan, _simulator(judge))
        line |= {"makespan": found.makespan if found.feasible else None, **packed(done.plan)}
        if attempt.agent == EVERY_PLAN:
            line["bound"] = found.makespan
    return line
