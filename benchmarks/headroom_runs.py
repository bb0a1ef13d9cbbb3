"""Runs of a headroom campaign: what is tried on a task, and the file that keeps what came of it, line by line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import shard_gym_agents
from benchmarks.references import Entry, packed, today, unpacked
from shard_gym import simulators
from shard_gym.errors import CorruptFile
from shard_gym.evaluate import run, score
from shard_gym.files import write_whole
from shard_gym.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tasks import Task
from shard_gym_agents.exact import Milp

UNLIMITED = 2**50  # bytes of each device where memory is disregarded
# Without splits two methods may walk the same way from the same seed: each has seeds of its own, from here on.
FIRST_SEED = {"local-search": 0, "beam": 1_000, "milp": 2_000}
FAIR = 0.9  # share of its time that a run computes, unless others take the processor away
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
    """Whether a run had the processor for nearly all of its time, so that its budget was what it says."""
    return not line["budget"] or line.get("cpu", 0.0) >= FAIR * line["seconds"]


def entry_of(line: Line) -> Entry:
    """A line with a plan as the registry keeps it."""
    options = {name: line[name] for name in ("budget", "calls") if line[name]}
    who = {"solver": line["agent"], "options": options, "seed": line["seed"], "planner": line["planner"]}
    return {"makespan": line["makespan"], "plan": unpacked(line).to_dict(), **who, "date": line["date"]}


class Ledger:
    """The lines of all attempts so far on the tasks of a suite, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, dict[tuple[str, Attempt], Line]] = {}
        for line in _recovered(path):
            self._keep(line)

    def of(self, task: Task, judge: str) -> list[tuple[Attempt, Line]]:
        """What was tried on a task, or on one that differs in name only."""
        kept = self.lines.get(same_tasks(task), {})
        return [(attempt, line) for (by, attempt), line in kept.items() if by == judge]

    def find(self, task: Task, attempt: Attempt, judge: str) -> Line | None:
        """What came of an attempt, if it was made."""
        return self.lines.get(same_tasks(task), {}).get((judge, attempt))

    def add(self, line: Line) -> None:
        """Keep a line; a crash can only cost this one."""
        self._keep(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _keep(self, line: Line) -> None:
        attempt = Attempt(**{name: line[name] for name in Attempt.__dataclass_fields__})
        kept = self.lines.setdefault(line["task"], {})
        before = kept.get((line["judge"], attempt))
        if before is None or undisturbed(line) or not undisturbed(before):
            kept[line["judge"], attempt] = line


def _recovered(path: Path) -> Iterator[Line]:
    """The lines of a file; a last one that broke off is cut from it."""
    lines: Iterable[bytes] = path.read_bytes().splitlines(keepends=True) if path.exists() else ()
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(list(lines)):
        write_whole(path, b"".join(whole))
    for number, line in enumerate(whole, start=1):
        try:
            data = json.loads(line)
            data["task"], data["judge"], Attempt(**{name: data[name] for name in Attempt.__dataclass_fields__})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{path}, line {number} is no run of a headroom campaign: {error!r}") from error
        yield data
