"""Work with a time limit, stopped when that is over."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from shard_gym.errors import TimedOut

Result = TypeVar("Result")
PATIENCE = 0.5, 4  # seconds between attempts to stop what is late, and how many
WAKE = 0.05  # seconds between looks at the clock, at least


class Stopped(BaseException):
    """Raised in a thread that is late; no handler of what it runs catches it."""


def within(seconds: float, work: Callable[[], Result], what: str) -> Result:
    """Run `work` and return its value, if it ends in so many seconds of its own CPU time.

    It runs in a thread of its own and is stopped there, at the next step of its Python code: no process to start, and
    callers need not be in the main thread, as they would for signals. Time that others take does not count, where the
    system has clocks of threads.
    """
    outcome: list[Result] = []
    failure: list[Exception] = []
    clock: list[int] = []  # of the thread's own CPU time

    def call() -> None:
        with suppress(Stopped), suppress(Stopped):  # a second one may come while the first is on its way
            try:
                if hasattr(time, "pthread_getcpuclockid"):
                    clock.append(time.pthread_getcpuclockid(threading.get_ident()))
                outcome.append(work())
            except Exception as error:
                failure.append(error)

    thread = threading.Thread(target=call, name=what, daemon=True)
    begin = time.perf_counter()
    thread.start()
    try:
        while thread.is_alive() and (left := seconds - _spent(clock, begin)) > 0:
            thread.join(max(left, min(WAKE, seconds)))
    finally:
        late = _stop(thread)
    if failure:
        raise failure[0]
    if late or not outcome:
        raise TimedOut(f"{what} did not end in {seconds:g} s: allow a longer timeout, or fewer choices")
    return outcome[0]


def _spent(clock: list[int], begin: float) -> float:
    """CPU seconds of a thread, by its clock; seconds since it began, where it has none or has ended."""
    try:
        return time.clock_gettime(clock[0])
    except (IndexError, OSError):
        return time.perf_counter() - begin


def _stop(thread: threading.Thread) -> bool:
    """Stop a thread; True if it was still running. One long C call is not stopped in its middle."""
    late = thread.is_alive()
    pause, attempts = PATIENCE
    for _ in range(attempts):
        if not thread.is_alive():
            break
        # an exception that arrives in a destructor is swallowed: hence again and again
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))
        thread.join(pause)
    return late
