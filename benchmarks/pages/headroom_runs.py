"""Runs of a headroom campaign: what is tried on a task, and the file that keeps what came of it, line by line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import shard_gym_agents
from benchmarks.pages import Row
from shard_gym import simulators
from shard_gym.plan.plan import Plan
from shard_gym.records import ledger
from shard_gym.results.evaluate import run, score
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.references import Entry, packed, today, unpacked
from shard_gym_agents.search.exact import Milp

UNLIMITED = 2**50  # bytes of each device where memory is disregarded
# Without splits two methods may walk the same way from the same seed: each has seeds of its own, from here on.
FIRST_SEED = {"local-search": 0, "beam": 1_000, "milp": 2_000}
FAIR = 0.9  # share of its time that a run computes, unless others take the processor away
GAUGE = {"local-search": 0.1, "cost-greedy": 0.0}  # seconds
GAUGE_CALLS = 10_000  # instead, where a campaign counts calls: about as many as are asked in that time
PROGRAM = "mixed-integer program"
Card = dict[str, Any]  # see headroom_cards
Line = dict[str, Any]  # an attempt's fields, and what came of it

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
        offered = {"budget": self.budget, "calls": self.calls, "seed": self.seed}
        takes = shard_gym_agents.options(self.agent)
        return shard_gym_agents.make(self.agent, **{k: v for k, v in offered.items() if v and k in takes})


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


def try_on(task: Task, attempt: Attempt, judge: str) -> Line:
    """Call the solver once; what came of it, by the judge, as a line."""
    used = replace(task, memory=(UNLIMITED,) * task.num_devices) if attempt.unlimited else task
    solver = attempt.solver()
    solver = Certified(solver) if isinstance(solver, Milp) and attempt.planner == judge else solver
    before = time.process_time()
    done = run(solver, _simulator(attempt.planner), used)
    spent = {"seconds": round(done.wall_seconds, 3), "cpu": round(time.process_time() - before, 3)}
    line = {"task": same_tasks(task), **asdict(attempt), "judge": judge, **spent}
    line |= {"date": today(), "error": done.error, "makespan": None}
    if bound := getattr(solver, "bound", 0.0):
        line["bound"] = bound
    if done.plan is not None:
        found = score(used, done.plan, _simulator(judge))
        line |= {"makespan": found.makespan if found.feasible else None, **packed(done.plan)}
    return line


def undisturbed(line: Line) -> bool:
    """True if a run had the processor for nearly all of its time, so that its budget was what it says."""
    return not line["budget"] or line.get("cpu", 0.0) >= FAIR * line["seconds"]


def entry_of(line: Line) -> Entry:
    """A line with a plan as the registry keeps it."""
    options = {name: line[name] for name in ("budget", "calls") if line[name]}
    who = {"solver": line["agent"], "options": options, "seed": line["seed"], "planner": line["planner"]}
    return {"makespan": line["makespan"], "plan": unpacked(line).to_dict(), **who, "date": line["date"]}


class Tries:
    """The lines of all attempts so far on the tasks of a suite, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, dict[tuple[str, Attempt], Line]] = {}
        for line in ledger.read(path, _line, "run of a headroom campaign"):
            self._keep(line)

    def of(self, task: Task, judge: str) -> list[tuple[Attempt, Line]]:
        """The attempts on a task, or on one that differs in name only."""
        kept = self.lines.get(same_tasks(task), {})
        return [(attempt, line) for (by, attempt), line in kept.items() if by == judge]

    def find(self, task: Task, attempt: Attempt, judge: str) -> Line | None:
        """The line of an attempt, if it was made."""
        return self.lines.get(same_tasks(task), {}).get((judge, attempt))

    def add(self, line: Line) -> None:
        """Keep a line; a crash can only cost this one."""
        self._keep(line)
        ledger.append(self.path, line)

    def _keep(self, line: Line) -> None:
        attempt = _attempt(line)
        kept = self.lines.setdefault(line["task"], {})
        before = kept.get((line["judge"], attempt))
        if before is None or undisturbed(line) or not undisturbed(before):
            kept[line["judge"], attempt] = line


def _line(text: bytes) -> Line:
    """A line with all that tells the attempt."""
    line = json.loads(text)
    _ = line["task"], line["judge"], _attempt(line)
    return line


