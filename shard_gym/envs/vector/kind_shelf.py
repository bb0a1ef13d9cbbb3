"""The tasks of a vector environment whose tables may be of all kinds of sharding, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.envs.bank import Settings
from shard_gym.envs.episodes import Episode, Prepared
from shard_gym.envs.kind_observations import KIND_WIDTH
from shard_gym.envs.kinds import PreparedForms
from shard_gym.envs.vector.shelf import Shelf, lengthened, rules_of
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.ways import MOST_STEPS, Ways
from shard_gym.task.task import Task

_OF_FORMS = ("may", "pieces", "further", "table", "whole", "part")  # columns of ways, a row for each form


class Stretches:
    """Entries of long columns that slots hold, from a first one on: a stretch is used again where it is long enough."""

    def __init__(self) -> None:
        self.used = 0
        self._of: dict[int, tuple[int, int]] = {}

    def take(self, slot: int, count: int) -> slice:
        """A stretch of so many entries for a slot."""
        start, room = self._of.get(slot, (0, 0))
        if room < count:
            start, room = self.used, count
            self.used += count
        self._of[slot] = start, room
        return slice(start, start + count)


class KindShelf(Shelf):
    """The tasks that episodes are on, with the forms of their tables and the ways between them."""

    options: Ways  # type: ignore[assignment]  # what both have is asked by `Shelf`

    def __init__(self, settings: Settings) -> None:
        self._forms, self._parts = Stretches(), Stretches()
        self.form_rows = np.zeros((0, KIND_WIDTH), np.float32)  # the "table" observation of each form
        self.piece_sizes = np.zeros(0, np.int64)  # bytes of a piece of each form on one device
        super().__init__(settings)

    def steps(self, nodes: Nodes) -> int:
        """The most steps of an episode."""
        return MOST_STEPS * len(nodes)

    def held(self, prepared: Prepared) -> np.ndarray:
        """Bytes of each table's group, by the rows of its rules."""
        assert isinstance(prepared, PreparedForms)
        return prepared.ways.held

    def _add_task(self, task: Task) -> None:
        super()._add_task(task)
        self.options.host = np.append(self.options.host, self.options.host[:1], axis=0)

    def _set_task(self, slot: int, task: Task) -> None:
        super()._set_task(slot, task)
        self.options.host[slot] = task.host_memory

    def _put_options(self, slot: int, episode: Episode) -> None:
        """Put forms and parts of a task to their stretches."""
        p, ways = episode.prepared, self.options
        assert isinstance(p, PreparedForms)
        forms, parts = self._forms.take(slot, len(p.ways.may)), self._parts.take(slot, len(p.ways.vector))
        self._lengthen()
        for name in _OF_FORMS:
            getattr(ways, name)[forms] = getattr(p.ways, name)
        ways.part[forms] += parts.start
        ways.size[:, parts], ways.vector[parts] = p.ways.size, p.ways.vector
        self.form_rows[forms], self.piece_sizes[forms] = p.form_rows, p.piece_sizes
        start, n = int(self.slots.start[slot]), len(episode.order)
        self.rows.form[start : start + n] = forms.start + p.forms.first[episode.order]
        self.rows.form[start + n] = forms.start

    def _lengthen(self) -> None:
        """Make room for all stretches, and for some more."""
        ways = self.options
        if len(ways.may) < self._forms.used:
            length = max(self._forms.used, len(ways.may) * 3 // 2)
            for name in _OF_FORMS:
                setattr(ways, name, lengthened(getattr(ways, name), length))
            self.form_rows = lengthened(self.form_rows, length)
            self.piece_sizes = lengthened(self.piece_sizes, length)
        if len(ways.vector) < self._parts.used:
            length = max(self._parts.used, len(ways.vector) * 3 // 2)
            ways.size, ways.vector = lengthened(ways.size.T, length).T, lengthened(ways.vector, length)

    def _grow_options(self, length: int) -> None:
        """Nothing: forms and parts have stretches of their own."""

    def _empty_options(self, tasks: Sequence[Task]) -> Ways:  # type: ignore[override]
        rules = rules_of(tasks)
        return Ways(
            may=np.zeros((0, 6), bool),
            pieces=np.zeros(0, np.int64),
            further=np.zeros(0, np.int64),
            table=np.zeros(0, np.int64),
            whole=np.zeros((0, 4), np.int64),
            part=np.zeros((0, 4, 3), np.int64),
            size=np.zeros((2, 0), np.int64),
            vector=np.zeros((0, self.width)),
            tasks=list(tasks),
            capacity=np.stack([task.capacity for task in tasks]),
            host=np.stack([np.full(task.num_devices, task.host_memory) for task in tasks]),
            rules=rules,
            held=np.zeros(len(rules.leader), np.int64),
        )


def shelf_of(settings: Settings) -> Shelf:
    """The shelf of an environment's tasks."""
    return KindShelf(settings) if settings.bank.kinds else Shelf(settings)
