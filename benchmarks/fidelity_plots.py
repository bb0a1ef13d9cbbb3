"""The figures of the fidelity report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.predictors import Predicted
from shard_gym.cost_models.data import Shards
from shard_gym.files import write_whole


def plot(shown: dict[str, Predicted], shards: Shards, found: dict[str, Any], path: Path) -> None:
    """Predicted against measured, error against the number of tables, regret and optimism against effort."""
    from matplotlib import rcParams  # an extra
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "shard-gym"  # the same picture gives the same file
    figure = Figure(figsize=(16, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _scatter(left, shown, shards)
    for name, cells in found["by_size"].items():
        middle.plot(list(cells), [100 * c["mape"] for c in cells.values()], marker="o", label=name)
    middle.set(xlabel="tables of a shard", ylabel="mean absolute error, %", yscale="log")
    middle.legend(fontsize=7)
    _efforts(right, found["decisions"]["decisions"])
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
        write_whole(path.with_suffix(f".{kind}"), buffer.getvalue())


def _scatter(axes: Any, shown: dict[str, Predicted], shards: Shards) -> None:
    measured = shards.times.sum(axis=1)
    for name, colour in (("AutoShard's", "tab:orange"), ("ours", "tab:blue")):
        axes.plot(measured, shown[name].ms, ".", color=colour, alpha=0.3, markersize=3, label=name, rasterized=True)
    ends = np.array([measured.min(), measured.max()])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend()


def _efforts(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if row["solver"] not in ("random", "lookup-greedy")]  # far off: they are in the table
    labels = [row["solver"] if row["budget"] is None else f"search\n{row['budget']:g} s" for row in rows]
    for key, marker in (("regret", "o"), ("optimism", "s")):
        axes.plot(labels, [100 * row[key] for row in rows], marker=marker, label=f"{key} by the judge")
    axes.set(ylabel="%")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend()
