"""Shows what came of a run, and writes it: a table and the plans of each suite, and a page of all."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shard_gym.plan.plan import Plan
from shard_gym.records.files import write_whole
from shard_gym.results import write_results
from shard_gym.task import suites
from shard_gym.task.suite import BEST_KNOWN
from shard_gym_agents.leaderboard import layout, page
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.kept import Watched
from shard_gym_agents.leaderboard.page import Board
from shard_gym_agents.leaderboard.references import load_best, references, update_best
from shard_gym_agents.leaderboard.report import Runs, json_row, ranking, unable_row
from shard_gym_agents.leaderboard.runs import Judged

PAGE, ROW = "leaderboard.html", "shard-gym/leaderboard-row/1"
Missing = dict[tuple[str, str], str]  # suite and agent -> what it needs


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command: by job its runs, as far as they were finished."""

    options: argparse.Namespace
    done: Mapping[Job, list[Judged]]
    missing: Missing
    watched_of: Callable[[Iterable[Job]], Mapping[str, Watched]]
    note: str = ""  # on how the machine was used
    machine: str = ""  # several of them, in words; "" is this one

    @property
    def notes(self) -> list[str]:
        """Sentences on the machines, and on what is bound to them."""
        if not self.machine:
            return [self.note]
        results = (result for runs in self.done.values() for result, _ in runs)
        if any(result.config.get("budget") and not result.config.get("calls") for result in results):
            told = "Searches had seconds: what they found, as all times, is of these machines. --calls makes it repeat."
        else:
            told = "No search had seconds: but for times, any machines give the same rows."
        return [f"Made on {self.machine}. {told}", self.note]

    def of(self, suite: str) -> Outcome:
        """The same of one suite."""
        done = {job: runs for job, runs in self.done.items() if job.suite == suite}
        missing = {(key, agent): why for (key, agent), why in self.missing.items() if key == suite}
        return replace(self, done=done, missing=missing)

    def finished(self, tasks: int) -> set[str]:
        """Agents that have done all tasks with every seed and budget."""
        return {j.agent for j in self.done} - {j.agent for j, runs in self.done.items() if len(runs) < tasks}

    def runs(self, agents: set[str], budget: float) -> Runs:
        """The runs of these agents in that time a task."""
        found: dict[str, list[list[Judged]]] = {}
        for job, runs in self.done.items():
            if job.agent in agents and job.budget == budget:
                found.setdefault(job.agent, []).append(runs)
        return found


def report(outcome: Outcome) -> list[str]:
    """Print every suite's tables and write what is finished; lines that say where, and how to look."""
    options, boards = outcome.options, []
    files: list[str] = []
    for key in options.suite:
        board, whole = _report(key, outcome.of(key))
        if board is not None:
            boards.append(board)
        if whole:
            files += [f"{key}.md", f"{key}.jsonl"]
    if options.page and any(board.runs for board in boards):
        page.write(options.out / PAGE, [board for board in boards if board.runs])
        files.append(PAGE)
    if not files:
        return []
    shown = options.out / files[-1 if PAGE in files else 0]
    return [f"written to {options.out}: {', '.join(files)}", f"look: {_look(shown)}"]


def _look(path: Path) -> str:
    """The command that shows a file."""
    program = "python -m webbrowser -t" if path.suffix == ".html" else "less"
    return f"{program} {shlex.quote(str(path))}"


def _report(key: str, outcome: Outcome) -> tuple[Board | None, bool]:
    """Print a suite's table, and write it when every run of it is there; what a page needs of it."""
    suite, options, machine = suites.get(key), outcome.options, outcome.machine or layout.host()
    tasks = len(suite.tasks(options.split)[: options.tasks])
    planner, judge = options.simulator or suite.planner, options.simulator or suite.judge
    finished = outcome.finished(tasks)
    if unfinished := sorted({job.agent for job in outcome.done} - finished):
        print(f"{key}: not finished, kept for the next time: {', '.join(unfinished)}", file=sys.stderr)
    unable = [unable_row(suite, agent, planner, judge, why) for (_, agent), why in outcome.missing.items()]
    if not finished and not unable:
        return None, False
    every = [pair for job, runs in outcome.done.items() if job.agent in finished for pair in runs]
    if options.update_best and suite.gap_to == BEST_KNOWN:
        improved = update_best(options.best_known / f"{key}.json", judge, every)
        print(f"{key}: better plans for {improved} tasks are now the best known", file=sys.stderr)
    refs = references(suite, options.split, tasks, judge, options.best_known)
    runs = outcome.runs(finished, options.budget)
    others = {budget: outcome.runs(finished, budget) for budget in options.budgets if budget != options.budget}
    found = ranking(suite, options.split, runs, refs, unable, outcome.watched_of(outcome.done), others)
    found = replace(found, notes=tuple(filter(None, (*found.notes, *outcome.notes))))
    if options.json:
        print("\n".join(json.dumps({"schema": ROW, **json_row(row)}) for row in found.rows), flush=True)
    else:
        print(layout.text(found) + "\n", flush=True)
    if not unfinished:
        write_results(options.out / f"{key}.jsonl", [result for result, _ in every])
        words = layout.markdown(found, options.command, machine, options.workers, options.build_limit)
        write_whole(options.out / f"{key}.md", words)
    best = load_best(options.best_known / f"{key}.json", judge, ()) if options.page else {}
    plans = {task: Plan.from_dict(entry["plan"]) for task, entry in best.items()}
    board = Board(found, runs, refs, plans, options.command, machine)
    return board, not unfinished
