"""The fidelity report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import batches, decisions, sim_to_real
from benchmarks.fits import SEEDS

COLUMNS = {
    "MAE, ms": ("mae_ms", ".2f"),
    "MAPE": ("mape", ".1%"),
    "bias": ("bias", "+.1%"),
    "Spearman": ("spearman", ".4f"),
    "in 90 % interval": ("coverage", ".1%"),
}


def markdown(found: dict[str, Any], command: str) -> str:
    """The page."""
    lines = [
        "# How true predicted costs are",
        "",
        *_about(found, command),
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
        *sim_to_real.markdown(found["plans"]),
        *decisions.markdown(found["decisions"]),
        *batches.markdown(found["batches"]),
        "![Predicted and measured](fidelity.png)",
        "",
    ]
    return "\n".join(lines)


def _about(found: dict[str, Any], command: str) -> list[str]:
    unseen, train, noise = found["unseen"], found["train"], found["unseen"]["noise"]
    return [
        f"Made by `{command}`. Fitted to {train['shards']:,} measured shards of tables of {', '.join(train['pools'])}; "
        f"errors on {unseen['shards']:,} shards of {', '.join(unseen['pools'])}, tables that no fit has seen, against "
        "the mean of their measurements. Two measurements of one shard in one campaign differ by "
        f"{noise['median_relative_difference']:.1%} in the median, {noise['mean_relative_difference']:.1%} on average "
        f"({noise['pairs']:,} pairs). The machine is shared, so all times are brought to one pace "
        f"(`shard_gym/repeats.py`): campaigns took {min(found['paces']):.3f} to {max(found['paces']):.3f} times as "
        f"long as the one that measured some shards of all of them. Networks: mean ± standard deviation of "
        f"{len(SEEDS)} seeds.",
    ]


def _table(rows: Sequence[Any]) -> list[str]:
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    return lines + [f"| {r.name} | {' | '.join(r.cell(*column) for column in COLUMNS.values())} |" for r in rows]


def _size_table(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    sizes = next(iter(found.values()))
    lines = [f"| tables | {' | '.join(sizes)} |", f"|---|{'---|' * len(sizes)}"]
    for name, cells in found.items():
        lines.append(f"| {name} | " + " | ".join(f"{c['mape']:.1%}, {c['bias']:+.1%}" for c in cells.values()) + " |")
    return lines
