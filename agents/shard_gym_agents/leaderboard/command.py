"""Run agents on suites and rank them: `shard-gym leaderboard --agent my_module:MyAgent`.

A run that broke off goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import MissingDependency, ShardGymError, UnknownName
from shard_gym.records import commands
from shard_gym.records.commands import count, names, seconds
from shard_gym.records.files import write_whole
from shard_gym.records.locks import held
from shard_gym.results import write_results
from shard_gym.task import suites
from shard_gym_agents.leaderboard import report
from shard_gym_agents.leaderboard.arena.host import Nursery
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import FULL, GB, LIMITS, Rules, findable
from shard_gym_agents.leaderboard.references import references, update_best
from shard_gym_agents.leaderboard.runs import Arena, Judged, describe_agents, partial_path, run_jobs, tasks_of
from shard_gym_agents.learners import LEARNERS, trained
from shard_gym_agents.learners.trained import RETRAINED, NotTrained, Trained

SUITES = "metasyn-80x8,dlrm-50x4,core-80x8"
Missing = dict[tuple[str, str], str]  # suite and agent -> what it needs
ELSEWHERE = Path("runs/leaderboard")  # for what is not published
TIME_LIMIT = 60.0  # seconds a task
BUILD_LIMIT = 120.0  # seconds to import and build an agent; torch takes its time
LEAST_MEMORY = 4 * GB  # an agent's, where it is not told; torch takes most of it
BUDGET = 0.1  # seconds that a search may use on a task
DECISIVE = ("agents", "agent", "seeds", "simulator", "budget", "time_limit", "split", "tasks", "retrain")
NO_ROW = {"reshard"}  # where nobody names it: these tasks have no plan in use, and without one it is auto
ABSENT = {"missing", "unknown"}  # what a worker says of an agent that needs more than is installed, or training
TRAIN = "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())"


def main(arguments: Sequence[str], name: str = "shard-gym leaderboard", published: Path = ELSEWHERE) -> int:
    """Run, rank, print and write; a run with the published settings writes to the folder of published results."""
    parser = _parser(name, published / "best_known")

    def command(options: argparse.Namespace) -> int:
        as_published = all(getattr(options, key) == parser.get_default(key) for key in DECISIVE)
        options.out = options.out or (published if as_published else ELSEWHERE)
        options.command = " ".join((name, shlex.join(arguments))).strip()
        with held(options.out):
            return _run(options)

    return commands.run(parser, command, arguments)


def _run(options: argparse.Namespace) -> int:
    _import(options.imports)
    jobs = _jobs(options)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # workers inherit it
    missing: Missing = {}
    if options.retrain:
        jobs, missing = retrain(jobs, options.fresh)
    partial = options.out / "partial"
    partial.mkdir(parents=True, exist_ok=True)  # before anybody could see it come
    nursery = Nursery(_rules(options), (job.agent for job in jobs), jobs)
    arena = Arena(nursery, partial, options.tasks, options.fresh, tuple(options.agent))
    try:
        print(f"isolation: {nursery.isolation}" + (f" ({nursery.why})" if nursery.why else ""), file=sys.stderr)
        return _ranked(jobs, missing, arena, options)
    finally:
        arena.stop()
        nursery.close()


def _ranked(jobs: list[Job], missing: Missing, arena: Arena, options: argparse.Namespace) -> int:
    """Describe, run and report; the exit code."""
    asked = [job for job in jobs if (job.suite, job.agent) not in missing]
    about = _describe(asked, arena, options.workers)
    missing |= {(j.suite, j.agent): t.get("missing") or t["unknown"] for j, t in about.items() if t.keys() & ABSENT}
    able = {j: told for j, told in about.items() if not told.keys() & ABSENT and not (j.seed and _once(told))}
    done, complete = run_jobs(able, arena, options.workers)
    for key in options.suite:
        unable = {agent: why for (suite, agent), why in missing.items() if suite == key}
        _report(key, options, {j: runs for j, runs in done.items() if j.suite == key}, unable, arena)
    if complete:
        for job in able:
            partial_path(job, about[job], arena.partial).unlink(missing_ok=True)
    return 0 if complete else commands.INTERRUPTED


def _rules(options: argparse.Namespace) -> Rules:
    """Limits of agents, and the files that they may and may not see."""
    results = [options.out / "partial", *options.out.glob("*.jsonl"), ELSEWHERE, options.best_known]
    share = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / options.workers
    return Rules(
        isolation=options.isolation,
        build_seconds=options.build_limit,
        memory=max(share, LEAST_MEMORY) if options.memory_gb is None else options.memory_gb * GB,
        environment=tuple(options.env),
        readable=tuple(options.read),
        secret=tuple(map(str, results)),
        verbose=options.verbose,
        modules=tuple(options.imports),
    )


def _import(modules: Iterable[str]) -> None:
    """Import modules that register suites and simulators."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise ShardGymError(f"--import {module}: {error}") from error


