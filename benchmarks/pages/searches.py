"""Results of the searches, beside what they are to reach: `python -m benchmarks.searches [--quick]`

One core, each suite's planner, every plan scored again from its devices. Writes searches.json and searches.md to
benchmarks/results. A section is kept as soon as it is measured; a run that broke off goes on with the next one, and
`--again` measures sections anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

from benchmarks import RESULTS, pages
from benchmarks.pages import Row
from benchmarks.searches_page import page
from shard_gym import simulators
from shard_gym.bounds.bounds import certificate
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import quick
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.progress import Progress
from shard_gym.results.evaluate import score
from shard_gym.results.results import commit_here
from shard_gym.simulators import Simulator
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import load_best
from shard_gym_agents.search.exact import decide

SCHEMA = "shard-gym/searches/1"
FILE = "searches.json"
CORE = ("core-80x8", "tight-80x8", "tightmix-80x8", "hetero-80x8")
GAPS = (*CORE, "metasyn-80x8", "dlrm-50x4")
SPLITS = ("mixed-10to59x4-split", "mixed-20to119x8-split", "tightmix-80x8-split", "prod-1000x128-split")
RIVALS = ("core-80x8", "mixed-10to59x4", "mixed-20to119x8")
LARGE = "metasyn-800x80"
BINDS = 0.98  # of the best whole-table makespan, when one table alone takes so much
CLOSE = 0.9  # of a quick whole-table makespan: tasks worth a longer look
Job = Callable[[], Row]


@dataclass(frozen=True)
class Effort:
    """Effort of a measurement."""

    tasks: int = 100  # of a suite, at most
    budgets: tuple[float, ...] = (0.1, 1.0)  # seconds of auto at 80x8
    large: float = 3.0  # seconds of auto at 800x80
    reference: float = 10.0  # seconds of the search for a task that no best plan is kept of
    rivals: int = 30  # tasks of a suite that neuroshard plans, at most
    repeats: int = 15  # of what takes milliseconds, the fastest of which counts


QUICK = Effort(tasks=1, budgets=(0.02, 0.05), large=0.2, reference=0.1, rivals=1, repeats=1)


def gaps(effort: Effort) -> list[Job]:
    """Gaps of auto to the best known plans."""
    learned = [{}, {"sure": 0.0}]
    return [
        partial(_gap, key, i, budget, options, effort.reference)
        for key in GAPS
        for i in _tasks(key, effort.tasks)
        for budget in effort.budgets
        for options in (learned if suites.get(key).planner.startswith("learned") else [{}])
    ]


def large(effort: Effort) -> list[Job]:
    """Gaps of auto at 800x80."""
    return [
        partial(_gap, LARGE, i, effort.large, options, effort.reference)
        for i in _tasks(LARGE, effort.tasks)
        for options in ({}, {"sure": 0.0})
    ]


def neuroshard(effort: Effort) -> list[Job]:
    """Time and plan of neuroshard, and when auto has a plan at least as good."""
    return [
        partial(_race, key, i, min(effort.repeats, 3))
        for key in RIVALS
        for i in _tasks(key, min(effort.tasks, effort.rivals))
    ]


def random_search(effort: Effort) -> list[Job]:
    """A thousand samples."""
    keys = [key for key in GAPS if key.endswith("80x8")]
    return [partial(_samples, key, i, effort.repeats) for key in keys for i in _tasks(key, min(effort.tasks, 20))]


def splits(effort: Effort) -> list[Job]:
    """Gains of splits where one table binds, and on the first tasks."""
    return [partial(_split_gain, key, i, effort.budgets[-1]) for key in SPLITS for i in _tasks(key, effort.tasks)]


def feasibility(effort: Effort) -> list[Job]:
    """Plans under tight memory."""
    return [partial(_verdict, "tightmix-80x8", i, effort.budgets) for i in _tasks("tightmix-80x8", effort.tasks)]


SECTIONS: dict[str, Callable[[Effort], list[Job]]] = {
    "gaps": gaps,
    "neuroshard": neuroshard,
    "large": large,
    "random_search": random_search,
    "splits": splits,
    "feasibility": feasibility,
}


def _tasks(key: str, most: int) -> range:
    return range(min(most, suites.get(key).num_tasks("test")))


def _task(key: str, index: int) -> tuple[Task, Simulator]:
    suite = suites.get(key)
    return suite.tasks("test")[index], simulators.make(suite.planner)


class _Planned(NamedTuple):
    makespan: float | None  # ms; None without a feasible plan
    seconds: float
    cpu: float  # of those seconds, what this process had the core: other processes take the rest


def _planned(task: Task, planner: Simulator, agent: str, **options: Any) -> _Planned:
    solver = make(agent, **options)
    begun, plan = (time.perf_counter(), time.process_time()), None
    with suppress(InfeasibleTask):
        plan = solver(task, planner)
    took = time.perf_counter() - begun[0], time.process_time() - begun[1]
    found = None if plan is None else score(task, plan, planner)
    return _Planned(found.makespan if found and found.feasible else None, *took)


@cache
def _known(key: str, planner_id: str) -> dict[str, dict[str, Any]]:
    tasks = suites.get(key).tasks("test")
    return load_best(RESULTS / "best_known" / f"{key}.json", planner_id, tasks)


@cache
def _reference(key: str, index: int, seconds: float) -> tuple[float | None, str]:
    """The best makespan known by the planner, or that of a search here."""
    task, planner = _task(key, index)
    if (kept := _known(key, planner.id).get(task.hash)) is not None:
        return kept["makespan"], "kept"
    return _planned(task, planner, "local-search", budget=seconds).makespan, "searched here"


def _gap(key: str, index: int, budget: float, options: dict[str, Any], reference: float) -> Row:
    task, planner = _task(key, index)
    best, source = _reference(key, index, reference)
    found = _planned(task, planner, "auto", budget=budget, **options)
    bound = certificate(task, planner, budget=0.0)
    row = {"suite": key, "task": index, "budget": budget, "sure": options.get("sure", 1.0), **found._asdict()}
    return row | {"best": best, "reference": source, "bound": bound.makespan, "by": bound.resource}


def _race(key: str, index: int, repeats: int) -> Row:
    task, planner = _task(key, index)
    worth, seconds, _ = min((_planned(task, planner, "neuroshard") for _ in range(repeats)), key=lambda p: p.seconds)
    row = {"suite": key, "task": index, "tables": task.num_tables, "makespan": worth, "neuroshard_seconds": seconds}
    if worth is None:
        return row | {"auto_seconds": None}
    first = min((_planned(task, planner, "auto", budget=0.0) for _ in range(repeats)), key=lambda p: p.seconds)
    if first.makespan is not None and first.makespan <= worth:
        return row | {"auto_seconds": first.seconds}
    told: list[float] = []

    def progress(makespan: float, spent: float) -> bool:
        told.append(spent) if makespan <= worth else None
        return makespan <= worth

    _planned(task, planner, "auto", budget=max(1.0, seconds), progress=progress)
    return row | {"auto_seconds": told[0] if told else None}


def _samples(key: str, index: int, repeats: int) -> Row:
    task, planner = _task(key, index)
    runs = [_planned(task, planner, "random-search", samples=1_000).seconds for _ in range(repeats)]
    return {"suite": key, "task": index, "seconds": min(runs)}


def _split_gain(key: str, index: int, budget: float) -> Row:
    """Looks longer where one table may bind: whole tables and splits get the same time."""
    task, planner = _task(key, index)
    whole = replace(task, splits_allowed=False)
    row: Row = {"suite": key, "task": index}
    bound = certificate(whole, planner, budget=0.0) if quick(whole).feasible is not False else None
    unsplit = _planned(whole, planner, "auto", budget=0.1 * budget).makespan
    if not (bound and unsplit and bound.resource == "one table" and bound.makespan >= CLOSE * unsplit):
        return row | {"binds": False, "feasible": unsplit is not None}
    found = {agent: _planned(task, planner, agent, budget=budget).makespan for agent in ("auto", "beam")}
    longer = [_planned(whole, planner, agent, budget=budget).makespan for agent in ("auto", "local-search", "beam")]
    unsplit = min(m for m in (unsplit, *longer) if m is not None)
    split = min((m for m in found.values() if m is not None), default=None)
    row |= {"binds": bound.makespan >= BINDS * unsplit, "table": bound.table, "bound": bound.makespan}
    split_bound = certificate(task, planner, budget=0.0).makespan
    return row | {"unsplit": unsplit, "split": split, "split_bound": split_bound, "feasible": True}


def _verdict(key: str, index: int, budgets: Sequence[float]) -> Row:
    task, planner = _task(key, index)
    verdict = quick(task)
    if verdict.feasible is None:
        verdict = decide(task, 10.0)
    plans = [_planned(task, planner, "auto", budget=budget).makespan is not None for budget in budgets]
    return {"suite": key, "task": index, "verdict": verdict.feasible, "why": verdict.reason, "auto": plans}


def measure(options: argparse.Namespace) -> pages.Found:
    """Measure the sections asked for that are not kept yet, and keep each."""
    path, asked = options.out / FILE, options.section
    effort = QUICK if options.quick else Effort()
    effort = replace(effort, tasks=min(effort.tasks, options.tasks or effort.tasks))
    kept = read_json(path) if path.exists() else {}
    sections = kept["sections"] if kept.get("schema") == SCHEMA else {}
    sections = {key: section for key, section in sections.items() if not (options.again and key in asked)}
    found = {"schema": SCHEMA, "command": options.command.replace(" --again", ""), "sections": sections}
    _warm_up()
    for name in (name for name in asked if name not in sections):
        jobs = SECTIONS[name](effort)
        progress, rows = Progress(len(jobs)), []
        for job in jobs:
            rows.append(job())
            progress.step(name)
        progress.close()
        sections[name] = {"commit": commit_here(), "budgets": effort.budgets, "rows": rows}
        write_whole(path, _text(found))
    return found


def _warm_up() -> None:
    """Imports and first calls."""
    task, planner = suites.get("core-80x8").tasks("train")[0], simulators.make("roofline:h100-v1")
    for agent in ("auto", "neuroshard", "random-search"):
        make(agent, **({"budget": 0.0} if agent == "auto" else {}))(task, planner)


def _text(kept: dict[str, Any]) -> str:
    """JSON, a row a line."""
    parts = []
    for name, section in kept["sections"].items():
        rows = ",\n".join(json.dumps(row, allow_nan=False) for row in section["rows"])
        head = json.dumps({k: v for k, v in section.items() if k != "rows"})[:-1]
        parts.append(f'"{name}": {head}, "rows": [\n{rows}\n]}}')
    head = json.dumps({"schema": kept["schema"], "command": kept["command"]})[:-1]
    return f'{head}, "sections": {{\n' + ",\n".join(parts) + "\n}}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and write the page."""
    made = pages.parser("searches", __doc__)
    made.add_argument("--section", type=_sections, default=list(SECTIONS), help="comma-separated")
    made.add_argument("--quick", action="store_true", help="one task of each suite and tiny budgets")
    made.add_argument("--again", action="store_true", help="measure these sections anew")
    made.add_argument("--tasks", type=int, help="only the first so many test tasks of each suite")
    return pages.run(made, measure, page, arguments)


def _sections(text: str) -> list[str]:
    if unknown := set(text.split(",")) - SECTIONS.keys():
        raise argparse.ArgumentTypeError(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    return text.split(",")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
