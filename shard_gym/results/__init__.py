"""Results: what a solver did on a task, one line of JSON each.

Checksums tell a file that was damaged, or changed by accident. They prove no origin: whoever writes a file can compute
them. What a file claims is checked by `shard_gym.results.replay`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, cast

from shard_gym.errors import CorruptFile, InvalidResult
from shard_gym.plan.plan import Plan
from shard_gym.records.files import json_sha256, whole
from shard_gym.records.guard import guarded, opened, parsed_json
from shard_gym.records.ledger import lines_of, parsed

SCHEMA = "shard-gym/result/2"
SINCE = {"shard-gym/result/1": ("cpu_seconds", "alone"), SCHEMA: ()}  # schemas that are read: fields they lack
END = "shard-gym/results-end/1"
PART = "shard-gym/results-part/1"  # of files that hold a part of a run, which are no results
BENCHMARK_VERSION = "2"  # rises when the same plans would rank otherwise
SAME_SCORES = ("1", BENCHMARK_VERSION)  # versions by which a plan has the same makespan
PACKAGES = ("numpy", "gymnasium", "shard-gym")
TRACKS = ("search", "blind")


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
    cpu_seconds: float | None = None  # of the same call, all threads and processes; None: nobody measured it
    alone: bool = False  # nothing else was timed or run beside it
    simulator_calls: int = 0  # plans the solver asked the planner about
    planner: str
    judge: str
    benchmark_version: str = BENCHMARK_VERSION
    versions: dict[str, str] = field(default_factory=lambda: dict(versions_here()))
    commit: str | None = field(default_factory=lambda: commit_here())

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise InvalidResult(f"{name} of a result is {value!r:.60}")
        _check(self)

    def to_json(self) -> str:
        """One line with its own checksum, schema `shard-gym/result/2`."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["plan"] = None if self.plan is None else self.plan.to_dict()
        return _summed({"schema": SCHEMA, **data})

    @classmethod
    def from_json(cls, line: str | bytes) -> Result:
        """Read what `to_json` wrote, of this or an earlier schema; refuses a line that was changed since."""
        schema, data = _unsummed(line, *SINCE)
        if other := data.keys() ^ {f.name for f in fields(cls)} ^ set(SINCE[schema]):
            raise CorruptFile(f"a result has other fields: {sorted(other)}")
        with guarded("the plan is none"):
            plan = None if data["plan"] is None else Plan.from_dict(data["plan"])
        with guarded("not a result"):
            found = cls(**data | {"plan": plan})
        if (plan is None) == (found.error is None):
            raise CorruptFile("a result has a plan or an error, one of the two")
        return found


_NUMBER, _TEXT = int | float, str | None
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("suite", "task", "agent", "track", "planner", "judge", "benchmark_version"), str),
    **dict.fromkeys(("index", "simulator_calls"), int),
    **dict.fromkeys(("config", "versions"), dict),
    **dict.fromkeys(("error", "commit"), _TEXT),
    **{"seed": int | None, "plan": Plan | None, "makespan": _NUMBER | None, "wall_seconds": _NUMBER},
    **{"cpu_seconds": _NUMBER | None, "alone": bool},
}


def _check(result: Result) -> None:
    """Refuse what no run can give."""
    r = result
    if r.track not in TRACKS:
        raise InvalidResult(f"track {r.track!r:.60} is none of {', '.join(TRACKS)}")
    if r.index < -1 or r.simulator_calls < 0 or (r.seed or 0) < 0:
        raise InvalidResult(f"index {r.index}, {r.simulator_calls} calls or seed {r.seed} is below what there can be")
    if not all(0 <= number < math.inf for number in (r.wall_seconds, r.cpu_seconds or 0.0, r.makespan or 0.0)):
        raise InvalidResult(f"{r.wall_seconds} s, {r.cpu_seconds} s of CPU or a makespan of {r.makespan} ms is no time")
    if (r.makespan is None) != (r.plan is None):
        raise InvalidResult("a plan has a makespan, and without a plan there is no score")
    if r.track == "blind" and r.simulator_calls:
        raise InvalidResult(f"a run of track 'blind' asks the planner nothing, not {r.simulator_calls} times")
    if not all(isinstance(text, str) for pair in r.versions.items() for text in pair):
        raise InvalidResult(f"versions are text, got {r.versions!r:.60}")


def write_results(path: str | Path, results: Iterable[Result]) -> None:
    """Write JSON lines, whole or not at all; a last line has their number and checksum.

    They are packed if the name ends in .gz, the same results to the same bytes.
    """
    digest, count = hashlib.sha256(), 0
    with whole(path) as bare, _packing(path, bare) as file:
        for result in results:
            line = result.to_json().encode() + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
        end = _summed({"schema": END, "results": count, "lines_sha256": digest.hexdigest()})
        file.write(end.encode() + b"\n")


def read_results(path: str | Path) -> list[Result]:
    """Read what `write_results` wrote; a changed, missing or broken line is refused with its number."""
    return list(results_in(path))


def results_in(path: str | Path) -> Iterator[Result]:
    """The same one by one, in the memory of one; that the file is whole is known at its end."""
    digest, last = hashlib.sha256(), b""
    number = 0
    with opened(path) as file:
        for number, line in lines_of(path, file):
            if last:
                digest.update(last)
                yield parsed(path, number - 1, last, Result.from_json)
            last = line
    if not last:
        raise CorruptFile(f"{path}, line 1: the file is empty")
    end = parsed(path, number, last, _closing)
    if (end["results"], end["lines_sha256"]) != (number - 1, digest.hexdigest()):
        raise CorruptFile(f"{path}, line {number}: {end['results']} results were written, these are others")


@contextmanager
def _packing(path: str | Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Bytes on their way to a file, packed or as they are."""
    if not str(path).endswith(".gz"):
        yield file
        return
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        yield cast(IO[bytes], packed)


def _closing(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise CorruptFile("the line breaks off")
    try:
        _, data = _unsummed(line, END)
    except CorruptFile as error:
        raise CorruptFile(f"the line that ends a file of results is missing or broken ({error})") from error
    if data.keys() != {"results", "lines_sha256"}:
        raise CorruptFile(f"the line that ends a file of results has other fields: {sorted(data)}")
    return data


def _summed(data: dict[str, Any]) -> str:
    """One line of JSON whose last field is the checksum of the others."""
    return json.dumps(data | {"sha256": json_sha256(data)}, allow_nan=False)


def _unsummed(line: str | bytes, *schemas: str) -> tuple[str, dict[str, Any]]:
    """The schema of a line, one of these, and its other fields without the checksum."""
    data = parsed_json(line)
    schema = data.pop("schema", None) if isinstance(data, dict) else None
    if schema == PART:
        raise CorruptFile(f"this is part {data.get('part')!s:.20} of a run: unite all its parts with `shard-gym merge`")
    if schema not in schemas:
        raise CorruptFile(f"schema {schema!r:.60} where {schemas[-1]!r} is expected")
    written = data.pop("sha256", None)
    if written != json_sha256({"schema": schema, **data}):
        raise CorruptFile("the content does not match its checksum: it was changed after it was written")
    return schema, data
