"""Parts that all learned experiments of the papers share: policies, the file of what was measured, the page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import Found, kept_of, picture
from benchmarks.policies import Scored, TrainedRun, Wanted, finished, scored, train_all
from shard_gym.errors import CorruptFile
from shard_gym.records.files import write_whole
from shard_gym.results.results import commit_here
from shard_gym.task import suites
from shard_gym_agents import make

SCHEMA = "shard-gym/papers/1"
SIZE, DPI = (9.0, 3.4), 80  # of pictures


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


@dataclass(frozen=True)
class Section:
    """One figure or table of a paper."""

    title: str
    measure: Callable[[Lab], Found]
    show: Callable[[Found], list[str]]
    draw: Callable[..., None] | None = None  # on a matplotlib figure


@dataclass(frozen=True)
class Paper:
    """A paper's sections, kept as JSON and shown as Markdown; `name` is the files'."""

    name: str
    about: str
    sections: dict[str, Section]

    def measure(self, asked: Sequence[str], lab: Lab, out: Path, command: str) -> None:
        """Measure sections one by one; each is kept as soon as it is there."""
        for key in asked:
            start = time.monotonic()
            found = self.sections[key].measure(lab)
            about = {"command": command, "commit": commit_here(), "tasks": lab.tasks}
            kept = self.kept(out) | {key: {**about, "minutes": (time.monotonic() - start) / 60, "found": found}}
            content = {"schema": SCHEMA, "sections": kept}
            write_whole(out / f"{self.name}.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
            self.write(out)

    def kept(self, out: Path) -> dict[str, Any]:
        """The sections measured so far."""
        path = out / f"{self.name}.json"
        if not path.exists():
            return {}
        sections: Found = kept_of(path, SCHEMA)["sections"]
        if not sections.keys() <= self.sections.keys():
            raise CorruptFile(f"{path} does not hold sections of {self.name}: delete it")
        return sections

    def write(self, out: Path) -> None:
        """The page and its pictures, from what is kept."""
        kept, lines = self.kept(out), [f"# {self.about.splitlines()[0]}", "", *self.about.splitlines()[2:], ""]
        for key, section in self.sections.items():
            if key not in kept:
                continue
            lines += [f"## {section.title}", "", *section.show(kept[key]["found"]), ""]
            if section.draw is not None:
                name = f"{self.name}_{key}.png"
                write_whole(out / name, picture(partial(section.draw, found=kept[key]["found"]), SIZE, DPI))
                lines += [f"![{section.title}]({name})", ""]
            lines += [_made(kept[key]), ""]
        write_whole(out / f"{self.name}.md", "\n".join(lines))


def _made(kept: dict[str, Any]) -> str:
    found, tasks = kept["found"], f"the first {kept['tasks']} tasks only, " if kept["tasks"] else ""
    training = found.get("spent")
    told = (
        f"training seeds: {training['seeds']}, iterations: at most {training['iterations']}, "
        f"{training['training_minutes']:.1f} minutes of training in all, the first by `{training['command']}`; "
        if training
        else ""
    )
    return f"Made by `{kept['command']}`: {tasks}{told}{kept['minutes']:.1f} minutes for this section."


def points(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation over seeds of each point."""
    return np.array([np.mean(v) for v in values]), np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values])
