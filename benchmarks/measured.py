"""The measurements that are kept in `measurements/`, at one pace, by what they are for."""

from __future__ import annotations

from pathlib import Path

from shard_gym.measurements import Measurements
from shard_gym.repeats import at_pace_of

FOLDER = Path(__file__).parents[1] / "measurements"
# Which files each role may use; tables of the roles differ, so that no fit has seen the test's nor the other's.
ROLES = {
    "planner": ("{}-planner*.npz", "{}-searched*.npz"),
    "judge": ("{}-judge*.npz",),
    "test": ("{}-test*.npz",),
}


def files(role: str, hardware: str = "cpu") -> list[Path]:
    """The files of a role, in order."""
    return sorted(path for pattern in ROLES[role] for path in FOLDER.glob(pattern.format(hardware)))


def pace_file(hardware: str = "cpu") -> Path:
    """The campaign that measured some shards of all others again."""
    return FOLDER / f"{hardware}-pace.npz"


def load(role: str, hardware: str = "cpu") -> Measurements:
    """All shards of a role at the pace of the pace file."""
    reference = Measurements.load(pace_file(hardware))
    return Measurements.concat(at_pace_of(reference, [Measurements.load(path) for path in files(role, hardware)]))
