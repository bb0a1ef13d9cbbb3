"""Entries as folders: a card, packed results, and what both should be.

    card.toml        whose the runs are, see `Card`
    plans.jsonl.gz   results, as `shard_gym.results` writes them
    entry.json       what the results are of, and size and hash of the other two files

Nothing in a folder is believed: `read` sees that the files are whole and belong together, `validate` computes anew what
they claim.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shard_gym import simulators
from shard_gym.errors import CorruptFile, EntryRefused, InvalidTask
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import content_of
from shard_gym.results import Result, results_in, write_results
from shard_gym_agents.leaderboard.entries.card import Card

SCHEMA = "shard-gym/entry/1"
CARD, PLANS, ABOUT = "card.toml", "plans.jsonl.gz", "entry.json"
MOST_BYTES = {CARD: 2**16, PLANS: 2**26, ABOUT: 2**16}
MOST_RESULTS = 200_000
MOST_NAMES = 100  # agents that an error lists


@dataclass
class Claims:
    """Words of an entry's results on themselves, all lines together."""

    results: int = 0
    agents: set[str] = field(default_factory=set)
    tracks: set[str] = field(default_factory=set)
    suites: set[str] = field(default_factory=set)
    seeds: dict[str, set[int]] = field(default_factory=dict)  # by suite
    budgets: set[float] = field(default_factory=set)  # seconds a task
    weights: set[str] = field(default_factory=set)  # first digits of hashes
    commits: set[str] = field(default_factory=set)
    benchmark_versions: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)  # "name version"
    runs: Any = field(default_factory=hashlib.sha256)  # plans and seconds of all lines, whoever's they are said to be

    def add(self, result: Result) -> None:
        """Count a result in."""
        self.results += 1
        if self.results > MOST_RESULTS:
            raise CorruptFile(f"more than {MOST_RESULTS:,} results, the most that an entry has")
        self.agents.add(result.agent)
        self.tracks.add(result.track)
        self.suites.add(result.suite)
        self.seeds.setdefault(result.suite, set()).add(result.seed or 0)
        told, budget = result.config.get("weights"), result.config.get("budget")
        self.budgets |= {float(budget)} if isinstance(budget, int | float) else set()
        self.weights |= set(told.split(",")) - {""} if isinstance(told, str) else set()
        self.commits.add(result.commit or "unknown")
        self.benchmark_versions.add(result.benchmark_version)
        self.versions |= {f"{name} {version}" for name, version in result.versions.items()}
        plan = None if result.plan is None else result.plan.to_dict()
        self.runs.update(json.dumps([result.suite, result.task, result.seed, result.wall_seconds, plan]).encode())

    def summary(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {
            "results": self.results,
            "agents": sorted(self.agents),
            "suites": sorted(self.suites),
            "seeds": sorted(set().union(*self.seeds.values())),
            "budgets": sorted(self.budgets),
            "benchmark_versions": sorted(self.benchmark_versions),
            "versions": sorted(self.versions),
            "commits": sorted(self.commits),
        }

    def check_card(self, card: Card) -> None:
        """Refuse a card that says something else than the results."""
        seeds = set().union(*self.seeds.values())
        for what, told, found in (
            ("agent", {card.agent}, self.agents),
            ("track", {card.track}, self.tracks),
            ("suites", set(card.suites), self.suites),
            ("seeds", set(card.seeds), seeds),
        ):
            if told != found:
                raise EntryRefused(f"{what} of the card: {_listed(told)}; of the results: {_listed(found)}")
        for weights in sorted(self.weights):
            if not any(checkpoint.startswith(weights) for checkpoint in card.checkpoints):
                raise EntryRefused(f"the results used weights {weights:.60}, which are no checkpoint of the card")


@dataclass(frozen=True)
class Entry:
    """An entry whose files are whole and belong together; whether they are true is not known yet."""

    folder: Path
    card: Card
    claims: Claims

    @property
    def plans(self) -> Path:
        """The file of its results."""
        return self.folder / PLANS

    def results(self) -> Iterator[Result]:
        """Tell its results one by one."""
        return results_in(self.plans)


def read(folder: str | Path) -> Entry:
    """Read an entry; a folder that is none, half-written, changed or too large is a CorruptFile."""
    folder = Path(folder)
    _check_names(folder)
    about = read_json(folder / ABOUT)
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise CorruptFile(f"{folder / ABOUT} is not of schema {SCHEMA}")
    if (files := {name: _told(folder / name) for name in (CARD, PLANS)}) != about.get("files"):
        raise CorruptFile(f"{folder}: the files are others than {ABOUT} says; one was changed, or copied by half")
    card, claims = Card.load(folder / CARD), claims_of(folder / PLANS)
    if about != (found := _about(files, claims)):
        odd = next(name for name in sorted(about.keys() | found) if about.get(name) != found.get(name))
        raise CorruptFile(f"{folder / ABOUT}: {odd:.60} is {about.get(odd)!r:.80}, not {found.get(odd)!r:.80}")
    return Entry(folder, card, claims)


def claims_of(path: Path) -> Claims:
    """The claims of a file of results; a simulator that is not registered is refused, as it may be any file."""
    claims, known = Claims(), set(simulators.registered())
    for result in results_in(path):
        for simulator in (result.planner, result.judge):
            if simulator not in known:
                raise CorruptFile(f"{path}: {simulator!r:.80} is no registered simulator")
        claims.add(result)
    return claims


def pack(results: Iterable[Result], card: Card, folder: Path) -> None:
    """Write an entry into an empty folder; `entry.json` comes last, so that half an entry is none."""
    write_whole(folder / CARD, card.to_toml())
    write_results(folder / PLANS, results)
    files = {name: _told(folder / name) for name in (CARD, PLANS)}
    write_whole(folder / ABOUT, json.dumps(_about(files, claims_of(folder / PLANS)), indent=1) + "\n")


def results_of(run: Path, agent: str) -> Iterator[Result]:
    """The results of an agent in a file of results, or in all those of a folder."""
    files = sorted(run.glob("*.jsonl")) if run.is_dir() else [run]
    if not files:
        raise InvalidTask(f"{run} holds no file of results (*.jsonl): give the folder that a leaderboard wrote to")
    seen: set[str] = set()
    for path in files:
        for result in results_in(path):
            seen.add(result.agent)
            if result.agent == agent:
                yield result
    if agent not in seen:
        told = ", ".join(sorted(seen)[:MOST_NAMES]) or "none"
        raise EntryRefused(f"{run} holds no results of {agent!r}, the card's agent; agents there: {told}")


def _check_names(folder: Path) -> None:
    """Refuse a folder that holds other files than an entry's, or too large ones, before any is opened."""
    if not folder.is_dir():
        raise CorruptFile(f"{folder} is no entry: an entry is a folder with {', '.join(MOST_BYTES)}")
    found = {path.name: path.lstat() for path in sorted(folder.iterdir())}
    for name, most in MOST_BYTES.items():
        if name not in found:
            raise CorruptFile(f"{folder} is no whole entry: it has no {name}")
        if not stat.S_ISREG(found[name].st_mode):
            raise CorruptFile(f"{folder / name} is a link or a device, and no file")
        if found[name].st_size > most:
            raise CorruptFile(f"{folder / name} has {found[name].st_size:,} bytes, {most:,} are the most")
    if odd := sorted(found.keys() - MOST_BYTES):
        raise CorruptFile(f"{folder} holds {odd[0]!r:.80}, which belongs to no entry")


def _told(path: Path) -> dict[str, Any]:
    """Size and hash of a file."""
    content = content_of(path, MOST_BYTES[path.name])
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _about(files: dict[str, Any], claims: Claims) -> dict[str, Any]:
    return {"schema": SCHEMA, **claims.summary(), "files": files}


def _listed(told: set[Any]) -> str:
    return ", ".join(f"{one!r:.80}" for one in sorted(told)[:MOST_NAMES]) or "none"