def _describe(jobs: list[Job], arena: Arena, workers: int) -> dict[Job, dict[str, Any]]:
    """The description that each job's agent gives of itself on its suite, asked with the first seed."""
    first = {(job.suite, job.agent): job for job in reversed(jobs)}
    told = describe_agents(first.values(), arena, workers)
    return {job: told[first[job.suite, job.agent]] for job in jobs}


def _once(told: dict[str, Any]) -> bool:
    """True if more seeds would change nothing."""
    return bool(told.get("deterministic")) or "error" in told


def _report(
    key: str, options: argparse.Namespace, done: dict[Job, list[Judged]], missing: dict[str, str], arena: Arena
) -> None:
    """Print a suite's table, and write it when every run of it is there."""
    suite = suites.get(key)
    tasks = len(suite.tasks(options.split)[: options.tasks])
    planner, judge = options.simulator or suite.planner, options.simulator or suite.judge
    runs: dict[str, list[list[Judged]]] = {}
    for job in done:
        if all(len(done[j]) == tasks for j in done if j.agent == job.agent):
            runs.setdefault(job.agent, []).append(done[job])
    unfinished = sorted({job.agent for job in done} - runs.keys())
    if unfinished:
        print(f"{key}: not finished, kept for the next time: {', '.join(unfinished)}", file=sys.stderr)
    unable = [report.unable_row(suite, agent, planner, judge, why) for agent, why in missing.items()]
    if not runs and not unable:
        return
    every = [pair for by_seed in runs.values() for one in by_seed for pair in one]
    if options.update_best:
        improved = update_best(options.best_known / f"{key}.json", judge, every)
        print(f"{key}: better plans for {improved} tasks are now the best known", file=sys.stderr)
    refs = references(suite, options.split, tasks, judge, options.best_known)
    found = report.ranking(suite, options.split, runs, refs, unable, arena.watched_of(done))
    if options.json:
        print("\n".join(json.dumps(report.json_row(row)) for row in found.rows), flush=True)
    else:
        print(report.text(found) + "\n", flush=True)
    if not unfinished:
        write_results(options.out / f"{key}.jsonl", [result for result, _ in every])
        page = report.markdown(found, options.command, options.workers, options.build_limit)
        write_whole(options.out / f"{key}.md", page)


def _jobs(options: argparse.Namespace) -> list[Job]:
    """Every agent and seed on every suite; names are checked before anything runs."""
    options.suite = list(dict.fromkeys(suites.get(key).key for key in options.suite))
    known = shard_gym_agents.names()
    chosen = known if options.agents is None else options.agents
    if unknown := [name for name in chosen if name not in known]:
        raise UnknownName("agent", unknown[0], known)
    if absent := [agent for agent in options.agent if not findable(agent)]:
        module = absent[0].partition(":")[0].partition(".")[0]
        raise UnknownName(f"agent (No module named {module!r})", absent[0], known)
    if options.simulator:
        simulators.make(options.simulator)
        if options.retrain:
            raise ShardGymError("--retrain trains with each suite's own planner: leave out --simulator")
    limit = options.time_limit or max(TIME_LIMIT, 2 * (options.budget or 0))
    agents = dict.fromkeys((*chosen, *options.agent))
    jobs = [
        Job(
            suite=key,
            agent=agent,
            seed=seed,
            planner=options.simulator or suites.get(key).planner,
            judge=options.simulator or suites.get(key).judge,
            split=options.split,
            budget=options.budget,
            time_limit=limit,
        )
        for key in options.suite
        for agent in agents
        if options.agents or _able(agent, key, options.simulator)
        for seed in range(options.seeds)
    ]
    tasks_of(jobs[0], 1)  # an unknown split fails here
    return jobs


