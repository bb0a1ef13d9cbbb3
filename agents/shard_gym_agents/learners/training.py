"""The loop that all learners share. Needs torch.

A folder holds a run: `checkpoint.safetensors`, from which the same command goes on after Ctrl-C or a crash,
`best.safetensors`, the policy with the lowest makespan on validation tasks, its `card.json`, and `scalars.jsonl`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import InfeasibleTask, InvalidTask, ShardGymError
from shard_gym.records.files import write_whole
from shard_gym.records.locks import held
from shard_gym.records.progress import Waiting
from shard_gym.results.evaluate import score
from shard_gym.task.suites import Suite
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.learner import SuiteLearner, load_tensors, save_tensors
from shard_gym_agents.learners.schedule import Schedule
from shard_gym_agents.solvers.greedy import CostGreedy
from shard_gym_agents.solvers.solver import Solver


class TrainingFailed(ShardGymError):
    """Losses, weights or probabilities are no numbers any more; the message says since when, and what is kept."""


@dataclass(frozen=True)
class Tally:
    """Counts of a run so far: its iterations, what they took, and the best policy."""

    iteration: int = 0
    best: float = math.inf  # makespan of validation plans over cost-greedy's, mean over tasks
    best_at: int = 0  # iteration
    steps: int = 0
    simulator_calls: int = 0
    seconds: float = 0.0  # validation left out
    bad: int = 0  # validations since the best


class Validation:
    """The suite's validation tasks, their plans scored by the planner beside cost-greedy's."""

    def __init__(self, suite: Suite) -> None:
        self.tasks, self.planner = suite.tasks("val"), simulators.make(suite.planner)
        self.random = suite.random_makespans("val", suite.planner)
        self.greedy, _ = self.makespans(CostGreedy())

    def makespans(self, solver: Solver) -> tuple[np.ndarray, np.ndarray]:
        """Makespan and balance of each plan; an infeasible one counts as the mean random plan, balance 0."""
        found = np.stack([self.random, np.zeros(len(self.tasks))])
        for i, task in enumerate(self.tasks):
            try:
                worth = score(task, solver(task, self.planner), self.planner)
            except InfeasibleTask:
                continue
            if worth.feasible:
                found[:, i] = worth.makespan, worth.balance
        return found[0], found[1]

    def __call__(self, solver: Solver) -> dict[str, float]:
        makespan, balance = self.makespans(solver)
        return {"val/makespan": float((makespan / self.greedy).mean()), "val/balance": float(balance.mean())}


def train(learner: SuiteLearner, out: Path, schedule: Schedule, command: str = "") -> Tally:
    """Train until the iterations are done or validation gets no better; goes on where `out` left off."""
    with held(out):
        return _trained(_Run(learner, out, schedule, command))


def _trained(run: _Run) -> Tally:
    learner, schedule, progress = run.learner, run.schedule, run.resume()
    with Waiting("planning validation tasks by cost-greedy"):
        validate = Validation(learner.suite)
    try:
        while progress.iteration < schedule.iterations and progress.bad < schedule.patience:
            progress = run.iteration(progress, validate)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nstopped; the same command goes on from iteration {run.progress.iteration}\n")
        raise
    finally:
        run.checkpoint()  # of the last whole iteration
        run.scalars.close()
    return progress


class _Run:
    """A run's folder."""

    def __init__(self, learner: SuiteLearner, out: Path, schedule: Schedule, command: str) -> None:
        self.learner, self.out, self.schedule, self.command = learner, out, schedule, command
        self.path, self.saved = out / "checkpoint.safetensors", time.monotonic()
        self.progress, self.state = Tally(), learner.state()
        self.first = 0  # iteration that this process began with
        self.began = time.monotonic()

    def resume(self) -> Tally:
        """Go on where the folder's run left off; refuse the folder of another run."""
        if self.path.exists():
            state, card = load_tensors(self.path, "checkpoint")
            for name, value in _identity(self.learner).items():
                held = _same_kind(card.get(name) or {}, self.learner.config) if name == "config" else card.get(name)
                if held != value:
                    why = f"{self.out} holds a run with {name} {held}, not {value}"
                    raise InvalidTask(f"{why}: choose another folder, or the same settings")
            self.learner.restore(state)
            self.state, self.progress = state, Tally(**card["progress"])
        self.first = self.progress.iteration
        self.scalars = _Scalars(self.out, self.first)
        return self.progress

    def iteration(self, before: Tally, validate: Validation) -> Tally:
        """One iteration, logged, with its validation and its checkpoint when they are due."""
        start, number = time.monotonic(), before.iteration + 1
        told = self._iterate(number)
        progress = replace(
            before,
            iteration=number,
            steps=before.steps + int(told["steps"]),
            simulator_calls=before.simulator_calls + int(told["simulator_calls"]),
            seconds=before.seconds + time.monotonic() - start,
        )
        if number % self.schedule.validate_every == 0 or number == self.schedule.iterations:
            progress = self._validated(progress, told, validate)
        self.scalars.write(number, told)
        self.progress, self.state = progress, self.learner.state()
        self._tell(told)
        if time.monotonic() - self.saved >= self.schedule.checkpoint_seconds:
            self.checkpoint()
        return progress

    def _iterate(self, number: int) -> dict[str, float]:
        """One iteration's log; training ends here when a loss, a weight or a probability is no number."""
        try:
            told = self.learner.iterate()
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ShardGymError) or "nan" not in str(error):  # what torch and SB3 refuse to draw from
                raise
            raise self._failed(number, "probabilities that are no numbers") from error
        broken = [name for name, value in self.learner.state().items() if not value.isfinite().all()]
        if broken or not all(map(math.isfinite, told.values())):
            raise self._failed(number, f"{told}{', and no numbers as ' if broken else ''}{', '.join(broken)}")
        return told

    def _failed(self, number: int, what: str) -> TrainingFailed:
        kept = f"{self.path} keeps the run as it was before"
        return TrainingFailed(f"iteration {number} gives {what}; {kept}: lower the learning rate, in another folder")

    def _validated(self, progress: Tally, told: dict[str, float], validate: Validation) -> Tally:
        solver = self.learner.solver()
        told |= validate(solver)
        if told["val/makespan"] >= progress.best:
            return replace(progress, bad=progress.bad + 1)
        progress = replace(progress, best=told["val/makespan"], best_at=progress.iteration, bad=0)
        solver.save(self.out / "best.safetensors")
        card = {**_identity(self.learner), "progress": asdict(progress), "command": self.command}
        write_whole(self.out / "card.json", json.dumps(card, indent=1) + "\n")
        return progress

    def checkpoint(self) -> None:
        """Write the state after the last whole iteration."""
        known = {name: value for name, value in asdict(self.progress).items() if value != math.inf}  # JSON has no inf
        save_tensors(self.path, self.state, {"kind": "checkpoint", **_identity(self.learner), "progress": known})
        self.saved = time.monotonic()

    def _tell(self, told: Mapping[str, float]) -> None:
        """Rate, time left, and the validation's result when there is one."""
        p, done = self.progress, self.progress.iteration - self.first
        each = (time.monotonic() - self.began) / done
        left = each * (self.schedule.iterations - p.iteration)
        rate = f"{told['steps'] / each:,.0f} steps/s, {left / 60:.1f} min left"
        found = f", {told['val/makespan']:.4f} x cost-greedy" if "val/makespan" in told else ""
        best = f", best {p.best:.4f} at {p.best_at}" if p.best_at else ""
        terminal = sys.stderr.isatty()
        if terminal or found:
            end = "\r" if terminal and not found else "\n"
            sys.stderr.write(f"iteration {p.iteration}/{self.schedule.iterations}, {rate}{found}{best}{end}")
            sys.stderr.flush()


