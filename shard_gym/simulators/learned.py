"""Costs from a network fitted to measurements; numpy only."""

from __future__ import annotations

import math
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym import core
from shard_gym.errors import CorruptFile, SettingsIgnored
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole
from shard_gym.simulators import features
from shard_gym.simulators.base import Factors, FastSimulator, Latency, refuse_objective
from shard_gym.simulators.networks import Weights, links_of, make_network, on_grid
from shard_gym.tables.pool import TablePool
from shard_gym.task import suites
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import HOST_LINK, Links
from shard_gym.task.task import Task, mixed

if TYPE_CHECKING:  # imported where tasks are `mixed`
    from shard_gym.memory.shards import Shards

TABLES, DIMS, FAR = range(3)  # the columns of an embedding before the network's
OWN = 3
AT_ONCE = 2048  # shards decoded in one go: what they need stays in the cache
FARTHEST = 3.0  # distances count up to here in the spread


@cache  # says each thing once
def _warn(message: str) -> None:
    warnings.warn(message, SettingsIgnored, stacklevel=4)


def _is_chosen(simulator_id: str, task: Task) -> bool:
    suite = suites.SUITES.get(task.name.partition("/")[0])
    return suite is not None and simulator_id in (suite.planner, suite.judge)


@cache
def shipped(name: str) -> Weights:
    """The weights that come with the package, such as "cpu-v1" of `learned:cpu-v1`."""
    return Weights.load(Path(__file__).parent / "fits" / f"{name}.safetensors")


def make_shipped(name: str) -> Learned:
    """The simulator of a fit that comes with the package."""
    return Learned(shipped(name))


def _settings(card: dict[str, Any]) -> list[dict[str, str]]:
    """Settings of the campaigns that a card tells of, as text."""
    measured = card.get("measured", {})
    return [
        {name: str(value) for name, value in part.get("settings", {}).items()}
        for part in measured.get("parts", [measured])
    ]


