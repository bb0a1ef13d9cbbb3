"""Trained policies, from the folder of an earlier run or trained here, and what plans are worth by a suite's judge.

A training that broke off goes on where it stopped; one that is done is left alone. Needs torch.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import Found
from shard_gym import simulators
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from shard_gym.records.files import read_json
from shard_gym.records.processes import end_with_parent
from shard_gym.results.evaluate import judged, run, template
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym_agents import make
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.learner import load_tensors

VALIDATIONS = 20  # of a run, so that it never stops early


class MissingRun(ShardGymError):
    """A folder holds no trained policy; the message is the command that makes one."""


@dataclass(frozen=True)
class Wanted:
    """A policy to be trained."""

    learner: str  # a name in LEARNERS
    suite: str
    seed: int
    iterations: int
    options: tuple[tuple[str, Any], ...] = ()  # of its config, where they differ from the learner's own

    def folder(self, runs: Path) -> Path:
        """The folder of its run; all that decides it is in the name."""
        told = "".join(f"-{name}-{value}" for name, value in self.options)
        return runs / f"{self.learner}-{self.iterations}" / f"{self.suite}{told}-{self.seed}"


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that gave a policy."""

    learner: str
    folder: Path
    card: dict[str, Any]  # of the best policy
    spent: dict[str, Any]  # iteration, steps, simulator_calls and seconds of the whole run

    def policy(self) -> Any:
        """The best policy on validation tasks."""
        return module_of(self.learner).load(self.folder / "best.safetensors")


def module_of(learner: str) -> Any:
    """The module with its Config, Learner and load."""
    if learner not in LEARNERS:
        raise UnknownName("learner", learner, LEARNERS)
    return import_module(LEARNERS[learner][0])


def finished(runs: Path, learner: str, suite: str, seed: int) -> TrainedRun:
    """The run in `runs/<learner>/<suite>-<seed>`, whatever it was trained with."""
    folder = runs / learner / f"{suite}-{seed}"
    if not (folder / "best.safetensors").exists() or not (folder / "card.json").exists():
        command = f"shard-gym train {learner} --suite {suite} --seed {seed} --out {folder}"
        raise MissingRun(f"{folder} holds no trained policy: {command}")
    return _read(learner, folder)


def seeds_of(runs: Path, learner: str, suite: str, seeds: int) -> list[TrainedRun]:
    """The runs of the first seeds that are there."""
    found = []
    for seed in range(seeds):
        try:
            found.append(finished(runs, learner, suite, seed))
        except MissingRun:
            continue
    return found


def train_all(wanted: Sequence[Wanted], runs: Path, workers: int = 1) -> dict[Wanted, TrainedRun]:
    """Train each policy that is not trained yet; each process uses one thread."""
    for one in wanted:
        _require_sense(one)
    missing = [one for one in dict.fromkeys(wanted) if not _done(one, runs)]
    if workers > 1 and len(missing) > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, end_with_parent) as pool:
            list(pool.map(partial(_train, runs=runs), missing))
    else:
        for one in missing:
            _train(one, runs)
    return {one: _read(one.learner, one.folder(runs)) for one in wanted}