def _able(agent: str, key: str, simulator: str | None) -> bool:
    """True if an agent has a row where nobody names it: a learner needs weights that serve the suite."""
    if agent in NO_ROW:
        return False
    if agent not in LEARNERS:
        return True
    try:
        Trained(agent, suite=key).require_planner(simulator or suites.get(key).planner)
    except NotTrained:
        return False
    except MissingDependency:
        pass  # its row says so
    return True


def retrain(jobs: Iterable[Job], fresh: bool) -> tuple[list[Job], dict[tuple[str, str], str]]:
    """The jobs, those of learners with the folder of a new run; and by suite and agent why there is none."""
    ready, failed = [], {}
    ended: dict[str, str | None] = {}  # by command; one may serve several suites
    for job in jobs:
        if job.agent not in LEARNERS:
            ready.append(job)
            continue
        command = command_for(job)
        if command not in ended:
            ended[command] = _train(command, fresh)
        if why := ended[command]:
            failed[job.suite, job.agent] = f"training failed: {why}"
        ready.append(replace(job, checkpoint=str(folder_of(command))))
    return ready, failed


def command_for(job: Job) -> str:
    """The command that trains the weights of a job."""
    try:
        solver = trained.Trained(job.agent, job.suite)
        solver.require_planner(job.planner)
    except ShardGymError:  # none are shipped that could
        return trained.default_command(job.agent, job.suite)
    return str(solver.card["command"])


def folder_of(command: str) -> Path:
    """The folder that a command of `trained.default_command` or of a shipped card trains in."""
    words = shlex.split(command)
    return Path(words[words.index("--out") + 1])


def _train(command: str, fresh: bool) -> str | None:
    """Run it, or go on with it, its progress on stderr; why it failed."""
    if fresh:
        shutil.rmtree(folder_of(command), ignore_errors=True)
    print(command, file=sys.stderr)
    told = ""
    arguments = [sys.executable, "-c", TRAIN, *shlex.split(command)[1:]]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        for told in process.stderr or ():
            sys.stderr.write(told)
    if process.returncode == commands.INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return None
    return told.strip().removeprefix("shard-gym train: ") or f"exit code {process.returncode}"


def _parser(name: str, best_known: Path) -> argparse.ArgumentParser:
    parser = commands.parser(name, __doc__)
    add = parser.add_argument
    add("--suite", type=names, default=names(SUITES), help=f"comma-separated, default {SUITES}")
    add(
        "--agents",
        type=names,
        help="comma-separated names of registered agents; default all, learners where they have weights",
    )
    add("--agent", type=_custom, action="append", default=[], metavar="MODULE:CLASS", help="yours; repeatable")
    add("--seeds", type=count, default=3, help="of agents that are not deterministic")
    add("--simulator", metavar="ID", help="plans and judges instead of the suite's own two")
    add("--budget", type=seconds, default=BUDGET, help="time a search may use on a task, as 1s; default 100ms")
    limit = "an agent is killed when a task takes longer; default 60s, or twice the budget if that is more"
    add("--time-limit", type=seconds, help=limit)
    add("--build-limit", type=seconds, default=BUILD_LIMIT, help="time to import and build an agent; default 120s")
    add("--isolation", choices=("auto", FULL, LIMITS), default="auto", help="of agents; default the best there is")
    add("--memory-gb", type=float, metavar="GB", help="of an agent; default the machine's, shared by the workers")
    add("--read", action="append", default=[], metavar="PATH", help="what agents may read beside their own; repeatable")
    imported = "that registers suites or simulators, here and where agents run; repeatable"
    add("--import", action="append", default=[], dest="imports", metavar="MODULE", help=imported)
    add("--env", action="append", default=[], metavar="NAME", help="an environment variable to keep; repeatable")
    add("--split", default="test")
    add("--tasks", type=count, metavar="N", help="only the first N tasks of each suite")
    add("--workers", type=count, default=2, help="agents that run at a time")
    add("--json", action="store_true", help="one JSON object a row instead of tables")
    add("--out", type=Path, metavar="DIR")
    add("--best-known", type=Path, metavar="DIR", default=best_known)
    add("--update-best", action="store_true", help="keep plans that beat the best known ones")
    add("--retrain", action="store_true", help=f"train the learners first, in {RETRAINED}; a run there goes on")
    add("--fresh", action="store_true", help="forget the runs of a command that broke off, with --retrain training too")
    add("--verbose", action="store_true", help="show what agents print, and their tracebacks")
    return parser


def _custom(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise argparse.ArgumentTypeError(f"{text!r} names no class; write module:Class")
    return text
