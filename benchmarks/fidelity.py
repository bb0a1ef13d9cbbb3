"""How true predicted costs are: python -m benchmarks.fidelity [--json] [--fit]

On shards of tables that no fit has seen. Works from committed data and fits in less than a minute; `--fit` first
fits every network again (some minutes each). Writes benchmarks/results/fidelity.md, .png and .svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity_plots import plot
from benchmarks.predictors import Predicted, baselines, by_simulator
from shard_gym.cost_models.data import Shards, shards_of
from shard_gym.cost_models.features import GROUPS
from shard_gym.cost_models.metrics import coverage, errors, repeat_noise
from shard_gym.cost_models.weights import Weights
from shard_gym.errors import ShardGymError
from shard_gym.files import write_whole
from shard_gym.measurements import Measurements
from shard_gym.simulators.learned import Learned

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
FITS = RESULTS / "fits"
SEEDS = range(5)
NETWORKS = {"AutoShard's": "autoshard", "AutoShard's, one output": "autoshard-total", "DreamShard's": "dreamshard"}
OURS = "ours"
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
        plus = f" ± {self.deviations[key]:{form}}" if self.deviations.get(key) else ""
        return f"{self.figures[key]:{form}}{plus}"


def fits() -> Iterator[tuple[str, dict[str, Any]]]:
    """File name and arguments of every fit that the report compares."""
    for seed in SEEDS:
        for architecture in (OURS, *NETWORKS.values()):
            yield f"{architecture}-{seed}", {"architecture": architecture, "seed": seed}
    for group in GROUPS:
        yield f"autoshard-without-{group}", {"architecture": "autoshard", "without": group}


def fit_all(train: Measurements) -> None:
    """Fit what is not there yet; a fit of other data is done again."""
    from shard_gym.cost_models.fit import fit  # needs torch

    for name, arguments in fits():
        path = FITS / f"{name}.safetensors"
        if path.exists() and Weights.load(path).card["data"] == train.content_hash:
            continue
        sys.stderr.write(f"fitting {name}\n")
        fit(train, **arguments).save(path)


def load_fit(name: str, train: Measurements) -> Learned:
    """One of the fits that are kept with the results."""
    path = FITS / f"{name}.safetensors"
    if not path.exists():
        raise ShardGymError(f"{path} is missing: run python -m benchmarks.fidelity --fit")
    weights = Weights.load(path)
    if weights.card["data"] != train.content_hash:
        raise ShardGymError(f"{path} was fitted to other data: run python -m benchmarks.fidelity --fit")
    return Learned(weights)


def figures(predicted: Predicted, shards: Shards) -> dict[str, float]:
    """Errors of the total, and how many of the measurements the 90 % interval holds."""
    measured = shards.times.sum(axis=1)
    found = errors(predicted.ms, measured)
    if predicted.spread is not None:
        found["coverage"] = coverage(predicted.ms, predicted.spread, measured)
    return found


def row(name: str, predictions: Sequence[Predicted], shards: Shards) -> Row:
    """Mean and deviation of the figures over fits."""
    found = [figures(p, shards) for p in predictions]
    mean = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    deviation = {k: float(np.std([f[k] for f in found])) for k in found[0]} if len(found) > 1 else {}
    return Row(name, mean, deviation)


def noise(measured: Measurements) -> dict[str, float]:
    """How far repeats of one shard are apart, and the MAPE that a perfect model would have for it."""
    content = [(m.pool[i], *map(bytes, m.tables(i))) for m in [measured] for i in range(len(m))]
    known = {key: i for i, key in enumerate(dict.fromkeys(content))}
    groups = np.array([known[key] for key in content])
    several = np.isin(groups, np.flatnonzero(np.bincount(groups) > 1))
    difference = repeat_noise(groups[several], measured.total_ms[several].astype(np.float64))
    return {"repeat_difference": difference, "floor_mape": difference / np.sqrt(2), "repeats": int(several.sum())}


def by_size(predicted: Predicted, shards: Shards) -> dict[str, dict[str, float]]:
    """MAPE and bias against the number of tables."""
    tables, measured = np.bincount(shards.shard), shards.times.sum(axis=1)
    found = {}
    for low, high in SIZES:
        inside = (tables >= low) & (tables <= high)
        if inside.any():
            label = f"{low}" if low == high else f"{low}-{high}"
            found[label] = errors(predicted.ms[inside], measured[inside]) | {"shards": int(inside.sum())}
    return found


def report(train: Measurements, unseen: Measurements) -> tuple[dict[str, Any], dict[str, Predicted], Shards]:
    """Everything the page tells, the predictions behind it, and the shards they are of."""
    learn, shards = shards_of(train), shards_of(unseen)
    ours = [load_fit(f"{OURS}-{seed}", train) for seed in SEEDS]
    shown = {name: predict(shards) for name, predict in baselines(learn, ours[0]).items()}
    rows = [row(name, [predicted], shards) for name, predicted in shown.items()]
    for name, architecture in {**NETWORKS, "ours": OURS}.items():
        predictions = [by_simulator(load_fit(f"{architecture}-{seed}", train))(shards) for seed in SEEDS]
        shown[name] = predictions[0]
        rows.append(row(name, predictions, shards))
    ablated = [row("all features", [shown["AutoShard's"]], shards)]
    for group in GROUPS:
        predicted = by_simulator(load_fit(f"autoshard-without-{group}", train))(shards)
        ablated.append(row(f"without {group}", [predicted], shards))
    found = {
        "train": {"shards": len(learn), "pools": train.pools, "data": train.content_hash},
        "unseen": {"shards": len(shards), "pools": unseen.pools, "data": unseen.content_hash} | noise(unseen),
        "rows": rows,
        "ablation": ablated,
        "by_size": {name: by_size(predicted, shards) for name, predicted in shown.items()},
    }
    return found, shown, shards


COLUMNS = {
    "MAE, ms": ("mae_ms", ".2f"),
    "MAPE": ("mape", ".1%"),
    "bias": ("bias", "+.1%"),
    "Spearman": ("spearman", ".4f"),
    "in 90 % interval": ("coverage", ".1%"),
}


def markdown(found: dict[str, Any], command: str) -> str:
    """The page."""
    unseen, train = found["unseen"], found["train"]
    lines = [
        "# How true predicted costs are",
        "",
        f"Made by `{command}`. Fitted to {train['shards']:,} measured shards of tables of {', '.join(train['pools'])}; "
        f"errors on {unseen['shards']:,} shards of {', '.join(unseen['pools'])}, tables that no fit has seen.",
        f"Two measurements of one shard differ by {unseen['repeat_difference']:.1%} on average "
        f"({unseen['repeats']} measurements), so that a perfect model would have a MAPE of {unseen['floor_mape']:.1%}. "
        f"Networks: mean ± standard deviation of {len(SEEDS)} seeds.",
        "",
        *_table(found["rows"]),
        "",
        "## Error against the number of tables (MAPE, bias)",
        "",
        *_size_table(found["by_size"]),
        "",
        "## Features left out",
        "",
        "AutoShard's network, seed 0.",
        "",
        *_table(found["ablation"]),
        "",
        "![Predicted and measured](fidelity.png)",
        "",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    return lines + [f"| {r.name} | {' | '.join(r.cell(*column) for column in COLUMNS.values())} |" for r in rows]


def _size_table(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    sizes = next(iter(found.values()))
    lines = [f"| tables | {' | '.join(sizes)} |", f"|---|{'---|' * len(sizes)}"]
    for name, cells in found.items():
        lines.append(f"| {name} | " + " | ".join(f"{c['mape']:.1%}, {c['bias']:+.1%}" for c in cells.values()) + " |")
    return lines


def as_json(found: dict[str, Any]) -> str:
    """The report as one JSON object."""
    return json.dumps(found, default=vars)


def main(argv: Sequence[str] | None = None) -> int:
    """Report, as Markdown and plots or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", default=[ROOT / "measurements" / "cpu-planner.npz"])
    parser.add_argument("--unseen", type=Path, nargs="+", default=[ROOT / "measurements" / "cpu-test.npz"])
    parser.add_argument("--fit", action="store_true", help="fit what is missing or was fitted to other data")
    parser.add_argument("--json", action="store_true", help="print JSON and write nothing")
    options = parser.parse_args(argv)
    try:
        train, unseen = (
            Measurements.concat([Measurements.load(p) for p in given]) for given in (options.train, options.unseen)
        )
        if options.fit:
            fit_all(train)
        found, shown, shards = report(train, unseen)
    except (ShardGymError, OSError) as error:
        sys.stderr.write(f"fidelity: {error}\n")
        return 2
    if options.json:
        print(as_json(found))
        return 0
    page = markdown(found, "python -m benchmarks.fidelity")
    write_whole(RESULTS / "fidelity.md", page)
    plot(shown, shards, found["by_size"], RESULTS / "fidelity")
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
