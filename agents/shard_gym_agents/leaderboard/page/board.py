"""A suite of the page: who took part, and the figures that its tables and charts show.

Everything that the page takes from the leaderboard is taken here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shard_gym import simulators
from shard_gym.errors import MissingDependency
from shard_gym.plan.plan import Plan
from shard_gym.results import Result
from shard_gym.task.suite import Suite
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.page.markup import short
from shard_gym_agents.leaderboard.ranking import Standing, best_of_run
from shard_gym_agents.leaderboard.references import References
from shard_gym_agents.leaderboard.report import Ranking, Row, sample_of
from shard_gym_agents.leaderboard.runs import Judged

TRACKS = {"search": "may ask the planner what plans cost", "blind": "never asks the planner"}


@dataclass(frozen=True, eq=False)
class Board:
    """The runs of a suite, as the leaderboard has them when it reports."""

    ranking: Ranking
    runs: Mapping[str, Sequence[Sequence[Judged]]]  # agent -> seed -> task
    references: References
    best_plans: Mapping[str, Plan] = field(default_factory=dict)  # by task hash; empty where none are at hand
    command: str = ""  # that made the runs
    host: str = ""  # the machine, in words
    cards: Mapping[str, Card] = field(default_factory=dict)  # of agents whose entries these are

    @property
    def suite(self) -> Suite:
        """The suite that was run."""
        return self.ranking.suite

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that every agent was given."""
        return self.suite.tasks(self.ranking.split)[: self.ranking.tasks]

    @property
    def planner(self) -> str:
        """Id of the simulator that agents may ask."""
        return self.ranking.rows[0].planner

    @property
    def judge(self) -> str:
        """Id of the simulator that ranks plans."""
        return self.ranking.rows[0].judge

    @cached_property
    def judged_by(self) -> str:
        """The judge's grounds: analytic, fitted or measured."""
        try:
            return getattr(simulators.make(self.judge), "basis", "measured")
        except MissingDependency:  # only what measures needs more than there is
            return "measured"

    @cached_property
    def best(self) -> np.ndarray:
        """The makespan that gaps are to, ms, (T,): the best known, else the best of this run, else a random one."""
        samples = [sample_of(agent, by_seed) for agent, by_seed in self.runs.items()]
        return best_of_run(samples, self.references.random, self.references.best)

    @cached_property
    def entrants(self) -> tuple[Entrant, ...]:
        """Every agent that ran, best first within its track."""
        rows = [row for row in self.ranking.rows if row.standing and row.agent in self.runs]
        return tuple(self._entrant(number, row) for number, row in enumerate(rows))

    @property
    def unable(self) -> list[Row]:
        """Agents that could not be tried."""
        return [row for row in self.ranking.rows if row.agent not in self.runs]

    def of_track(self, track: str) -> list[Entrant]:
        """The entrants of a track, best first."""
        return [e for e in self.entrants if e.row.track == track]

    def _entrant(self, number: int, row: Row) -> Entrant:
        assert row.standing is not None  # it ran
        runs = self.runs[row.agent]
        gaps = sample_of(row.agent, runs).gaps(self.references.random, self.best)
        return Entrant(number, row, row.standing, runs, gaps)


@dataclass(frozen=True, eq=False)
class Entrant:
    """An agent on a suite: its row, its runs and its gaps."""

    index: int  # among the entrants
    row: Row
    standing: Standing
    runs: Sequence[Sequence[Judged]]  # seed -> task
    gaps: np.ndarray  # (tasks, seeds), as shares of the best

    @property
    def name(self) -> str:
        """The agent's name, short enough to be shown."""
        return short(self.row.agent)

    @property
    def first(self) -> Result:
        """The result of its first run."""
        return self.runs[0][0][0]

    def solved(self) -> np.ndarray:
        """True for each task that every seed gave a feasible plan for, (T,)."""
        return np.all([[bool(s and s.feasible) for _, s in runs] for runs in self.runs], axis=0)

    def plans(self) -> list[Plan | None]:
        """The plan of the first seed for each task."""
        return [result.plan for result, _ in self.runs[0]]
