"""The end of a round: all is computed again from the seed, and the agents are ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import CorruptFile
from shard_gym.records.escape import markdown
from shard_gym.results.replay import Replay
from shard_gym.simulators.random_plans import random_makespan
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.ranking import Sample, best_of_run, standings
from shard_gym_agents.leaderboard.resolution import resolution
from shard_gym_agents.leaderboard.rounds.contest import HOST
from shard_gym_agents.leaderboard.rounds.folder import (
    BEGUN,
    OPENED,
    REFERENCES,
    RESULTS,
    Begun,
    Closed,
    Opened,
    Round,
    read,
    sha256_of,
)
from shard_gym_agents.leaderboard.rounds.sealed import Secret, tasks_of
from shard_gym_agents.leaderboard.runs import Judged

Runs = Mapping[str, Sequence[Judged]]  # by agent


def random_makespans(tasks: Sequence[Task], judge: str) -> list[float]:
    """Mean makespan of random plans of each task, ms: what a run without a plan counts as."""
    simulator = simulators.make(judge)
    return [random_makespan(task, simulator, np.random.default_rng([1000, i])) for i, task in enumerate(tasks)]


@dataclass(frozen=True, eq=False)
class Replayed:
    """The runs of a round, scored again, and what they are held against; ms, (T,)."""

    suite: Suite
    runs: Runs
    reference: np.ndarray
    random: np.ndarray

    @property
    def standings(self) -> list[dict[str, Any]]:
        """The agents, best first within their track, as JSON holds them."""
        resolved = resolution(self.suite, tasks=len(self.random))
        return [asdict(row) for row in standings(samples(self.runs), self.random, self.reference, resolved)]


def replayed(folder: Path, found: Round, secret: Secret) -> Replayed:
    """Make the tasks again and score every plan again; refuses whatever comes out otherwise."""
    opened, begun = read(folder, Opened), read(folder, Begun)
    tasks = tasks_of(found, secret)
    if [task.hash for task in tasks] != opened.tasks:
        versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        raise CorruptFile(f"{folder / OPENED}: the seed gives other tasks; they were made with {versions}")
    if not np.allclose(opened.random, random_makespans(tasks, found.judge), rtol=1e-9):
        raise CorruptFile(f"{folder / OPENED}: random plans have other mean makespans")
    host = _runs(folder / REFERENCES, opened.references_sha256, tasks, found)
    runs = _runs(folder / RESULTS, opened.results_sha256, tasks, found)
    if sorted(host) != sorted(HOST):
        raise CorruptFile(f"{folder / REFERENCES} has plans of {', '.join(host)}, not of {', '.join(HOST)}")
    if wrong := runs.keys() ^ (set(begun.agents) - opened.unable.keys()):
        raise CorruptFile(f"{folder / RESULTS} and {folder / BEGUN} differ in {', '.join(sorted(wrong))}")
    random = np.array(opened.random)
    return Replayed(suites.get(found.suite), runs, references(host, random), random)


def references(host: Runs, random: np.ndarray) -> np.ndarray:
    """The better makespan of the host's plans of each task, ms (T,); a random plan's where it found none."""
    return best_of_run(samples(host), random, np.full(len(random), np.nan))


def samples(runs: Runs) -> list[Sample]:
    """Makespans of each agent."""
    return [Sample(agent, of_agent[0][0].track, _table(of_agent)) for agent, of_agent in runs.items()]


def report(found: Round, opened: Opened, closed: Closed) -> str:
    """The closing page."""
    lines = [
        f"# A sealed round on {found.suite}",
        "",
        f"{found.tasks} tasks, announced {found.created}, opened {opened.opened}, closed {closed.closed}. Planner "
        f"{found.planner}, judge {found.judge}, {found.budget:g} s a task for searches, isolation {opened.isolation}.",
        "",
        "| rank | agent | track | feasible | gap | IQM of gaps | makespan ms |",
        "|---|---|---|---|---|---|---|",
        *(_line(row) for row in closed.standings),
        "",
        *(f"- {markdown(agent)} did not run: {markdown(why)}" for agent, why in opened.unable.items()),
        f"Gap is to the better of {HOST[0]}'s and {found.reference_budget:g} s of {HOST[1]}'s plan by the host, found "
        "while the round was open; it may be below 0. IQM is the mean of the middle half of all runs. Brackets hold "
        "95 %, over tasks and seeds. Agents that these tasks do not tell apart share a rank. A run without a usable "
        "plan counts as the mean random plan.",
        "",
        f"Commitment `{found.commitment}`, seed `{closed.seed}`, salt `{closed.salt}`.",
    ]
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    gap, iqm = (f"{one['mean']:+.1%} [{one['low']:+.1%}, {one['high']:+.1%}]" for one in (row["gap"], row["iqm"]))
    head = f"| {row['rank']} | {markdown(row['agent'])} | {row['track']} | {row['feasible']:.1%}"
    return f"{head} | {gap} | {iqm} | {row['makespan']['mean']:.2f} |"


def _table(runs: Sequence[Judged]) -> np.ndarray:
    """Makespans of an agent's runs, (S, T); NaN where there is no usable plan."""
    seeds = sorted({result.seed or 0 for result, _ in runs})
    table = np.full((len(seeds), 1 + max(result.index for result, _ in runs)), np.nan)
    for result, found in runs:
        if found is not None and found.feasible:
            table[seeds.index(result.seed or 0), result.index] = found.makespan
    return table


def _runs(path: Path, sha256: str, tasks: Sequence[Task], found: Round) -> dict[str, list[Judged]]:
    """The runs of a file by agent, scored again."""
    if sha256_of(path) != sha256:
        raise CorruptFile(f"{path} is not the file that was written when the round was opened")
    runs: defaultdict[str, list[Judged]] = defaultdict(list)
    for result, score in Replay(path, tasks):
        if (result.suite, result.planner, result.judge) != ("", found.planner, found.judge):
            raise CorruptFile(f"{path}: {result.agent} has a run by {result.planner} and {result.judge}")
        if tasks[result.index].hash != result.task:
            raise CorruptFile(f"{path}: task number {result.index} of {result.agent} is another one")
        runs[result.agent].append((result, score))
    return dict(runs)
