"""Fidelity of predicted costs: `python -m benchmarks.fidelity [--hardware NAME] [--fit]`.

On shards of tables that no fit has seen, on whole plans, and by what a search makes of them. Works from committed data
in less than a minute; `--fit` first fits every network again where data has changed (25 fits, a minute or two each).
Writes benchmarks/results/fidelity.md, .png and .svg; of other hardware than cpu, fidelity-HARDWARE.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import decisions, pages
from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.measuring import chosen
from shard_gym.measuring.measurements import Measurements, merged, repeat_noise
from shard_gym.measuring.noise import floor_of_means
from shard_gym.measuring.predictors import (
    Predicted,
    Shards,
    baselines,
    by_simulator,
    by_single_tables,
    by_size,
    row,
    shards_of,
    size_table,
    spearman,
    table,
)
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.simulators.features import GROUPS
from shard_gym.simulators.learned import Learned

AGAIN = "run python -m benchmarks.fidelity --fit"
OURS, SEEDS = "ours", range(5)
NETWORKS = {
    "AutoShard's": "autoshard",
    "AutoShard's, one output": "autoshard-total",
    "AutoShard's, our loss": "autoshard-relative",
    "DreamShard's": "dreamshard",
}
Arrays = dict[str, np.ndarray]


def fits() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and arguments of every fit that the report compares."""
    for seed in SEEDS:
        for architecture in (OURS, *NETWORKS.values()):
            yield f"{architecture}-{seed}", {"architecture": architecture, "seed": seed}
    for group in GROUPS:
        yield f"autoshard-without-{group}", {"architecture": "autoshard", "without": group}


class Fits:
    """Every network fitted to the planner's data, kept as what it predicts of the shards of `unseen`.

    Weights would be megabytes; predictions are what the page is made of. A fit of other data is done again.
    """

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


def measure(options: argparse.Namespace) -> pages.Found:
    """Errors on shards, plans and decisions; also draws the pictures, unless JSON is asked for."""
    hardware = Hardware(options.hardware, results=options.out)
    train, unseen = (hardware.load(role) for role in ("planner", "test"))
    fits = Fits(train, merged(unseen), Hardware(options.hardware).result("fidelity").with_suffix(".npz"))
    if options.fit:
        fits.fit_missing(options.workers)
    found, shown, shards = report(fits, repeat_noise(unseen) | {"floor": floor_of_means(unseen)})
    paces = [card.get("pace", 1.0) for m in (train, unseen) for card in m.card.get("parts", [m.card])]
    planner, judge = (options.planner or hardware.planner), (options.judge or hardware.judge)
    outcome = chosen.outcome(
        chosen.load(hardware.plans), hardware.runs(), simulators.make(planner), simulators.make(judge)
    )
    found |= {"paces": paces, "plans": chosen.figures(outcome), "picture": hardware.result("fidelity").name}
    found |= {"decisions": decisions.load(Hardware(options.hardware)), "batches": batch_figures(hardware)}
    if not options.json:
        for kind in ("png", "svg"):
            drawn = pages.picture(lambda figure: _draw(figure, shown, shards, found), (16, 4.5), 110, kind)
            write_whole(hardware.result("fidelity").with_suffix(f".{kind}"), drawn)
    return found


def report(fits: Fits, noise: dict[str, float]) -> tuple[dict[str, Any], dict[str, Predicted], Shards]:
    """Figures of unseen shards, the predictions behind them, and the shards they are of."""
    learn, shards = shards_of(fits.train), shards_of(fits.unseen)
    shown = baselines(learn, shards)
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
        "by_size": by_size(shown, shards),
    }
    return found, shown, shards


def batch_figures(hardware: Hardware) -> list[dict[str, Any]]:
    """Growth of times with the batch, on a sample of shards measured at several: HARDWARE-batch-*.npz.

    The sample is measured at the usual batch too, in the same hour, so that no other pace comes between.
    """
    files = hardware.folder.glob(f"{hardware.name}-batch-*.npz")
    found = {_batch(m): m for m in map(Measurements.load, files)}
    return growth(dict(sorted(found.items())))


def growth(by_batch: dict[int, Measurements]) -> list[dict[str, Any]]:
    """Each batch against the next smaller one; all hold the same shards in the same order."""
    rows = []
    for small, large in pairwise(by_batch):
        one, other = (by_batch[b].total_ms.astype(np.float64) for b in (small, large))
        ratio = other / one
        rows.append(
            {
                "batch": large,
                "of": small,
                "shards": len(ratio),
                "ratio": float(np.median(ratio)),
                "low": float(np.quantile(ratio, 0.1)),
                "high": float(np.quantile(ratio, 0.9)),
                "spearman": spearman(one, other),
            }
        )
    return rows


