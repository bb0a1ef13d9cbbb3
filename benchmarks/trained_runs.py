"""Trained policies by what they are trained with: taken from the folder of an earlier run, or trained. Needs torch.

A run that broke off goes on where it stopped; one that is done is left alone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from shard_gym import suites
from shard_gym.errors import InvalidTask, ShardGymError, UnknownName
from shard_gym.files import read_json
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.checkpoints import load_tensors

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
        """Of its run; all that decides it is in the name."""
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
    """Each of them, trained where it is not; each process uses one thread."""
    for one in wanted:
        _require_sense(one)
    missing = [one for one in dict.fromkeys(wanted) if not _done(one, runs)]
    if workers > 1 and len(missing) > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            list(pool.map(partial(_train, runs=runs), missing))
    else:
        for one in missing:
            _train(one, runs)
    return {one: _read(one.learner, one.folder(runs)) for one in wanted}


def _train(wanted: Wanted, runs: Path) -> None:
    import torch  # an extra

    from shard_gym_agents.learners.training import Settings, train

    torch.set_num_threads(1)
    suite, iterations = suites.get(wanted.suite), wanted.iterations
    learner = module_of(wanted.learner).Learner(suite, _config(wanted), wanted.seed)
    settings = Settings(iterations, validate_every=-(-iterations // VALIDATIONS), patience=VALIDATIONS + 1)
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
