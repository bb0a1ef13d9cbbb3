"""Results: what a solver did on a task, one checked line of JSON each."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, InvalidPlan
from shard_gym.plan.plan import Plan
from shard_gym.records.files import json_sha256, write_whole
from shard_gym.records.ledger import parsed

SCHEMA = "shard-gym/result/1"
END = "shard-gym/results-end/1"
BENCHMARK_VERSION = "1"  # rises when the same plan would rank otherwise
PACKAGES = ("numpy", "gymnasium", "shard-gym")


@cache
def versions_here() -> tuple[tuple[str, str], ...]:
    """Versions of Python and of the packages that a result depends on."""
    return (("python", platform.python_version()), *((name, version(name)) for name in PACKAGES))


@cache
def commit_here() -> str | None:
    """The git commit of this package, `-dirty` after local changes; None outside its own repository."""
    here = Path(__file__)
    git = ("git", "-C", str(here.parent))
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        subprocess.run((*git, "ls-files", "--error-unmatch", here.name), check=True, capture_output=True)
        told = subprocess.run((*git, *describe), check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of a solver on a task. Scores come from `plan`; `makespan` is there to be checked."""

    suite: str  # "" for tasks of no suite
    index: int = -1  # of the task in what was evaluated
    task: str = ""  # content hash of the task
    agent: str
    config: dict[str, Any]
    seed: int | None
    track: str  # "search", or "blind": no planner call at solve time
    plan: Plan | None = None
    error: str | None = None
    makespan: float | None = None  # ms, by the judge
    wall_seconds: float = 0.0  # of the solver's call alone
    simulator_calls: int = 0  # plans the solver asked the planner about
    planner: str
    judge: str
    benchmark_version: str = BENCHMARK_VERSION
    versions: dict[str, str] = field(default_factory=lambda: dict(versions_here()))
    commit: str | None = field(default_factory=lambda: commit_here())

    def to_json(self) -> str:
        """One line with its own checksum, schema `shard-gym/result/1`."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["plan"] = None if self.plan is None else self.plan.to_dict()
        return _sealed({"schema": SCHEMA, **data})

    @classmethod
    def from_json(cls, line: str | bytes) -> Result:
        """Read what `to_json` wrote; refuses a line that was changed since."""
        data = _unsealed(line, SCHEMA)
        if data.keys() != {f.name for f in fields(cls)}:
            raise CorruptFile(f"a result has other fields: {sorted(data.keys() ^ {f.name for f in fields(cls)})}")
        try:
            plan = None if data["plan"] is None else Plan.from_dict(data["plan"])
        except (InvalidPlan, TypeError, ValueError) as error:
            raise CorruptFile(f"the plan is none: {error}") from error
        return cls(**data | {"plan": plan})


def write_results(path: str | Path, results: Iterable[Result]) -> None:
    """Write JSON lines, whole or not at all; a last line counts and seals them."""
    lines = [result.to_json() + "\n" for result in results]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    end = _sealed({"schema": END, "results": len(lines), "lines_sha256": digest})
    write_whole(path, "".join(lines) + end + "\n")


def read_results(path: str | Path) -> list[Result]:
    """Read what `write_results` wrote; a changed, missing or broken line is refused with its number."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    results = [parsed(path, n, line, Result.from_json) for n, line in enumerate(lines[:-1], start=1)]
    if not lines:
        raise CorruptFile(f"{path}, line 1: the file is empty")
    end = parsed(path, len(lines), lines[-1], _closing)
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if (end["results"], end["lines_sha256"]) != (len(results), digest):
        raise CorruptFile(f"{path}, line {len(lines)}: {end['results']} results were written, these are others")
    return results


def _closing(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise CorruptFile("the line breaks off")
    try:
        return _unsealed(line, END)
    except CorruptFile as error:
        raise CorruptFile(f"the line that ends a file of results is missing or broken ({error})") from error


def _sealed(data: dict[str, Any]) -> str:
    """One line of JSON whose last field is the checksum of the others."""
    return json.dumps(data | {"sha256": json_sha256(data)}, allow_nan=False)


def _unsealed(line: str | bytes, schema: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != schema:
        found = data.get("schema") if isinstance(data, dict) else None
        raise CorruptFile(f"schema {found!r} where {schema!r} is expected")
    written = data.pop("sha256", None)
    if written != json_sha256(data):
        raise CorruptFile("the content does not match its checksum: it was changed after it was written")
    return {key: value for key, value in data.items() if key != "schema"}
