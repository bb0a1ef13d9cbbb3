"""Parts of a leaderboard's runs, a file each, and their union by key, which is ranked as a whole run is.

A part's first line tells what it is a part of, the others are its runs. Nothing else reads such a file: a part is no
result of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, OutOfTurn
from shard_gym.records.files import json_sha256, write_whole
from shard_gym.records.guard import guarded, opened, parsed_json
from shard_gym.records.ledger import lines_of, parsed
from shard_gym.records.locks import held
from shard_gym.records.progress import ProgressBar
from shard_gym.results import PART as SCHEMA
from shard_gym.results import Result
from shard_gym.work.parts import Part
from shard_gym_agents.leaderboard import layout
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.kept import Watched, blank_result, job_key, kept_line, kept_run
from shard_gym_agents.leaderboard.outcome import Missing, Outcome, report
from shard_gym_agents.leaderboard.runs import Finished, JobRuns, Scope

PARTS = "parts"  # folder of parts, in that of a leaderboard
SHOWN: dict[str, Any] = {  # options that the tables of a run depend on, and their types
    **dict.fromkeys(("suite", "budgets", "imports"), list),
    **dict.fromkeys(("split", "command"), str),
    **dict.fromkeys(("budget", "build_limit"), int | float),
    **dict.fromkeys(("page", "json", "update_best"), bool),
    **{"tasks": int | None, "simulator": str | None, "workers": int},
}
Kept = dict[str, tuple[Result, Watched]]  # by task hash


@dataclass(frozen=True)
class Told:
    """A part as its file tells it."""

    path: Path
    part: Part
    work: str  # hash of all that the parts are of
    options: Mapping[str, Any]
    best_known: str
    jobs: Mapping[Job, dict[str, Any]]  # with what each agent said of itself
    missing: Missing
    note: str
    machine: str
    kept: Sequence[Kept]  # by number of the job


def home_of(out: Path, part: Part) -> Path:
    """The folder in which a run, or a part of it, keeps what is not finished."""
    return out if part.whole else out / PARTS / _name(part)


def report_part(found: Finished, outcome: Outcome) -> list[str]:
    """Write a part that is complete; lines that say where, and what comes next."""
    options, part = outcome.options, outcome.options.part
    if not found.complete:
        return [f"part {part.number} of {part.of} is not finished"]
    path = options.out / PARTS / f"{_name(part)}.jsonl"
    lines = [_head(found, outcome), *_rows(found)]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))
    return [
        f"part {part.number} of {part.of}, no result of its own: {len(lines) - 1} runs in {path}",
        f"next, with all parts: shard-gym merge {options.out / PARTS} --out {options.out}",
    ]


def merge(paths: Iterable[Path], out: Path) -> list[str]:
    """Unite the parts of a run, rank them and write what a whole run writes; lines that say where."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    parts = [_read(path) for path in files]
    if not parts:
        raise OutOfTurn("no part is there: give the files that `shard-gym leaderboard --part I/N` wrote")
    first = parts[0]
    for other in parts[1:]:
        _refuse_other(first, other)
    if unknown := [module for module in first.options["imports"] if module not in sys.modules]:
        raise OutOfTurn(f"the run imported {unknown[0]!r:.80}, which registers something: give --import, as it did")
    with held(out):
        found = _united(parts, out)
        options = argparse.Namespace(**first.options, out=out, best_known=Path(first.best_known))
        notes = " ".join(dict.fromkeys(part.note for part in parts if part.note))
        machines = " and ".join(dict.fromkeys(part.machine for part in parts))
        machine = f"the machines of {len(parts)} parts ({machines})"
        return report(Outcome(options, found.done, first.missing, found.watched_of, notes, machine))


def _united(parts: Sequence[Told], out: Path) -> Finished:
    """The runs of all parts; refuses two that differ, and the lack of some."""
    scope = Scope(out / "partial", parts[0].options["tasks"])
    strikes, progress = Counter[tuple[str, str]](), ProgressBar(0)
    runs = [JobRuns(job, told, scope, strikes, progress) for job, told in parts[0].jobs.items()]
    progress.total = sum(len(one.tasks) for one in runs)
    lacking = 0
    for number, one in enumerate(runs):
        one.kept = _union([(part.path, part.kept[number]) for part in parts], one.job)
        lacking += sum(1 for _ in one.left())
    progress.close()
    if lacking:
        absent = set(range(1, parts[0].part.of + 1)) - {part.part.number for part in parts}
        which = ", ".join(f"{number}/{parts[0].part.of}" for number in sorted(absent)) or "none, but files were changed"
        raise OutOfTurn(f"{lacking} of {progress.total} runs are not there; parts that are missing: {which}")
    return Finished(runs, complete=True)


