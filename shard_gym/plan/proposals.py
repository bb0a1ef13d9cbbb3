"""Proposals for a task without a known plan: fewer constraints, splits, kinds, memory, devices.

Each is tried: what is proposed has a plan by a simple rule. A search may find one with less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import piece_bytes, table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing, quick
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import MOST_HALVINGS, halvings
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import plan_bytes, violations
from shard_gym.tables.pool import GB
from shard_gym.task.constraints import BY_HOST
from shard_gym.task.task import Constraints, Task

SLACK = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # times the least memory or devices that a plan could do with
SHOWN = 3  # tables and devices that are named
FEW = 32  # constraints that are dropped one by one; of more, all of a kind


def proposals(task: Task) -> tuple[str, ...]:
    """Changes that help, in words; the plan that there is, where a simple rule finds one."""
    if found := simple_plan(task):
        halved = f" with {_halvings(found)}" if found.splits else ""
        return (f"there is a plan{halved}: a search such as auto finds one",)
    sharded = (*_with_splits(task), *_with_kinds(task), *_with_host(task))
    return (*_without_constraints(task), *sharded, *_with_memory(task), *_with_devices(task))


def simple_plan(task: Task) -> Plan | None:
    """A plan by a simple rule, with as few halvings as it needs where the task allows them; None if none is found."""
    if whole := _whole_plan(task):
        return whole
    least, most = 0, 1
    while (plan := _halved_plan(task, most)) is None:
        if most > _halvings_allowed(task):
            return None
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        fewer = _halved_plan(task, middle)
        least, most, plan = (middle, most, plan) if fewer is None else (least, middle, fewer)
    return plan


def _whole_plan(task: Task) -> Plan | None:
    """A plan without splits that keeps all constraints; of several kinds where the task names them."""
    if task.constraints == Constraints() or beyond_columns(task):
        return quick(task).plan
    try:
        plan = Plan(tuple(first_fit_decreasing(task).tolist()))
    except InfeasibleTask:
        return None
    return None if violations(task, plan) else plan


def _halvings_allowed(task: Task) -> int:
    bound = task.constraints != Constraints(no_split=task.constraints.no_split)  # halves have no constraints
    return 0 if bound or beyond_columns(task) else int((2 ** halvings(task) - 1).sum())


def _halved_plan(task: Task, count: int) -> Plan | None:
    """A plan with so many halvings of columns at least, of the tables with the largest pieces."""
    times = halvings(task) if _halvings_allowed(task) else np.zeros(task.num_tables, np.int64)
    columns = [task.tables.dim >> np.minimum(level, times).astype(np.int32) for level in range(MOST_HALVINGS + 1)]
    bytes_ = np.array([piece_bytes(task, np.arange(task.num_tables), dim) for dim in columns])
    level, tables, done = np.zeros(task.num_tables, np.int64), np.arange(task.num_tables), 0
    while done < count and (level < times).any():
        table = int(np.where(level < times, bytes_[level, tables], -1).argmax())
        done += 2 ** int(level[table])
        level[table] += 1
    splits: list[int] = []
    for table in np.flatnonzero(level).tolist():
        pieces = [table]
        for _ in range(level[table]):
            splits += pieces
            first = task.num_tables + len(splits) - len(pieces)
            pieces += range(first, first + len(pieces))
    found = quick(replace(task, constraints=Constraints()).split(splits)).plan if splits else None
    return None if found is None else Plan(found.device, tuple(splits))


def _without_constraints(task: Task) -> Iterator[str]:
    """Constraints without which there is a plan, one by one; all of them where no single one is in the way."""
    if task.constraints == Constraints():
        return
    helps = [said for said, less in _relaxed(task) if simple_plan(replace(task, constraints=less))]
    if not helps and simple_plan(replace(task, constraints=Constraints())):
        helps = ["any constraint (more than one is in the way)"]
    if helps:
        yield f"constraints: there is a plan without {', or without '.join(helps)}"


def _relaxed(task: Task) -> Iterator[tuple[str, Constraints]]:
    """Constraints less one, or less one kind."""
    c, name = task.constraints, task.tables.name
    told = {
        "pin": [f"the pin of {name[t]!r} to device {d}" for t, d in c.pin],
        "together": [f"{', '.join(repr(name[t]) for t in group)} together" for group in c.together],
        "apart": [f"{', '.join(repr(name[t]) for t in group)} apart" for group in c.apart],
        "no_split": [f"no-split of {name[t]!r}" for t in c.no_split],
    }
    for kind, said in told.items():
        rules = getattr(c, kind)
        if len(rules) > FEW:
            yield f"all {len(rules)} of {kind}", replace(c, **{kind: rules[:0]})
            continue
        for i, each in enumerate(said):
            yield each, replace(c, **{kind: rules[:i] + rules[i + 1 :]})
    if c.max_moves is not None:
        yield f"max_moves = {c.max_moves}", replace(c, max_moves=None)


def _with_splits(task: Task) -> Iterator[str]:
    """Halvings that make a plan, if the task allowed them."""
    if task.splits_allowed or beyond_columns(task):
        return
    plan = simple_plan(replace(task, splits_allowed=True))
    if plan is not None:
        split = sorted({t for t in plan.splits if t < task.num_tables})
        names = ", ".join(repr(task.tables.name[t]) for t in split[:SHOWN]) + ", ..." * (len(split) > SHOWN)
        yield f"splits: there is a plan with {_halvings(plan)}, of {names} (--allow-splits)"


def _with_kinds(task: Task) -> Iterator[str]:
    """A kind that shares rows out and makes a plan, if the task allowed it."""
    hosts = task.devices_per_host < task.num_devices
    for kind in () if task.objective == "kernel" else ("rw", "twrw")[: 1 + hosts]:
        more = replace(task, kinds=(*task.kinds_allowed, kind))
        if kind not in task.kinds_allowed and simple_plan(more):
            yield f"kinds: there is a plan with {kind} (--kinds {','.join(more.kinds_allowed)})"
            return


def _with_host(task: Task) -> Iterator[str]:
    """Bytes of hosts' memory that a plan would fill with what the devices have no room for."""
    if task.objective == "kernel" or task.residences != ("hbm",):
        return
    size, capacity = table_bytes(task), task.capacity
    moved = float(size.max() if size.max() > capacity.max() else size.min())  # one table at least
    moved /= task.num_devices if beyond_columns(task) else 1
    least = max((int(size.sum()) - int(capacity.sum())) / task.num_devices, moved)
    for slack in SLACK:
        host = int(np.ceil(least * slack))
        if simple_plan(replace(task, residences=("hbm", "uvm"), host_memory=host)):
            yield f"host memory: {_gib(host)} a device are enough (--residences hbm,uvm --host-memory-gb)"
            return


