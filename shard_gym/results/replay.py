"""Results checked again: whatever a file claims is computed anew, and what cannot be is listed.

    replay = Replay("results.jsonl")
    for result, score in replay:         # one by one: a file may have a million lines
        ...
    replay.notes()                       # what these lines are of, and what was not checked

Refused, with the line's number: a makespan that its plan does not have, a score without a plan, a benchmark version
by which plans were judged otherwise, a task that is in no split of its suite, lines of two splits in one suite, a task
twice, a task that one run has and another has not, a configuration, track or seed that changes, and a track that the
agent does not have. Only its budget may differ: an agent with several has the same seeds with each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InvalidPlan, UnknownName
from shard_gym.results import BENCHMARK_VERSION, SAME_SCORES, Result, results_in
from shard_gym.results.evaluate import Score, score
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task import suites
from shard_gym.task.task import Task

BUDGET = "budget"  # in a configuration: seconds a task
UNCHECKED = "seconds, calls, versions, commit, and that the agent named found these plans in the time its options tell"
Judged = tuple[Result, Score | None]


class _RunOf(NamedTuple):
    """Facts that the lines of a run have in common."""

    suite: str
    agent: str
    seed: int | None
    planner: str
    judge: str
    budget: str


@dataclass
class _Tasks:
    """The tasks of a suite that a file has, by what its lines say."""

    split: str = ""
    of: int = 0  # tasks in the split
    hashes: list[str] = field(default_factory=list)  # by index; "" where no line told yet


class Replay:
    """The lines of a file and their scores; `tasks` are those of no suite, `track_of` an agent's own track if known."""

    def __init__(
        self, path: str | Path, tasks: Sequence[Task] = (), track_of: Callable[[str], str | None] = lambda agent: None
    ) -> None:
        self.path, self.track_of = path, track_of
        self.tasks: dict[tuple[str, str], tuple[Task, str]] = {("", task.hash): (task, "") for task in tasks}
        self.given = len(self.tasks)
        self.judges: dict[str, Simulator] = {}
        self.suites: dict[str, _Tasks] = {}
        self.agents: dict[tuple[str, str], tuple[Any, int]] = {}  # what each says of itself, and in which line
        self.runs: dict[_RunOf, set[int]] = {}  # indices of tasks
        self.lines = self.plans = self.feasible = 0

    def __iter__(self) -> Iterator[Judged]:
        for number, result in enumerate(results_in(self.path), start=1):
            try:
                found = self._line(result, number)
            except (CorruptFile, InvalidPlan, UnknownName) as error:
                raise CorruptFile(f"{self.path}, line {number}: {error}") from error
            self.lines, self.plans = number, self.plans + (found is not None)
            self.feasible += found is not None and found.feasible
            yield result, found
        self._end()

    def notes(self) -> list[str]:
        """Lines on what was replayed, suite by suite, and on what was not checked."""
        told = []
        for key, tasks in self.suites.items():
            runs = [run for run in self.runs if run.suite == key]
            where = f"of the {tasks.of} {tasks.split} tasks of {key}" if key else f"of {tasks.of} tasks of no suite"
            agents = len({run.agent for run in runs})
            told.append(f"{len(tasks.hashes)} {where}: {agents} agents, {len(runs)} runs")
            if key:
                own = suites.get(key).planner, suites.get(key).judge
                others = sorted({(run.planner, run.judge) for run in runs} - {own})
                told += [f"planner {planner}, judge {judge}: not those of {key}" for planner, judge in others]
        measured = sorted(name for name, judge in self.judges.items() if not isinstance(judge, FastSimulator))
        told += [f"makespans by {name} were measured and are not compared" for name in measured]
        return [*told, f"not checked: {UNCHECKED}"]

    def _line(self, result: Result, number: int) -> Score | None:
        if result.benchmark_version not in SAME_SCORES:
            raise CorruptFile(f"of benchmark version {result.benchmark_version}, this is {BENCHMARK_VERSION}")
        task = self._task(result)
        self._together(result, number)
        if result.judge not in self.judges:
            self.judges[result.judge] = simulators.make(result.judge)
        judge = self.judges[result.judge]
        if result.plan is None:
            return None
        again = score(task, result.plan, judge)
        if isinstance(judge, FastSimulator) and again.makespan != result.makespan:
            raise CorruptFile(f"says {result.makespan} ms, but its plan takes {again.makespan} ms")
        return again

    def _task(self, result: Result) -> Task:
        """The task of that hash; a suite's splits are read one by one, test first."""
        key = (result.suite, result.task)
        splits = iter(suites.SPLITS[::-1] if result.suite else ())
        while key not in self.tasks and (split := next(splits, None)):
            read = suites.get(result.suite).tasks(split)
            self.tasks |= {(result.suite, task.hash): (task, split) for task in read}
        found = self.tasks.get(key) or self.tasks.get(("", result.task))
        if found is None:
            suite = f"suite {result.suite!r}" if result.suite else "what was given: pass tasks=[...]"
            raise CorruptFile(f"no task {result.task} in {suite}")
        task, split = found
        known = self.suites.setdefault(result.suite, _Tasks(split))
        if split != known.split:
            raise CorruptFile(f"a {split} task of {result.suite} among {known.split} tasks")
        known.of = known.of or (suites.get(result.suite).num_tasks(split) if split else self.given)
        self._indexed(known, result)
        return task

    def _indexed(self, known: _Tasks, result: Result) -> None:
        """Refuse an index that stands for two tasks, and a task that has two."""
        if not 0 <= result.index < known.of:
            raise CorruptFile(f"task number {result.index}, there are {known.of}")
        known.hashes += [""] * (result.index + 1 - len(known.hashes))
        if known.hashes[result.index] not in ("", result.task):
            raise CorruptFile(f"task number {result.index} is {result.task} here, {known.hashes[result.index]} before")
        known.hashes[result.index] = result.task

    def _together(self, result: Result, number: int) -> None:
        """Refuse a line that contradicts others of its run, or comes twice."""
        r = result
        if r.config.get("seed", r.seed) != r.seed:
            raise CorruptFile(f"seed {r.seed}, but {r.config['seed']} in its configuration")
        if (own := self.track_of(r.agent)) not in (None, r.track):
            raise CorruptFile(f"{r.agent} is of track {own!r}, not {r.track!r}")
        same = {BUDGET: "any"} if BUDGET in r.config else {}
        about = (r.track, {name: value for name, value in r.config.items() if name != "seed"} | same)
        first, line = self.agents.setdefault((r.suite, r.agent), (about, number))
        if first != about:
            raise CorruptFile(f"{r.agent} has another track or configuration than in line {line}")
        budget = json.dumps(r.config.get(BUDGET))
        run = self.runs.setdefault(_RunOf(r.suite, r.agent, r.seed, r.planner, r.judge, budget), set())
        if r.index in run:
            raise CorruptFile(f"task number {r.index} comes twice with {r.agent}, seed {r.seed}")
        run.add(r.index)

    def _end(self) -> None:
        """Refuse a file in which some run leaves tasks out, or some budget a seed."""
        for run, done in self.runs.items():
            if len(done) < (of := len(self.suites[run.suite].hashes)):
                missing = min(set(range(of)) - done)
                told = f"{run.agent}, seed {run.seed}, has no line of task number {missing}"
                raise CorruptFile(f"{self.path}: {told}: {len(done)} of {of} are there")
        budgets: dict[_RunOf, dict[str, set[Any]]] = {}
        for run in self.runs:
            of_run = budgets.setdefault(run._replace(seed=None, budget=""), {})
            of_run.setdefault(run.budget, set()).add(run.seed)
        for run, seeds in budgets.items():
            if len({frozenset(found) for found in seeds.values()}) > 1:
                raise CorruptFile(f"{self.path}: {run.agent} has not the same seeds with each budget: {seeds}")
        for suite, tasks in self.suites.items():
            if len(set(tasks.hashes)) < len(tasks.hashes):
                raise CorruptFile(f"{self.path}: one task has several numbers in {suite or 'what was given'}")


def replay(path: str | Path, tasks: Sequence[Task] = ()) -> list[Judged]:
    """Score stored plans again on their suites' tasks (and `tasks`); refuses what comes out otherwise.

    A run without a plan has no score. A judge that measures differs every time: its numbers are not compared.
    """
    return list(Replay(path, tasks))
