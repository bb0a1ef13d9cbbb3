"""The figures of the fidelity report."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from benchmarks.predictors import Predicted
from shard_gym.cost_models.data import Shards
from shard_gym.files import write_whole


def plot(
    shown: dict[str, Predicted], shards: Shards, by_size: dict[str, dict[str, dict[str, float]]], path: Path
) -> None:
    """Predicted against measured, and the error against the number of tables; as PNG and SVG."""
    from matplotlib import rcParams  # an extra
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "shard-gym"  # the same picture gives the same file
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    measured = shards.times.sum(axis=1)
    for name, colour in (("AutoShard's", "tab:orange"), ("ours", "tab:blue")):
        left.plot(measured, shown[name].ms, ".", color=colour, alpha=0.3, markersize=3, label=name)
    ends = np.array([measured.min(), measured.max()])
    left.plot(ends, ends, color="black", linewidth=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    left.legend()
    for name, cells in by_size.items():
        right.plot(list(cells), [100 * c["mape"] for c in cells.values()], marker="o", label=name)
    right.set(xlabel="tables of a shard", ylabel="mean absolute error, %", yscale="log")
    right.legend(fontsize=7)
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=120, metadata=metadata)
        write_whole(path.with_suffix(f".{kind}"), buffer.getvalue())
