"""Run agents on suites and rank them.

A run that broke off goes on where it stopped when the same command is given again. Parts of one run (`--part 1/4`) may
be made on machines that know nothing of each other: `shard-gym merge OUT/parts --out OUT` ranks their union."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shard_gym.records import commands
from shard_gym.records.commands import count, names, seconds
from shard_gym.records.escape import plain
from shard_gym.records.locks import held
from shard_gym.records.progress import Waiting, clock
from shard_gym.work.cluster import Cluster
from shard_gym.work.parts import add_places
from shard_gym_agents.leaderboard import merging, nodes
from shard_gym_agents.leaderboard.arena.flags import add_arena, import_modules, rules_of
from shard_gym_agents.leaderboard.arena.host import Nursery
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.forecast import seconds_of
from shard_gym_agents.leaderboard.jobs import jobs_of
from shard_gym_agents.leaderboard.machine import Load
from shard_gym_agents.leaderboard.outcome import Missing, Outcome, report
from shard_gym_agents.leaderboard.retraining import retrain
from shard_gym_agents.leaderboard.runs import Finished, Scope, run_jobs
from shard_gym_agents.leaderboard.seats import Arena, describe_agents
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
DECISIVE = (
    *("agents", "agent", "seeds", "simulator", "budgets", "calls", "time_limit", "split", "tasks", "retrain"),
    *("part", "ray"),
)
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
        options.command = " ".join((name, shlex.join(without_part(arguments)))).strip()
        options.budget = BUDGET if BUDGET in options.budgets else max(options.budgets)  # that decides the ranks
        options.home = merging.home_of(options.out, options.part)
        with held(options.home), nodes.joined(options.ray) as cluster:
            return _run(options, cluster)

    return commands.run(parser, command, arguments)


def without_part(arguments: Sequence[str]) -> list[str]:
    """The arguments of the whole that this is a part of."""
    words = list(arguments)
    for at in [at for at, word in enumerate(words) if word.split("=")[0] == "--part"]:
        words[at : at + 1 + ("=" not in words[at])] = []
    return words


def _run(options: argparse.Namespace, cluster: Cluster | None) -> int:
    import_modules(options.imports)
    jobs = jobs_of(options)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # workers inherit it
    missing: Missing = {}
    if options.retrain:
        jobs, missing = retrain(jobs, options.fresh)
    scope = Scope(options.home / "partial", options.tasks, options.fresh, options.part)
    scope.partial.mkdir(parents=True, exist_ok=True)  # before anybody could see it come
    results = [scope.partial, options.out / merging.PARTS, *options.out.glob("*.jsonl"), ELSEWHERE, options.best_known]
    nursery = Nursery(rules_of(options, results), (job.agent for job in jobs), jobs)
    arena = Arena(nursery, tuple(options.agent))
    try:
        _tell(f"isolation: {nursery.isolation}" + (f" ({nursery.why})" if nursery.why else ""))
        return _ranked(jobs, missing, arena, scope, cluster, options)
    finally:
        arena.stop()
        nursery.close()


def _ranked(
    jobs: list[Job],
    missing: Missing,
    arena: Arena,
    scope: Scope,
    cluster: Cluster | None,
    options: argparse.Namespace,
) -> int:
    """Describe, run and report; the exit code."""
    asked = [job for job in jobs if (job.suite, job.agent) not in missing]
    with Waiting("asking agents about themselves"):
        about = _describe(asked, arena, options.workers)
    missing |= {(j.suite, j.agent): t.get("missing") or t["unknown"] for j, t in about.items() if t.keys() & ABSENT}
    able = {job: told for job, told in about.items() if _runs(job, told, options.budget)}
    for why, of in _grouped(missing).items():
        _tell(f"cannot run: {', '.join(of)}: {why}")
    plans = sum(len(scope.tasks_of(job, told)) for job, told in able.items())
    takes = seconds_of(able, options.tasks, options.workers) / options.part.of
    _tell(f"{plans} plans to make" + (f": about {clock(takes)}" if cluster is None else ""))
    load = Load(arena.nursery.process.pid)
    place = nodes.place_of(cluster, arena, list(able), options.workers)
    found = run_jobs(able, scope, place)
    outcome = Outcome(options, found.done, missing, found.watched_of, load.words())
    if cluster is not None:
        outcome = replace(outcome, machine=nodes.words(cluster), note="")
    for line in [*_written(found, outcome), *([] if found.complete else [f"stopped; {KEPT}"])]:
        _tell(line)
    return 0 if found.complete else commands.INTERRUPTED


def _written(found: Finished, outcome: Outcome) -> list[str]:
    """Write the results, or those of a part; lines that say where."""
    written = report(outcome) if outcome.options.part.whole else merging.report_part(found, outcome)
    if found.complete:
        found.forget()
    return written


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
    told = f"of agents that are not deterministic; default {SEEDS}"
    add("--seeds", type=count, default=SEEDS, metavar="N", help=told)
    add("--simulator", metavar="ID", help="that plans and judges; default: the suite's own two")
    budgets = "that a search may use on a task, one or several, as 10ms,100ms,1s; default 100ms"
    add("--budgets", "--budget", type=_durations, default=[BUDGET], metavar="TIME,...", help=budgets)
    asked = "plans that a search may ask the planner about on a task, instead of a time; default 0: the time counts"
    add("--calls", type=count, default=0, metavar="N", help=asked)
    limit = "an agent is killed when a task takes longer; default 60s, or twice the budget if that is more"
    add("--time-limit", type=seconds, metavar="TIME", help=limit)
    add_arena(parser, isolation="auto", workers=2)
    add_places(parser)
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