def _with_memory(task: Task) -> Iterator[str]:
    """Bytes that the devices of a plan would hold, where there is no room for any now."""
    size, capacity = table_bytes(task), task.capacity
    cut = task.splits_allowed or beyond_columns(task)
    largest = 0 if cut else int(size.max()) / int(capacity.max())
    least = max(largest, int(size.sum()) / int(capacity.sum()), 1.0)
    for slack in SLACK:
        memory = tuple(np.ceil(capacity * (least * slack)).astype(np.int64).tolist())
        if plan := simple_plan(replace(task, memory=memory)):
            used, _ = plan_bytes(task, plan)
            over = np.flatnonzero(used > capacity)
            if len(set(task.memory)) == 1:
                yield f"memory: {_gib(used.max())} a device are enough, now {_gib(capacity[0])}"
                return
            told = [f"{_gib(used[d])} on device {d}, now {_gib(capacity[d])}" for d in over[:SHOWN]]
            told += [f"and more on {len(over) - SHOWN} more"] if len(over) > SHOWN else []
            yield f"memory: enough are {', '.join(told)}"
            return


def _with_devices(task: Task) -> Iterator[str]:
    """The number of devices like the largest that makes a plan; whole hosts of them where kinds need these."""
    capacity, fastest = int(task.capacity.max()), max(task.speed)
    host = task.devices_per_host if set(task.kinds_allowed) & set(BY_HOST) else 1
    for slack in SLACK:
        devices = max(int(np.ceil(int(table_bytes(task).sum()) / capacity * slack)), task.num_devices + 1)
        devices = -(-devices // host) * host
        more = devices - task.num_devices
        wider = replace(task, memory=(*task.memory, *[capacity] * more), speed=(*task.speed, *[fastest] * more))
        if simple_plan(wider):
            yield f"devices: {devices} are enough, now {task.num_devices}"
            return


def _halvings(plan: Plan) -> str:
    count = len(plan.splits)
    return f"{count} halving{'s' if count > 1 else ''} of columns"


def _gib(size: int) -> str:
    return f"{size / GB:.2f} GiB ({int(size):,} bytes)"
