"""Progress of a long run: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

WIDTH = 30  # characters of the bar
SECONDS_BETWEEN = {True: 0.1, False: 10.0}  # two reports, on a terminal or not


class ProgressBar:
    """Counts runs and tells their rate and the time left, on stderr; threads may share it."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self.total, self.stream, self.terminal = total, stream, stream.isatty()
        self.done = self.fresh = 0  # fresh: done now, not taken over from a run that broke off
        self.start = self.told = time.monotonic()
        self.lock = threading.Lock()

    def step(self, label: str, fresh: bool = True) -> None:
        """One more run is done; `label` says whose."""
        with self.lock:
            self.done += 1
            self.fresh += fresh
            now = time.monotonic()
            if now - self.told >= SECONDS_BETWEEN[self.terminal]:
                self.told = now
                self._tell(self.text(label, now - self.start))

    def close(self) -> None:
        """The last report."""
        self._tell(self.text("", time.monotonic() - self.start))
        if self.terminal:
            self.stream.write("\n")

    def text(self, label: str, seconds: float) -> str:
        """The report in one line."""
        filled = WIDTH * self.done // max(self.total, 1)
        rate = self.fresh / seconds if seconds > 0 else 0.0
        left = clock((self.total - self.done) / rate) if rate else "?"
        bar = "#" * filled + "-" * (WIDTH - filled)
        return f"[{bar}] {self.done}/{self.total} runs, {rate:.1f}/s, {left} left  {label}"

    def _tell(self, text: str) -> None:
        self.stream.write(f"\r{text:<110.110}" if self.terminal else text.rstrip() + "\n")
        self.stream.flush()


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as a clock shows them."""
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"