class Learned(FastSimulator):
    """The simulator of a weights file; `card` says what was measured, where, and how well the network fits it.

    It always predicts for the batch and the optimizer of its card, whatever the task says, because no others were
    measured. The warning `SettingsIgnored` says so once, except on tasks of a suite that has chosen this fit. Where
    `distance` is above 0 a table is outside the range of the fit, and the spread is wider. A latency has the mean
    distance of each device's tables.

    Shards cost the same as smaller tables, plus a roofline's communication. Only the fused kernel was measured: shards
    of other kernels have the largest distance, and the update of all rows of copies (dp) is not in the cost. Weights of
    ids, and tables that do not pool, were not measured either: only their communication is counted.
    """

    basis = "fitted"
    kinds = KINDS
    sent = DIMS

    def __init__(self, source: str | Path | Weights) -> None:
        weights = source if isinstance(source, Weights) else Weights.load(source)
        self.card, self.network = weights.card, make_network(weights)
        with guarded(f"weights {source} lack what the simulator needs, fit them again"):
            self.id = str(self.card.get("id") or f"learned:{weights.sha256[:12]}")
            self.batch = whole(self.card["batch"])
            self.sigma = float(weights.tensors["sigma"])  # error that members share, relative
            self.low, self.high, self.deviation = weights.tensors["ranges"]
            self.links = links_of(self.card)
            self.host_link = float(self.card.get("host_link") or HOST_LINK)
            self._settings = _settings(self.card)
            if not (0 < self.batch < 2**31 and 0 < self.host_link < math.inf):
                raise CorruptFile(f"batch {self.batch} or host_link {self.host_link} is no number above 0")
        self.model = self.network.model(self.sigma)

    def distance(self, task: Task) -> np.ndarray:
        """Distance of each table from the range of the fit, in standard deviations of the fitted tables, (N,).

        The farthest of dim, bytes of a row, rows and pooling; 0 inside.
        """
        return self._distance(task.tables)

    def _distance(self, tables: TablePool) -> np.ndarray:
        values = features.ranged(tables)
        return (np.maximum(self.low - values, values - self.high).clip(min=0) / self.deviation).max(axis=1)

    def embed(self, task: Task) -> np.ndarray:
        """Count, columns and distance of each table, then the network's own."""
        if mixed(task):
            from shard_gym.memory.shards import Shards, Tables

            return self.embed_shards(task, Shards.whole(Tables.of_task(task)))
        self._heed(task)
        tables = task.tables
        own = [np.ones(len(tables)), tables.columns_sent, np.minimum(self._distance(tables), FARTHEST)]
        return np.concatenate([on_grid(np.stack(own, axis=1)), on_grid(self.network.embed(tables, self.batch))], axis=1)

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        """Count, columns and distance of each shard, then the network's own; between them what `mixed` tasks move."""
        if not mixed(task):
            return super().embed_shards(task, shards)
        from shard_gym.simulators.collectives import traffic
        from shard_gym.simulators.lookups import Lookups, sectors, smaller_tables

        self._heed(task)
        some, tables = shards.rows > 0, smaller_tables(task, shards)
        far = np.where(shards.of.kernel == "fused", np.minimum(self._distance(tables), FARTHEST), FARTHEST)
        lookups = Lookups.of(task, shards, self.batch)
        missed = lookups.missed(shards, sectors(shards.dim * shards.of.element_bytes))
        sent, *moved = traffic(task, shards, lookups, missed)
        rows = self._network_rows(task, tables, shards.kind == "dp") * some[:, None]
        own = np.stack([some, sent, far * some], axis=1)
        return np.concatenate([on_grid(part) for part in (own, np.stack(moved, axis=1), rows)], axis=1)

    def _heed(self, task: Task) -> None:
        """Refuse a task that the fit has no answer to, and warn once where it answers for other settings."""
        refuse_objective(self, task)
        if (fitted := self.own_settings(task)) and not _is_chosen(self.id, task):
            _warn(f"{self.id} answers for {fitted}, whatever the task's: it was fitted to that")

    def _network_rows(self, task: Task, tables: TablePool, copied: np.ndarray) -> np.ndarray:
        """The network's embedding of each shard; the samples of a copy are its own device's."""
        rows = self.network.embed(tables, self.batch)
        if copied.any():
            rows[copied] = self.network.embed(tables.take(copied), max(1, self.batch // task.num_devices))
        return rows

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """The network's times for each shard, then the links'."""
        told = core.decode(self.model, sums, task.ms_per_us, 4)
        if told is not None:
            return self._latency(task, sums, told[:2], told[2], told[3])
        shards = self._compute(sums).reshape(-1, OWN + self.network.width)
        distance = shards[:, FAR] / np.maximum(shards[:, TABLES], 1)  # the mean of a shard's tables
        times = np.empty((3, len(shards)))
        for start in range(0, len(shards), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            times[:, part] = self._times(shards[part], distance[part])
        times = times.reshape(3, *sums.shape[:-1])
        times *= task.ms_per_us * 1e3  # slower devices
        return self._latency(task, sums, times[:2], times[2], distance.reshape(sums.shape[:-1]))

    def cost(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """The same without the members' disagreement, in half the time."""
        alone = task.objective == "kernel"
        times = core.decode(self.model, sums, task.ms_per_us, 1 if alone else 2)
        if times is None:
            times = self._both_passes(task, sums)
        elif alone:
            return times[0]
        if alone:
            return np.add(times[0], times[1])
        return self._latency(task, sums, times).cost(task.objective)

    def _both_passes(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """Forward and backward ms of each shard, (2, ..., K)."""
        shards = self._compute(sums).reshape(-1, OWN + self.network.width)[:, OWN:]
        if len(shards) <= AT_ONCE:
            times = self.network.times(shards)
        else:
            parts = [self.network.times(shards[i : i + AT_ONCE]) for i in range(0, len(shards), AT_ONCE)]
            times = np.concatenate(parts, axis=1)
        times = times.reshape(2, *sums.shape[:-1])
        times *= (sums[..., TABLES] > 0) * (task.ms_per_us * 1e3)
        return times

    def _latency(self, task: Task, sums: np.ndarray, times: np.ndarray, *known: np.ndarray) -> Latency:
        """Times of both passes, (2, ..., K), to which come those of rows in the host's memory, and the links'."""
        if (moved := self._moved(sums)).shape[-1]:
            times += self._fetched(task, moved)
        there, back = self._comm(task, sums)
        return Latency(times[0], there, back, times[1], *known)

    def all_to_all(self, task: Task) -> tuple[Links, int] | None:
        """The task's wires or the card's, and the batch of the fit; None of tasks that have other collectives."""
        return None if mixed(task) else (task.links or self.links, self.batch)

    def factors(self) -> Factors | None:
        """The network's weights; None of a published network, whose costs may fall as tables are added."""
        return self.network.factors(OWN)

    def own_settings(self, task: Task) -> str:
        """Batch, optimizer and dtypes of the fit, as far as its card tells them, where the task's are others."""
        told = [] if task.batch == self.batch else [f"batch {self.batch:,}"]
        optimizers, dtypes = self._measured("optimizer"), self._measured("dtype")
        if optimizers and task.optimizer not in optimizers:
            told.append(f"optimizer {' and '.join(sorted(optimizers))}")
        if dtypes and not dtypes.issuperset(task.tables.dtype):
            told.append(f"{' and '.join(sorted(dtypes))} weights")
        return ", ".join(told)

    def _measured(self, setting: str) -> set[str]:
        """Values of a setting in the campaigns that it was fitted to."""
        return {told[setting] for told in self._settings if setting in told}

    def doubt(self, task: Task, sums: np.ndarray, other: np.ndarray) -> float:
        """Standard deviation of how much sooner one plan ends than another, ms, from the sums of both, (K, H).

        Members answer for both plans, so what they are wrong about alike, such as a table far outside the fit that is
        in both, is no doubt. To what they differ in comes the error that they share, of the one plan.
        """
        both = np.stack([sums, other])
        shards = self._compute(both).reshape(-1, OWN + self.network.width)
        times = self.network.by_member(shards[:, OWN:]) * (shards[:, TABLES] > 0)
        forward, backward = np.moveaxis(times.reshape(-1, 2, *both.shape[:-1]) * task.ms_per_us, 1, 0)
        if (moved := self._moved(both)).shape[-1]:
            fetched = self._fetched(task, moved)
            forward, backward = forward + fetched[0], backward + fetched[1]
        there, back = self._comm(task, both)
        latency = Latency(forward, there, back, backward)
        makespans = latency.makespan(task.objective)  # (M, 2)
        mean = latency.compute[:, 0].mean(axis=0)
        return float(np.hypot((makespans[:, 0] - makespans[:, 1]).std(), self.sigma * mean.max()))

    def _comm(self, task: Task, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        links, moved = task.links or self.links, self._moved(sums)
        if task.objective == "kernel":
            comm = np.zeros(sums.shape[:-1])
        elif moved.shape[-1]:
            from shard_gym.simulators.collectives import comm_ms

            return comm_ms(links, self.batch, sums[..., DIMS], moved)
        else:
            comm = links.all_to_all_ms(sums[..., DIMS], self.batch)
        return comm, comm

    def _fetched(self, task: Task, moved: np.ndarray) -> np.ndarray:
        """Times of rows in the host's memory, both passes, (2, ..., K)."""
        from shard_gym.simulators.collectives import host_ms

        return host_ms(task.host_link or self.host_link, moved)

    def _moved(self, sums: np.ndarray) -> np.ndarray:
        """Columns that only sums of `mixed` tasks have."""
        return sums[..., OWN : sums.shape[-1] - self.network.width]

    def _compute(self, sums: np.ndarray) -> np.ndarray:
        """The other columns."""
        if sums.shape[-1] == OWN + self.network.width:
            return sums
        return np.concatenate([sums[..., :OWN], sums[..., -self.network.width :]], axis=-1)

    def _times(self, shards: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Forward ms, backward ms and their spread at the fitted batch, (S, OWN + width) and (S,) -> (3, S)."""
        times = self.network.decode(shards[:, OWN:])
        times *= shards[:, TABLES] > 0
        relative = self.sigma + distance
        relative *= times[0] + times[1]
        relative *= relative
        times[2] *= times[2]
        times[2] += relative
        np.sqrt(times[2], out=times[2])
        return times
