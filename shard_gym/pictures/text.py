"""Plans as text, one below the other on one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shard_gym.pictures.bars import Bars, longest

WIDE, MEMORY = 56, 12  # characters of the longest bar, and of all of a device's memory
MARKS = {
    "forward compute": "F",
    "forward wait": ".",
    "forward comm": "f",
    "backward comm": "b",
    "backward compute": "B",
}
BOUND = "|"


def text(plans: Sequence[Bars]) -> str:
    """Lines of a plan's devices, each with its phases as letters and its memory; and what the letters mean."""
    top = longest(plans)
    named = {phase.name: MARKS[phase.name] for plan in plans for phase in plan.phases}
    meaning = [f"{mark} {name}" for name, mark in named.items()]
    meaning += [f"{BOUND} bound"] if any(plan.bound for plan in plans) else []
    lines = [line for plan in plans for line in [*_plan(plan, top), ""]]
    return "\n".join([*lines, ", ".join([*meaning, "# memory"])])


def _plan(plan: Bars, top: float) -> Iterator[str]:
    yield plan.title
    yield f"{plan.headline}; {plan.about}"
    yield from (f"INFEASIBLE: {violation}" for violation in plan.violations)
    yield f"{'device':>6} {'ms':>9}  {'':{WIDE + 1}} memory"
    for device, ms in enumerate(plan.cost.tolist()):
        share = plan.used[device] / plan.capacity[device]
        held = ("#" * min(MEMORY, round(MEMORY * share))).ljust(MEMORY, "-")
        over = "  OVER" if share > 1 else ""
        yield f"{device:>6} {ms:9.3f}  {_bar(plan, device, top):{WIDE + 1}} {held} {share:4.0%}{over}"


def _bar(plan: Bars, device: int, top: float) -> str:
    """The phases of a device as letters, each as long as its time, and the bound where it lies."""
    ends = np.rint(WIDE * np.cumsum([phase.ms[device] for phase in plan.phases]) / top).astype(int)
    starts = [0, *ends[:-1].tolist()]
    drawn = "".join(MARKS[p.name] * int(end - start) for p, start, end in zip(plan.phases, starts, ends, strict=True))
    if not plan.bound:
        return drawn
    at = round(WIDE * plan.bound / top)
    return drawn[:at].ljust(at) + BOUND + drawn[at + 1 :]
