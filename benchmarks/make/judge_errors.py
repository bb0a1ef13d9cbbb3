"""Write how far judges are from measured plans: `python -m benchmarks.judge_errors`

Reads the committed measurements of whole plans and writes the file that resolutions of suites are told from: plans that
split nothing, measured in three runs, and plans of mixtures and of test tasks, whose devices were visited three times.
Where several sets of plans were measured, a judge's error is the one that gives the largest resolution. The fit of a
published id never changes; its error is known better as more plans are measured.
"""

from __future__ import annotations

import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity_v2 import TREND, as_measured
from benchmarks.sim_to_real import steady_passes

import shard_gym_agents
from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.errors import SettingsIgnored
from shard_gym.measuring import chosen
from shard_gym.measuring.drift import detrended
from shard_gym.measuring.measurements import Measurements, groups
from shard_gym.measuring.predictors import by_simulator, predicted_by, shards_of
from shard_gym.measuring.visits import combined, pace_by_size
from shard_gym.records import commands
from shard_gym.records.files import read_json, write_whole
from shard_gym.simulators import FastSimulator
from shard_gym_agents.leaderboard.resolution import FILE, JudgeError, judge_error
from shard_gym_agents.solvers.solver import require_fast

PATH = Path(shard_gym_agents.__file__).parent / "leaderboard" / FILE
DIGITS, VISITS = 5, 3
ENOUGH = 16  # tasks that all methods planned, for a set of plans to count

Found = tuple[JudgeError, dict[str, Any]]


def of_runs(judge: FastSimulator, hardware: Hardware) -> Found:
    """The error on plans that split nothing, and what it was found from."""
    plans = chosen.load(hardware.plans)
    found = chosen.outcome(plans, hardware.runs(), simulators.make(plans["planner"]), judge)
    error = judge_error(found.judged, found.devices)
    return error, {"tasks": len(found.judged), "methods": list(found.solvers)}


def of_visits(judge: FastSimulator, hardware: Hardware) -> Found:
    """The error on plans of mixtures, some with split tables; every method planned every task."""
    judged, devices, methods = [], [], list[str]()
    for path in filter(_measured, hardware.visited_plans()):
        plans = read_json(path)["plans"]
        methods = list(dict.fromkeys(plan["solver"] for plan in plans))
        times = visits(Measurements.load(_times_of(path)), Measurements.load(hardware.pace))
        for first in range(0, len(plans) - len(methods) + 1, len(methods)):
            task = [_devices(plan) for plan in plans[first : first + len(methods)]]
            if all(key in times for keys in task for key in keys):
                judged.append([_makespan(judge, keys) for keys in task])
                devices.append([_padded([times[key] for key in keys]) for keys in task])
    error = judge_error(np.array(judged), np.moveaxis(np.array(devices), -1, 0))
    return error, {"tasks": len(judged), "methods": methods}


def of_fresh(judge: FastSimulator, hardware: Hardware) -> list[Found]:
    """The error on plans of each suite's test tasks, on tasks that every method planned."""
    plans, passes = chosen.load(hardware.fresh), steady_passes(hardware)
    planner, found = simulators.make(plans["planner"]), []
    for suite in dict.fromkeys(entry["suite"] for entry in plans["plans"]):
        told = chosen.outcome(plans, passes, planner, judge, suite)
        told = told.of_tasks(np.isfinite(told.predicted).all(axis=1))
        if (tasks := len(told.judged)) >= ENOUGH:
            found_from = {"suite": suite, "tasks": tasks, "methods": list(told.solvers)}
            found.append((judge_error(told.judged, told.devices), found_from))
    return found


def of_all(judge: FastSimulator, hardware: Hardware) -> Found:
    """The error on the set of plans that gives the largest resolution for 100 tasks."""
    return max((of_visits(judge, hardware), *of_fresh(judge, hardware)), key=lambda found: found[0].resolution(100))


def _times_of(plans: Path) -> Path:
    return plans.with_name(plans.name.replace("-plans.json", ".npz"))


def _measured(plans: Path) -> bool:
    """True if the shards of these plans are measured already."""
    return _times_of(plans).exists()


def visits(measured: Measurements, reference: Measurements) -> dict[Any, np.ndarray]:
    """The lowest time of each visit to a shard, (VISITS,) by shard, without drift and at the pace of the reference."""
    known = measured.take(np.isfinite(measured.total_ms) & (measured.total_ms > 0))
    steady = detrended(known, predicted_by(require_fast(simulators.make(TREND)))(known))
    once, lowest = combined(steady), steady.run_ms.sum(axis=2).min(axis=1)
    pace = np.broadcast_to(pace_by_size(once, reference), len(once))
    same = groups(steady)
    found = {key: lowest[same[key][:VISITS]] / pace[i] for i, key in enumerate(map(once.key, range(len(once))))}
    return {key: ms for key, ms in found.items() if len(ms) == VISITS}


def _devices(plan: dict[str, Any]) -> list[Any]:
    """The shards of a plan, as measurements name them."""
    return [(plan["pool"], tuple(table), tuple(dim)) for table, dim in plan["shards"]]


def _makespan(judge: FastSimulator, keys: Sequence[Any]) -> float:
    return float(by_simulator(judge)(shards_of(as_measured(keys))).ms.max())


def _padded(times: list[np.ndarray], devices: int = 8) -> np.ndarray:
    """Times of devices, (K, VISITS); those without a table take none."""
    return np.pad(np.array(times), ((0, devices - len(times)), (0, 0)))


def measure(hardware: Hardware) -> dict[str, Any]:
    """The errors of all judges, and what they were found from."""
    told = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsIgnored)
        for name, source in JUDGES.items():
            error, found_from = source(require_fast(simulators.make(name)), hardware)
            told[name] = {key: round(value, DIGITS) for key, value in asdict(error).items()} | found_from
    return told


def write(options: Namespace) -> None:
    """Write the errors of all judges."""
    told = measure(Hardware(options.hardware))
    write_whole(PATH, json.dumps(told, indent=1) + "\n")
    for name, error in told.items():
        print(f"{name}: {error}")


JUDGES = {"learned:cpu-judge-v1": of_runs, "learned:cpu-judge-v2": of_all}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure errors."""
    parser = commands.parser("python -m benchmarks.judge_errors", __doc__)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    return commands.run(parser, write, arguments)


if __name__ == "__main__":
    sys.exit(main())
