"""A picture to draw on, and a window that shows it. pygame is an extra, imported when first needed."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from shard_gym.errors import MissingDependency, ShardGymError
from shard_gym.records.installing import install

if TYPE_CHECKING:
    import pygame

Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels from the top left corner

STRIPE, DASH = 7, 6  # pixels from one stripe to the next, and of a dash

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (20, 20, 20)
GREY: Colour = (90, 90, 90)
PALE: Colour = (228, 228, 228)
RED: Colour = (165, 15, 30)
GREEN: Colour = (0, 145, 105)
# Okabe and Ito's, which the colour-blind can tell apart
DARK_BLUE, LIGHT_BLUE, YELLOW, ORANGE = (0, 114, 178), (86, 180, 233), (240, 190, 60), (205, 90, 0)


class Canvas:
    """A white picture to draw on. All of it is made anew, so that nothing outlives a `pygame.quit()` by others."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._pygame = pygame = _pygame()
        pygame.freetype.init()
        self._font = pygame.freetype.Font(None)  # comes with pygame: the same letters on every machine
        self.surface = pygame.Surface((width, height), depth=32)
        self.surface.fill(WHITE)

    def box(self, box: Box, colour: Colour, outline: bool = False) -> None:
        """A filled rectangle, or its outline of one pixel."""
        left, top, right, bottom = box
        area = (left, top, right - left, bottom - top)
        if outline:
            self._pygame.draw.rect(self.surface, colour, area, 1)
        else:
            self.surface.fill(colour, area)

    def stripes(self, box: Box, colour: Colour) -> None:
        """Stripes that fall to the left, inside a rectangle."""
        left, top, right, bottom = box
        self.surface.set_clip((left, top, right - left, bottom - top))
        rise = bottom - top
        first = left - left % STRIPE + top % STRIPE  # stripes of neighbours line up
        for x in range(first - STRIPE, right + rise + STRIPE, STRIPE):
            self._pygame.draw.line(self.surface, colour, (x, top), (x - rise, bottom), 2)
        self.surface.set_clip(None)

    def line(self, start: tuple[int, int], end: tuple[int, int], colour: Colour) -> None:
        """A straight line between two points."""
        self._pygame.draw.line(self.surface, colour, start, end)

    def dashes(self, left: int, right: int, y: int, colour: Colour) -> None:
        """A dashed line across."""
        for x in range(left, right, 2 * DASH):
            self.box((x, y, min(x + DASH, right), y + 2), colour)

    def arrow(self, x: int, y: int, size: int, colour: Colour) -> None:
        """A triangle that points up, its tip at (x, y)."""
        self._pygame.draw.polygon(self.surface, colour, [(x, y), (x - size, y + size), (x + size, y + size)])

    def cross(self, x: int, y: int, size: int, colour: Colour) -> None:
        """Two short lines that cross at (x, y)."""
        for way in (-size, size):
            self._pygame.draw.line(self.surface, colour, (x - size, y - way), (x + size, y + way), 2)

    def text(self, words: str, at: tuple[int, int], size: int, colour: Colour = BLACK, align: float = 0.0) -> int:
        """Words around a height, with a part (`align`) of their width left of a point, on white. Returns the width."""
        image, around = self._font.render(words, colour, size=size)
        left, top = round(at[0] - align * around.width), at[1] + round(0.36 * size) - around.y
        self.box((left - 3, top - 1, left + around.width + 3, top + around.height + 1), WHITE)
        self.surface.blit(image, (left, top))
        return around.width

    def shortened(self, words: str, size: int, width: int) -> str:
        """Words cut to a width."""
        if self._font.get_rect(words, size=size).width <= width:
            return words
        words = words[: width // 3]  # no letter is narrower; a name may be very long
        while words and self._font.get_rect(words + "…", size=size).width > width:
            words = words[:-1]
        return words + "…"

    def pixels(self) -> np.ndarray:
        """The picture, (height, width, 3) uint8."""
        content = bytearray(self._pygame.image.tobytes(self.surface, "RGB"))
        return np.frombuffer(content, np.uint8).reshape(self.height, self.width, 3)


class Window:
    """A window on the screen, which shows one canvas after the other at a steady pace. pygame has one a process."""

    def __init__(self, title: str) -> None:
        self._pygame, self._title = _pygame(), title
        self._clock = self._pygame.time.Clock()

    def show(self, canvas: Canvas, frames_per_second: float) -> None:
        """Draw, and wait until it is time for the next picture."""
        display, size = self._pygame.display, (canvas.width, canvas.height)
        screen = display.get_surface() if display.get_init() else None
        if screen is None or screen.get_size() != size:  # not open yet, or closed or taken by somebody else
            screen = self._open(size)
        screen.blit(canvas.surface, (0, 0))
        self._pygame.event.pump()  # or the system takes the window for dead
        display.flip()
        self._clock.tick(frames_per_second)

    def close(self) -> None:
        """Take it off the screen."""
        self._pygame.display.quit()

    def _open(self, size: tuple[int, int]) -> pygame.Surface:
        display = self._pygame.display
        try:
            display.init()
            screen = display.set_mode(size)
        except self._pygame.error as error:
            hint = 'take render_mode="rgb_array", or set SDL_VIDEODRIVER=dummy'
            raise ShardGymError(f"no window can be opened here ({error}): {hint}") from error
        display.set_caption(self._title)
        return screen


def _pygame() -> ModuleType:
    try:
        import pygame
        import pygame.freetype
    except ImportError as error:
        raise MissingDependency(f"pictures need pygame: {install('render')}") from error
    return pygame
