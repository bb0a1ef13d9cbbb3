"""Search for best known plans and write headroom cards: `python -m benchmarks.headroom --suite core-80x8 --budget 60s`

Runs every method with every seed on the test tasks of suites, keeps each run on disk at once, and goes on where it
stopped when the same command is given again. Of up to 12 tables on 4 devices every plan is looked at. Cards
(benchmarks/pages/headroom_cards.py tells their rules) and the page `headroom.md` are written from all runs so far,
those of other budgets too. A task whose best known plan is proved to be optimal is searched no more. Gauges that other
work disturbed are taken again (they alone: `--seeds 0 --budget 0.1s`). `--page` runs nothing; `--check` tells what the
budget gains over runs of a second. `--part 1/4` keeps runs on a part of the tasks in RUNS/parts; the same command
without it takes over what all parts kept. Runs of seconds are bound to their machines, those of `--calls` are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np

from benchmarks import RESULTS, headroom_places
from benchmarks.headroom_attempts import Attempt, Line, same_tasks
from benchmarks.headroom_cards import (
    EVERY_PLAN,
    PROGRAM,
    PROVED,
    Card,
    Tried,
    load_cards,
    make_card,
    page,
    save_cards,
    save_check,
)
from benchmarks.pages import Row
from shard_gym import simulators
from shard_gym.bounds import lower_bound
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.records import commands, ledger
from shard_gym.records.commands import names, seconds
from shard_gym.records.files import write_whole
from shard_gym.records.locks import held
from shard_gym.records.progress import ProgressBar
from shard_gym.results.evaluate import score
from shard_gym.simulators import FastSimulator
from shard_gym.task import suites
from shard_gym.task.suite import BEST_KNOWN
from shard_gym.task.suites import SUITES, Suite
from shard_gym.task.task import Task
from shard_gym.work.cluster import Cluster
from shard_gym.work.parts import add_places
from shard_gym_agents import make
from shard_gym_agents.leaderboard.merging import PARTS, home_of
from shard_gym_agents.leaderboard.nodes import joined
from shard_gym_agents.leaderboard.references import Entry, keep_best, load_best, unpacked
from shard_gym_agents.search.exhaustive import is_small
from shard_gym_agents.solvers.solver import require_fast

RUNS = Path("runs/headroom")
METHODS = "local-search,beam,milp"
SHORT = 1.0  # seconds of the runs that --check compares with, and at most of a search without limits of memory
SECONDS_BETWEEN = 30.0  # writing of cards
# Without splits two methods may walk the same way from the same seed: each has seeds of its own, from here on.
FIRST_SEED = {"local-search": 0, "beam": 1_000, "milp": 2_000}
FAIR = 0.9  # share of its time that a run computes, unless others take the processor away
GAUGE = {"local-search": 0.1, "cost-greedy": 0.0}  # seconds
# Instead, where a campaign counts calls: about as many as are asked in that time, of some kinds of sharding and of all.
GAUGE_CALLS = 10_000, 200_000


def undisturbed(line: Line) -> bool:
    """True if a run had the processor for nearly all of its time, so that its budget was what it says."""
    return not line["budget"] or line.get("cpu", 0.0) >= FAIR * line["seconds"]


def entry_of(line: Line) -> Entry:
    """A line with a plan as the registry keeps it."""
    options = {name: line[name] for name in ("budget", "calls") if line[name]}
    who = {"solver": line["agent"], "options": options, "seed": line["seed"], "planner": line["planner"]}
    return {"makespan": line["makespan"], "plan": unpacked(line).to_dict(), **who, "date": line["date"]}


class Tries:
    """The lines of all attempts so far on the tasks of a suite, in a file that only grows; `others` are read, too."""

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        self.path = path
        self.lines: dict[str, dict[tuple[str, Attempt], Line]] = {}
        for each in (*others, path):
            for line in ledger.read(each, _line, "run of a headroom campaign"):
                self._keep(line)

    def of(self, task: Task, judge: str) -> list[tuple[Attempt, Line]]:
        """The attempts on a task, or on one that differs in name only."""
        kept = self.lines.get(same_tasks(task), {})
        return [(attempt, line) for (by, attempt), line in kept.items() if by == judge]

    def find(self, task: Task, attempt: Attempt, judge: str) -> Line | None:
        """The line of an attempt, if it was made."""
        return self.lines.get(same_tasks(task), {}).get((judge, attempt))

    def add(self, line: Line) -> None:
        """Keep a line; a crash can only cost this one."""
        self._keep(line)
        ledger.append(self.path, line)

    def _keep(self, line: Line) -> None:
        attempt = _attempt(line)
        kept = self.lines.setdefault(line["task"], {})
        before = kept.get((line["judge"], attempt))
        if before is None or undisturbed(line) or not undisturbed(before):
            kept[line["judge"], attempt] = line


def _line(text: bytes) -> Line:
    """A line with all that tells the attempt."""
    line = json.loads(text)
    _ = line["task"], line["judge"], _attempt(line)
    return line


def _attempt(line: Line) -> Attempt:
    return Attempt(**{name: line[name] for name in Attempt.__dataclass_fields__})


def tried_of(lines: Iterable[tuple[Attempt, Line]], judge: str, before: Card) -> Tried:
    """Collect the lines of a campaign, and what an earlier card tells of others."""
    gauges: dict[str, float | None] = {k: before[k] for k in ("greedy", "local", "planned") if k in before}
    worth = [before["unlimited"]] if before.get("unlimited") else []
    effort = {label: set(seeds) for label, seeds in before.get("effort", {}).items()}
    by = before.get("bound_by", PROGRAM)
    by, program = (by, before["bound"]) if by in (PROGRAM, EVERY_PLAN) and "bound" in before else (PROGRAM, 0.0)
    seconds, disturbed = 0.0, bool(before.get("disturbed"))
    for attempt, line in lines:
        if attempt.unlimited:
            worth.append(line["makespan"])
        elif (name := gauge_name(attempt, judge)) is not None:
            gauges[name] = line["makespan"]
            disturbed = not undisturbed(line) if name == "local" else disturbed
        if attempt.planner == judge and not attempt.unlimited and attempt.agent != "cost-greedy":
            effort.setdefault(attempt.label, set()).add(attempt.seed)
        by = EVERY_PLAN if attempt.agent == EVERY_PLAN else by
        program, seconds = max(program, line.get("bound", 0.0)), seconds + line.get("cpu", 0.0)
    gauges["unlimited"] = min((w for w in worth if w is not None), default=None)
    ordered = {label: sorted(effort[label]) for label in sorted(effort)}
    return Tried(gauges, program, ordered, max(seconds, before.get("seconds", 0.0)), disturbed, by)


def gauge_attempts(planner: str, judge: str, calls: int) -> list[Attempt]:
    """The attempts that gauge every task; `calls` instead of seconds if they are not 0."""
    budget = 0.0 if calls else GAUGE["local-search"]
    found = [Attempt("cost-greedy", judge), Attempt("local-search", judge, budget, calls)]
    return found if planner == judge else [*found, Attempt("local-search", planner, budget, calls)]


def gauge_name(attempt: Attempt, judge: str) -> str | None:
    """The name of an attempt on a card; None for an attempt that is no gauge."""
    if attempt.agent == "cost-greedy":
        return "greedy"
    if attempt.agent != "local-search" or attempt.seed:
        return None
    if (attempt.budget, attempt.calls) not in ((GAUGE["local-search"], 0), *((0.0, calls) for calls in GAUGE_CALLS)):
        return None
    return "local" if attempt.planner == judge else "planned"


def inherited(task: Task, judge: FastSimulator, entry: Entry) -> Entry | None:
    """A plan of the same tables under another suite's rules, as an entry of this task; None if it does not serve."""
    plan = Plan.from_dict(entry["plan"])
    if plan.splits and not task.splits_allowed:
        return None
    found = score(task, plan, judge)
    return {**entry, "makespan": found.makespan} if found.feasible else None


