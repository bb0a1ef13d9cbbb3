"""Every plan of a task of few tables, one after another: the best of them is the best there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import halvings
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.constraints import Constraints
from shard_gym.task.task import Task

MOST_TABLES, MOST_DEVICES = 12, 4
AT_ONCE = 2**13  # plans that are costed together


@dataclass(frozen=True)
class Exhaustive:
    """The best of all plans of at most 12 tables on at most 4 devices; a task with more is refused."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        if not is_small(task):
            raise InvalidTask(
                f"all plans are looked at of up to {MOST_TABLES} whole tables on {MOST_DEVICES} devices, without "
                "constraints: take milp for this task"
            )
        if why := disproof(task):
            raise InfeasibleTask(why)
        placements = every_placement(task.num_tables, task.num_devices, _group(task, planner))
        worths = [_worths(task, planner, placements[i : i + AT_ONCE]) for i in range(0, len(placements), AT_ONCE)]
        worth = np.concatenate(worths)
        best = Plan(tuple(placements[worth.argmin()].tolist()))
        if broken := violations(task, best):
            raise InfeasibleTask(f"no plan keeps to the task, of the first: {broken[0]}")
        return best


def is_small(task: Task) -> bool:
    """True if every plan of a task can be looked at."""
    few = task.num_tables <= MOST_TABLES and task.num_devices <= MOST_DEVICES
    return few and not beyond_columns(task) and task.constraints == Constraints() and not halvings(task).any()


@cache
def every_placement(tables: int, devices: int, group: int) -> np.ndarray:
    """All ways to put tables on devices, (P, tables); of those that differ in names of devices only, one.

    Devices of a group can be exchanged, and groups of one size; `group` 0 says that none can.
    """
    opened = [_opened(used, devices, group) for used in range(2**devices)]
    count = np.array([len(each) for each in opened])
    choice = np.array([each + [0] * (devices - len(each)) for each in opened])
    found, used = np.zeros((1, 0), np.int8), np.zeros(1, np.int64)  # and the devices that each uses, as bits
    for _ in range(tables):
        repeats = count[used]
        before = np.repeat(np.arange(len(found)), repeats)
        which = np.arange(len(before)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        device = choice[used[before], which]
        used = used[before] | 1 << device
        found = np.column_stack([found[before], device.astype(np.int8)])
    return found


def _opened(used: int, devices: int, group: int) -> list[int]:
    """Devices for the next table: those in use, the first other one of a group, and of new groups the first."""
    if not group:
        return list(range(devices))
    groups = [range(start, min(start + group, devices)) for start in range(0, devices, group)]
    found, new = [], set[int]()  # sizes of the new groups that are open
    for each in groups:
        mine = [d for d in each if used >> d & 1]
        if mine or len(each) not in new:
            found += [*mine, *[d for d in each if d not in mine][:1]]
        if not mine:
            new.add(len(each))
    return found


def _group(task: Task, planner: Simulator) -> int:
    """Devices of a group in which none differs from another, 0 where some do."""
    if len(set(task.memory)) > 1 or len(set(task.speed)) > 1:
        return 0
    wires = planner.uncounted.all_to_all(task) if isinstance(planner, FastSimulator) else None
    if wires is None:
        return task.num_devices if task.objective == "kernel" else 0
    return min(wires[0].group or task.num_devices, task.num_devices)


def _worths(task: Task, planner: Simulator, placements: np.ndarray) -> np.ndarray:
    """Makespans of placements, infinity where a device has too few bytes, (P,)."""
    placements = placements.astype(np.int64)
    fits = (device_bytes(task, placements) <= task.capacity).all(axis=1)
    return np.where(fits, planner.latency(task, placements).makespan(task.objective), np.inf)
