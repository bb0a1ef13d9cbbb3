"""Rules that a plan breaks, in words: kinds and residences, memory, constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_gym.errors import InvalidPlan, InvalidTask
from shard_gym.memory.usage import bytes_used, device_bytes
from shard_gym.plan.plan import Plan
from shard_gym.records.guard import expect
from shard_gym.task.constraints import OF_COLUMNS
from shard_gym.task.task import Constraints, Task

if TYPE_CHECKING:  # imported where a plan needs shards
    from shard_gym.memory.shards import Shards

_NONE = Constraints()


def violations(task: Task, plan: Plan) -> list[str]:
    """Reasons why a plan cannot be used, in words: memory, then constraints; empty when it can.

    A plan of other kinds than the task's is refused.
    """
    expect(task, Task, InvalidTask)
    expect(plan, Plan, InvalidPlan)
    from shard_gym.plan.shards import expanded

    return violations_of(task, plan, expanded(task, plan))


def violations_of(task: Task, plan: Plan, placed: Shards | None) -> list[str]:
    """The `violations` of a plan that is `expanded` already."""
    if placed is not None and (told := forbidden(task, plan, placed)):
        raise InvalidPlan(told[0])
    return [*over_memory(task, _bytes_of(task, plan, placed)), *broken_constraints(task, plan)]


def plan_bytes(task: Task, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that a plan of any kinds takes of each device's memory and of its part of its host's, (K,) int64 both."""
    from shard_gym.plan.shards import expanded

    return _bytes_of(task, plan, expanded(task, plan))


def _bytes_of(task: Task, plan: Plan, placed: Shards | None) -> tuple[np.ndarray, np.ndarray]:
    if placed is not None:
        return bytes_used(task, placed)
    return device_bytes(task, np.array(plan.device)), np.zeros(task.num_devices, np.int64)


def forbidden(task: Task, plan: Plan, placed: Shards) -> list[str]:
    """Tables that are sharded, or kept, in a way that the task does not allow, in words."""
    named, least = task.constraints.of_forms, dict(task.constraints.least_columns)
    kinds, residences = set(placed.kind.tolist()), set(plan.residence)
    if kinds <= set(task.kinds_allowed) and residences <= set(task.residences) and not named:
        return []
    found = []
    first = np.searchsorted(placed.table, np.arange(task.num_tables))
    for t, kind in enumerate(placed.kind[first].tolist()):
        what, allowed = f"table {t} ({task.tables.name[t]!r})", task.kinds_of(t)
        if kind not in allowed:
            found.append(f"{what} is {kind}: the task allows {', '.join(allowed)}")
        lives = task.residences if kind == "dp" else task.residences_of(t)
        if plan.residence[t] not in lives:
            found.append(f"{what} is in {plan.residence[t]}: the task allows {', '.join(lives)}")
        if kind in OF_COLUMNS and placed.dim[first[t]] < least.get(t, 0):
            found.append(f"{what} has shards of {placed.dim[first[t]]} columns: the task allows {least[t]} and more")
    return found


def rooms(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of each device's memory, and of its host's, that are left for its shards, (K,) both."""
    return task.capacity, np.full(task.num_devices, task.host_memory)


def over_memory(task: Task, needed: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """Devices that need more bytes, of their memory and of their host's, than they have room for, in words."""
    found = []
    for name, used, room in zip(("", " of its host's memory"), needed, rooms(task), strict=True):
        for d in np.flatnonzero(used > room).tolist():
            found.append(f"device {d} needs {used[d]:,} bytes{name} of {room[d]:,} ({used[d] - room[d]:,} too many)")
    return found


def broken_constraints(task: Task, plan: Plan) -> list[str]:
    """Constraints of the task that a valid plan breaks, in words."""
    c = task.constraints
    if c == _NONE:
        return []
    shards: dict[int, set[int]] = {}
    source, _, _ = task.pieces(plan.splits)
    for table, devices in zip(source, plan.devices, strict=True):
        shards.setdefault(table, set()).update(devices)
    broken = [f"table {t} is pinned to device {d}" for t, d in c.pin if shards[t] != {d}]
    broken += [f"tables {g} must be together" for g in c.together if len(set().union(*(shards[t] for t in g))) > 1]
    for group in c.apart:
        placed = [d for t in group for d in shards[t]]
        if len(placed) != len(set(placed)):
            broken.append(f"tables {group} must be apart")
    if c.max_moves is not None:
        moves = sum(shards[t] != {d} for t, d in enumerate(c.base))
        if moves > c.max_moves:
            broken.append(f"{moves} tables move, at most {c.max_moves} may")
    return broken