def _identity(learner: SuiteLearner) -> dict[str, Any]:
    """Values that tell runs apart."""
    config = _same_kind(json.loads(json.dumps(asdict(learner.config))), learner.config)
    planner = config.get("planner") or learner.suite.planner
    suite, name = learner.suite.key, _name(type(learner).__module__, config)
    return {"learner": name, "suite": suite, "planner": planner, "seed": learner.seed, "config": config}


def _same_kind(held: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """A kept config as this version has it: without where the run took place, with what was added since."""
    known = {field.name: field for field in fields(config)}
    decides = {name: field.default for name, field in known.items() if not field.metadata.get("place")}
    return {**decides, **{name: value for name, value in held.items() if name in decides or name not in known}}


def _name(module: str, config: Mapping[str, Any]) -> str:
    """The command's name for a learner with this config: of those that fit, the one that says most of it."""
    fits = {
        name: len(overrides)
        for name, (known, overrides) in LEARNERS.items()
        if known == module and overrides.items() <= config.items()
    }
    return max(fits, key=fits.__getitem__, default=module.rpartition(".")[2])


class _Scalars:
    """`scalars.jsonl`, and TensorBoard's events where tensorboard is installed."""

    def __init__(self, out: Path, iteration: int) -> None:
        path = out / "scalars.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() and iteration else []
        # what came after the checkpoint comes again
        write_whole(path, "".join(f"{line}\n" for line in lines[:iteration]))
        self.file = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.board = None
        else:
            self.board = SummaryWriter(str(out), purge_step=iteration + 1)  # type: ignore[no-untyped-call]

    def write(self, iteration: int, told: Mapping[str, float]) -> None:
        self.file.write(json.dumps({"iteration": iteration, **told}) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in told.items():
                self.board.add_scalar(name, value, iteration)

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()
