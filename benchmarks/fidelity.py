"""How true predicted costs are: python -m benchmarks.fidelity [--json] [--fit]

On shards of tables that no fit has seen, on whole plans, and by what a search makes of them. Works from committed data
in less than a minute; `--fit` first fits every network again where data has changed (25 fits, a minute or two each).
Writes benchmarks/results/fidelity.md, .png and .svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import batches, decisions, fidelity_page, measured, sim_to_real
from benchmarks.fidelity_plots import plot
from benchmarks.fits import NETWORKS, OURS, SEEDS, Fits
from benchmarks.predictors import Predicted, baselines
from shard_gym.cost_models.data import Shards, shards_of
from shard_gym.cost_models.features import GROUPS
from shard_gym.cost_models.metrics import coverage, errors
from shard_gym.errors import ShardGymError
from shard_gym.files import write_whole
from shard_gym.repeats import merged, repeat_noise

RESULTS = Path(__file__).parent / "results"
SIZES = ((1, 1), (2, 3), (4, 7), (8, 11), (12, 16))  # tables of a shard, both included


@dataclass(frozen=True)
class Row:
    """One predictor on the unseen tables; several fits of it differ in their seeds only."""

    name: str
    figures: dict[str, float]  # means over the fits
    deviations: dict[str, float]  # over the fits

    def cell(self, key: str, form: str) -> str:
        """The mean, and the deviation where there is one."""
        if key not in self.figures:
            return ""
        plus = f" ± {self.deviations[key]:{form.lstrip('+')}}" if self.deviations.get(key) else ""
        return f"{self.figures[key]:{form}}{plus}"


def figures(predicted: Predicted, shards: Shards) -> dict[str, float]:
    """Errors of the total, and how many of the measurements the 90 % interval holds."""
    times = shards.times.sum(axis=1)
    found = errors(predicted.ms, times)
    if predicted.spread is not None:
        found["coverage"] = coverage(predicted.ms, predicted.spread, times)
    return found


def row(name: str, predictions: Sequence[Predicted], shards: Shards) -> Row:
    """Mean and deviation of the figures over fits."""
    found = [figures(p, shards) for p in predictions]
    mean = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    deviation = {k: float(np.std([f[k] for f in found])) for k in found[0]} if len(found) > 1 else {}
    return Row(name, mean, deviation)


def by_size(predicted: Predicted, shards: Shards) -> dict[str, dict[str, float]]:
    """MAPE and bias against the number of tables."""
    tables, times = np.bincount(shards.shard), shards.times.sum(axis=1)
    found = {}
    for low, high in SIZES:
        inside = (tables >= low) & (tables <= high)
        if inside.any():
            label = f"{low}" if low == high else f"{low}-{high}"
            found[label] = errors(predicted.ms[inside], times[inside]) | {"shards": int(inside.sum())}
    return found


def report(fits: Fits, noise: dict[str, float]) -> tuple[dict[str, Any], dict[str, Predicted], Shards]:
    """What is told of unseen shards, the predictions behind it, and the shards they are of."""
    learn, shards = shards_of(fits.train), shards_of(fits.unseen)
    shown = {name: predict(shards) for name, predict in baselines(learn).items()}
    shown["sum of single-table costs (ours)"] = fits.alone()
    rows = [row(name, [predicted], shards) for name, predicted in shown.items()]
    for name, architecture in {**NETWORKS, "ours": OURS}.items():
        predictions = [fits.predicted(f"{architecture}-{seed}") for seed in SEEDS]
        shown[name] = predictions[0]
        rows.append(row(name, predictions, shards))
    ablated = [row("all features", [shown["AutoShard's"]], shards)]
    ablated += [row(f"without {g}", [fits.predicted(f"autoshard-without-{g}")], shards) for g in GROUPS]
    found = {
        "train": {"shards": len(learn), "pools": fits.train.pools, "data": fits.train.content_hash},
        "unseen": {"shards": len(shards), "pools": fits.unseen.pools, "data": fits.unseen.content_hash, "noise": noise},
        "rows": rows,
        "ablation": ablated,
        "by_size": {name: by_size(predicted, shards) for name, predicted in shown.items()},
    }
    return found, shown, shards


def main(argv: Sequence[str] | None = None) -> int:
    """Report, as Markdown and plots or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    parser.add_argument("--fit", action="store_true", help="fit what is missing or was fitted to other data")
    parser.add_argument("--workers", type=int, default=1, help="fits at a time")
    parser.add_argument("--json", action="store_true", help="print JSON and write nothing")
    options = parser.parse_args(argv)
    try:
        train, unseen = (measured.load(role, options.hardware) for role in ("planner", "test"))
        fits = Fits(train, merged(unseen))
        if options.fit:
            fits.fit_missing(options.workers)
        found, shown, shards = report(fits, repeat_noise(unseen))
        found["paces"] = [card["pace"] for m in (train, unseen) for card in m.card.get("parts", [m.card])]
        found["plans"] = sim_to_real.figures(sim_to_real.outcome())
        found["decisions"], found["batches"] = decisions.load(), batches.figures(options.hardware)
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"fidelity: {error}\n")
        return 2
    if options.json:
        print(json.dumps(found, default=vars))
        return 0
    page = fidelity_page.markdown(found, "python -m benchmarks.fidelity")
    write_whole(RESULTS / "fidelity.md", page)
    plot(shown, shards, found, RESULTS / "fidelity")
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
