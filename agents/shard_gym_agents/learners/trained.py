"""Trained policies, by learner and suite: those shipped as data in `weights`, or a file of one's own.

Loading one needs torch, this module does not. A suite without weights of its own is served by its family's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from shard_gym.errors import InfeasibleTask, InvalidTask, MissingDependency, ShardGymError, UnknownName
from shard_gym.measuring.host import one_thread
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.records import tensors as card_files
from shard_gym.simulators import Simulator
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.solvers.solver import others_named

SCHEMA = "shard-gym/learner/1"  # of the files
WEIGHTS = Path(__file__).parent / "weights"  # <learner>/<suite>.safetensors
RETRAINED = Path("runs/trained")  # <learner>/<suite>, the folder that commands of cards train in
# A task's objective -> the suite whose weights plan it.
OF_NO_SUITE = {"kernel": "metasyn-80x8", "iteration": "core-60x4", "torchrec-critical-path": "core-60x4"}
FOR_ALL_KINDS = "tightmix-80x8-allkinds"  # whose weights plan tasks of all kinds of sharding, where there are some


class NotTrained(ShardGymError):
    """A learner has no weights for what was asked; the message is the command that trains them."""


@dataclass(frozen=True)
class Trained:
    """A learner's policy: the file named, else the shipped one for the suite, else for the task's objective.

    `weights` tells files apart, the first digits of their hash: given, another file is refused.
    """

    deterministic: ClassVar[bool] = True
    learner: str
    suite: str = ""  # a policy that was trained on another planner than the suite is asked to plan with is refused
    checkpoint: str = ""  # a file, or the folder of a run
    weights: str = ""

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise UnknownName("learner", self.learner, LEARNERS)
        if find_spec("torch") is None:
            raise MissingDependency(f"{self.learner} needs torch: pip install torch")
        paths = self._files.values()
        found = ",".join(hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in paths)
        if self.weights not in ("", found):
            told = ", ".join(map(str, paths))
            raise InvalidTask(f"{told} holds weights {found}, not {self.weights}: fetch those, or name none")
        object.__setattr__(self, "weights", found)

    @property
    def track(self) -> str:
        """The policy's track; loads the policy."""
        tracks = {_policy(self.learner, path, self.weights).track for path in self._files.values()}
        return "search" if "search" in tracks else "blind"

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        """Plan a task, on one thread: these networks are small, and plans can be repeated to the bit."""
        self.require_planner(planner.id)
        default = OF_NO_SUITE[task.objective]
        if beyond_columns(task) and FOR_ALL_KINDS in self._files:
            default = FOR_ALL_KINDS
        path = self._files.get("") or self._files.get(default)
        if path is None:
            raise self._untrained(default, f"no weights of {self.learner} are shipped for objective {task.objective!r}")
        with one_thread(), others_named(task):
            plan: Plan = _policy(self.learner, path, self.weights)(task, planner)
            if beyond_columns(task) and (broken := violations(task, plan)):
                raise InfeasibleTask(f"{self.learner} finds no plan: {broken[0]}")
            return plan

    def require_planner(self, planner_id: str) -> None:
        """Refuse a planner that the suite's policy was not trained on."""
        if self.suite and not self.checkpoint and (trained_on := self.card["planner"]) != planner_id:
            why = f"{self.learner}'s weights that serve {self.suite} were trained on {trained_on}, not on {planner_id}"
            if planner_id == suites.get(self.suite).planner:
                raise self._untrained(self.suite, why)
            raise NotTrained(f"{why}: plan with the former, or give a checkpoint of your own")

    @cached_property
    def card(self) -> dict[str, Any]:
        """The card of the file, or of the first one where the task decides which it is."""
        return read_card(next(iter(self._files.values())))

    @cached_property
    def _files(self) -> dict[str, Path]:
        """The file, under ""; with neither suite nor checkpoint those for tasks of no suite that there are."""
        if self.checkpoint:
            given = Path(self.checkpoint)
            path = given / "best.safetensors" if given.is_dir() else given
            if not path.is_file():
                raise InvalidTask(f"{path} is no file: give a checkpoint, or the folder of a run that has validated")
            return {"": path}
        if self.suite:
            return {"": self._serving(suites.get(self.suite))}
        found = {
            key: path for key, path in shipped(self.learner).items() if key in (*OF_NO_SUITE.values(), FOR_ALL_KINDS)
        }
        if not found:
            why = f"no weights of {self.learner} are shipped for tasks of any suite"
            raise self._untrained(OF_NO_SUITE["iteration"], why)
        return found

    def _serving(self, suite: suites.Suite) -> Path:
        """The shipped file for the suite, for the one whose tasks it has, or for its family."""
        files = shipped(self.learner)
        path = next((files[key] for key in (suite.key, suite.frozen_as, suite.family) if key in files), None)
        if path is None:
            raise self._untrained(suite.key, f"no weights of {self.learner} are shipped for {suite.key}")
        devices = read_card(path).get("devices", suite.num_devices)  # of networks that have an output a device
        if devices != suite.num_devices:
            raise self._untrained(suite.key, f"{self.learner}'s weights for {path.stem} serve {devices} devices only")
        return path

    def _untrained(self, suite: str, why: str) -> NotTrained:
        command = default_command(self.learner, suite)
        return NotTrained(f"{why}: train with `{command}`, then give that folder as checkpoint")


def shipped(learner: str) -> dict[str, Path]:
    """The learner's files, by suite."""
    return {path.stem: path for path in sorted((WEIGHTS / learner).glob("*.safetensors"))}


def read_card(path: Path) -> dict[str, Any]:
    """The card of a file of weights."""
    return card_files.read(path, SCHEMA, "train it again")[1]


def default_command(learner: str, suite: str) -> str:
    """The command that trains a learner where no card tells one."""
    return f"shard-gym train {learner} --suite {suite} --seed 0 --out {RETRAINED / learner / suite}"


@cache
def _policy(learner: str, path: Path, weights: str) -> Any:
    """The solver in a file; read once a process, and again when there are other weights in it."""
    try:
        module = import_module(LEARNERS[learner][0])
    except ModuleNotFoundError as error:
        raise MissingDependency(f"{learner} needs {error.name}: pip install {error.name}") from error
    return module.load(path)
