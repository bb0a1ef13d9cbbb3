"""Plans as PNG, side by side on one scale. matplotlib is an extra, imported when first needed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from shard_gym.errors import MissingDependency
from shard_gym.pictures.bars import Bars, longest
from shard_gym.pictures.canvas import BLACK, GREEN, PALE, RED, Colour
from shard_gym.pictures.scales import unit_of
from shard_gym.records.installing import install

WIDE, HIGH, DPI = 5.2, 4.4, 120  # inches of a plan, and dots an inch
SLOT = 0.05  # inches of each of many devices


def png(plans: Sequence[Bars]) -> bytes:
    """The picture; the same plans give the same bytes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"PNG needs matplotlib: {install('plots')}; or name an .svg file") from error
    wide = max(WIDE, SLOT * max(plan.devices for plan in plans))
    figure = Figure(figsize=(wide * len(plans), HIGH), layout="constrained")
    cells = figure.subplots(2, len(plans), squeeze=False, sharey="row", height_ratios=(3, 1))
    for plan, (costs, memory) in zip(plans, cells.T, strict=True):
        _costs(costs, plan, longest(plans))
        _memory(memory, plan)
    handles, names = cells[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=6, frameon=False, fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _costs(axes: Any, plan: Bars, top: float) -> None:
    below, at = np.zeros(plan.devices), np.arange(plan.devices)
    for phase in plan.phases:
        axes.bar(at, phase.ms, bottom=below, width=0.72, color=_rgb(phase.colour), label=phase.name)
        below = below + phase.ms
    if plan.bound:
        axes.axhline(plan.bound, color=_rgb(BLACK), linestyle="--", linewidth=1.2, label="bound")
    axes.set_ylim(0, 1.06 * top)
    colour = _rgb(RED if plan.violations else BLACK)
    title = f"{plan.title[:60]}\n{plan.headline}".replace("$", r"\$")  # no formula
    axes.set_title(title, loc="left", fontsize="medium", color=colour)
    axes.set_ylabel("cost, ms")
    _plain(axes)


def _memory(axes: Any, plan: Bars) -> None:
    unit, name = unit_of(plan.capacity.max())
    at, used, capacity = np.arange(plan.devices), plan.used / unit, plan.capacity / unit
    axes.bar(at, capacity, width=0.72, color=_rgb(PALE))
    axes.bar(at, np.minimum(used, capacity), width=0.72, color=_rgb(GREEN))
    axes.bar(at, np.maximum(used - capacity, 0), bottom=capacity, width=0.72, color=_rgb(RED))
    axes.set_ylabel(f"memory, {name}")
    axes.set_xlabel("device")
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _rgb(colour: Colour) -> tuple[float, ...]:
    return tuple(part / 255 for part in colour)
