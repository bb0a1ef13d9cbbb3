"""Every network fitted to the planner's data, kept as what it predicts of the unseen shards.

Weights would be megabytes; predictions are what the fidelity page is made of. A fit of other data is done again.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import ShardGymError
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.predictors import Predicted, by_simulator, by_single_tables, shards_of
from shard_gym.records.files import write_whole
from shard_gym.simulators.features import GROUPS
from shard_gym.simulators.learned import Learned

AGAIN = "run python -m benchmarks.fidelity --fit"
OURS, SEEDS = "ours", range(5)
NETWORKS = {"AutoShard's": "autoshard", "AutoShard's, one output": "autoshard-total", "DreamShard's": "dreamshard"}
Arrays = dict[str, np.ndarray]


def fits() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and arguments of every fit that the report compares."""
    for seed in SEEDS:
        for architecture in (OURS, *NETWORKS.values()):
            yield f"{architecture}-{seed}", {"architecture": architecture, "seed": seed}
    for group in GROUPS:
        yield f"autoshard-without-{group}", {"architecture": "autoshard", "without": group}


class Fits:
    """Predictions of all fits to `train` for the shards of `unseen`."""

    def __init__(self, train: Measurements, unseen: Measurements, path: Path) -> None:
        self.train, self.unseen, self.path = train, unseen, path
        self.data = np.array([train.content_hash, unseen.content_hash])
        self.known: Arrays = {}
        if path.exists():
            with np.load(path, allow_pickle=False) as kept:
                if (kept["data"] == self.data).all():
                    self.known = dict(kept)

    def predicted(self, name: str) -> Predicted:
        """Predictions of a fit."""
        return Predicted(self._array(f"{name}/ms"), self._array(f"{name}/spread"))

    def alone(self) -> Predicted:
        """The sums of what our first fit predicts of each table alone."""
        return Predicted(self._array(f"{OURS}-0/alone"))

    def fit_missing(self, workers: int) -> None:
        """Fit what is not there yet; every fit is kept as soon as it is done."""
        missing = [(name, given) for name, given in fits() if f"{name}/ms" not in self.known]
        with get_context("spawn").Pool(min(workers, max(1, len(missing)))) as pool:
            done = pool.imap_unordered(partial(_fit, self.train, self.unseen), missing)
            for number, found in enumerate(done, 1):
                self.known |= found
                self._save()
                sys.stderr.write(f"{number}/{len(missing)} fits\n")

    def _array(self, key: str) -> np.ndarray:
        if key not in self.known:
            raise ShardGymError(f"{self.path.name} lacks {key} for these measurements: {AGAIN}")
        return self.known[key].astype(np.float64)

    def _save(self) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, data=self.data, **{k: v for k, v in self.known.items() if k != "data"})
        write_whole(self.path, buffer.getvalue())


def _fit(train: Measurements, unseen: Measurements, job: tuple[str, dict[str, Any]]) -> Arrays:
    from shard_gym.measuring.fit import fit  # needs torch

    name, given = job
    simulator, shards = Learned(fit(train, **given)), shards_of(unseen)
    found = by_simulator(simulator)(shards)
    arrays = {f"{name}/ms": found.ms, f"{name}/spread": found.spread}
    if name == f"{OURS}-0":
        arrays[f"{name}/alone"] = by_single_tables(simulator)(shards).ms
    return {key: np.asarray(array, np.float32) for key, array in arrays.items()}
