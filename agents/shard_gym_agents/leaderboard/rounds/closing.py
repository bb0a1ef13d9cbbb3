"""The end of a round: all is computed again from the seed, and the agents are ranked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shard_gym import simulators
from shard_gym.errors import CorruptFile
from shard_gym.records.escape import markdown
from shard_gym.results.replay import Replay
from shard_gym.simulators.random_plans import random_makespan
from shard_gym.task.task import Task
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
from shard_gym_agents.leaderboard.statistics import interval, mean, rank_groups

Runs = Mapping[str, Sequence[Judged]]  # by agent


@dataclass(frozen=True)
class Standing:
    """An agent in a round; equals share a group."""

    agent: str
    track: str
    group: int
    feasible: float  # share of runs
    gap: float  # mean, to the reference, as a share of it
    low: float
    high: float
    makespan: float  # mean, ms
    seeds: int


def random_makespans(tasks: Sequence[Task], judge: str) -> list[float]:
    """Mean makespan of random plans of each task, ms: what a run without a plan counts as."""
    simulator = simulators.make(judge)
    return [random_makespan(task, simulator, np.random.default_rng([1000, i])) for i, task in enumerate(tasks)]


@dataclass(frozen=True, eq=False)
class Replayed:
    """The runs of a round, scored again, and what they are held against; ms, (T,)."""

    runs: Runs
    reference: np.ndarray
    random: np.ndarray

    @property
    def gaps(self) -> dict[str, np.ndarray]:
        """Gaps of each agent's runs to the reference, (T, S)."""
        return gaps(self.runs, self.reference, self.random)

    @property
    def standings(self) -> list[Standing]:
        """The agents, best group first within their track."""
        return standings(self.runs, self.reference, self.random)


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
    return Replayed(runs, references(host, opened.random), np.array(opened.random))


def references(host: Runs, random: Sequence[float]) -> np.ndarray:
    """The better makespan of the host's plans of each task, ms (T,); a random plan's where it found none."""
    found = np.nanmin(np.vstack([_table(runs, np.full(len(random), np.inf))[:, 0] for runs in host.values()]), axis=0)
    return np.where(np.isfinite(found), found, random)


def standings(runs: Runs, reference: np.ndarray, random: np.ndarray) -> list[Standing]:
    """The agents, best group first within their track; a run without a usable plan counts as the mean random plan."""
    to_reference, rows = gaps(runs, reference, random), []
    for track in sorted({result.track for of_agent in runs.values() for result, _ in of_agent}, reverse=True):
        of_track = {agent: to_reference[agent] for agent, of_agent in runs.items() if of_agent[0][0].track == track}
        for number, group in enumerate(rank_groups(of_track), start=1):
            rows += [_standing(agent, number, runs[agent], of_track[agent], reference) for agent in group]
    return rows


def gaps(runs: Runs, reference: np.ndarray, random: np.ndarray) -> dict[str, np.ndarray]:
    """Gaps of each agent's runs to the reference, as a share of it, (T, S)."""
    return {agent: _table(of_agent, random) / reference[:, None] - 1 for agent, of_agent in runs.items()}


def report(found: Round, opened: Opened, closed: Closed) -> str:
    """The closing page."""
    rows = [Standing(**row) for row in closed.standings]
    lines = [
        f"# A sealed round on {found.suite}",
        "",
        f"{found.tasks} tasks, announced {found.created}, opened {opened.opened}, closed {closed.closed}. Planner "
        f"{found.planner}, judge {found.judge}, {found.budget:g} s a task for searches, isolation {opened.isolation}.",
        "",
        "| group | agent | track | feasible | gap | makespan ms | seeds |",
        "|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        *(f"- {markdown(agent)} did not run: {markdown(why)}" for agent, why in opened.unable.items()),
        f"Gap is to the better of {HOST[0]}'s and {found.reference_budget:g} s of {HOST[1]}'s plan by the host, found "
        "while the round was open; it may be below 0. Intervals hold 95 %, over tasks and seeds. Agents of a group "
        "are not told apart by these tasks. A run without a usable plan counts as the mean random plan.",
        "",
        f"Commitment `{found.commitment}`, seed `{closed.seed}`, salt `{closed.salt}`.",
    ]
    return "\n".join(lines) + "\n"


def _line(row: Standing) -> str:
    gap = f"{row.gap:+.1%} [{row.low:+.1%}, {row.high:+.1%}]"
    return (
        f"| {row.group} | {markdown(row.agent)} | {row.track} | {row.feasible:.1%} | {gap} | {row.makespan:.2f} "
        f"| {row.seeds} |"
    )


def _standing(agent: str, group: int, runs: Sequence[Judged], found: np.ndarray, reference: np.ndarray) -> Standing:
    feasible = sum(score is not None and score.feasible for _, score in runs) / len(runs)
    gap, between = float(mean(found)), interval(found, mean)
    makespan = float(((1 + found) * reference[:, None]).mean())
    return Standing(agent, runs[0][0].track, group, feasible, gap, *between, makespan, seeds=found.shape[1])


def _table(runs: Sequence[Judged], otherwise: np.ndarray) -> np.ndarray:
    """Makespans of an agent's runs, (T, S); what counts instead where there is no usable plan."""
    seeds = sorted({result.seed or 0 for result, _ in runs})
    table = np.tile(otherwise[:, None], (1, len(seeds)))
    for result, found in runs:
        if found is not None and found.feasible and math.isfinite(found.makespan):
            table[result.index, seeds.index(result.seed or 0)] = found.makespan
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
