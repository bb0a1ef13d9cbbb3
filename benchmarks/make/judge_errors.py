"""Write how far judges are from measured plans: `python -m benchmarks.judge_errors`

Reads the committed measurements of whole plans and writes the file that resolutions of suites are told from. The fit
of a published id never changes; its error is known better as more plans are measured.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import shard_gym_agents
from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.measuring import chosen
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym_agents.leaderboard.resolution import FILE, judge_error

PATH = Path(shard_gym_agents.__file__).parent / "leaderboard" / FILE
JUDGES = ("learned:cpu-judge-v1",)
DIGITS = 5


def measured_error(judge: str, hardware: Hardware) -> dict[str, Any]:
    """The error of a judge on all chosen plans of that hardware, and what it was found from."""
    plans = chosen.load(hardware.plans)
    found = chosen.outcome(plans, hardware.runs(), simulators.make(plans["planner"]), simulators.make(judge))
    error = {name: round(value, DIGITS) for name, value in asdict(judge_error(found.judged, found.devices)).items()}
    return {**error, "tasks": len(found.judged), "methods": list(found.solvers), "runs": len(found.devices)}


def write(options: Namespace) -> None:
    """Write the errors of all judges."""
    hardware = Hardware(options.hardware)
    told = {judge: measured_error(judge, hardware) for judge in JUDGES}
    write_whole(PATH, json.dumps(told, indent=1) + "\n")
    for judge, error in told.items():
        print(f"{judge}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure errors."""
    parser = commands.parser("python -m benchmarks.judge_errors", __doc__)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    return commands.run(parser, write, arguments)


if __name__ == "__main__":
    sys.exit(main())
