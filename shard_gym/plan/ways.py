"""Ways to go on with the next piece of a table where tasks allow all kinds of sharding, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms, blocks_of
from shard_gym.plan.rules import Rules, on_one_device
from shard_gym.task.task import Task

HALVE, CACHE = 4, 5  # what actions do beside the four choices of forms: they change the table
MOST_CHANGES = 3  # of a table
MOST_STEPS = MOST_CHANGES + 2**MOST_CHANGES  # of a table: it is halved, and its pieces are placed one by one


@dataclass(frozen=True)
class Actions:
    """Actions of tasks with so many devices and hosts: each device, each host, all rows, copies, halve, cache."""

    devices: int
    hosts: int  # 0: the task's links name none

    @classmethod
    def of(cls, task: Task) -> Actions:
        """The actions of a task."""
        group = 0 if task.links is None else task.links.group
        return cls(task.num_devices, task.num_devices // group if group and task.num_devices % group == 0 else 0)

    @cached_property
    def placing(self) -> int:
        """Actions that place a piece."""
        return self.devices + self.hosts + 2

    @cached_property
    def count(self) -> int:
        """All actions."""
        return self.placing + 2

    @cached_property
    def per_host(self) -> int:
        """Devices of a host."""
        return self.devices // (self.hosts or 1)

    @cached_property
    def does(self) -> np.ndarray:
        """Choice of each action, or HALVE, or CACHE, (A,)."""
        each = (self.devices, self.hosts, 1, 1, 1, 1)
        return np.repeat([DEVICE, HOST, ALL, COPY, HALVE, CACHE], each)

    @cached_property
    def start(self) -> np.ndarray:
        """First device that each action puts something on, (A,)."""
        return np.concatenate([np.arange(self.devices), self.per_host * np.arange(self.hosts), np.zeros(4, np.int64)])

    @cached_property
    def reach(self) -> np.ndarray:
        """Devices that each choice puts something on, and changes, (6,)."""
        return np.array([*map(self.span, range(4)), 0, 0])

    def span(self, choice: int) -> int:
        """Devices that a choice puts something on."""
        return {DEVICE: 1, HOST: self.per_host}.get(choice, self.devices)

    @cached_property
    def block(self) -> np.ndarray:
        """The block that each choice puts on each device, (4, K)."""
        return blocks_of(self.devices, self.per_host)

    def words(self) -> str:
        """The actions, in words."""
        hosts = f"{self.devices}..{self.devices + self.hosts - 1} rows over a host, " if self.hosts else ""
        rows, copy, halve, cache = range(self.placing - 2, self.count)
        return (
            f"0..{self.devices - 1} a device, {hosts}{rows} rows over all, {copy} a copy on each, {halve} halve, "
            f"{cache} the next residence"
        )


@dataclass(eq=False)
class Ways:
    """A row for each form of the tables of a task, or of several side by side: what it may become, what it puts where.

    The form after it lives in the next residence, the form `further` on is halved once more.
    """

    may: np.ndarray  # (R, 6) bool, choices, HALVE and CACHE that the task leaves
    pieces: np.ndarray  # (R,) of the table in this form
    further: np.ndarray  # (R,)
    table: np.ndarray  # (R,) whose constraints count; -1: no rule speaks of the piece
    whole: np.ndarray  # (R, 4), and the next three as of `Forms`, parts counted over all tasks
    part: np.ndarray  # (R, 4, 3)
    size: np.ndarray  # (2, S)
    vector: np.ndarray  # (S, H)
    tasks: list[Task]
    capacity: np.ndarray  # (T, K) bytes of each task's devices
    host: np.ndarray  # (T, K) bytes of its host's memory that each has
    rules: Rules  # of all tasks
    held: np.ndarray  # bytes of each table's group, by the rows of `rules`

    @classmethod
    def of(cls, forms: Forms) -> Ways:
        """The ways of a task."""
        task, may = forms.task, forms.may.copy()
        bound, rules = on_one_device(task), Rules.of(task)
        ruled = bound[forms.table]
        may[ruled, 1:] = False
        further = np.full(len(may), len(forms.residences))
        changes = _changes(forms, may, ruled)
        first = forms.first[:-1]
        if (lost := np.flatnonzero(~may[first].any(axis=1) & ~changes[first].any(axis=1))).size:
            t = int(lost[0])
            one = ", and constraints want it whole on one device" if bound[t] else ""
            raise InvalidTask(
                f"table {t} ({task.tables.name[t]!r}, {task.tables.dim[t]} columns) may only be "
                f"{', '.join(task.kinds_of(t))}{one}: it has no form of these kinds; allow it others"
            )
        size = np.where(bound, forms.part_size[0, forms.part[first, DEVICE, 0]], 0)
        return cls(
            may=np.concatenate([may, changes], axis=1),
            pieces=forms.pieces,
            further=further,
            table=np.where(ruled, forms.table, -1),
            whole=forms.whole,
            part=forms.part,
            size=forms.part_size,
            vector=forms.part_vector,
            tasks=[task],
            capacity=task.capacity[None],
            host=np.full((1, task.num_devices), task.host_memory),
            rules=rules,
            held=np.append(rules.merged(size), 0)[rules.leader],
        )

    @property
    def actions(self) -> Actions:
        """The actions, which all tasks share."""
        return Actions.of(self.tasks[0])


def _changes(forms: Forms, may: np.ndarray, ruled: np.ndarray) -> np.ndarray:
    """True where a form may be halved, and go to the next residence, (R, 2): where that leads to some choice."""
    levels = np.diff(forms.first) // len(forms.residences)
    fewer = forms.level + forms.residence < MOST_CHANGES
    halved = fewer & (forms.level + 1 < levels[forms.table]) & ~ruled
    moved = fewer & (forms.residence + 1 < len(forms.residences)) & ~ruled
    row, last = np.arange(len(may)), len(may) - 1
    after = np.stack([np.minimum(row + len(forms.residences), last), np.minimum(row + 1, last)], axis=1)
    leads: np.ndarray = np.any(may, axis=1)
    allowed = np.stack([halved, moved], axis=1)
    for _ in range(MOST_CHANGES):
        leads = leads | np.any(allowed & leads[after], axis=1)
    return allowed & leads[after]
