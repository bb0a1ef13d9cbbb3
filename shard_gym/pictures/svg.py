"""Plans as SVG, side by side on one scale: a file or a part of a page, with nothing but the standard library.

Colours are attributes, for the light theme. STYLE has those of the dark one, by class; a page may bring its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shard_gym.pictures.bars import Bars, longest
from shard_gym.pictures.canvas import GREEN, RED, Colour
from shard_gym.pictures.scales import round_numbers, unit_of
from shard_gym.records.escape import plain

NARROWEST, LEFT, RIGHT = 500, 52, 16  # pixels: of a plan, and of its margins
SLOT, ROOMY = 5, 34  # pixels of each of many devices, and of one with labels of its own
COST_TOP, COST_BELOW, MEMORY_TOP, MEMORY_BELOW, BOTTOM = 76, 286, 336, 400, 428
LINE, LETTER = 20, 7.0  # pixels of a line of the legend, and of a letter, about
INK, SOFT, RULE, GROUND = "#1b1f24", "#5a616a", "#e1e4e8", "#ffffff"
DASHES = f'stroke="{INK}" stroke-width="1.5" stroke-dasharray="6 4"'
STYLE = """<style>@media(prefers-color-scheme:dark){
.plan .ground{fill:#15181c}.plan text{fill:#e6e9ed}.plan .soft{fill:#a3abb5}
.plan .rule{stroke:#2c3239}.plan .room{fill:#2c3239}.plan .bound{stroke:#e6e9ed}
.plan .forward-wait{fill:#59616b}.plan .label{stroke:#15181c}.plan .over{fill:#ff8b8b}}</style>"""


@dataclass(frozen=True)
class Panel:
    """A bar for each device between two heights, over a scale from 0 to `top`."""

    left: float
    above: int
    below: int
    top: float
    slot: float

    def y(self, value: float) -> float:
        """Height of a value."""
        return self.below - min(value / self.top, 1.0) * (self.below - self.above)

    def middle(self, device: int) -> float:
        """The middle of a device's bar."""
        return self.left + (device + 0.5) * self.slot

    def bar(self, device: int, low: float, high: float, name: str, fill: str) -> str:
        """The part of a device's bar between two values."""
        y, width = self.y(high), 0.72 * self.slot
        size = f'width="{width:.1f}" height="{max(0.0, self.y(low) - y):.1f}"'
        return f'<rect class="{name}" x="{self.middle(device) - width / 2:.1f}" y="{y:.1f}" {size} fill="{fill}"/>'

    def rules(self, most: int, unit: float, devices: int) -> Iterator[str]:
        """Lines across at round numbers of a unit."""
        right = self.left + devices * self.slot
        for value in [0.0, *round_numbers(self.top / unit, most)]:
            y = self.y(value * unit)
            yield f'<path class="rule" d="M{self.left:.1f} {y:.1f}H{right:.1f}" stroke="{RULE}"/>'
            yield text(f"{value:g}", self.left - 8, y + 4, "soft", "end")


def svg(plans: Sequence[Bars], style: str = STYLE) -> str:
    """Plans side by side as one `<svg class="plan">`; a device's figures are the title of its bars."""
    devices = max(plan.devices for plan in plans)
    width = max(NARROWEST, LEFT + SLOT * devices + RIGHT)
    slot = (width - LEFT - RIGHT) / devices
    key = list(_legend(plans, width * len(plans)))
    height = BOTTOM + LINE * (1 + max(line for line, *_ in key))
    body = [part for i, plan in enumerate(plans) for part in _plan(plan, i * width, slot, plans)]
    body += [part for line, x, name, fill in key for part in _entry(x, BOTTOM + LINE * line, name, fill)]
    about = _safe("; ".join(f"{plan.title}: {plan.headline}" for plan in plans), 300)
    head = f'viewBox="0 0 {width * len(plans)} {height}" width="{width * len(plans)}" height="{height}"'
    font = 'font-family="system-ui,\'Segoe UI\',Roboto,Helvetica,Arial,sans-serif" font-size="12"'
    first = f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" role="img" {head} {font} fill="{INK}">'
    ground = f'<rect class="ground" width="100%" height="100%" fill="{GROUND}"/>'
    return "\n".join([first, f"<title>{about}</title>", style, ground, *body, "</svg>\n"])


def text(words: str, x: float, y: float, name: str = "", anchor: str = "start", size: int = 12) -> str:
    """Words at a point, escaped."""
    fill = {"soft": f' fill="{SOFT}"', "over": f' fill="{_hex(RED)}"'}.get(name, "")
    bold = ' font-weight="600"' if size > 12 else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text class="{name}" {place}{fill}{bold}>{_safe(words, 10_000)}</text>'


def _label(words: str, x: float, y: float, bold: bool = False) -> str:
    """Words in the middle of a bar, which stay readable where a line crosses them."""
    halo = f'stroke="{GROUND}" stroke-width="3" stroke-linejoin="round" paint-order="stroke"'
    weight = 600 if bold else 400
    return (
        f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-weight="{weight}" {halo}>{words}</text>'
    )


def _plan(plan: Bars, left: float, slot: float, plans: Sequence[Bars]) -> Iterator[str]:
    """The parts of one plan's picture, its left edge at a point."""
    most = int((NARROWEST - 2 * RIGHT) / (LETTER * 1.3))
    yield text(_short(plan.title, most), left + RIGHT, 24, size=15)
    yield text(plan.headline, left + RIGHT, 44, "over" if plan.violations else "")
    yield text(f"cost, ms ({plan.about})", left + RIGHT, 62, "soft")
    yield from _costs(plan, Panel(left + LEFT, COST_TOP, COST_BELOW, 1.06 * longest(plans), slot))
    size = max(max(p.used.max(), p.capacity.max()) for p in plans)
    unit, name = unit_of(size)
    yield text(f"memory, {name}", left + RIGHT, MEMORY_TOP - 16, "soft")
    yield from _memory(plan, Panel(left + LEFT, MEMORY_TOP, MEMORY_BELOW, 1.06 * float(size), slot), unit)


def _costs(plan: Bars, panel: Panel) -> Iterator[str]:
    yield from panel.rules(4, 1.0, plan.devices)
    for device in range(plan.devices):
        yield f"<g><title>{escape(plan.told(device))}</title>"
        below = 0.0
        for phase in plan.phases:
            ms = float(phase.ms[device])
            yield panel.bar(device, below, below + ms, phase.name.replace(" ", "-"), _hex(phase.colour))
            below += ms
        yield "</g>"
    if plan.bound:
        line = f"M{panel.left:.1f} {panel.y(plan.bound):.1f}H{panel.left + plan.devices * panel.slot:.1f}"
        yield f'<path class="bound" d="{line}" {DASHES}/>'
    digits = 2 if plan.makespan < 20 else int(plan.makespan < 200)
    for device, ms in enumerate(plan.cost.tolist() if panel.slot >= ROOMY else ()):
        yield _label(f"{ms:.{digits}f}", panel.middle(device), panel.y(ms) - 5, bold=ms == plan.makespan)


def _memory(plan: Bars, panel: Panel, unit: int) -> Iterator[str]:
    yield from panel.rules(2, unit, plan.devices)
    every = next(2**i for i in range(64) if 2**i * panel.slot >= ROOMY / 1.6)
    for device, (used, capacity) in enumerate(zip(plan.used.tolist(), plan.capacity.tolist(), strict=True)):
        full = min(used, capacity)
        yield panel.bar(device, full, capacity, "room", RULE)
        yield panel.bar(device, 0, full, "memory", _hex(GREEN))
        if used > capacity:
            yield panel.bar(device, capacity, used, "over", _hex(RED))
        if panel.slot >= ROOMY:
            top = panel.y(max(used, capacity)) - 4
            yield _label(f"{used / capacity:.0%}", panel.middle(device), top, bold=used > capacity)
        if device % every == 0:
            yield text(str(device), panel.middle(device), panel.below + 16, "soft", "middle")


def _legend(plans: Sequence[Bars], width: int) -> Iterator[tuple[int, float, str, str]]:
    """Line, left edge, name and colour of each entry."""
    names = {phase.name: _hex(phase.colour) for plan in plans for phase in plan.phases}
    entries = {**names, "memory": _hex(GREEN)} | ({"bound": ""} if any(plan.bound for plan in plans) else {})
    line, x = 0, float(RIGHT)
    for name, fill in entries.items():
        wide = 34 + LETTER * len(name)
        if x + wide > width:
            line, x = line + 1, float(RIGHT)
        yield line, x, name, fill
        x += wide


def _entry(x: float, y: float, name: str, fill: str) -> Iterator[str]:
    """A colour, or the dashes of the bound, and its name."""
    if fill:
        yield f'<rect class="{name.replace(" ", "-")}" x="{x:.1f}" y="{y + 1}" width="12" height="12" fill="{fill}"/>'
    else:
        yield f'<path class="bound" d="M{x:.1f} {y + 7}h16" {DASHES}/>'
    yield text(name, x + 18, y + 11)


def _hex(colour: Colour) -> str:
    return "#" + bytes(colour).hex()


def _safe(words: str, most: int) -> str:
    """Words of others as XML holds them."""
    return escape(plain(_short(words, most)))


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