def _train(wanted: Wanted, runs: Path) -> None:
    import torch  # an extra

    from shard_gym_agents.learners.training import Schedule, train

    torch.set_num_threads(1)
    suite, iterations = suites.get(wanted.suite), wanted.iterations
    learner = module_of(wanted.learner).Learner(suite, _config(wanted), wanted.seed)
    settings = Schedule(iterations, validate_every=-(-iterations // VALIDATIONS), patience=VALIDATIONS + 1)
    train(learner, wanted.folder(runs), settings, "python -m benchmarks.papers")


def _require_sense(wanted: Wanted) -> None:
    suites.get(wanted.suite)
    _config(wanted)
    if wanted.iterations < 1 or wanted.seed < 0:
        told = f"{wanted.iterations} and {wanted.seed}"
        raise InvalidTask(f"iterations are 1 or more and seeds 0 or more, got {told}")


def _config(wanted: Wanted) -> Any:
    made = module_of(wanted.learner).Config
    known = {field.name for field in fields(made)}
    if unknown := [name for name, _ in wanted.options if name not in known]:
        raise UnknownName(f"option of {wanted.learner}", unknown[0], known)
    return made(**{**LEARNERS[wanted.learner][1], **dict(wanted.options)})


def _done(wanted: Wanted, runs: Path) -> bool:
    folder = wanted.folder(runs)
    if not (folder / "best.safetensors").exists() or not (folder / "checkpoint.safetensors").exists():
        return False
    return bool(_read(wanted.learner, folder).spent["iteration"] >= wanted.iterations)


def _read(learner: str, folder: Path) -> TrainedRun:
    card, checkpoint = read_json(folder / "card.json"), folder / "checkpoint.safetensors"
    spent = load_tensors(checkpoint, "checkpoint")[1]["progress"] if checkpoint.exists() else card["progress"]
    return TrainedRun(learner, folder, card, spent)


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
        """Gap to the best known makespans, mean over tasks."""
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


@dataclass(frozen=True, eq=False)
class Lab:
    """Effort of an experiment, and the policies made for it."""

    runs: Path = Path("runs")  # finished runs, <learner>/<suite>-<seed>; what is trained here goes to runs/papers
    seeds: int | None = None  # None: as many as a section says
    iterations: int | None = None  # of what is trained here; None: as many as a section says
    workers: int = 1
    tasks: int | None = None  # only the first so many of each suite
    ablated: tuple[str, ...] = ("dlrm-20x4", "dlrm-50x4")  # suites of DreamShard's Table 11
    sizes: tuple[int, ...] = ()  # only DLRM suites with so many tables; (): the papers'
    known: dict[tuple[Any, ...], Scored] = field(default_factory=dict)

    def train(self, wanted: Sequence[Wanted]) -> dict[Wanted, TrainedRun]:
        """Policies trained for these pages."""
        return train_all(wanted, self.runs / "papers", self.workers)

    def finished(self, learner: str, suite: str, seeds: int) -> list[TrainedRun]:
        """Policies of earlier runs, or trained here where a number of iterations is asked for."""
        numbers = range(self.seeds or seeds)
        if self.iterations is None:
            return [finished(self.runs, learner, suite, seed) for seed in numbers]
        return list(self.train([Wanted(learner, suite, seed, self.iterations) for seed in numbers]).values())

    def scored(self, solver: TrainedRun | str, suite: str, split: str = "test", seed: int | None = None) -> Scored:
        """Plans of a policy, or of an agent by its name, for a suite's tasks, scored; asked once."""
        who = solver if isinstance(solver, str) else str(solver.folder)
        key = (who, suite, split, seed)
        if key not in self.known:
            options = {} if seed is None else {"seed": seed}
            plan = make(solver, **options) if isinstance(solver, str) else solver.policy()
            self.known[key] = scored(plan, suites.get(suite), split, self.tasks)
        return self.known[key]

    def agents(self, name: str, suite: str, split: str = "test", seeds: int = 5) -> list[Scored]:
        """An agent's runs: one if it is deterministic."""
        numbers = [None] if getattr(make(name), "deterministic", False) else range(self.seeds or seeds)
        return [self.scored(name, suite, split, seed) for seed in numbers]


def figures(runs: Sequence[Scored], greedy: Scored) -> Found:
    """Figures of an agent's runs, one entry a seed."""
    return {
        "balance": [s.mean_balance for s in runs],
        "speedup": [s.speedup for s in runs],
        "ratio": [s.ratio(greedy) for s in runs],
        "feasible": [s.feasible for s in runs],
    }


def spent(runs: Sequence[TrainedRun]) -> Found:
    """Cost of training: the most iterations, and minutes of all runs together."""
    iterations = max((one.spent["iteration"] for one in runs), default=0)
    minutes = sum(one.spent["seconds"] for one in runs) / 60
    commands = [one.card.get("command", "") for one in runs]
    return {
        "seeds": len({one.card["seed"] for one in runs}),
        "iterations": iterations,
        "training_minutes": minutes,
        "command": commands[0] if commands else "",
    }


def add_options(made: argparse.ArgumentParser, seeds: int, suites_asked: Sequence[str]) -> None:
    """The flags of a page about trained policies."""
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    made.add_argument("--seeds", type=int, default=seeds)
    made.add_argument("--suite", default=",".join(suites_asked), help="comma-separated")
    made.add_argument("--tasks", type=int, help="only the first so many test tasks")
