"""An episode as a picture: what every device costs and holds, the next table, and what is left.

The same state gives the same pixels. Scales belong to the task, not to the moment, so that a video does not jump.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.envs.episodes import Prepared
from shard_gym.envs.rewards import outcome
from shard_gym.envs.states import State, Waiting
from shard_gym.pictures.canvas import (
    BLACK,
    DARK_BLUE,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PALE,
    RED,
    WHITE,
    YELLOW,
    Box,
    Canvas,
    Colour,
)
from shard_gym.pictures.phases import legend, phases
from shard_gym.pictures.scales import in_units, round_numbers, unit_of
from shard_gym.tables.pool import NUM_BINS

HEIGHT, NARROWEST, WIDEST = 544, 640, 1920  # of the picture; its width is for the devices
EDGE, LEFT = 16, 68  # where words and bars begin
SLOT = 7  # pixels for each of many devices
CROSS = "\u00d7"
ROOMY = 56  # pixels a device needs for a label of its own
LARGE, MEDIUM, SMALL = 24, 16, 14  # letters

CHOICES = (("columns", GREEN), ("hosts", ORANGE), ("rows", DARK_BLUE), ("copies", YELLOW))
USE_LABELS = ("1", "4", "16", "64", "256", "1k", "4k", "", "more")  # of every other bin, its most uses


def picture(state: State, title: str) -> Canvas:
    """The state of an episode."""
    devices, coming = len(state.free), state.coming()
    width = min(max(NARROWEST, LEFT + SLOT * devices + EDGE), WIDEST)
    canvas = Canvas(width + width % 2, HEIGHT)  # videos want even numbers
    _draw_title(canvas, state, title)
    _draw_costs(canvas, state)
    _draw_memory(canvas, state, coming)
    if coming is None:
        _draw_end(canvas, state)
    else:
        _draw_next(canvas, coming)
        _draw_uses(canvas, coming.shares)
    return canvas


def even_share(prepared: Prepared) -> float:
    """Makespan, ms, if tables could be cut at will and every device had an equal part of each."""
    devices = prepared.task.num_devices
    if prepared.embedding is None:
        return prepared.worst / devices
    part = prepared.embedding[prepared.nodes.whole].sum(axis=0) / devices
    return float(prepared.decode(np.tile(part, (devices, 1))).makespan(prepared.task.objective))


@dataclass(frozen=True)
class Panel:
    """A bar for each device, over a scale from 0 to `top`."""

    canvas: Canvas
    above: int  # pixels from the picture's upper edge
    below: int
    top: float
    devices: int

    @property
    def slot(self) -> float:
        """Pixels for each device."""
        return (self.canvas.width - EDGE - LEFT) / self.devices

    def y(self, value: float) -> int:
        """Height of a value, at most that of the top."""
        return self.below - round(min(value / self.top, 1.0) * (self.below - self.above))

    def bar(self, device: int, low: float, high: float) -> Box:
        """The part of a device's bar between two values."""
        width = max(1, round(0.7 * self.slot))
        left = round(LEFT + (device + 0.5) * self.slot - width / 2)
        return left, self.y(high), left + width, self.y(low)

    def label(self, device: int, words: str, y: int, colour: Colour = BLACK) -> None:
        """Words about a device, if there is room for them."""
        if self.slot >= ROOMY:
            self.canvas.text(words, (self.middle(device), y), SMALL, colour, align=0.5)

    def middle(self, device: int) -> int:
        """Pixel at the middle of a device's slot."""
        return round(LEFT + (device + 0.5) * self.slot)

    def draw_scale(self, most: int, unit: float = 1.0) -> None:
        """Lines across at round numbers of a unit."""
        right = self.canvas.width - EDGE
        for value in round_numbers(self.top / unit, most):
            y = self.y(value * unit)
            self.canvas.line((LEFT, y), (right, y), PALE)
            self.canvas.text(f"{value:g}", (LEFT - 8, y), SMALL, GREY, align=1.0)
        self.canvas.line((LEFT, self.below), (right, self.below), GREY)

    def draw_numbers(self) -> None:
        """The devices' numbers, as many as there is room for."""
        every = next(2**i for i in range(64) if 2**i * self.slot >= ROOMY / 1.6)
        self.canvas.text("device", (LEFT - 8, self.below + 14), SMALL, GREY, align=1.0)
        for device in range(0, self.devices, every):
            self.canvas.text(str(device), (self.middle(device), self.below + 14), SMALL, GREY, align=0.5)


