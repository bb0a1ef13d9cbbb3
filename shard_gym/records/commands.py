"""Commands: a parser and a function, one way to end, one way to answer, and types of arguments.

Needs the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from shard_gym.errors import ShardGymError, meant
from shard_gym.records.escape import plain
from shard_gym.records.progress import Waiting

FAILED, INTERRUPTED = 2, 130  # exit codes, as argparse and shells have them
EXITS = {
    0: "done",
    FAILED: "the command is wrong or cannot be done; the last line of stderr says why",
    INTERRUPTED: "stopped by Ctrl-C; the last line of stderr says what is kept",
}
NOTHING_KEPT = "nothing is kept; the same command begins again"
ERROR = "shard-gym/error/1"
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # seconds


class Parser(argparse.ArgumentParser):
    """A parser whose help has examples and exit codes, and which tells what a misspelt word was meant to be."""

    def __init__(self, prog: str | None = None, *, examples: Sequence[str] = (), **others: Any) -> None:
        self.examples, self.exits = tuple(examples), dict(others.pop("exits", {}))
        kept = NOTHING_KEPT if examples else ""
        self.kept = str(others.pop("kept", kept))  # said after Ctrl-C; "" where the command says it itself
        answer = str(others.pop("answer", ""))
        self.given: list[str] = []
        told = {
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "epilog": self._epilog(),
            "allow_abbrev": False,
        }
        super().__init__(prog, **{**told, **others})
        if answer:
            self.add_argument("--json", action="store_true", help=f"answer with {answer}, and errors as JSON")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options, and words that are none; notes what was given."""
        self.given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self.given, namespace)

    def format_help(self) -> str:
        """Help whose usage names what is required; all options follow below."""
        if self.usage is None:
            grouped = {action: group for group in self._mutually_exclusive_groups for action in group._group_actions}
            either = [" | ".join(map(_shown, g._group_actions)) for g in self._mutually_exclusive_groups if g.required]
            alone = [_shown(a) for a in self._actions if a.required and a not in grouped and a.option_strings]
            words = [_shown(a) for a in self._actions if not a.option_strings]
            told = [*(f"({one})" for one in either), *alone, "[options]"]
            self.usage = " ".join(["%(prog)s", *words, *told]).replace("%(prog)s", self.prog)
        return super().format_help()

    def options(self) -> list[str]:
        """Every option, such as --seed."""
        return [text for action in self._actions for text in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """End with one line that says what is wrong, what may have been meant, and where help is."""
        words = [word.partition("=")[0] for word in self.given if word.startswith("--") and len(word) > 2]
        hints = [meant(word, self.options()) for word in words if word not in self.options()]
        complain(self.prog, "WrongCommand", "".join([message, *hints]), "--json" in self.given, f"{self.prog} --help")
        self.exit(FAILED)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = meant(value, action.choices or ())
            raise argparse.ArgumentError(action, error.message + hint) from None

    def _epilog(self) -> str | None:
        if not self.examples:
            return None
        codes = [f"  {code:<3}  {what}" for code, what in sorted((EXITS | self.exits).items())]
        return "\n".join(["examples:", *(f"  {line}" for line in self.examples), "", "exit codes:", *codes])


def _shown(action: argparse.Action) -> str:
    """An option, or a word, and its value, as usage shows it."""
    value = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    more = {"+": " ...", "?": "]"}.get(str(action.nargs), "")
    return " ".join([*action.option_strings[-1:], f"[{value}" if action.nargs == "?" else value]) + more


def parser(name: str, about: str | None, **told: Any) -> Parser:
    """A parser whose help is the docstring of its module, line by line; `told` is as for Parser."""
    return Parser(name, description=about, **told)


def run(
    made: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, by default the process's, and call the command with them; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    kept = made.kept if isinstance(made, Parser) else ""
    return ended(made.prog, lambda: command(made.parse_args(given)), kept, "--json" in given)


def ended(name: str, call: Callable[[], int | None], kept: str = "", as_json: bool = False) -> int:
    """The exit code of a call: an error that the user can put right is told in one line, and so is what Ctrl-C kept."""
    try:
        code = call()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ShardGymError, OSError) as error:
        complain(name, type(error).__name__, str(error), as_json)
        return FAILED
    except KeyboardInterrupt:
        if kept or as_json:
            complain(name, "Interrupted", "; ".join(filter(None, ["stopped", kept])), as_json)
        return INTERRUPTED
    return code or 0


def complain(name: str, kind: str, message: str, as_json: bool, see: str = "") -> None:
    """Say on stderr why a command ends early: in words, or as one JSON object in one line."""
    if as_json:
        code = INTERRUPTED if kind == "Interrupted" else FAILED
        told = {"schema": ERROR, "command": name, "error": kind, "message": message, "exit_code": code}
        text = json.dumps(told)
    else:
        text = plain(f"{name}: {message}" + (f"; see {see}" if see else ""), keep="\n")
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Print text that may hold words of others: names of tables, errors of agents."""
    sys.stdout.write(plain(text, keep="\n") + "\n")
    sys.stdout.flush()


def answer(
    options: argparse.Namespace, schema: str, told: Callable[[], Mapping[str, Any]], text: Callable[[], str]
) -> None:
    """Print what a command has to tell: with --json as one object in a line, its schema first; else the text."""
    if options.json:
        show(json.dumps(_strict({"schema": f"shard-gym/{schema}", **told()}), allow_nan=False))
    elif words := text():
        show(words)


def waiting(options: argparse.Namespace, what: str, limit: float | None = None, asked: bool | None = None) -> Waiting:
    """A line on stderr that tells how long a step takes: on a terminal, not with --json, unless it is asked for."""
    quiet = options.json or getattr(options, "progress", None) is False
    return Waiting(what, limit, asked or (False if quiet else None))


def _strict(value: Any) -> Any:
    """The value as JSON has it: arrays as lists, paths as text, and null for what is no number."""
    if isinstance(value, Mapping):
        return {str(key): _strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    if hasattr(value, "tolist"):
        return _strict(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def seconds(text: str, unit: str = "", least: float = math.ulp(0.0)) -> float:
    """A duration: "100ms", "90s", "8m" or "2h"; a bare number needs a unit that is meant by it."""
    found = re.fullmatch(r"([\d.e+-]+)(ms|s|m|h|)", text)
    try:
        value = float(found[1]) * UNITS[found[2] or unit] if found else -1.0
    except (KeyError, ValueError):
        value = -1.0
    if not least <= value < math.inf:
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
