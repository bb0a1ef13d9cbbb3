"""Agents on the nodes of a Ray cluster, each in the arena of its node; this machine judges and keeps what they answer.

Tasks that are in nobody's suite travel with the work. Files that a job names otherwise, weights and checkpoints, must
lie under the same path on every node.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shard_gym.errors import ClusterError
from shard_gym.records.guard import text_of
from shard_gym.work.cluster import Cluster, Slot, Terms
from shard_gym.work.pieces import Piece
from shard_gym_agents.leaderboard.arena.flags import import_modules, share_of_memory
from shard_gym_agents.leaderboard.arena.host import Nursery, anywhere
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import Rules, findable
from shard_gym_agents.leaderboard.kept import job_key, piece_key
from shard_gym_agents.leaderboard.runs import Here, JobRuns, Place
from shard_gym_agents.leaderboard.seats import Answer, Arena, Seat, no_plan

SAME = ("source", "track")  # what an agent says of itself alike on every node


@dataclass(frozen=True)
class Question:
    """One task of a job, for an agent of which this was told where the work is given out."""

    job: Job
    told: Mapping[str, Any]
    index: int


@dataclass(frozen=True)
class Setting:
    """All that a node has to know before it can ask agents."""

    rules: Rules
    jobs: tuple[Job, ...]
    users: tuple[str, ...]  # agents of users, who must not read each other
    tasks: Mapping[str, str]  # the text of files of tasks, by the name that jobs give them
    workers: int = 0  # that share a node's memory; 0: the rules say how much there is

    def __call__(self, slot: Slot) -> Table:
        """A node's worker."""
        return Table(self)


class Table:
    """A node's worker: it asks one agent at a time, and seats another when a question is of another job."""

    def __init__(self, setting: Setting) -> None:
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # agents inherit it
        rules = setting.rules
        if setting.workers:
            rules = replace(rules, memory=share_of_memory(setting.workers))
        import_modules(rules.modules)
        self.files = {name: _held(text) for name, text in setting.tasks.items()}
        jobs = [self._here(job) for job in setting.jobs]
        self._refuse_absent(jobs, setting.users)
        self.arena = Arena(Nursery(rules, dict.fromkeys(job.agent for job in jobs), jobs), setting.users)
        self.seat: Seat | None = None

    def do(self, question: Question) -> Answer:
        """The answer of the agent that a question is for."""
        job = self._here(question.job)
        if self.seat is None or self.seat.job != job:
            if self.seat is not None:
                self.seat.close()
            told = question.told
            self.seat = Seat(job, told.get("track", ""), self.arena, lambda here: _refuse_other(job.agent, told, here))
        return self.seat.ask(question.index)

    def _here(self, job: Job) -> Job:
        return replace(job, tasks=self.files[job.tasks]) if job.tasks else job

    def _refuse_absent(self, jobs: Sequence[Job], users: Sequence[str]) -> None:
        if absent := [user for user in users if not findable(user)]:
            raise ClusterError(f"cannot import agent {absent[0]}: its module must be on the node's Python path")
        files = dict.fromkeys(path for job in jobs for path in (job.checkpoint, job.planner, job.judge))
        if absent := [path for path in files if os.path.isabs(path) and not os.path.exists(path)]:
            raise ClusterError(f"has no {absent[0]}: give a path that all nodes share")


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster, with at most so many workers on each."""

    cluster: Cluster
    setting: Setting
    workers: int

    def work_off(self, runs: Sequence[JobRuns]) -> None:
        """Ask the agents, task after task, on whatever node is free."""
        asked: dict[str, tuple[JobRuns, int]] = {}

        def keep(key: str, answer: Answer) -> None:
            one, index = asked.pop(key)
            one.add(index, answer)

        terms = Terms(workers=self.workers, lost=_lost)
        self.cluster.work_off(_pieces(runs, asked), self.setting, keep, terms)


@contextmanager
def joined(address: str | None, modules: Sequence[str] = ()) -> Iterator[Cluster | None]:
    """The cluster at an address, whose nodes have these modules; none where none is asked for."""
    if address is None:
        yield None
    else:
        with Cluster.joined(address, modules=modules) as cluster:
            yield cluster


def place_of(cluster: Cluster | None, arena: Arena, jobs: Sequence[Job], workers: int) -> Place:
    """The nodes of a cluster, or this machine."""
    if cluster is None:
        return Here(arena, workers)
    rules = arena.nursery.rules
    readable, secret = (tuple(map(os.path.abspath, paths)) for paths in (rules.readable, rules.secret))
    rules = replace(rules, readable=readable, secret=secret)
    jobs = tuple(map(anywhere, jobs))
    tasks = {path: text_of(path) for path in dict.fromkeys(job.tasks for job in jobs) if path}
    shared = rules.memory == share_of_memory(workers)  # then that of each node is
    setting = Setting(rules, jobs, arena.agents, tasks, workers if shared else 0)
    return Nodes(cluster, setting, workers)


def words(cluster: Cluster) -> str:
    """The machines of a cluster: how many there are, and of how many cores."""
    cores = Counter(int(node.resources["CPU"]) for node in cluster.nodes() if node.resources.get("CPU"))
    told = " and ".join(f"{count} of {of} cores" for of, count in sorted(cores.items()))
    return f"{cores.total()} nodes by Ray ({told})"


def _pieces(runs: Sequence[JobRuns], asked: dict[str, tuple[JobRuns, int]]) -> Iterator[Piece]:
    """Questions that are left of all runs, as long as their agents are not given up."""
    for one in runs:
        key, job = job_key(one.job, one.told), anywhere(one.job)
        for index in one.left():
            piece = Piece(piece_key(key, one.tasks[index]), Question(job, one.told, index))
            asked[piece.key] = one, index
            yield piece


def _refuse_other(agent: str, told: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a node on which an agent lacks something, or is another one than where the work is given out."""
    if why := here.get("missing") or here.get("unknown"):
        raise ClusterError(f"cannot run agent {agent}: {why}")
    if odd := [name for name in SAME if told.get(name) != here.get(name)]:
        raise ClusterError(f"has another agent {agent}, by its {odd[0]}: give all nodes the same files")


def _lost(question: Question) -> Answer:
    return Answer(no_plan("died: and with it the process that asked it, twice"), lost=True)


def _held(text: str) -> str:
    """The name of a file in memory, for this process and those that it starts; gone when they are."""
    file = os.memfd_create("tasks")
    with os.fdopen(os.dup(file), "w") as written:
        written.write(text)
    return f"/proc/{os.getpid()}/fd/{file}"
