"""Progress of a long run on a terminal, or now and then elsewhere: a bar of what can be counted, a line of the rest."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

WIDTH = 30  # characters of the bar
SECONDS_BETWEEN = {True: 0.1, False: 10.0}  # two reports, on a terminal or not
PATIENCE = 1.0  # seconds that may pass in silence
COLUMNS = 110  # of the line on a terminal


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
        self.stream.write(f"\r{text:<{COLUMNS}.{COLUMNS}}" if self.terminal else text.rstrip() + "\n")
        self.stream.flush()


class Waiting:
    """A line about a step that cannot be counted: how long it takes, of how long it may, and the last news of it.

    Shown after a second on a terminal, and gone at the end; where it is asked for elsewhere, a line every ten seconds.
    """

    def __init__(
        self, what: str, limit: float | None = None, shown: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self.what, self.limit, self.news = what, limit, ""
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self.asked, self.shown = bool(shown), self.terminal if shown is None else shown
        self.start, self.written, self.ended = time.monotonic(), False, threading.Event()
        self.clock = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Waiting:
        self.start = time.monotonic()
        if self.shown:
            self.clock.start()
        return self

    def __exit__(self, *failed: object) -> None:
        """Wipe the line; leave one of the last news where the line was asked for."""
        self.ended.set()
        if not self.shown:
            return
        self.clock.join()
        if self.written and self.terminal:
            self.stream.write(f"\r{'':{COLUMNS}}\r")
        if self.asked:
            self.stream.write(f"{self.text(time.monotonic() - self.start)}\n")
        self.stream.flush()

    def text(self, seconds: float) -> str:
        """The line after so many seconds."""
        of = "" if self.limit is None else f" of {self.limit:g}"
        return f"{self.what}: {seconds:.1f}{of} s" + (f", {self.news}" if self.news else "")

    def tell(self) -> None:
        """Write the line as it is now."""
        text, self.written = self.text(time.monotonic() - self.start), True
        self.stream.write(f"\r{text:<{COLUMNS}.{COLUMNS}}" if self.terminal else f"{text}\n")
        self.stream.flush()

    def _follow(self) -> None:
        wait = PATIENCE
        while not self.ended.wait(wait):
            self.tell()
            wait = SECONDS_BETWEEN[self.terminal]


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as a clock shows them."""
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}" if minutes >= 60 else f"{minutes}:{s:02}"
