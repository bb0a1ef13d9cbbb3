"""Phases: the parts of a device's cost in the order in which they run, and their colours in all pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.pictures.canvas import DARK_BLUE, LIGHT_BLUE, ORANGE, YELLOW, Colour
from shard_gym.simulators import Latency

WAIT: Colour = (200, 200, 200)
LEGEND: dict[str, dict[str, list[tuple[str, Colour]]]] = {  # by objective and pass
    "kernel": {"forward": [("compute", DARK_BLUE)], "backward": [("compute", ORANGE)]},
    "iteration": {
        "forward": [("compute", DARK_BLUE), ("wait", WAIT), ("comm", LIGHT_BLUE)],
        "backward": [("comm", YELLOW), ("compute", ORANGE)],
    },
}


@dataclass(frozen=True, eq=False)
class Phase:
    """A part of what each device costs: its computation, its communication, or its wait for the slowest."""

    name: str  # "forward compute"
    ms: np.ndarray  # (K,)
    colour: Colour


def legend(objective: str) -> dict[str, list[tuple[str, Colour]]]:
    """Names and colours of the phases of a forward and a backward pass."""
    return LEGEND["kernel" if objective == "kernel" else "iteration"]


def phases(latency: Latency, objective: str) -> tuple[Phase, ...]:
    """The phases of one plan, which add up to the cost of each device; in the order of the legend."""
    forward, backward = latency.forward_compute, latency.backward_compute
    if objective == "kernel":
        parts = [forward, backward]
    else:
        parts = [forward, forward.max() - forward, latency.forward_comm, latency.backward_comm, backward]
    drawn = [(f"{way} {what}", colour) for way, told in legend(objective).items() for what, colour in told]
    return tuple(Phase(name, ms, colour) for (name, colour), ms in zip(drawn, parts, strict=True))
