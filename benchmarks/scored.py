"""What a solver's plans of a suite's tasks are worth by its judge, as arrays, and pages made of that."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import CorruptFile, ShardGymError
from shard_gym.evaluate import judged, run, template
from shard_gym.files import read_json, write_whole
from shard_gym.results import commit_here
from shard_gym.suites import Suite

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, eq=False)
class Scored:
    """One run of a solver on each task, (T,)."""

    makespan: np.ndarray  # ms; NaN where there is no feasible plan
    balance: np.ndarray  # NaN as well
    seconds: np.ndarray
    random: np.ndarray  # the mean makespan of random plans, ms

    @property
    def feasible(self) -> float:
        """Share of tasks with a feasible plan."""
        return float(np.isfinite(self.makespan).mean())

    @property
    def filled(self) -> np.ndarray:
        """Makespans; a task without a feasible plan counts as a mean random one."""
        return np.where(np.isfinite(self.makespan), self.makespan, self.random)

    @property
    def speedup(self) -> float:
        """Over random plans, mean over tasks."""
        return float((self.random / self.filled).mean())

    @property
    def mean_balance(self) -> float:
        """Over tasks; 0 where there is no feasible plan."""
        return float(np.nan_to_num(self.balance).mean())

    @property
    def plan_seconds(self) -> float:
        """The median over tasks."""
        return float(np.median(self.seconds))

    def ratio(self, other: Scored) -> float:
        """Makespan over another solver's, mean over tasks."""
        return float((self.filled / other.filled).mean())

    def gap(self, best: np.ndarray) -> float:
        """To the best known makespans, mean over tasks."""
        return float((self.filled / best - 1).mean())


def scored(solver: Any, suite: Suite, split: str = "test", limit: int | None = None) -> Scored:
    """Plan with the suite's planner, score with its judge; one plan more before the clock counts."""
    tasks = suite.tasks(split)[:limit]
    planner, judge = simulators.make(suite.planner), simulators.make(suite.judge)
    blank = template(solver, planner.id, judge.id)
    run(solver, planner, tasks[0])
    pairs = [judged(blank, i, task, run(solver, planner, task), judge) for i, task in enumerate(tasks)]
    worth = [(s.makespan, s.balance) if s and s.feasible else (np.nan, np.nan) for _, s in pairs]
    makespan, balance = np.array(worth, float).T
    seconds = np.array([result.wall_seconds for result, _ in pairs])
    return Scored(makespan, balance, seconds, suite.random_makespans(split)[: len(tasks)])


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Mean ± standard deviation over seeds, or the value alone."""
    mean = f"{np.mean(values):{form}}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):{form.lstrip('+')}}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]


def page_parser(about: str | None, seeds: int, suites_asked: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a page about trained policies."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--suite", default=",".join(suites_asked), help="comma-separated")
    parser.add_argument("--tasks", type=int, help="only the first so many test tasks")
    parser.add_argument("--page", action="store_true", help="run nothing: make the page again from its JSON")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    return parser


def write_page(
    path: Path, schema: str, measure: Callable[[], dict[str, Any]] | None, page: Callable[[dict[str, Any]], str]
) -> int:
    """Keep what is measured as JSON, and make the page of what is kept; 2 when there is nothing to show."""
    try:
        if measure is not None:
            kept = {"schema": schema, "commit": commit_here(), **measure()}
            write_whole(path, json.dumps(kept, indent=1, allow_nan=False) + "\n")
        kept = read_json(path)
        if kept.get("schema") != schema:
            raise CorruptFile(f"{path} is of schema {kept.get('schema')}, not {schema}: measure again")
        write_whole(path.with_suffix(".md"), page(kept))
    except (ShardGymError, OSError) as error:
        print(f"{path.stem}: {error}", file=sys.stderr)
        return 2
    return 0
