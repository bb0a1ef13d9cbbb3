"""Run agents on suites and rank them: `python -m benchmarks.leaderboard --agent my_module:MyAgent`.

A run with the published settings writes to benchmarks/results, any other one to runs/leaderboard or `--out`.
A run that broke off goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import shard_gym_agents
from benchmarks import report
from benchmarks.references import references, update_best
from benchmarks.retrain import retrain
from benchmarks.runs import Campaign, Judged, describe_agents, partial_path, run_jobs, tasks_of
from benchmarks.workers import Job, preload
from shard_gym import simulators, suites
from shard_gym.errors import MissingDependency, ShardGymError, UnknownName
from shard_gym.files import write_whole
from shard_gym.results import write_results
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.trained import RETRAINED, NotTrained, Trained

SUITES = "metasyn-80x8,dlrm-50x4,core-80x8"
Missing = dict[tuple[str, str], str]  # suite and agent -> what it needs
RESULTS = Path(__file__).parent / "results"
ELSEWHERE = Path("runs/leaderboard")
TIME_LIMIT = 60.0  # seconds a task
BUDGET = 0.1  # seconds that a search may use on a task
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
DECISIVE = ("agents", "agent", "seeds", "simulator", "budget", "time_limit", "split", "tasks", "retrain")
NO_ROW = {"reshard"}  # where nobody names it: these tasks have no plan in use, and without one it is auto
ABSENT = {"missing", "unknown"}  # what a worker says of an agent that needs more than is installed, or training
INTERRUPTED = 130  # exit code, as shells have it


def main(argv: list[str] | None = None) -> int:
    """Run, rank, print and write; 2 when the command makes no sense, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = _parser()
    options = parser.parse_args(arguments)
    published = all(getattr(options, name) == parser.get_default(name) for name in DECISIVE)
    options.out = options.out or (RESULTS if published else ELSEWHERE)
    options.command = shlex.join(("python", "-m", "benchmarks.leaderboard", *arguments))
    try:
        return _run(options)
    except ShardGymError as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def seconds(text: str) -> float:
    """A duration as "100ms", "1s" or "2m"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 100ms, 1s or 2m")
    return float(found[1]) * SECONDS[found[2]]


def _run(options: argparse.Namespace) -> int:
    jobs = _jobs(options)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # workers inherit it
    campaign = Campaign(options.out / "partial", options.tasks, options.fresh)
    missing: Missing = {}
    if options.retrain:
        jobs, missing = retrain(jobs, options.fresh)
    preload(job.agent for job in jobs)
    about = _describe([job for job in jobs if (job.suite, job.agent) not in missing], campaign)
    for job, told in about.items():
        if "unknown" in told and job.agent not in shard_gym_agents.names():
            raise ShardGymError(told["unknown"])
    missing |= {(j.suite, j.agent): t.get("missing") or t["unknown"] for j, t in about.items() if t.keys() & ABSENT}
    able = {j: told for j, told in about.items() if not told.keys() & ABSENT and not (j.seed and _once(told))}
    done, complete = run_jobs(able, campaign, options.workers)
    for key in options.suite:
        unable = {agent: why for (suite, agent), why in missing.items() if suite == key}
        _report(key, options, {j: runs for j, runs in done.items() if j.suite == key}, unable)
    if complete:
        for job in able:
            partial_path(job, about[job], campaign.partial).unlink(missing_ok=True)
    return 0 if complete else INTERRUPTED


def _describe(jobs: list[Job], campaign: Campaign) -> dict[Job, dict[str, Any]]:
    """What each job's agent says it is on that suite, asked with the first seed."""
    first = {(job.suite, job.agent): job for job in reversed(jobs)}
    told = describe_agents(first.values(), campaign)
    return {job: told[first[job.suite, job.agent]] for job in jobs}


def _once(told: dict[str, Any]) -> bool:
    """Whether more seeds would change nothing."""
    return bool(told.get("deterministic")) or "error" in told


def _report(key: str, options: argparse.Namespace, done: dict[Job, list[Judged]], missing: dict[str, str]) -> None:
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
    board = report.board(suite, options.split, runs, refs, unable)
    if options.json:
        print("\n".join(json.dumps(report.json_row(row)) for row in board.rows), flush=True)
    else:
        print(report.text(board) + "\n", flush=True)
    if not unfinished:
        write_results(options.out / f"{key}.jsonl", [result for result, _ in every])
        page = report.markdown(board, options.command, options.workers)
        write_whole(options.out / f"{key}.md", page)


def _jobs(options: argparse.Namespace) -> list[Job]:
    """Every agent and seed on every suite; names are checked before anything runs."""
    options.suite = list(dict.fromkeys(suites.get(key).key for key in options.suite))
    known = shard_gym_agents.names()
    chosen = known if options.agents is None else options.agents
    if unknown := [name for name in chosen if name not in known]:
        raise UnknownName("agent", unknown[0], known)
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
            verbose=options.verbose,
        )
        for key in options.suite
        for agent in agents
        if options.agents or _able(agent, key, options.simulator)
        for seed in range(options.seeds)
    ]
    tasks_of(jobs[0], 1)  # an unknown split fails here
    return jobs


def _able(agent: str, key: str, simulator: str | None) -> bool:
    """Whether an agent has a row where nobody names it: a learner needs weights that serve the suite."""
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.leaderboard", description=__doc__)
    add = parser.add_argument
    add("--suite", type=_names, default=_names(SUITES), help=f"comma-separated, default {SUITES}")
    add(
        "--agents",
        type=_names,
        help="comma-separated names of registered agents; default all, learners where they have weights",
    )
    add("--agent", type=_custom, action="append", default=[], metavar="MODULE:CLASS", help="yours; repeatable")
    add("--seeds", type=_count, default=3, help="of agents that are not deterministic")
    add("--simulator", metavar="ID", help="plans and judges instead of the suite's own two")
    add("--budget", type=seconds, default=BUDGET, help="time a search may use on a task, as 1s; default 100ms")
    limit = "an agent is killed when a task takes longer; default 60s, or twice the budget if that is more"
    add("--time-limit", type=seconds, help=limit)
    add("--split", default="test")
    add("--tasks", type=_count, metavar="N", help="only the first N tasks of each suite")
    add("--workers", type=_count, default=2, help="agents that run at a time")
    add("--json", action="store_true", help="one JSON object a row instead of tables")
    add("--out", type=Path, metavar="DIR")
    add("--best-known", type=Path, metavar="DIR", default=RESULTS / "best_known")
    add("--update-best", action="store_true", help="keep plans that beat the best known ones")
    add("--retrain", action="store_true", help=f"train the learners first, in {RETRAINED}; a run there goes on")
    add("--fresh", action="store_true", help="forget the runs of a command that broke off, with --retrain training too")
    add("--verbose", action="store_true", help="show what agents print, and their tracebacks")
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give at least one name")
    return names


def _custom(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise argparse.ArgumentTypeError(f"{text!r} names no class; write module:Class")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
