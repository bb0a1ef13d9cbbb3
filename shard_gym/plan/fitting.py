"""Room for tables of all kinds of sharding: what stands in the way, what would fit, and a plan by a simple rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.memory.usage import table_bytes
from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.plan.violations import rooms
from shard_gym.task.constraints import BY_HOST, KINDS, OF_ONE
from shard_gym.task.task import Constraints, Task


def lacking(task: Task, forms: Forms | None = None) -> str | None:
    """A table that fits in no form, or all of them in their smallest, and what would fit; or moves too few."""
    if (short := -int(Rules.of(task).moves[0])) > 0:
        most = task.constraints.max_moves or 0
        return f"{most + short} tables or more must leave their device in the plan in use, at most {most} may"
    forms = _sizes(task) if forms is None else forms
    fits, (taken, in_host) = forms.fits, forms.taken
    for t in np.flatnonzero(~np.logical_or.reduceat(fits.any(axis=1), forms.first[:-1]))[:1].tolist():
        kinds, size = task.kinds_of(t), int(table_bytes(task)[t])
        return (
            f"table {t} ({task.tables.name[t]!r}, {size:,} bytes) fits on no device as {', '.join(kinds)} in "
            f"{', '.join(task.residences)}: the largest has {task.capacity.max():,} bytes{_would_fit(task, t)}"
        )
    held = np.where(fits, np.stack([taken, taken + in_host]), np.inf).min(axis=2)
    least = np.minimum.reduceat(held, forms.first[:-1], axis=1).sum(axis=1)
    room, hosts = int(task.capacity.sum()), task.host_memory * task.num_devices
    for needed, there, where in ((least[0], room, "devices"), (least[1], room + hosts, "devices and hosts")):
        if needed > there:
            missing = int(needed) - there
            hint = "" if "uvm" in task.residences else "; residence uvm would keep rows in the host's memory"
            return (
                f"all tables, each sharded so that it takes least, take {int(needed):,} bytes, all {where} have "
                f"{there:,}: {missing:,} bytes too few{hint}"
            )
    return None


def _would_fit(task: Task, table: int) -> str:
    """Kinds and residences that the task leaves out and by which a table would fit, in words."""
    hosts = task.devices_per_host < task.num_devices
    kinds = [k for k in KINDS if hosts or k not in BY_HOST] if task.objective != "kernel" else list(OF_ONE)
    alone = replace(task, tables=task.tables.take([table]), constraints=Constraints())
    found = []
    for kind in kinds:
        if kind not in task.kinds_of(table):
            found += [kind] * bool(_sizes(replace(alone, kinds=(kind,), splits_allowed=False)).fits.any())
    if not found and "uvm" not in task.residences:
        found = ["residence uvm"]
    return f"; it would fit as {' or '.join(found)}" if found else ""


def _sizes(task: Task) -> Forms:
    """Forms of a task's tables, for their bytes."""
    return Forms.of(task, lambda shards: np.zeros((len(shards.rows), 0)))


def evenly(task: Task) -> Plan | None:
    """Plan that spreads each table as evenly as it may be, see `even_choices`; None if tables find no room."""
    forms = _sizes(task)
    chosen = even_choices(forms)
    return None if chosen is None else forms.plan(chosen)


def even_choices(forms: Forms) -> list[tuple[int, int, list[int]]] | None:
    """Form, choice and targets of each table, the largest first: by rows over all devices, or those of a host, in the
    most pieces, or whole; None if tables find no room."""
    task = forms.task
    size, free = forms.bytes, np.stack(rooms(task))
    chosen: list[tuple[int, int, list[int]]] = [(0, 0, [])] * task.num_tables
    for t in np.argsort(-table_bytes(task), kind="stable").tolist():
        options = (
            (form, choice)
            for choice in (ALL, HOST, DEVICE, COPY)
            for form in range(int(forms.first[t + 1]) - 1, int(forms.first[t]) - 1, -1)
            if forms.may[form, choice]
        )
        by_residence = sorted(options, key=lambda option: forms.residence[option[0]])
        placed = next((p for form, choice in by_residence if (p := _spread(forms, size, free, form, choice))), None)
        if placed is None:
            return None
        chosen[t], free = placed
    return chosen


def _spread(
    forms: Forms, size: np.ndarray, free: np.ndarray, form: int, choice: int
) -> tuple[tuple[int, int, list[int]], np.ndarray] | None:
    """A form's pieces one by one where most is free, and what is left; None if there is no room for all."""
    span = {DEVICE: 1, HOST: forms.task.devices_per_host}.get(choice, forms.task.num_devices)
    targets: list[int] = []
    for _ in range(int(forms.pieces[form])):
        left = free - size[:, form, choice]
        worst = left.reshape(len(left), -1, span).min(axis=(0, 2))
        target = int(worst.argmax())
        if worst[target] < 0:
            return None
        block = slice(target * span, (target + 1) * span)
        free = free.copy()
        free[:, block] = left[:, block]
        targets.append(target)
    return (form, choice, targets), free
