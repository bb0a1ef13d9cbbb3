"""Ways to predict what a shard costs, from the simplest to the fitted networks; all answer for `Shards`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shard_gym import simulators
from shard_gym.cost_models import features
from shard_gym.cost_models.data import Shards
from shard_gym.simulators import FastSimulator
from shard_gym.tasks import Task

ROOFLINE = "roofline:h100-v1"  # any preset: one factor is fitted, and what counts are the proportions


@dataclass(frozen=True)
class Predicted:
    """Total ms of each shard (S,), and its standard deviation where the predictor knows one."""

    ms: np.ndarray
    spread: np.ndarray | None = None


Predictor = Callable[[Shards], Predicted]


def by_simulator(simulator: FastSimulator) -> Predictor:
    """Each shard on a device of its own."""

    def predict(shards: Shards) -> Predicted:
        task = Task(shards.tables, memory=(2**60,), batch=shards.batch)
        latency = simulator.decode(task, shards.sums(simulator.embed(task))[:, None])
        return Predicted(latency.compute[:, 0], None if latency.spread is None else latency.spread[:, 0])

    return predict


def by_single_tables(simulator: FastSimulator) -> Predictor:
    """The sum of what a simulator says of each table alone: what a model of single tables can do at best."""

    def predict(shards: Shards) -> Predicted:
        task = Task(shards.tables, memory=(2**60,), batch=shards.batch)
        alone = simulator.decode(task, simulator.embed(task)[:, None]).compute
        return Predicted(shards.sums(alone)[:, 0])

    return predict


def by_factor(train: Shards, amount: Callable[[Shards], np.ndarray]) -> Predictor:
    """An amount times the one factor that fits the training shards best."""
    factor = np.median(train.times.sum(axis=1) / np.maximum(amount(train), 1e-9))
    return lambda shards: Predicted(amount(shards) * factor)


def by_linear_fit(train: Shards) -> Predictor:
    """Least squares of relative errors on a shard's totals: tables, lookups, lines read, footprint, bytes, dims."""
    amounts, ms = _totals(train), train.times.sum(axis=1)
    scale = amounts.mean(axis=0)
    weight = np.linalg.lstsq(amounts / scale / ms[:, None], np.ones(len(ms)), rcond=None)[0]
    return lambda shards: Predicted(np.maximum(_totals(shards) / scale @ weight, 1e-6))


def baselines(train: Shards) -> dict[str, Predictor]:
    """What a network has to beat."""
    roofline = simulators.make(ROOFLINE)
    assert isinstance(roofline, FastSimulator)
    lookups = features.TOTALS.index("lookups")
    return {
        "lookups x factor": by_factor(train, lambda shards: _totals(shards)[:, lookups]),
        "roofline x factor": by_factor(train, lambda shards: by_simulator(roofline)(shards).ms),
        "linear fit": by_linear_fit(train),
    }


def _totals(shards: Shards) -> np.ndarray:
    return shards.sums(features.work(shards.tables, shards.batch).totals)
