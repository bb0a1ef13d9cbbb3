"""Parts of a list of work, for machines that know nothing of each other: each takes the keys that are its own."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from hashlib import sha256

LOCAL = "local"  # the address of a Ray that is started here


@dataclass(frozen=True)
class Part:
    """Part `number` of `of`, from 1; all parts together take every key once, whatever the list holds beside it."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part that "2/5" names."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        part = cls(*map(int, found.groups())) if found else None
        if part is None or not 1 <= part.number <= part.of:
            raise argparse.ArgumentTypeError(f"{text!r} is no part; write 1/4 for the first of four")
        return part

    def takes(self, key: str) -> bool:
        """True if the piece with that key belongs to this part."""
        return self.whole or int.from_bytes(sha256(key.encode()).digest()[:8]) % self.of == self.number - 1

    @property
    def whole(self) -> bool:
        """True if there is one part only."""
        return self.of == 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part(1, 1)


def add_part(parser: argparse.ArgumentParser) -> None:
    """The flag that picks a part of the work."""
    told = "do this part of the work, such as 1/4; `shard-gym merge` unites what the parts wrote"
    parser.add_argument("--part", type=Part.parse, default=WHOLE, metavar="I/N", help=told)


def add_places(parser: argparse.ArgumentParser) -> None:
    """The flags that say where the work is done: a part of it here, or on a Ray cluster."""
    add_part(parser)
    add_ray(parser)


def add_ray(parser: argparse.ArgumentParser) -> None:
    """The flag that has the work done on a Ray cluster."""
    told = "work on the Ray cluster at HOST:PORT (auto: the one of this host); without an address one is started here"
    parser.add_argument("--ray", nargs="?", const=LOCAL, metavar="ADDRESS", help=told)
