"""Growth of times with the batch, on a sample of shards measured at several: measurements/HARDWARE-batch-*.npz.

The sample is measured at the usual batch too, in the same hour, so that no other pace comes between.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.measured import Hardware
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.predictors import spearman


def figures(hardware: Hardware) -> list[dict[str, Any]]:
    """Times of each batch over those at half the batch, and whether shards keep their order."""
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


def section(rows: list[dict[str, Any]]) -> list[str]:
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
