"""Hold a sealed round: tasks that nobody has seen, of a suite's distribution.

shard-gym round new ROUND --suite core-80x8       # writes ROUND/round.json, to be published, and a secret
shard-gym round open ROUND --agents auto,beam     # runs agents on the tasks; goes on where it broke off
shard-gym round close ROUND                       # reveals the seed, replays all, writes ROUND/closing.md
shard-gym round check ROUND                       # anybody: replays a closed round from its files alone

With --part I/N, open runs a part of its work, and keeps it in ROUND/parts; without it, it takes over what all parts
kept, and goes on.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import shard_gym_agents
from shard_gym.errors import CorruptFile, OutOfTurn, UnknownName
from shard_gym.records import commands
from shard_gym.records.commands import count, names, seconds
from shard_gym.records.files import write_whole
from shard_gym.records.locks import held
from shard_gym.results import write_results
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym.work.parts import add_places
from shard_gym_agents.leaderboard import nodes
from shard_gym_agents.leaderboard.arena.flags import add_arena, import_modules, rules_of
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import FULL, findable
from shard_gym_agents.leaderboard.merging import PARTS, home_of
from shard_gym_agents.leaderboard.references import today
from shard_gym_agents.leaderboard.rounds import folder as stages
from shard_gym_agents.leaderboard.rounds.closing import random_makespans, replayed, report
from shard_gym_agents.leaderboard.rounds.contest import HOST, Played, handed_out, jobs_of, play
from shard_gym_agents.leaderboard.rounds.folder import Begun, Closed, Opened, Round, sha256_of
from shard_gym_agents.leaderboard.rounds.sealed import Secret, announced, checked, tasks_of
from shard_gym_agents.leaderboard.runs import Scope

TASKS, SEEDS, BUDGET, TIME_LIMIT, REFERENCE_BUDGET = 20, 3, 0.1, 60.0, 1.0


def main(arguments: Sequence[str]) -> int:
    """Take one stage of a round."""

    def command(options: argparse.Namespace) -> int | None:
        with held(_home(options)):
            code: int | None = options.run(options)
        return code

    return commands.run(_parser(), command, arguments)


def new(options: argparse.Namespace) -> None:
    """Announce a round: write its rules with a commitment, and its secret apart."""
    stages.expect_new(options.folder)
    suite, secret = suites.get(options.suite), Secret.fresh()
    rules = announced(suite, options.tasks, options.seeds, options.budget, options.time_limit, options.reference_budget)
    rules = replace(rules, commitment=secret.commitment(rules))
    tasks_of(rules, secret)  # a suite without tasks of that kind fails here
    path = _secret_path(options)
    if path.exists():
        raise OutOfTurn(f"{path} is the secret of a round: name another file by --secret")
    secret.save(path)
    stages.write(options.folder, rules)
    commands.show(f"{options.folder / stages.ANNOUNCED}: publish it; commitment {rules.commitment}")
    commands.show(f"{path}: keep it to yourself until the round is closed")


def open_round(options: argparse.Namespace) -> int:
    """Let the agents plan the tasks."""
    import_modules(options.imports)
    rules = stages.expect_sealed(options.folder)
    tasks = tasks_of(rules, checked(rules, Secret.load(_secret_path(options)), str(_secret_path(options))))
    agents = _agents(options, rules)
    stages.write(options.folder, Begun(rules.commitment, agents))
    arena = rules_of(options, [options.folder, _secret_path(options)])
    with nodes.joined(options.ray) as cluster, _scope(options) as scope, handed_out(tasks, scope.partial) as path:
        jobs = jobs_of(rules, agents, path)
        played = play(jobs, arena, scope, options.workers, options.agent, cluster)
        if cluster is not None:
            commands.show(f"made on {nodes.words(cluster)}: what searches found in their seconds is of these machines")
    if not played.complete:
        sys.stderr.write("not finished: the same command goes on\n")
        return commands.INTERRUPTED
    if not options.part.whole:
        again = f"when all parts are done: shard-gym round open {options.folder}"
        commands.show(f"part {options.part.number} of {options.part.of} is done, no outcome of its own; {again}")
        return 0
    _refuse_odd_host(played, options.folder)
    _write_opened(options.folder, rules, tasks, jobs, played)
    for left in (options.folder / stages.PARTIAL, options.folder / PARTS):
        shutil.rmtree(left, ignore_errors=True)
    commands.show(f"{options.folder}: {len(agents)} agents are done; next: shard-gym round close {options.folder}")
    return 0


def _write_opened(folder: Path, rules: Round, tasks: Sequence[Task], jobs: Sequence[Job], played: Played) -> None:
    """Write the runs and what they are of, and last that the round is open."""
    of_host = jobs[: len(HOST)]
    for name, part in ((stages.REFERENCES, of_host), (stages.RESULTS, jobs[len(HOST) :])):
        runs = (result for job in part for result, _ in played.runs.get(job, ()))
        write_results(folder / name, runs)
    stages.write(
        folder,
        Opened(
            commitment=rules.commitment,
            opened=today(),
            isolation=played.isolation,
            tasks=[task.hash for task in tasks],
            random=random_makespans(tasks, rules.judge),
            unable=dict(played.unable),
            results_sha256=sha256_of(folder / stages.RESULTS),
            references_sha256=sha256_of(folder / stages.REFERENCES),
        ),
    )


def close(options: argparse.Namespace) -> None:
    """Reveal the seed, replay everything, and rank."""
    rules = stages.expect_opened(options.folder)
    secret = checked(rules, Secret.load(_secret_path(options)), str(_secret_path(options)))
    rows = replayed(options.folder, rules, secret).standings
    closed = Closed(rules.commitment, today(), secret.seed, secret.salt, rows)
    text = report(rules, stages.read(options.folder, Opened), closed)
    write_whole(options.folder / stages.REPORT, text)
    stages.write(options.folder, closed)
    commands.show(text)


def check(options: argparse.Namespace) -> None:
    """Replay a closed round from its files alone."""
    rules = stages.expect_closed(options.folder)
    closed = stages.read(options.folder, Closed)
    where = options.folder / stages.CLOSED
    secret = checked(rules, Secret(closed.seed, closed.salt), str(where))
    if replayed(options.folder, rules, secret).standings != closed.standings:
        raise CorruptFile(f"{where}: the plans give other standings")
    commands.show(
        f"{options.folder}: {rules.tasks} tasks made again from the seed, all plans scored again: all as stored"
    )


def _agents(options: argparse.Namespace, rules: Round) -> list[str]:
    """The agents of a round, checked; those that it was begun with where none are named."""
    named = list(dict.fromkeys([*(options.agents or []), *options.agent]))
    known = shard_gym_agents.names()
    for agent in options.agents or []:
        if agent not in known:
            raise UnknownName("agent", agent, known)
    for agent in options.agent:
        if not findable(agent):
            raise UnknownName("agent", agent, known)
    if not stages.has(options.folder, Begun):
        if not named:
            raise OutOfTurn("a round is opened with its agents: --agents NAME,... or --agent MODULE:CLASS")
        return named
    begun = stages.read(options.folder, Begun).agents
    if named and sorted(named) != sorted(begun):
        raise OutOfTurn(f"the round was begun with {', '.join(begun)}: go on with these")
    return begun


def _refuse_odd_host(played: Played, where: Path) -> None:
    if lost := [agent for agent in HOST if agent in played.unable]:
        raise CorruptFile(f"{where}: the host's own {lost[0]} did not run: {played.unable[lost[0]]}")


def _home(options: argparse.Namespace) -> Path:
    """The folder that this command alone may write to."""
    return home_of(options.folder, options.part) if options.run is open_round else options.folder


@contextmanager
def _scope(options: argparse.Namespace) -> Iterator[Scope]:
    """The runs that are wanted; those of parts are taken over, and nobody may be at work on them."""
    parts = sorted((options.folder / PARTS).glob("*-of-*")) if options.part.whole else []
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(held(part))
        others = tuple(part / stages.PARTIAL for part in parts)
        yield Scope(_home(options) / stages.PARTIAL, part=options.part, others=others)


def _secret_path(options: argparse.Namespace) -> Path:
    """The file of the secret: beside the folder, so that the folder can be published as it is."""
    folder = options.folder.resolve()
    return options.secret or folder.with_name(f"{folder.name}.secret.json")


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("shard-gym round", __doc__)
    made = parser.add_subparsers(required=True, metavar="STAGE")
    for run, name, what in (
        (new, "new", "announce a round"),
        (open_round, "open", "let agents plan its tasks"),
        (close, "close", "reveal its seed, replay and rank"),
        (check, "check", "replay a closed round"),
    ):
        command = made.add_parser(name, help=what)
        command.add_argument("folder", type=Path, metavar="ROUND")
        command.set_defaults(run=run)
        if run is not check:
            told = "the file of the secret; default ROUND.secret.json, beside the folder"
            command.add_argument("--secret", type=Path, metavar="FILE", help=told)
        if run is new:
            _add_rules(command)
        if run is open_round:
            command.add_argument("--agents", type=names, metavar="NAME,...", help="registered agents")
            told = "of a user; repeatable"
            command.add_argument("--agent", action="append", default=[], metavar="MODULE:CLASS", help=told)
            add_arena(command, isolation=FULL, workers=1)
            add_places(command)
    return parser


def _add_rules(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--suite", required=True, help="whose distribution tasks are drawn from")
    add("--tasks", type=count, default=TASKS, help=f"default {TASKS}")
    add("--seeds", type=count, default=SEEDS, help=f"of agents that are not deterministic; default {SEEDS}")
    add("--budget", type=seconds, default=BUDGET, help="time a search may use on a task; default 100ms")
    add("--time-limit", type=seconds, default=TIME_LIMIT, help="an agent is ended when a task takes longer; 60s")
    add("--reference-budget", type=seconds, default=REFERENCE_BUDGET, help="of the host's auto, a task; default 1s")