def _draw_title(canvas: Canvas, state: State, title: str) -> None:
    prepared, placed, total = state.episode.prepared, state.num_placed, state.num_pieces
    task, right = prepared.task, canvas.width - EDGE
    kind = "tables" if total == task.num_tables else "pieces"  # some were split
    count = canvas.text(f"{placed} of {total} {kind} placed", (right, 24), MEDIUM, align=1.0)
    canvas.text(canvas.shortened(title, LARGE, right - count - EDGE - 20), (EDGE, 24), LARGE)
    about = f"task {task.name or task.hash}, {task.objective} objective, simulator {prepared.simulator.id}"
    canvas.text(canvas.shortened(about, SMALL, right - EDGE), (EDGE, 48), SMALL, GREY)
    canvas.box((EDGE, 62, right, 67), PALE)
    canvas.box((EDGE, 62, EDGE + round((right - EDGE) * placed / total), 67), GREY)


def _draw_costs(canvas: Canvas, state: State) -> None:
    prepared, latency, even = state.episode.prepared, state.latency(), even_share(state.episode.prepared)
    objective = prepared.task.objective
    cost, parts = latency.cost(objective), phases(latency, objective)
    dearest = 0.0 if prepared.embedding is None else float(prepared.alone.max())  # or it would cost a call a table
    panel = Panel(canvas, 136, 296, 2 * max(even, dearest) or 1.0, len(cost))
    slowest = f" (device {cost.argmax()})" if cost.max() > 0 else ""
    canvas.text("cost, ms", (EDGE, 86), MEDIUM)
    canvas.dashes(104, 122, 85, BLACK)
    canvas.text("even share", (128, 86), SMALL)
    told = f"makespan {cost.max():.2f} ms{slowest}, balance {float(latency.balance):.2f}"
    canvas.text(told, (canvas.width - EDGE, 86), MEDIUM, align=1.0)
    _draw_legend(canvas, objective)
    panel.draw_scale(4)
    for device in range(panel.devices):
        below = 0.0
        for phase in parts:
            canvas.box(panel.bar(device, below, below + phase.ms[device]), phase.colour)
            below += phase.ms[device]
    canvas.dashes(LEFT, canvas.width - EDGE, panel.y(even) - 1, BLACK)
    for device in range(panel.devices):
        _draw_cost(panel, device, float(cost[device]))


def _draw_legend(canvas: Canvas, objective: str) -> None:
    x, y = LEFT, 110
    for direction, parts in legend(objective).items():
        x += 8 + canvas.text(direction, (x, y), SMALL)
        for name, colour in parts:
            canvas.box((x, y - 6, x + 12, y + 6), colour)
            x += 30 + canvas.text(name, (x + 16, y), SMALL)
        x += 8