def check_rows(suite: Suite, tasks: Sequence[Task], tries: Tries, short: float, long: float) -> Iterator[Row]:
    """Rows of a check: runs of two budgets on each task that has both."""
    for index, task in enumerate(tasks):
        found: dict[float, list[tuple[float, str, float]]] = {short: [], long: []}
        for attempt, line in tries.of(task, suite.judge):
            searched = attempt.planner == suite.judge and not attempt.unlimited and line["makespan"] is not None
            if searched and attempt.budget in found:
                found[attempt.budget].append((line["makespan"], attempt.agent, line.get("cpu", 0.0)))
        if all(found.values()):
            runs = {f"{budget:g}s": _summary(found[budget]) for budget in (short, long)}
            yield {"suite": suite.key, "index": index, "runs": runs}


def _summary(found: list[tuple[float, str, float]]) -> dict[str, Any]:
    """Summary of runs, each a makespan, an agent and seconds computed."""
    best, by, _ = min(found)
    mean, seconds = (float(np.mean([run[i] for run in found])) for i in (0, 2))
    return {"runs": len(found), "best": best, "mean": mean, "by": by, "seconds": round(seconds, 2)}


class SuiteSearch:
    """Searches on the test tasks of one suite, and the cards written of them."""

    def __init__(self, suite: Suite, options: argparse.Namespace, tries: Tries) -> None:
        self.suite, self.options, self.judge, self.tries = suite, options, suite.judge, tries
        self.progress = ProgressBar(0)
        self.tasks = suite.tasks("test")[: options.tasks]
        self.simulator = require_fast(simulators.make(suite.judge))
        self.best_path = options.results / "best_known" / f"{suite.key}.json"
        self.cards_path = options.results / "headroom" / f"{suite.key}.json"
        self.best = load_best(self.best_path, self.judge, ())
        self.lock, self.told, self.stopped = Lock(), time.monotonic(), Event()
        self.touched: set[int] = set()

    def attempts(self, task: Task) -> list[Attempt]:
        """The attempts to make on a task, in this order."""
        o = self.options
        budget, calls = (0.0, o.calls) if o.calls else (o.budget, 0)
        gauge = GAUGE_CALLS[bool(self.suite.kinds)] if o.calls else 0
        first = gauge_attempts(self.suite.planner, self.judge, gauge)
        if is_small(task):
            first.append(Attempt(EVERY_PLAN, self.judge))
        if table_bytes(task).sum() > min(task.memory):
            first.append(
                Attempt("local-search", self.judge, min(budget, SHORT), min(calls, 10 * gauge), unlimited=True)
            )
        pairs = [(method, seed) for seed in range(o.seeds) for method in o.methods]
        budgets = (SHORT, budget) if o.check else (budget,)
        return first + [
            Attempt(m, self.judge, b, calls, FIRST_SEED.get(m, 0) + seed) for b in budgets for m, seed in pairs
        ]

    def key(self, index: int) -> list[str]:
        """The task, whatever its name is, and who judges its plans."""
        return [same_tasks(self.tasks[index]), self.judge]

    def add(self, line: Line) -> None:
        """Keep what came of an attempt."""
        with self.lock:
            self.tries.add(line)

    def steps(self, index: int) -> Iterator[Attempt]:
        """Attempts to make on a task, but for searches once a plan is proved to be the best.

        What came of one must be added before the next is asked for.
        """
        task = self.tasks[index]
        bound = lower_bound(task, self.simulator, budget=0.0)
        for attempt in self.attempts(task):
            line = self.tries.find(task, attempt, self.judge)
            gauge = gauge_name(attempt, self.judge) is not None
            again = line is None or (gauge and not undisturbed(line))
            exact = attempt.agent == EVERY_PLAN
            fresh = again and (gauge or exact or attempt.unlimited or not self.proved(task, bound))
            if fresh:
                yield attempt
            self.progress.step(f"{self.suite.key} {index} {attempt.label}", fresh)
        with self.lock:
            self.touched.add(index)
            if self.options.part.whole and time.monotonic() - self.told > SECONDS_BETWEEN:
                self.write()

    def proved(self, task: Task, bound: float) -> bool:
        """True if the best plan known of a task is as good as optimal."""
        lines = [line for attempt, line in self.tries.of(task, self.judge) if not attempt.unlimited]
        known = [line["makespan"] for line in lines if line["makespan"] is not None]
        known += [self.best[task.hash]["makespan"]] if task.hash in self.best else []
        bounds = [line["bound"] for line in lines if "bound" in line]
        return bool(known) and min(known) <= max(bound, *bounds, 0.0) * (1 + PROVED)

    def write(self) -> None:
        """Keep better plans where asked to, and write the cards of all tasks touched since."""
        with held(self.cards_path.parent, wait=True):
            self._write()

    def _write(self) -> None:
        if self.options.update_best:
            twins = self.twins()
            offered = [(self.tasks[i].hash, entry) for i in self.touched for entry in self.offers(i, twins)]
            keep_best(self.best_path, self.judge, offered)
        self.best = load_best(self.best_path, self.judge, ())
        cards = load_cards(self.cards_path, self.judge)
        for i in sorted(self.touched):
            task = self.tasks[i]
            tried = tried_of(self.tries.of(task, self.judge), self.judge, cards.get(task.hash, {}))
            if card := make_card(i, task, self.simulator, self.best.get(task.hash), tried):
                cards[task.hash] = card
        if cards:
            save_cards(self.cards_path, self.judge, cards)
        self.touched, self.told = set(), time.monotonic()

    def offers(self, index: int, twins: list[dict[int, Entry]]) -> Iterator[Entry]:
        """Plans that may be the best known ones of a task: of its runs, and of suites with the same tables."""
        task = self.tasks[index]
        for attempt, line in self.tries.of(task, self.judge):
            if not attempt.unlimited and line["makespan"] is not None:
                yield entry_of(line)
        for known in twins:
            if index in known and (found := inherited(task, self.simulator, known[index])):
                yield found

    def twins(self) -> list[dict[int, Entry]]:
        """Best known plans of suites with the same tables, by index of the task."""
        found = []
        for suite in SUITES.values():
            if suite.frozen_as == self.suite.frozen_as and suite.judge == self.judge and suite != self.suite:
                known = load_best(self.best_path.with_name(f"{suite.key}.json"), self.judge, ())
                hashes = (task.hash for task in suite.tasks("test")) if known else ()
                found.append({i: known[task] for i, task in enumerate(hashes) if task in known})
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, write, and print where."""
    return commands.run(_parser(), _alone, arguments)


def _alone(options: argparse.Namespace) -> int:
    options.home = home_of(options.runs, options.part)
    with held(options.home), joined(options.ray, modules=["benchmarks"]) as cluster:
        return _run(options, cluster)


def _run(options: argparse.Namespace, cluster: Cluster | None) -> int:
    searched = [key for key, suite in SUITES.items() if suite.gap_to == BEST_KNOWN]  # no search of the others' judge
    chosen = [suites.get(key) for key in options.suite or searched]
    for method in options.methods:
        make(method)
    tries = {key: _tries(options, f"{key}.jsonl") for key in dict.fromkeys(s.frozen_as for s in chosen)}
    campaigns = [SuiteSearch(suite, options, tries[suite.frozen_as]) for suite in chosen]
    code = 0
    try:
        if not options.page:
            _search(campaigns, options, cluster)
    except KeyboardInterrupt:
        code = commands.INTERRUPTED
    if not options.part.whole:
        print(f"part {options.part} is in {options.home}; the same command without --part unites all", file=sys.stderr)
        return code
    for campaign in campaigns:
        if not code:  # twins may have found plans since
            campaign.touched = set(range(len(campaign.tasks)))
        campaign.write()
    if options.check:
        checked = [check_rows(c.suite, c.tasks, c.tries, SHORT, options.budget) for c in campaigns]
        save_check(options.results, [row for rows in checked for row in rows])
    path = options.results / "headroom.md"
    write_whole(path, page(options.results))
    print(path, file=sys.stderr)
    return code


def _tries(options: argparse.Namespace, name: str) -> Tries:
    """The runs of a suite: a part knows those of the whole, the whole those of all parts."""
    parts = sorted((options.runs / PARTS).glob(f"*/{name}"))
    return Tries(options.home / name, parts if options.part.whole else [options.runs / name])


def _search(campaigns: list[SuiteSearch], options: argparse.Namespace, cluster: Cluster | None) -> None:
    """Take all walks of this part, here or on a cluster."""
    walks = headroom_places.walks_of(campaigns, options.part)
    progress = ProgressBar(sum(len(campaign.attempts(campaign.tasks[index])) for campaign, index in walks))
    for campaign in campaigns:
        campaign.progress = progress
    try:
        if cluster is None:
            headroom_places.here(walks, options.workers)
        else:
            headroom_places.on_nodes(walks, options.workers, cluster)
    finally:
        progress.close()


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("python -m benchmarks.headroom", __doc__)
    add = parser.add_argument
    add("--suite", type=names, help="comma-separated, default all")
    add("--methods", type=names, default=names(METHODS), help=f"comma-separated agents, default {METHODS}")
    add("--budget", type=seconds, default=60.0, help="time of a run, as 1s; default 60s")
    add("--calls", type=int, default=0, metavar="N", help="questions to the planner a run may ask, instead of a time")
    add("--seeds", type=int, default=5)
    add("--tasks", type=int, metavar="N", help="only the first N test tasks of each suite")
    add("--workers", type=int, default=1, help="tasks searched at a time, on each machine")
    add_places(parser)
    add("--update-best", action="store_true", help="keep plans that beat the best known ones")
    add("--check", action="store_true", help=f"compare with runs of {SHORT:g} s, method by method and seed by seed")
    add("--page", action="store_true", help="search nothing: write cards and page from what is kept")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="with best_known/ and headroom/")
    add("--runs", type=Path, default=RUNS, metavar="DIR", help=f"where runs are kept, default {RUNS}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