def _attempt(line: Line) -> Attempt:
    return Attempt(**{name: line[name] for name in Attempt.__dataclass_fields__})


@dataclass(frozen=True)
class Tried:
    """Outcome of all attempts on a task: makespans (None: no plan), the bound of a program, and the seeds used."""

    gauges: dict[str, float | None]
    program: float
    effort: dict[str, list[int]]
    seconds: float  # of computation
    disturbed: bool = False  # other work took the processor from local search's gauge

    @classmethod
    def of(cls, lines: Iterable[tuple[Attempt, Line]], judge: str, before: Card) -> Tried:
        """Collect the lines of a campaign, and what an earlier card tells of others."""
        gauges: dict[str, float | None] = {k: before[k] for k in ("greedy", "local", "planned") if k in before}
        worth = [before["unlimited"]] if before.get("unlimited") else []
        effort = {label: set(seeds) for label, seeds in before.get("effort", {}).items()}
        program = before["bound"] if before.get("bound_by") == PROGRAM else 0.0
        seconds, disturbed = 0.0, bool(before.get("disturbed"))
        for attempt, line in lines:
            if attempt.unlimited:
                worth.append(line["makespan"])
            elif (name := gauge_name(attempt, judge)) is not None:
                gauges[name] = line["makespan"]
                disturbed = not undisturbed(line) if name == "local" else disturbed
            if attempt.planner == judge and not attempt.unlimited and attempt.agent != "cost-greedy":
                effort.setdefault(attempt.label, set()).add(attempt.seed)
            program, seconds = max(program, line.get("bound", 0.0)), seconds + line.get("cpu", 0.0)
        gauges["unlimited"] = min((w for w in worth if w is not None), default=None)
        ordered = {label: sorted(effort[label]) for label in sorted(effort)}
        return cls(gauges, program, ordered, max(seconds, before.get("seconds", 0.0)), disturbed)


def gauge_attempts(planner: str, judge: str, by_calls: bool) -> list[Attempt]:
    """The attempts that gauge every task."""
    budget, calls = (0.0, GAUGE_CALLS) if by_calls else (GAUGE["local-search"], 0)
    found = [Attempt("cost-greedy", judge), Attempt("local-search", judge, budget, calls)]
    return found if planner == judge else [*found, Attempt("local-search", planner, budget, calls)]


def gauge_name(attempt: Attempt, judge: str) -> str | None:
    """The name of an attempt on a card; None for an attempt that is no gauge."""
    if attempt.agent == "cost-greedy":
        return "greedy"
    if attempt.agent != "local-search" or attempt.seed:
        return None
    if (attempt.budget, attempt.calls) not in ((GAUGE["local-search"], 0), (0.0, GAUGE_CALLS)):
        return None
    return "local" if attempt.planner == judge else "planned"


def inherited(task: Task, judge: FastSimulator, entry: Entry) -> Entry | None:
    """A plan of the same tables under another suite's rules, as an entry of this task; None if it does not serve."""
    plan = Plan.from_dict(entry["plan"])
    if plan.splits and not task.splits_allowed:
        return None
    found = score(task, plan, judge)
    return {**entry, "makespan": found.makespan} if found.feasible else None


def check_rows(suite: Suite, tasks: Sequence[Task], tries: Tries, short: float, long: float) -> Iterator[Row]:
    """Rows of a check: runs of two budgets on each task that has both."""
    for index, task in enumerate(tasks):
        found: dict[float, list[tuple[float, str, float]]] = {short: [], long: []}
        for attempt, line in tries.of(task, suite.judge):
            searched = attempt.planner == suite.judge and not attempt.unlimited and line["makespan"] is not None
            if searched and attempt.budget in found:
                found[attempt.budget].append((line["makespan"], attempt.agent, line.get("cpu", 0.0)))
        if all(found.values()):
            runs = {f"{budget:g}s": _summary(found[budget]) for budget in (short, long)}
            yield {"suite": suite.key, "index": index, "runs": runs}


def _summary(found: list[tuple[float, str, float]]) -> dict[str, Any]:
    """Summary of runs, each a makespan, an agent and seconds computed."""
    best, by, _ = min(found)
    mean, seconds = (float(np.mean([run[i] for run in found])) for i in (0, 2))
    return {"runs": len(found), "best": best, "mean": mean, "by": by, "seconds": round(seconds, 2)}