def _draw_cost(panel: Panel, device: int, cost: float) -> None:
    """A device's cost over its bar; in it, with an arrow above, where the bar is longer than the scale."""
    left, top, right, _ = panel.bar(device, 0.0, cost)
    if cost > panel.top:
        panel.canvas.arrow(panel.middle(device), top - 9, max(3, min(7, (right - left) // 2)), BLACK)
    if cost > 0:
        digits = 2 if panel.top < 20 else int(panel.top < 200)
        panel.label(device, f"{cost:.{digits}f}", top + 12 if cost > panel.top else top - 9)


def _draw_memory(canvas: Canvas, state: State, coming: Waiting | None) -> None:
    memory, right = state.episode.prepared.task.memory, canvas.width - EDGE
    unit, name = unit_of(max(memory))
    panel = Panel(canvas, 346, 416, 1.3 * max(memory), len(memory))
    each = f" ({memory[0] / unit:.3g} a device)" if len(set(memory)) == 1 else ""
    wide = canvas.text(f"memory, {name}{each}", (EDGE, 320), MEDIUM)
    panel.draw_scale(2, unit)
    held = state.bytes_by_choice()
    for device, (free, capacity) in enumerate(zip(state.free, memory, strict=True)):
        fits = coming is None or coming.size <= free
        _draw_held(panel, device, held[:, device], capacity, fits)
    panel.draw_numbers()
    if over := sum(free < 0 for free in state.free) + sum(share < 0 for share in state.host_free()):
        words = f"{over} over" + " capacity" * (len(held) == 1)  # kinds need the room
        right -= 16 + canvas.text(words, (right, 320), MEDIUM, RED, align=1.0)
    if len(held) > 1:
        _draw_choices(canvas, (EDGE + wide + 16, 320))
    elif coming is not None and coming.size > min(state.free):
        canvas.text(f"{CROSS} next table does not fit", (right, 320), MEDIUM, align=1.0)


def _draw_choices(canvas: Canvas, at: tuple[int, int]) -> None:
    """Draw which colour of memory is which kind of shards."""
    x, y = at
    for name, colour in CHOICES:
        canvas.box((x, y - 6, x + 12, y + 6), colour)
        x += 26 + canvas.text(name, (x + 16, y), SMALL)


def _draw_held(panel: Panel, device: int, held: np.ndarray, capacity: int, fits: bool) -> None:
    """Draw what a device holds of its capacity, by choices, its excess, a label, a cross if the next table does not
    fit."""
    canvas, (left, brim, right, bottom) = panel.canvas, panel.bar(device, 0, capacity)
    canvas.box((left, brim, right, bottom), PALE)
    below, used = 0, int(held.sum())
    for size, (_, colour) in zip(held.tolist(), CHOICES, strict=False):
        if size:
            canvas.box(panel.bar(device, min(below, capacity), min(below + size, capacity)), colour)
        below += size
    canvas.line((left, brim), (right - 1, brim), BLACK)
    top = brim
    if used > capacity:
        top = min(panel.y(used), brim - 4)  # however little it is
        canvas.box((left, top, right, brim), RED)
        canvas.stripes((left, top, right, brim), WHITE)
        canvas.box((left, top, right, brim), RED, outline=True)
    cross = "" if fits else f"{CROSS} "
    panel.label(device, f"{cross}{used / capacity:.0%}", top - 9, RED if used > capacity else BLACK)
    if not fits and panel.slot < ROOMY:
        canvas.cross(panel.middle(device), top - 5, max(1, min(4, round(panel.slot / 3))), BLACK)


def _draw_next(canvas: Canvas, coming: Waiting) -> None:
    alone = "" if coming.alone is None else f", {coming.alone:.3g} ms alone"
    canvas.text("next", (EDGE, 452), MEDIUM, GREY)
    canvas.text(canvas.shortened(coming.name, MEDIUM, 220), (LEFT, 452), MEDIUM)
    canvas.text(f"{coming.rows:,} rows of {coming.dim} columns", (LEFT, 473), SMALL)
    canvas.text(f"{coming.pooling:.1f} ids a sample", (LEFT, 490), SMALL)
    canvas.text(f"{in_units(coming.size)}{alone}", (LEFT, 507), SMALL)
    canvas.text("left", (EDGE, 530), MEDIUM, GREY)
    tables = "table" if coming.count == 1 else "tables"
    canvas.text(f"{coming.count} {tables}, {in_units(coming.total)}", (LEFT, 530), MEDIUM)


def _draw_uses(canvas: Canvas, shares: np.ndarray) -> None:
    """Draw how often rows of the next table are used: shares of its rows, and of its lookups, in each bin."""
    pitch, top, bottom, right = 17, 470, 518, canvas.width - EDGE
    left, most = right - pitch * NUM_BINS, 0.6  # the scale; longer bars have an arrow
    x, colours = left, (GREY, LIGHT_BLUE)
    for words, colour in zip(("its rows", "lookups"), colours, strict=True):
        canvas.box((x, 446, x + 12, 458), colour)
        x += 26 + canvas.text(words, (x + 16, 452), SMALL)
    canvas.text("by uses a batch", (x, 452), SMALL)
    canvas.line((left, top), (right, top), PALE)
    canvas.text(f"{most:.0%}", (left - 8, top), SMALL, GREY, align=1.0)
    for b, pair in enumerate(shares.T.tolist()):
        for x, share, colour in zip((left + pitch * b + 1, left + pitch * b + 8), pair, colours, strict=True):
            canvas.box((x, bottom - round(min(share / most, 1) * (bottom - top)), x + 7, bottom), colour)
            if share > most:
                canvas.arrow(x + 3, top + 3, 3, WHITE)
        if b % 2 == 0:
            canvas.text(USE_LABELS[b // 2], (left + pitch * b + 8, bottom + 13), SMALL, GREY, align=0.5)
    canvas.line((left, bottom), (right, bottom), GREY)


def _draw_end(canvas: Canvas, state: State) -> None:
    prepared, end = state.episode.prepared, outcome(state)
    canvas.text("all tables are placed", (EDGE, 458), LARGE)
    if end.excess:
        canvas.text("the plan cannot be used: it breaks memory or constraints", (EDGE, 490), MEDIUM, RED)
    else:
        canvas.text("the plan can be used: it keeps to memory and constraints", (EDGE, 490), MEDIUM)
    if prepared.random_makespan:
        share = end.makespan / prepared.random_makespan
        canvas.text(f"its makespan is {share:.0%} of the mean random plan's", (EDGE, 516), MEDIUM)
