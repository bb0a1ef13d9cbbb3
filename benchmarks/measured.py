"""Measurements that are kept in `measurements/`, by hardware and by what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import RESULTS
from shard_gym.measuring import chosen
from shard_gym.measuring.measurements import Measurements, at_pace_of

FOLDER = Path(__file__).parents[1] / "measurements"
# Which files each role may use; tables of the roles differ, so that no fit has seen the test's nor the other's.
ROLES = {
    "planner": ("planner*.npz", "searched*.npz"),
    "judge": ("judge*.npz",),
    "test": ("test*.npz",),
    "plans": ("plans*.npz",),
    "fresh": ("fresh*.npz",),
}


@dataclass(frozen=True)
class Hardware:
    """Files and simulators of one piece of measured hardware; nothing of another one is read or written."""

    name: str = "cpu"
    folder: Path = FOLDER  # of measurements
    results: Path = RESULTS

    @property
    def planner(self) -> str:
        """Id of the fit that plans."""
        return f"learned:{self.name}-v1"

    @property
    def judge(self) -> str:
        """Id of the fit that judges."""
        return f"learned:{self.name}-judge-v1"

    @property
    def plans(self) -> Path:
        """File of the plans that were chosen before they were measured."""
        return self.folder / f"{self.name}-plans.json"

    @property
    def fresh(self) -> Path:
        """File of the plans of the second edition, some with split tables, chosen before they were measured."""
        return self.folder / f"{self.name}-fresh.json"

    @property
    def pace(self) -> Path:
        """The campaign that measured some shards of all others again, where the machine was shared."""
        return self.folder / f"{self.name}-pace.npz"

    def files(self, role: str) -> list[Path]:
        """The files of a role, in order."""
        return sorted(path for pattern in ROLES[role] for path in self.folder.glob(f"{self.name}-{pattern}"))

    def parts(self, role: str) -> list[Measurements]:
        """Measurements of a role, file by file, at the pace of the pace file if there is one."""
        found = [Measurements.load(path) for path in self.files(role)]
        return at_pace_of(Measurements.load(self.pace), found) if self.pace.exists() else found

    def load(self, role: str) -> Measurements:
        """All measurements of a role."""
        return Measurements.concat(self.parts(role))

    def runs(self, role: str = "plans") -> list[Measurements]:
        """Each pass over the shards of the chosen plans, or of the fresh ones."""
        return [each for part in self.parts(role) for each in chosen.passes(part)]

    def visits(self) -> list[Path]:
        """Campaigns in visits, each of shards of every role; pools tell the roles apart."""
        return sorted(self.folder.glob(f"{self.name}-visits-*.npz"))

    def visited_plans(self) -> list[Path]:
        """Files of the plans whose devices are among the shards of those campaigns, where they were measured."""
        paths = [path.with_name(f"{path.stem}-plans.json") for path in self.visits()]
        return [path for path in paths if path.exists()]

    def result(self, name: str) -> Path:
        """Path of a page of this hardware, without its ending."""
        return self.results / (name if self.name == "cpu" else f"{name}-{self.name}")
