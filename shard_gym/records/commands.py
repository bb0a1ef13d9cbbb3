"""Commands: a parser and a function, one way to end, and types of arguments. Needs the standard library alone."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Sequence

from shard_gym.errors import ShardGymError
from shard_gym.records.escape import plain

FAILED, INTERRUPTED = 2, 130  # exit codes, as argparse and shells have them
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # seconds


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of its module, line by line."""
    return argparse.ArgumentParser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def run(
    made: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, by default the process's, and call the command with them; the exit code."""
    return ended(made.prog, lambda: command(made.parse_args(arguments)))


def ended(name: str, call: Callable[[], int | None]) -> int:
    """The exit code of a call: an error that the user can put right is told in one line, Ctrl-C ends quietly."""
    try:
        code = call()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ShardGymError, OSError) as error:
        sys.stderr.write(plain(f"{name}: {error}", keep="\n") + "\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code or 0


def show(text: str) -> None:
    """Print text that may hold words of others: names of tables, errors of agents."""
    sys.stdout.write(plain(text, keep="\n") + "\n")
    sys.stdout.flush()


def seconds(text: str, unit: str = "") -> float:
    """A duration: "100ms", "90s", "8m" or "2h"; a bare number needs a unit that is meant by it."""
    found = re.fullmatch(r"([\d.e+-]+)(ms|s|m|h|)", text)
    try:
        value = float(found[1]) * UNITS[found[2] or unit] if found else 0.0
    except (KeyError, ValueError):
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 100ms, 90s, 8m or 2h")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def names(text: str) -> list[str]:
    """Names, separated by commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("give at least one name")
    return found
