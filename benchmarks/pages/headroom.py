"""Search for best known plans and write headroom cards: `python -m benchmarks.headroom --suite core-80x8 --budget 60s`

Runs every method with every seed on the test tasks of suites, keeps each run on disk at once, and goes on where it
stopped when the same command is given again. Cards (benchmarks/pages/headroom_cards.py tells their rules) and the page
`headroom.md` are written from all runs so far, those of other budgets too. A task whose best known plan is proved to be
optimal is searched no more. Gauges that other work disturbed are taken again (they alone: `--seeds 0 --budget 0.1s`).
`--page` runs nothing; `--check` tells what the budget gains over runs of a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Lock

from benchmarks import RESULTS
from benchmarks.headroom_cards import (
    PROVED,
    load_cards,
    make_card,
    page,
    save_cards,
    save_check,
)
from benchmarks.headroom_runs import (
    FIRST_SEED,
    Attempt,
    Line,
    Tried,
    Tries,
    check_rows,
    entry_of,
    gauge_attempts,
    gauge_name,
    inherited,
    try_on,
    undisturbed,
)
from shard_gym import simulators
from shard_gym.bounds import lower_bound
from shard_gym.memory.usage import table_bytes
from shard_gym.records import commands
from shard_gym.records.commands import names, seconds
from shard_gym.records.files import write_whole
from shard_gym.records.progress import ProgressBar
from shard_gym.task import suites
from shard_gym.task.suites import SUITES, Suite
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import Entry, keep_best, load_best
from shard_gym_agents.solvers.solver import require_fast

RUNS = Path("runs/headroom")
METHODS = "local-search,beam,milp"
SHORT = 1.0  # seconds of the runs that --check compares with, and at most of a search without limits of memory
SECONDS_BETWEEN = 30.0  # writing of cards
Call = Callable[[Task, Attempt, str], Line]


class SuiteSearch:
    """Searches on the test tasks of one suite, and the cards written of them."""

    def __init__(self, suite: Suite, options: argparse.Namespace, tries: Tries) -> None:
        self.suite, self.options, self.judge, self.tries = suite, options, suite.judge, tries
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
        first = gauge_attempts(self.suite.planner, self.judge, bool(o.calls))
        if table_bytes(task).sum() > min(task.memory):
            first.append(Attempt("local-search", self.judge, min(budget, SHORT), calls, unlimited=True))
        pairs = [(method, seed) for seed in range(o.seeds) for method in o.methods]
        budgets = (SHORT, budget) if o.check else (budget,)
        return first + [
            Attempt(m, self.judge, b, calls, FIRST_SEED.get(m, 0) + seed) for b in budgets for m, seed in pairs
        ]

    def search(self, index: int, call: Call, progress: ProgressBar) -> None:
        """Try everything on a task, but for searches once a plan is proved to be the best."""
        task = self.tasks[index]
        bound = lower_bound(task, self.simulator, budget=0.0)
        for attempt in self.attempts(task):
            if self.stopped.is_set():
                return
            line = self.tries.find(task, attempt, self.judge)
            gauge = gauge_name(attempt, self.judge) is not None
            again = line is None or (gauge and not undisturbed(line))
            fresh = again and (gauge or attempt.unlimited or not self.proved(task, bound))
            if fresh:
                line = call(task, attempt, self.judge)
                with self.lock:
                    self.tries.add(line)
            progress.step(f"{self.suite.key} {index} {attempt.label}", fresh)
        with self.lock:
            self.touched.add(index)
            if time.monotonic() - self.told > SECONDS_BETWEEN:
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
        if self.options.update_best:
            twins = self.twins()
            offered = [(self.tasks[i].hash, entry) for i in self.touched for entry in self.offers(i, twins)]
            keep_best(self.best_path, self.judge, offered)
        self.best = load_best(self.best_path, self.judge, ())
        cards = load_cards(self.cards_path, self.judge)
        for i in sorted(self.touched):
            task = self.tasks[i]
            tried = Tried.of(self.tries.of(task, self.judge), self.judge, cards.get(task.hash, {}))
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
    return commands.run(_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    chosen = [suites.get(key) for key in options.suite or SUITES]
    for method in options.methods:
        make(method)
    tries = {key: Tries(options.runs / f"{key}.jsonl") for key in dict.fromkeys(s.frozen_as for s in chosen)}
    campaigns = [SuiteSearch(suite, options, tries[suite.frozen_as]) for suite in chosen]
    code = 0
    try:
        if not options.page:
            _search(campaigns, options.workers)
    except KeyboardInterrupt:
        code = commands.INTERRUPTED
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


def _search(campaigns: list[SuiteSearch], workers: int) -> None:
    """Task after task, or as many at a time as there are workers."""
    work = [(campaign, index) for campaign in campaigns for index in range(len(campaign.tasks))]
    progress = ProgressBar(sum(len(campaign.attempts(campaign.tasks[index])) for campaign, index in work))
    alone = workers == 1
    processes = nullcontext() if alone else ProcessPoolExecutor(workers, mp_context=get_context("forkserver"))
    threads = ThreadPoolExecutor(workers)
    with processes as pool:
        call: Call = try_on if pool is None else lambda *what: pool.submit(try_on, *what).result()
        try:
            if alone:
                for campaign, index in work:
                    campaign.search(index, call, progress)
            else:
                list(threads.map(lambda pair: pair[0].search(pair[1], call, progress), work))
        finally:
            for campaign in campaigns:
                campaign.stopped.set()
            threads.shutdown(cancel_futures=True)
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
    add("--workers", type=int, default=1, help="tasks searched at a time")
    add("--update-best", action="store_true", help="keep plans that beat the best known ones")
    add("--check", action="store_true", help=f"compare with runs of {SHORT:g} s, method by method and seed by seed")
    add("--page", action="store_true", help="search nothing: write cards and page from what is kept")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="with best_known/ and headroom/")
    add("--runs", type=Path, default=RUNS, metavar="DIR", help=f"where runs are kept, default {RUNS}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
