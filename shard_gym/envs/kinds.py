"""A task of more kinds of sharding, prepared for episodes: its tables' forms, and ways from one to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shard_gym.envs.episodes import Prepared
from shard_gym.memory.shards import Shards
from shard_gym.memory.usage import shard_bytes
from shard_gym.plan.forms import Forms
from shard_gym.plan.nodes import MOST_HALVINGS, Nodes
from shard_gym.plan.ways import Actions, Ways
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.single import costs_alone
from shard_gym.task.task import Task

EXTRA = 5  # numbers of the "table" observation beside those of other environments


@dataclass(frozen=True, eq=False)
class PreparedForms(Prepared):
    """A task with what all its episodes share; arrays of nodes are of its tables, whole, in their first residence."""

    standardised: Callable[[Task], np.ndarray] | None = None  # features of tables, scaled

    @cached_property
    def forms(self) -> Forms:
        """All forms of its tables."""
        return Forms.of(self.task, self._embed)

    @cached_property
    def ways(self) -> Ways:
        """Ways from form to form, and what they put where."""
        return Ways.of(self.forms)

    @cached_property
    def num_actions(self) -> int:
        """All actions."""
        return Actions.of(self.task).count

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of each table, those in its host's memory among them, (N,) int64."""
        size: np.ndarray = self._bytes[:, self.forms.first[:-1]].sum(axis=0)
        return size

    @cached_property
    def piece_sizes(self) -> np.ndarray:
        """Bytes of a piece of each form in the memory of one device, (R,) int64."""
        return self._bytes[0]

    @cached_property
    def embedding(self) -> np.ndarray:
        """Vectors that tables add to their device's sum, (N, H)."""
        return self._embedded[:, 0]

    @cached_property
    def alone(self) -> np.ndarray:
        """Predicted makespan of each table alone on the first device, ms (N,)."""
        return costs_alone(self._fast, self.task, self.embedding)

    @cached_property
    def even_share(self) -> np.ndarray:
        """An even share of each column on each device, by the largest shards of all tables, (H,); never 0."""
        forms, rows = self.forms, np.abs(self.forms.part_vector[:-1])
        form = np.nonzero(forms.part < len(rows))[0]
        starts = np.searchsorted(forms.table[form], np.arange(self.task.num_tables))
        share = np.maximum.reduceat(rows, starts).sum(axis=0) / self.task.num_devices
        return np.where(share > 0, share, 1)

    @cached_property
    def worst(self) -> float:
        """Makespan of all tables, whole, on one device, in the residence and on the device that make it longest, ms.

        Plans may cost more, communication by rows for example; rewards count `worst` then.
        """
        sums = self._embedded.sum(axis=0)[:, None, None] * np.eye(self.task.num_devices)[:, :, None]
        return float(self.decode(sums).makespan(self.task.objective).max())

    @cached_property
    def form_rows(self) -> np.ndarray:
        """The "table" observation of a whole table, or the first piece, of each form, (R, 27) float32: features,
        share placed, halvings over the most, share of the rows in the device's memory, pieces over the most, and
        whether pieces go to devices, and to hosts, only."""
        assert self.standardised is not None
        forms = self.forms
        rows = np.zeros((len(forms.table), self.features.shape[1] + 1 + EXTRA), np.float32)
        at = np.flatnonzero(forms.residence == 0)
        features = self.standardised(Nodes(self.task, forms.table[at], forms.level[at]).pieces)
        rows[:, : features.shape[1]] = np.repeat(features, len(forms.residences), axis=0)
        rows[:, -5] = forms.level / MOST_HALVINGS
        rows[:, -4] = np.array([share for _, share in forms.residences])[forms.residence]
        return rows

    def cost_alone(self, form: int) -> float:
        """Predicted makespan of a piece of a form alone on the first device, ms."""
        row = self._embed(self.forms.pieces_whole().take(np.array([form])))
        return float(costs_alone(self._fast, self.task, row)[0])

    @property
    def _fast(self) -> FastSimulator:
        assert isinstance(self.simulator, FastSimulator)  # the environment refuses others
        return self.simulator

    def _embed(self, shards: Shards) -> np.ndarray:
        return self._fast.embed_shards(self.task, shards)

    @cached_property
    def _bytes(self) -> np.ndarray:
        """Bytes of a piece of each form in the memory of one device, and in its host's, (2, R)."""
        return np.stack(shard_bytes(self.task, self.forms.pieces_whole()))

    @cached_property
    def _embedded(self) -> np.ndarray:
        """Vectors of whole tables in each residence, (N, residences, H)."""
        whole = self.forms.level == 0
        rows = self._embed(self.forms.pieces_whole().take(np.flatnonzero(whole)))
        return rows.reshape(self.task.num_tables, -1, rows.shape[1])
