"""Run agents on suites and rank them.

A run that broke off goes on where it stopped when the same command is given again."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shard_gym.records import commands
from shard_gym.records.commands import count, names, seconds
from shard_gym.records.escape import plain
from shard_gym.records.locks import held
from shard_gym.records.progress import clock
from shard_gym_agents.leaderboard.arena.flags import add_arena, import_modules, rules_of
from shard_gym_agents.leaderboard.arena.host import Nursery
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.forecast import seconds_of
from shard_gym_agents.leaderboard.jobs import jobs_of
from shard_gym_agents.leaderboard.kept import partial_path
from shard_gym_agents.leaderboard.machine import Load
from shard_gym_agents.leaderboard.outcome import Missing, Outcome, report
from shard_gym_agents.leaderboard.retraining import retrain
from shard_gym_agents.leaderboard.runs import Arena, describe_agents, run_jobs, tasks_of
from shard_gym_agents.learners.trained import RETRAINED

SUITES = "metasyn-80x8,dlrm-50x4,core-80x8"
ELSEWHERE = Path("runs/leaderboard")  # for what is not published
KEPT = "what is finished is kept, the same command goes on"
EXAMPLES = (
    "shard-gym leaderboard --suite core-60x4 --agents random,cost-greedy,auto --budget 100ms",
    "shard-gym leaderboard --suite core-80x8 --agent my_module:MyAgent --tasks 10 --page",
    "shard-gym leaderboard --suite dlrm-50x4 --agents auto --budgets 10ms,100ms,1s --json",
)
BUDGET = 0.1  # seconds that a search may use on a task
SEEDS = 2  # so that the published suites take less than three minutes on two cores
DECISIVE = ("agents", "agent", "seeds", "simulator", "budgets", "time_limit", "split", "tasks", "retrain")
ABSENT = {"missing", "unknown"}  # what a worker says of an agent that needs more than is installed, or training


def parser() -> commands.Parser:
    """Options of `shard-gym leaderboard`."""
    return _parser("shard-gym leaderboard", ELSEWHERE / "best_known")


def main(arguments: Sequence[str], name: str = "shard-gym leaderboard", published: Path = ELSEWHERE) -> int:
    """Run, rank, print and write; a run with the published settings writes to the folder of published results."""
    parser = _parser(name, published / "best_known")

    def command(options: argparse.Namespace) -> int:
        as_published = all(getattr(options, key) == parser.get_default(key) for key in DECISIVE)
        options.out = options.out or (published if as_published else ELSEWHERE)
        options.command = " ".join((name, shlex.join(arguments))).strip()
        options.budget = BUDGET if BUDGET in options.budgets else max(options.budgets)  # that decides the ranks
        with held(options.out):
            return _run(options)

    return commands.run(parser, command, arguments)


def _run(options: argparse.Namespace) -> int:
    import_modules(options.imports)
    jobs = jobs_of(options)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # workers inherit it
    missing: Missing = {}
    if options.retrain:
        jobs, missing = retrain(jobs, options.fresh)
    partial = options.out / "partial"
    partial.mkdir(parents=True, exist_ok=True)  # before anybody could see it come
    results = [partial, *options.out.glob("*.jsonl"), ELSEWHERE, options.best_known]
    nursery = Nursery(rules_of(options, results), (job.agent for job in jobs), jobs)
    arena = Arena(nursery, partial, options.tasks, options.fresh, tuple(options.agent))
    try:
        _tell(f"isolation: {nursery.isolation}" + (f" ({nursery.why})" if nursery.why else ""))
        return _ranked(jobs, missing, arena, options)
    finally:
        arena.stop()
        nursery.close()


def _ranked(jobs: list[Job], missing: Missing, arena: Arena, options: argparse.Namespace) -> int:
    """Describe, run and report; the exit code."""
    asked = [job for job in jobs if (job.suite, job.agent) not in missing]
    about = _describe(asked, arena, options.workers)
    missing |= {(j.suite, j.agent): t.get("missing") or t["unknown"] for j, t in about.items() if t.keys() & ABSENT}
    able = {job: told for job, told in about.items() if _runs(job, told, options.budget)}
    for why, of in _grouped(missing).items():
        _tell(f"cannot run: {', '.join(of)}: {why}")
    plans = sum(len(tasks_of(job, options.tasks)) for job in able)
    _tell(f"{plans} plans to make: about {clock(seconds_of(able, options.tasks, options.workers))}")
    load = Load(arena.nursery.process.pid)
    done, complete = run_jobs(able, arena, options.workers)
    written = report(Outcome(options, done, missing, arena.watched_of, load.words()))
    if complete:
        for job in able:
            partial_path(job, about[job], arena.partial).unlink(missing_ok=True)
    for line in [*written, *([] if complete else [f"stopped; {KEPT}"])]:
        _tell(line)
    return 0 if complete else commands.INTERRUPTED


def _runs(job: Job, told: dict[str, Any], budget: float) -> bool:
    """True if the job is to be run: its agent can, and has not done the same with another seed or budget."""
    once = bool(told.get("deterministic")) or "error" in told
    takes_budget = "budget" in told.get("config", {})
    return not (told.keys() & ABSENT or (job.seed and once) or (job.budget != budget and not takes_budget))


def _grouped(missing: Missing) -> dict[str, list[str]]:
    """Agents by the reason why they cannot run."""
    found: dict[str, list[str]] = {}
    for (_, agent), why in missing.items():
        found.setdefault(why, []).append(agent)
    return {why: list(dict.fromkeys(agents)) for why, agents in found.items()}


def _tell(line: str) -> None:
    sys.stderr.write(plain(line) + "\n")


def _describe(jobs: list[Job], arena: Arena, workers: int) -> dict[Job, dict[str, Any]]:
    """The description that each job's agent gives of itself on its suite, asked with the first seed and budget."""
    first = {(job.suite, job.agent): job for job in reversed(jobs)}
    told = describe_agents(first.values(), arena, workers)
    return {job: told[first[job.suite, job.agent]] for job in jobs}