def _union(kept: Iterable[tuple[Path, Kept]], job: Job) -> Kept:
    """The runs of a job by task; one that two files have must have the same plan in both."""
    found: dict[str, tuple[Path, tuple[Result, Watched]]] = {}
    for path, runs in kept:
        for task, run in runs.items():
            before, known = found.setdefault(task, (path, run))
            if (known[0].plan, known[0].error) != (run[0].plan, run[0].error):
                what = f"{job.agent}, seed {job.seed}, on task {task} of {job.suite}"
                raise CorruptFile(f"{before} and {path} have two different runs of {what}: leave one of them out")
    return {task: run for task, (_, run) in found.items()}


def _head(found: Finished, outcome: Outcome) -> dict[str, Any]:
    """The first line of a part: all that it is a part of."""
    options = outcome.options
    return {
        "schema": SCHEMA,
        "part": str(options.part),
        "work": _work(found, options),
        "options": {name: getattr(options, name) for name in SHOWN},
        "best_known": str(options.best_known),
        "jobs": [{"job": asdict(one.job), "told": one.told} for one in found.runs],
        "missing": [[*which, why] for which, why in outcome.missing.items()],
        "note": outcome.note,
        "machine": outcome.machine or layout.host(),
        "runs": sum(len(one.done) for one in found.runs),
    }


def _work(found: Finished, options: argparse.Namespace) -> str:
    """The hash of all that every part must have in common."""
    return json_sha256([options.tasks, options.budget, [job_key(one.job, one.told) for one in found.runs]])


def _rows(found: Finished) -> Iterable[dict[str, Any]]:
    for number, one in enumerate(found.runs):
        for index, (result, _) in sorted(one.done.items()):
            yield {"job": number, **kept_line(result, one.seen[index])}


def _read(path: Path) -> Told:
    """A part; a file that is none, or is not whole, is refused."""
    with opened(path) as file:
        lines = lines_of(path, file)
        head = parsed(path, 1, next(lines, (1, b""))[1], _checked, "part of a leaderboard's runs")
        jobs = {Job(**one["job"]): one["told"] for one in head["jobs"]}
        kept: list[Kept] = [{} for _ in jobs]
        for number, line in lines:
            job, result, seen = parsed(path, number, line, _row, "run of a part")
            with guarded(f"{path}, line {number}"):
                kept[job][result.task] = result, seen
    if (there := sum(map(len, kept))) != head["runs"]:
        raise CorruptFile(f"{path}: {there} runs where {head['runs']} were written")
    missing = {(suite, agent): why for suite, agent, why in head["missing"]}
    same = {name: head[name] for name in ("work", "options", "best_known", "note", "machine")}
    return Told(path, _part(head["part"]), jobs=jobs, missing=missing, kept=kept, **same)


def _checked(line: bytes) -> dict[str, Any]:
    """The first line of a part."""
    head: dict[str, Any] = parsed_json(line)
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise ValueError("give files that `shard-gym leaderboard --part I/N` wrote")
    texts = ("part", "work", "best_known", "note", "machine")
    options = head["options"]
    whole = all(isinstance(head[name], str) for name in texts) and options.keys() == SHOWN.keys()
    if not whole or not all(isinstance(options[name], kind) for name, kind in SHOWN.items()):
        raise ValueError("its first line has other fields")
    part = _part(head["part"])
    if not 1 <= part.number <= part.of:
        raise ValueError(f"part {head['part']:.20} is none")
    for one in head["jobs"]:
        job = Job(**one["job"])
        blank_result(job, one["told"])
        if hash(job) and job.tasks:
            raise ValueError("it has tasks of no suite")
    return head


def _row(line: bytes) -> tuple[int, Result, Watched]:
    number = parsed_json(line)["job"]
    if not isinstance(number, int) or number < 0:
        raise ValueError("a job is a number from 0")
    return number, *kept_run(line)


def _refuse_other(first: Told, other: Told) -> None:
    """Refuse parts that are not of the same work; says in what they differ."""
    if (first.work, first.part.of) == (other.work, other.part.of):
        return
    pair = f"{first.path} and {other.path} are no parts of one run"
    ran = [{(job.suite, job.agent) for job in part.jobs} for part in (first, other)]
    if first.part.of != other.part.of:
        why = f"one is of {first.part.of} parts, the other of {other.part.of}"
    elif only := sorted(ran[0] ^ ran[1]):
        why = f"{only[0][1]} ran on {only[0][0]} in one of them alone, {_lack(only[0], first, other)}"
    elif first.options["command"] != other.options["command"]:
        why = f"one is of `{first.options['command']}`, the other of `{other.options['command']}`"
    else:
        why = "they are of other versions of ShardGym or of an agent"
    raise CorruptFile(f"{pair}: {why}")


def _lack(which: tuple[str, str], *parts: Told) -> str:
    return next((part.missing[which] for part in parts if which in part.missing), "as they were told other agents")


def _part(text: str) -> Part:
    number, of = text.split("/")
    return Part(int(number), int(of))


def _name(part: Part) -> str:
    return f"{part.number}-of-{part.of}"
