"""Cards: what an entry says of its agent, as TOML that people write."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile
from shard_gym.records.guard import guarded, text_of
from shard_gym.records.numbers import whole
from shard_gym.results import TRACKS

SCHEMA = "shard-gym/card/1"
MOST_BYTES = 2**16  # of the file
LONGEST = {"agent": 100, "command": 2_000}  # characters of a text
LONGEST_OTHER = 500
MOST = 50  # of a list


@dataclass(frozen=True, kw_only=True)
class Card:
    """Facts of an agent and of its runs; those that results tell too must agree with them."""

    agent: str  # as results name it: a registered name, or module:Class
    authors: tuple[str, ...]
    command: str  # that makes the runs again
    version: str  # of the agent
    licence: str  # of the agent's code, an SPDX identifier
    link: str  # where the code is; "" if nowhere
    track: str
    suites: tuple[str, ...]
    seeds: tuple[int, ...]
    hardware: str  # that the runs were made on
    training: str  # what it took, with the hardware; "none" where nothing was trained
    checkpoints: tuple[str, ...]  # sha256 of each file of weights

    def __post_init__(self) -> None:
        for field in fields(self):
            with guarded(f"{field.name} of a card"):
                object.__setattr__(self, field.name, _CHECKS.get(field.name, _words)(field.name, self))
        if self.agent not in self.command:
            raise CorruptFile(f"command of a card makes the runs of {self.agent!r} again, so it names the agent")

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """Read a file; one that is no card, or leaves something out, is refused."""
        text = text_of(path, MOST_BYTES)
        with guarded(f"{path} is not TOML"):
            data = tomllib.loads(text)
        if (schema := data.pop("schema", None)) != SCHEMA:
            raise CorruptFile(f"{path} is no card: schema {schema!r:.60} where {SCHEMA!r} is expected")
        names = {field.name for field in fields(cls)}
        if odd := sorted(data.keys() ^ names):
            told = "has no field" if odd[0] in names else "has an unknown field"
            raise CorruptFile(f"{path} {told} {odd[0]!r:.60}; a card has {', '.join(sorted(names))}")
        try:
            return cls(**data)
        except CorruptFile as error:
            raise CorruptFile(f"{path}: {error}") from error

    def to_toml(self) -> str:
        """The text of a file that `load` reads."""
        values = {"schema": SCHEMA, **{field.name: getattr(self, field.name) for field in fields(self)}}
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def _words(name: str, card: Card) -> str:
    """A text of one line."""
    return _text(name, getattr(card, name))


def _text(name: str, value: Any) -> str:
    most = LONGEST.get(name, LONGEST_OTHER)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected some words, got {value!r:.60}")
    if len(value) > most:
        raise ValueError(f"{len(value):,} characters, {most} are the most")
    if not value.isprintable():
        raise ValueError(f"characters that cannot be printed in one line: {value!r:.60}")
    return value


def _list(name: str, card: Card, check: Callable[[Any], Any], least: int = 0) -> tuple[Any, ...]:
    told = getattr(card, name)
    if not isinstance(told, list | tuple) or not least <= len(told) <= MOST:
        raise ValueError(f"expected a list of {least} to {MOST}, got {told!r:.60}")
    found = tuple(map(check, told))
    if len(set(found)) < len(found):
        raise ValueError(f"the same thing twice: {told!r:.60}")
    return found


def _authors(name: str, card: Card) -> tuple[str, ...]:
    return _list(name, card, lambda value: _text(name, value), least=1)


def _suites(name: str, card: Card) -> tuple[str, ...]:
    return tuple(sorted(_list(name, card, lambda value: _text(name, value), least=1)))


def _seeds(name: str, card: Card) -> tuple[int, ...]:
    found = tuple(sorted(_list(name, card, whole, least=1)))
    if found[0] < 0:
        raise ValueError(f"a seed is 0 or more, got {found[0]}")
    return found


def _track(name: str, card: Card) -> str:
    if card.track not in TRACKS:
        raise ValueError(f"expected one of {', '.join(TRACKS)}, got {card.track!r:.60}")
    return card.track


def _link(name: str, card: Card) -> str:
    if card.link == "":
        return ""
    if not re.fullmatch(r"https?://[^\s<>\"'`]+", _text(name, card.link)):
        raise ValueError(f'expected an address that begins with https://, or "", got {card.link!r:.60}')
    return card.link


def _licence(name: str, card: Card) -> str:
    if not re.fullmatch(r"[\w.+() -]+", _text(name, card.licence)):
        raise ValueError(f"expected an SPDX identifier such as Apache-2.0, got {card.licence!r:.60}")
    return card.licence


def _checkpoints(name: str, card: Card) -> tuple[str, ...]:
    def hashed(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
            raise ValueError(f"expected the sha256 of a file, 64 digits, got {value!r:.80}")
        return value

    return _list(name, card, hashed)


_CHECKS: dict[str, Callable[[str, Card], Any]] = {
    "authors": _authors,
    "suites": _suites,
    "seeds": _seeds,
    "track": _track,
    "link": _link,
    "licence": _licence,
    "checkpoints": _checkpoints,
}
