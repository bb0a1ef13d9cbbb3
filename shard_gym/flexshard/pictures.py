"""Pictures of tiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.flexshard.stretches import STRETCHES
from shard_gym.pictures.canvas import DARK_BLUE, GREY, LIGHT_BLUE, ORANGE, Canvas

COLOURS = {"DP": DARK_BLUE, "Flex": LIGHT_BLUE, "RW": ORANGE}
LEFT, EACH = 16, 9  # pixels: the margin, and the width of a stretch


def letters(tiers: Sequence[int]) -> str:
    """D, F or R for each stretch."""
    return "".join("DFR"[tier] for tier in tiers)


def picture(tiers: Sequence[int], communication: float, memory: float) -> np.ndarray:
    """Stretches from the most frequent rows on, coloured by tier, and the memory below them.

    Communication is over that of RW, memory over its budget; (height, width, 3) uint8.
    """
    canvas, full = Canvas(2 * LEFT + STRETCHES * EACH, 144), STRETCHES * EACH
    colours = list(COLOURS.values())
    for at in range(STRETCHES):
        box = (LEFT + at * EACH, 40, LEFT + (at + 1) * EACH - 1, 80)
        canvas.box(box, colours[tiers[at]] if at < len(tiers) else GREY, outline=at >= len(tiers))
    for i, (name, colour) in enumerate(COLOURS.items()):
        canvas.text(name, (LEFT + 60 * i, 20), 16, colour)
    canvas.text(f"{communication:.3f} of the communication of RW", (LEFT + full, 20), 14, align=1.0)
    canvas.box((LEFT, 100, LEFT + round(full * min(memory, 1.0)), 120), ORANGE if memory > 1 else DARK_BLUE)
    canvas.box((LEFT, 100, LEFT + full, 120), GREY, outline=True)
    canvas.text(f"memory {memory:.1%}", (LEFT, 132), 14)
    return canvas.pixels()
