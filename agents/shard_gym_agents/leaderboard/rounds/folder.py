"""The folder of a round: plain files, each written whole by one stage, and refused out of turn.

| file | by | holds |
|---|---|---|
| round.json | new | the rules, and the commitment: a hash of rules, seed and salt |
| begun.json | open | the agents |
| results.jsonl, references.jsonl | open | plans of the agents, and of the host |
| opened.json | open, at its end | hashes of the tasks and of both files, references |
| closing.json, closing.md | close | seed and salt, and the standings |
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from shard_gym.errors import CorruptFile, OutOfTurn
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import content_of, guarded

ANNOUNCED, BEGUN, OPENED, CLOSED = "round.json", "begun.json", "opened.json", "closing.json"
RESULTS, REFERENCES, REPORT, PARTIAL = "results.jsonl", "references.jsonl", "closing.md", "partial"
SCHEMA = "shard-gym/round/1"
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Round:
    """The rules of a round, known from its beginning."""

    suite: str
    tasks: int
    planner: str
    judge: str
    seeds: int  # of agents that are not deterministic
    budget: float  # seconds that a search may use on a task
    time_limit: float  # seconds a task, after which an agent is ended
    reference_budget: float  # seconds a task of the host's auto
    definition: str  # hash of what tasks of the suite are drawn like
    benchmark_version: str
    created: str
    versions: dict[str, str]
    commitment: str = ""


@dataclass(frozen=True)
class Begun:
    """The agents of a round: names, and classes of users."""

    commitment: str
    agents: list[str]


@dataclass(frozen=True)
class Opened:
    """The outcome of a round, before anybody knows its tasks."""

    commitment: str
    opened: str
    isolation: str
    tasks: list[str]  # hashes
    random: list[float]  # mean makespan of random plans of each task, ms
    unable: dict[str, str]  # agents that could not run, and why
    results_sha256: str
    references_sha256: str


@dataclass(frozen=True)
class Closed:
    """The secret of a round, and what its results are worth."""

    commitment: str
    closed: str
    seed: str
    salt: str
    standings: list[Any]


FILES = {Round: ANNOUNCED, Begun: BEGUN, Opened: OPENED, Closed: CLOSED}


def write(folder: Path, kept: Any) -> None:
    """Keep what a stage found."""
    write_whole(folder / FILES[type(kept)], json.dumps({"schema": SCHEMA, **asdict(kept)}, indent=1) + "\n")


def read(folder: Path, kind: type[Kept]) -> Kept:
    """The file of a stage; refused unless every field is there and of its type, and of the round of this folder."""
    path = folder / FILES[kind]  # type: ignore[index]
    found = parsed(read_json(path), kind, str(path))
    if kind is not Round and found.commitment != read(folder, Round).commitment:  # type: ignore[attr-defined]
        raise CorruptFile(f"{path} is of another round")
    return found


def parsed(data: Any, kind: type[Kept], what: str) -> Kept:
    """The value of a class that JSON holds, checked."""
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise CorruptFile(f"{what} is not of schema {SCHEMA}")
    types = get_type_hints(kind)
    with guarded(what):
        if data.keys() != types.keys():
            raise ValueError(f"other fields than expected: {sorted(data.keys() ^ types.keys())}")
        for name, wanted in types.items():
            _check(name, data[name], wanted)
        return kind(**data)


def has(folder: Path, kind: type) -> bool:
    """True if that stage is over."""
    return (folder / FILES[kind]).exists()


def expect_new(folder: Path) -> None:
    """Refuse a folder that holds a round."""
    if has(folder, Round):
        raise OutOfTurn(f"{folder} holds a round already: name another folder")


def expect_sealed(folder: Path) -> Round:
    """The round of a folder that is to be opened."""
    _expect_round(folder)
    if has(folder, Closed):
        raise OutOfTurn(f"the round in {folder} is closed: shard-gym round check {folder}")
    if has(folder, Opened):
        raise OutOfTurn(f"the round in {folder} was opened already: shard-gym round close {folder}")
    return read(folder, Round)


def expect_opened(folder: Path) -> Round:
    """The round of a folder that is to be closed."""
    _expect_round(folder)
    if has(folder, Closed):
        raise OutOfTurn(f"the round in {folder} is closed already: shard-gym round check {folder}")
    if not has(folder, Opened):
        done = "its agents are not done: the same command goes on" if has(folder, Begun) else "its agents come first"
        raise OutOfTurn(f"the round in {folder} cannot be closed, {done}: shard-gym round open {folder} ...")
    return read(folder, Round)


def expect_closed(folder: Path) -> Round:
    """The round of a folder that is to be checked."""
    _expect_round(folder)
    if not has(folder, Closed):
        raise OutOfTurn(
            f"the round in {folder} is not closed, and its seed is a secret: shard-gym round close {folder}"
        )
    return read(folder, Round)


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(content_of(path)).hexdigest()


def public_fields(found: Round) -> dict[str, Any]:
    """The rules of a round, without its commitment."""
    return {field.name: getattr(found, field.name) for field in fields(found) if field.name != "commitment"}


def _expect_round(folder: Path) -> None:
    if not has(folder, Round):
        raise OutOfTurn(f"{folder} holds no round: shard-gym round new {folder} --suite ... makes one")


def _check(name: str, value: Any, wanted: Any) -> None:
    """Refuse a value of another type; of lists and objects, one whose values are."""
    kind = getattr(wanted, "__origin__", wanted)
    allowed = (int, float) if kind is float else kind
    fits = isinstance(value, allowed) and not isinstance(value, bool)
    if not fits:
        raise ValueError(f"{name} is {value!r:.60}")
    inner = getattr(wanted, "__args__", (Any,))[-1]
    if inner is not Any:
        for one in value.values() if isinstance(value, dict) else value:
            _check(name, one, inner)
