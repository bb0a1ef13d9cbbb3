"""Sealed rounds, stage by stage: tasks that nobody has seen, of a suite's distribution."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
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
from shard_gym.work.parts import WHOLE, add_places
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

Stage = Callable[[argparse.Namespace], int | None]
TASKS, SEEDS, BUDGET, TIME_LIMIT, REFERENCE_BUDGET = 20, 3, 0.1, 60.0, 1.0


NEW = """Announce a sealed round: write its rules with a commitment, ROUND/round.json, to be published.

The secret is written apart, beside the folder: keep it until the round is closed."""
OPEN = """Let agents plan the tasks of a round. The same command goes on where it broke off.

With --part I/N a part of the work is run, and kept in ROUND/parts; without it, what all parts kept is taken over."""
CLOSE = "Reveal a round's seed, score every plan again, rank the agents, and write ROUND/closing.md."
CHECK = "Make a closed round's tasks again from its seed, and score all plans, from its files alone."


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
    announced_in = options.folder / stages.ANNOUNCED
    first = f"{announced_in}: publish it; commitment {rules.commitment}"
    commands.answer(
        options,
        "round-new/1",
        lambda: {"rules": announced_in, "secret": path, "commitment": rules.commitment},
        lambda: f"{first}\n{path}: keep it to yourself until the round is closed",
    )


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
        if cluster is not None and not options.json:
            commands.show(f"made on {nodes.words(cluster)}: what searches found in their seconds is of these machines")
    if not played.complete:
        sys.stderr.write("not finished: the same command goes on\n")
        return commands.INTERRUPTED
    if not options.part.whole:
        again = f"when all parts are done: shard-gym round open {options.folder}"
        told = f"part {options.part.number} of {options.part.of} is done, no outcome of its own; {again}"
        commands.answer(
            options, "round-open/1", lambda: {"round": options.folder, "part": str(options.part)}, lambda: told
        )
        return 0
    _refuse_odd_host(played, options.folder)
    _write_opened(options.folder, rules, tasks, jobs, played)
    for left in (options.folder / stages.PARTIAL, options.folder / PARTS):
        shutil.rmtree(left, ignore_errors=True)
    commands.answer(
        options,
        "round-open/1",
        lambda: {"round": options.folder, "agents": agents, "unable": dict(played.unable)},
        lambda: f"{options.folder}: {len(agents)} agents are done; next: shard-gym round close {options.folder}",
    )
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
    with commands.waiting(options, "round close: scoring every plan again"):
        rows = replayed(options.folder, rules, secret).standings
    closed = Closed(rules.commitment, today(), secret.seed, secret.salt, rows)
    text = report(rules, stages.read(options.folder, Opened), closed)
    write_whole(options.folder / stages.REPORT, text)
    stages.write(options.folder, closed)
    commands.answer(
        options,
        "round-closed/1",
        lambda: {"round": options.folder, "report": options.folder / stages.REPORT, "standings": rows},
        lambda: text,
    )


def check(options: argparse.Namespace) -> None:
    """Replay a closed round from its files alone."""
    rules = stages.expect_closed(options.folder)
    closed = stages.read(options.folder, Closed)
    where = options.folder / stages.CLOSED
    secret = checked(rules, Secret(closed.seed, closed.salt), str(where))
    with commands.waiting(options, "round check: scoring every plan again"):
        found = replayed(options.folder, rules, secret).standings
    if found != closed.standings:
        raise CorruptFile(f"{where}: the plans give other standings")
    commands.answer(
        options,
        "round-checked/1",
        lambda: {"round": options.folder, "tasks": rules.tasks, "standings": found},
        lambda: f"{options.folder}: {rules.tasks} tasks made again from the seed, plans scored again: all as stored",
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
    return home_of(options.folder, getattr(options, "part", WHOLE))


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


def _stage(name: str, about: str, run: Stage, examples: Sequence[str], **told: str) -> commands.Parser:
    """The parser of a stage, which has the folder to itself while it runs."""

    def alone(options: argparse.Namespace) -> int | None:
        with held(_home(options)):
            return run(options)

    made = commands.parser(f"shard-gym round {name}", about, examples=examples, answer="what came of it", **told)
    made.add_argument("folder", type=Path, metavar="ROUND", help="the folder of the round")
    if run is not check:
        secret = "the file of the secret; default ROUND.secret.json, beside the folder"
        made.add_argument("--secret", type=Path, metavar="FILE", help=secret)
    made.set_defaults(run=alone)
    return made


def new_parser() -> commands.Parser:
    """Options of `round new`."""
    examples = ("shard-gym round new november --suite core-80x8", "shard-gym round new r --suite core-60x4 --tasks 5")
    made = _stage("new", NEW, new, examples)
    add = made.add_argument
    add("--suite", required=True, help="whose distribution tasks are drawn from")
    add("--tasks", type=count, default=TASKS, metavar="N", help=f"to draw; default {TASKS}")
    add("--seeds", type=count, default=SEEDS, metavar="N", help=f"of agents that draw; default {SEEDS}")
    add("--budget", type=seconds, default=BUDGET, metavar="TIME", help="a search may use on a task; default 100ms")
    limit = "an agent is ended when a task takes longer; default 60s"
    add("--time-limit", type=seconds, default=TIME_LIMIT, metavar="TIME", help=limit)
    host = "of the host's own search on a task; default 1s"
    add("--reference-budget", type=seconds, default=REFERENCE_BUDGET, metavar="TIME", help=host)
    return made


def open_parser() -> commands.Parser:
    """Options of `round open`."""
    examples = (
        "shard-gym round open november --agents auto,beam",
        "shard-gym round open november --agent my_agent:Policy --workers 2",
    )
    made = _stage("open", OPEN, open_round, examples, kept="finished runs are kept, the same command goes on")
    agents = "registered agents, from `shard-gym agents`; default none"
    made.add_argument("--agents", type=names, metavar="NAME,...", help=agents)
    told = "of a user; repeatable"
    made.add_argument("--agent", action="append", default=[], metavar="MODULE:CLASS", help=told)
    add_arena(made, isolation=FULL, workers=1)
    add_places(made)
    return made


def close_parser() -> commands.Parser:
    """Options of `round close`."""
    return _stage("close", CLOSE, close, ("shard-gym round close november",))


def check_parser() -> commands.Parser:
    """Options of `round check`."""
    return _stage("check", CHECK, check, ("shard-gym round check november", "shard-gym round check november --json"))
