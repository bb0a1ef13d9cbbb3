"""Entries checked: every plan is scored again, and the card must say what the results say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import shard_gym_agents
from shard_gym.errors import EntryRefused, ShardGymError
from shard_gym.results.evaluate import track
from shard_gym.results.replay import Replay
from shard_gym.simulators import FastSimulator
from shard_gym.task import suites
from shard_gym_agents.leaderboard.entries.entry import Entry, read
from shard_gym_agents.learners import LEARNERS


@dataclass(frozen=True)
class Validated:
    """An entry that comes out as it claims; `short` says what keeps it from being published."""

    entry: Entry
    plans: int
    feasible: int
    short: tuple[str, ...]
    notes: tuple[str, ...]


def validate(folder: str | Path, strict: bool = False) -> Validated:
    """Score every plan of an entry again; raises EntryRefused where something else comes out.

    `strict` refuses as well what cannot be published: see `_short`.
    """
    entry = read(folder)
    replayed = Replay(entry.plans, track_of=own_track)
    try:
        for _ in replayed:
            pass
        entry.claims.check_card(entry.card)
    except (ShardGymError, ArithmeticError) as error:
        raise EntryRefused(f"{folder}: {error}") from error
    short = tuple(_short(entry, replayed))
    if strict and short:
        raise EntryRefused(f"{folder}: {short[0]}")
    return Validated(entry, replayed.plans, replayed.feasible, short, tuple(replayed.notes()))


def _short(entry: Entry, replayed: Replay) -> Iterator[str]:
    """Tell what an entry lacks to be compared with others: all test tasks, the suites' simulators, one clean commit."""
    for key, tasks in replayed.suites.items():
        if tasks.split != "test":
            yield f"{tasks.split} tasks of {key}: test tasks are compared"
        elif len(tasks.hashes) < tasks.of:
            yield f"{len(tasks.hashes)} of the {tasks.of} test tasks of {key}"
    for suite, planner, judge in sorted({(run.suite, run.planner, run.judge) for run in replayed.runs}):
        if (planner, judge) != (suites.get(suite).planner, suites.get(suite).judge):
            yield f"planner {planner} and judge {judge}, which are not those of {suite}"
    if measured := sorted(name for name, judge in replayed.judges.items() if not isinstance(judge, FastSimulator)):
        yield f"makespans by {measured[0]}, which measures and so cannot be repeated"
    yield from _mixed(entry)


def _mixed(entry: Entry) -> Iterator[str]:
    """Reasons why the runs are not of one piece."""
    claims = entry.claims
    if len(claims.commits) > 1 or len({name.split()[0] for name in claims.versions}) < len(claims.versions):
        yield f"runs of several commits or versions: {', '.join(sorted(claims.commits | claims.versions))}"
    if dirty := sorted(commit for commit in claims.commits if commit.endswith("-dirty")):
        yield f"commit {dirty[0]}: commit the changes of the package, then run again"
    if len({frozenset(seeds) for seeds in claims.seeds.values()}) > 1:
        yield f"other seeds on one suite than on another: {claims.seeds}"


def validate_all(folders: list[Path], strict: bool = False) -> Iterator[tuple[Path, Validated | Exception]]:
    """Each entry with what came of it; refused are the same agent and suite, and the same runs, a second time."""
    seen: dict[tuple[str, ...], Path] = {}
    for folder in folders:
        try:
            found = validate(folder, strict)
            card = found.entry.card
            runs = found.entry.claims.runs.hexdigest()
            if (first := seen.setdefault((runs,), folder)) != folder:
                raise EntryRefused(f"{folder}: the runs are those of {first}, to the second")
            for suite in card.suites:
                if (first := seen.setdefault((card.agent, suite, card.track), folder)) != folder:
                    raise EntryRefused(f"{folder}: {card.agent} on {suite} is in {first} already")
        except (ShardGymError, OSError) as error:
            yield folder, error
        else:
            yield folder, found


@cache
def own_track(agent: str) -> str | None:
    """The track of an agent of ours; None of others, and of learners, which their weights decide."""
    if agent not in shard_gym_agents.AGENTS or agent in LEARNERS:
        return None
    return track(shard_gym_agents.make(agent))