def _parser(name: str, best_known: Path) -> commands.Parser:
    parser = commands.parser(name, __doc__, examples=EXAMPLES, answer="one object a row of the tables", kept=KEPT)
    add = parser.add_argument
    suite = f"names from `shard-gym suites`; default {SUITES}"
    add("--suite", type=names, default=names(SUITES), metavar="NAME,...", help=suite)
    add(
        "--agents",
        type=names,
        metavar="NAME,...",
        help="from `shard-gym agents`; default all, learners where they have weights",
    )
    add("--agent", type=_custom, action="append", default=[], metavar="MODULE:CLASS", help="yours; repeatable")
    add(
        "--seeds", type=count, default=SEEDS, metavar="N", help=f"of agents that are not deterministic; default {SEEDS}"
    )
    add("--simulator", metavar="ID", help="that plans and judges; default: the suite's own two")
    budgets = "that a search may use on a task, one or several, as 10ms,100ms,1s; default 100ms"
    add("--budgets", "--budget", type=_durations, default=[BUDGET], metavar="TIME,...", help=budgets)
    limit = "an agent is killed when a task takes longer; default 60s, or twice the budget if that is more"
    add("--time-limit", type=seconds, metavar="TIME", help=limit)
    add_arena(parser, isolation="auto", workers=2)
    add("--split", default="test", help="of the suites' tasks: test, val or train; default test")
    add("--tasks", type=count, metavar="N", help="only the first N tasks of each suite; default all")
    add("--page", action="store_true", help="write one HTML page of all suites, too")
    add("--out", type=Path, metavar="DIR", help=f"of tables and results; default {ELSEWHERE}")
    add("--best-known", type=Path, metavar="DIR", default=best_known, help=f"best known plans; default {best_known}")
    add("--update-best", action="store_true", help="keep plans that beat the best known ones")
    add("--retrain", action="store_true", help=f"train the learners first, in {RETRAINED}; a run there goes on")
    add("--fresh", action="store_true", help="forget the runs of a command that broke off, with --retrain training too")
    return parser


def _durations(text: str) -> list[float]:
    return sorted({seconds(one) for one in names(text)})


def _custom(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise argparse.ArgumentTypeError(f"{text!r} names no class; write module:Class")
    return text
