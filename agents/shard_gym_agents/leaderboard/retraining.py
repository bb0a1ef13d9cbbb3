"""Trains the learners of a leaderboard afresh, by the commands on the cards of their weights."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from shard_gym.errors import ShardGymError
from shard_gym.records import commands
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.learners import LEARNERS, trained

TRAIN = "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())"


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
    with subprocess.Popen(arguments, stdout=2, stderr=subprocess.PIPE, text=True) as process:
        for told in process.stderr or ():
            sys.stderr.write(told)
    if process.returncode == commands.INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return None
    return told.strip().removeprefix("shard-gym train: ") or f"exit code {process.returncode}"