def batch_section(rows: list[dict[str, Any]]) -> list[str]:
    """Section of the fidelity page; empty where there is one batch only."""
    if not rows:
        return []
    lines = [
        "## From one batch to another",
        "",
        "Networks answer for the batch they were fitted at. What another batch makes of times, on a sample:",
        "",
        "| batch | shards | times as long (median, 10 % .. 90 %) | Spearman |",
        "|---|---|---|---|",
    ]
    return [
        *lines,
        *(
            f"| {r['batch']:,} against {r['of']:,} | {r['shards']} | {r['ratio']:.2f} "
            f"({r['low']:.2f} .. {r['high']:.2f}) | {r['spearman']:.4f} |"
            for r in rows
        ),
        "",
    ]


def _batch(m: Measurements) -> int:
    return int(m.card["settings"]["batch"])


def page(found: pages.Found) -> str:
    """The page."""
    unseen, train, noise = found["unseen"], found["train"], found["unseen"]["noise"]
    about = (
        f"Made by `{found['command']}`. Fitted to {train['shards']:,} measured shards of tables of "
        f"{', '.join(train['pools'])}; errors on {unseen['shards']:,} shards of {', '.join(unseen['pools'])}, tables "
        "that no fit has seen, against the mean of their measurements. Two measurements of one shard in one campaign "
        f"differ by {noise['median_relative_difference']:.1%} in the median, {noise['mean_relative_difference']:.1%} "
        f"on average ({noise['pairs']:,} pairs): a prediction without any error would be {noise['floor']:.1%} off the "
        f"mean of three. The machine is shared, so all times are brought to one pace "
        f"(`shard_gym/measuring/measurements.py`): campaigns took {min(found['paces']):.3f} to "
        f"{max(found['paces']):.3f} times as long as the one that measured some shards of all of them. Networks: mean "
        f"± standard deviation of {len(SEEDS)} seeds."
    )
    lines = ["# How true predicted costs are", "", about, "", *table(found["rows"]), ""]
    lines += ["## Error against the number of tables (MAPE, bias)", "", *size_table(found["by_size"]), ""]
    lines += ["## Features left out", "", "AutoShard's network, seed 0.", "", *table(found["ablation"]), ""]
    lines += chosen.section(found["plans"])
    lines += decisions.section(found["decisions"]) + batch_section(found["batches"])
    return "\n".join([*lines, f"![Predicted and measured]({found['picture']}.png)", ""])


def _draw(figure: Any, shown: dict[str, Predicted], shards: Shards, found: pages.Found) -> None:
    """Predicted against measured, error against the number of tables, regret and optimism against effort."""
    left, middle, right = figure.subplots(1, 3)
    measured = shards.times.sum(axis=1)
    for name, colour in (("AutoShard's", "tab:orange"), ("ours", "tab:blue")):
        left.plot(measured, shown[name].ms, ".", color=colour, alpha=0.3, markersize=3, label=name, rasterized=True)
    ends = np.array([measured.min(), measured.max()])
    left.plot(ends, ends, color="black", linewidth=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    left.legend()
    for name, cells in found["by_size"].items():
        middle.plot(list(cells), [100 * c["mape"] for c in cells.values()], marker="o", label=name)
    middle.set(xlabel="tables of a shard", ylabel="mean absolute error, %", yscale="log")
    middle.legend(fontsize=7)
    if found["decisions"]:
        _draw_efforts(right, found["decisions"]["decisions"])


def _draw_efforts(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if row["solver"] not in ("random", "lookup-greedy")]  # far off: they are in the table
    labels = [row["solver"] if row["budget"] is None else f"search\n{row['budget']:g} s" for row in rows]
    for key, marker in (("regret", "o"), ("optimism", "s")):
        axes.plot(labels, [100 * row[key] for row in rows], marker=marker, label=f"{key} by the judge")
    axes.set(ylabel="%")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend()


def main(argv: Sequence[str] | None = None) -> int:
    """Report on the measurements of one piece of hardware."""
    parser = pages.parser("fidelity", __doc__)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    parser.add_argument("--planner", help="id or weights file that chose the plans; default learned:HARDWARE-v1")
    parser.add_argument("--judge", help="id or weights file; default learned:HARDWARE-judge-v1")
    parser.add_argument("--fit", action="store_true", help="fit what is missing or was fitted to other data")
    parser.add_argument("--workers", type=int, default=1, help="fits at a time")
    parser.add_argument("--json", action="store_true", help="print JSON and write nothing")
    options, _ = parser.parse_known_args(argv)
    if options.json:
        return commands.run(parser, lambda options: print(json.dumps(measure(options), default=vars)), argv)
    name = Hardware(options.hardware).result("fidelity").name
    return pages.run(parser, measure, page, argv, file=f"{name}.md")


if __name__ == "__main__":
    raise SystemExit(main())
