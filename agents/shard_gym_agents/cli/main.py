"""The `shard-gym` command: list suites and agents, solve a task, score and compare plans, replay results, and more."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import shard_gym_agents
from shard_gym import __version__, core
from shard_gym.errors import InvalidTask, SettingsIgnored, ShardGymError
from shard_gym.plan.moves import delta
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.results.evaluate import score
from shard_gym.results.replay import Replay
from shard_gym.simulators import Simulator
from shard_gym.task import suites
from shard_gym.task.suite import GROUPS
from shard_gym.task.task import Task
from shard_gym_agents.cli.plans import assumed, delta_json, delta_report, repaid, report
from shard_gym_agents.cli.show import add_picture, add_show, draw
from shard_gym_agents.cli.solving import add_out, add_solver, solved
from shard_gym_agents.cli.tasks import add_constraints, add_task, constrained, task_of
from shard_gym_agents.leaderboard.entries.validate import own_track
from shard_gym_agents.learners.trained import shipped
from shard_gym_agents.search.reshard import Reshard

# Subcommands with command lines of their own: function of (arguments) -> exit code, and what for.
OTHERS = {
    "measure": ("shard_gym.measuring.measure:main", "measure shards on this machine (needs torch and FBGEMM)"),
    "fit": ("shard_gym.measuring.fit:main", "fit a cost network to measurements (needs torch)"),
    "train": ("shard_gym_agents.cli.train:main", "train a learner on a suite (needs torch)"),
    "leaderboard": ("shard_gym_agents.leaderboard.command:main", "rank agents on suites"),
    "page": ("shard_gym_agents.leaderboard.page.command:main", "show stored results as an HTML page"),
    "bound": ("shard_gym_agents.cli.bounds:bound", "what no plan of a task beats, with a certificate"),
    "verify": ("shard_gym_agents.cli.bounds:verify_files", "accept or refuse certificates of bounds"),
    "submit": ("shard_gym_agents.leaderboard.entries.command:submit", "pack an agent's runs and its card"),
    "validate": (
        "shard_gym_agents.leaderboard.entries.command:check",
        "check entries: score every plan again",
    ),
    "new-agent": (
        "shard_gym_agents.cli.new_agent:main",
        "write a package with agents of yours, a test and a card",
    ),
    "round": ("shard_gym_agents.leaderboard.rounds.command:main", "hold a sealed round on tasks nobody has seen"),
    "profile": ("shard_gym_agents.cli.logs:profile", "tables from a log: CSV or Parquet (needs pyarrow)"),
    "flex": ("shard_gym_agents.cli.flex:main", "rows of sequence tables in tiers, by FlexShard"),
    "sweep": ("shard_gym_agents.cli.sweep:main", "plan the same tables on several machines, and compare"),
    "export": ("shard_gym_agents.cli.export:main", "write a plan as TorchRec's sharding plan, a JSON file"),
    "stats": ("shard_gym_agents.cli.stats:main", "what a plan does on each rank and why, as TorchRec reports it"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an agent may be a module of the current folder; a torch.py there is not torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsIgnored)  # the line of what is assumed tells
        return _other(given[0], given[1:]) if given and given[0] in OTHERS else commands.run(_parser(), _run, given)


def _run(options: argparse.Namespace) -> None:
    options.run(options)


def _other(command: str, arguments: list[str]) -> int:
    module, _, function = OTHERS[command][0].partition(":")
    try:
        return int(getattr(import_module(module), function)(arguments))
    except ModuleNotFoundError as error:
        print(f"shard-gym: {command} needs {error.name}: pip install torch, then shard-gym[cpu]", file=sys.stderr)
        return commands.FAILED


def list_suites(options: argparse.Namespace) -> None:
    """One line a suite, group by group; "one binds" is the share of test tasks whose makespan one table sets."""
    splits = "/".join(suites.SPLITS)
    print(f"{'suite':24} {'tables':>6} {'devices':>7} {splits:>14} {'one binds':>9} {'objective':10} planner, judge")
    for group, purpose in GROUPS.items():
        print(f"\n{group}: {purpose}")
        for suite in suites.SUITES.values():
            if suite.group == group:
                print(_suite_line(suite))


def _suite_line(suite: suites.Suite) -> str:
    counts = "/".join(str(suite.num_tasks(split)) for split in suites.SPLITS)
    simulated = suite.planner if suite.planner == suite.judge else f"{suite.planner}, {suite.judge}"
    size = f"{suite.num_tables:6} {suite.num_devices:7} {counts:>14} {suite.bound_share():9.0%}"
    remark = f"; {suite.remark}" if suite.remark else ""
    return f"{suite.key:24} {size} {suite.objective:10} {simulated}{remark}"


def list_agents(options: argparse.Namespace) -> None:
    """One line an agent: its track, or what has to be installed or trained first."""
    for name in shard_gym_agents.names():
        try:
            told = getattr(shard_gym_agents.make(name), "track", "search")
            if suites_of := shipped(name):
                told += f", trained on {', '.join(suites_of)}"
        except ShardGymError as error:
            told = f"not available: {error}"
        commands.show(f"{name:24} {told}")


def solve(options: argparse.Namespace) -> None:
    """Let an agent plan a task, and tell what the plan is worth."""
    task, planner, judge = _told_task(options)
    plan = solved(options, task, planner)
    commands.show(report(task, plan, judge))


def reshard(options: argparse.Namespace) -> None:
    """Change the plan in use where that pays, and tell what has to move."""
    base = Plan.load(options.base) if options.base else None
    if base is not None and not base.whole_tables:  # constraints have one device a table
        options.in_use, options.base = base, None
    task, planner, judge = _told_task(options)
    if base is None:
        base = Plan(task.constraints.base)
    if not base.device:
        raise InvalidTask("reshard starts from the plan in use: give --base PLAN.json, or base in --constraints")
    plan = solved(options, task, planner)
    moves, scores = delta(task, base, plan), [score(task, p, judge) for p in (base, plan)]
    commands.show(f"{report(task, plan, judge)}\n\n{delta_report(task, moves, scores)}")
    commands.show(repaid(moves, scores, options.bandwidth_gb_s))


def score_plan(options: argparse.Namespace) -> None:
    """Tell what a stored plan is worth."""
    task, _, judge = _told_task(options)
    commands.show(report(task, Plan.load(options.plan), judge))


def diff(options: argparse.Namespace) -> None:
    """Tell what moves from one stored plan to another, and what both are worth; or draw both."""
    task, planner, judge = task_of(options)
    if options.picture or options.out:
        return draw(task, judge, [options.old, options.new], options.out)
    old, new = Plan.load(options.old), Plan.load(options.new)
    scores = [score(task, plan, judge) for plan in (old, new)]
    moves = delta(task, old, new)
    told = delta_json(moves, scores) if options.json else delta_report(task, moves, scores)
    commands.show(told if options.json else f"{assumed(task, planner, judge)}\n{told}")


def replay_results(options: argparse.Namespace) -> None:
    """Check every stored result again."""
    replayed = Replay(options.results, track_of=own_track)
    for _ in replayed:
        pass
    lines, plans, feasible = replayed.lines, replayed.plans, replayed.feasible
    print(f"{lines} results, {plans} plans scored again, all as stored, {feasible} of them feasible")
    commands.show("\n".join(replayed.notes()))


def _told_task(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    """The task with its constraints, planner and judge; what they assume is printed."""
    task, planner, judge = task_of(options)
    task = constrained(task, options)
    commands.show(assumed(task, planner, judge))
    return task, planner, judge


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        print(f"shard-gym {__version__}, core {core.name()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("shard-gym", __doc__)
    parser.add_argument("--version", action=_Version, nargs=0, help="tell the version, and the core in use")
    made = parser.add_subparsers(required=True, metavar="COMMAND")
    made.add_parser("suites", help="list the suites").set_defaults(run=list_suites)
    made.add_parser("agents", help="list the agents").set_defaults(run=list_agents)
    _add_solvers(made)
    command = made.add_parser("score", help="tell what a plan is worth")
    add_task(command)
    add_constraints(command)
    command.add_argument("--plan", required=True, metavar="FILE")
    command.set_defaults(run=score_plan)
    command = made.add_parser("diff", help="tell what moves from one plan to another")
    command.add_argument("old", metavar="OLD")
    command.add_argument("new", metavar="NEW")
    add_task(command)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--picture", action="store_true", help="draw both plans on one scale instead")
    add_picture(command)
    command.set_defaults(run=diff)
    add_show(made.add_parser("show", help="draw a plan: what each device costs and holds"))
    command = made.add_parser("replay", help="score stored results again; refuses what comes out otherwise")
    command.add_argument("results", metavar="RESULTS.jsonl")
    command.set_defaults(run=replay_results)
    for name, (_, what) in OTHERS.items():
        made.add_parser(name, help=what, add_help=False)
    return parser


def _add_solvers(made: Any) -> None:
    command = made.add_parser("solve", help="plan a task")
    add_task(command)
    command.add_argument("--agent", required=True, help="a name from `shard-gym agents`, or module:Class")
    add_solver(command)
    add_out(command)
    command.add_argument("--headroom", type=float, metavar="SHARE", help="of each device's memory, to keep free")
    command.add_argument("--checkpoint", metavar="PATH", help="a trained policy of yours, or the folder of its run")
    command.set_defaults(run=solve)
    command = made.add_parser("reshard", help="change the plan in use (--base) where that pays")
    add_task(command)
    add_solver(command)
    add_out(command)
    command.add_argument(
        "--horizon", type=float, default=Reshard.horizon, metavar="STEPS", help="that the plan is used for"
    )
    command.add_argument(
        "--bandwidth-gb-s", type=float, default=Reshard.bandwidth_gb_s, metavar="GB/S", help="of a device, 1e9 bytes"
    )
    command.set_defaults(run=reshard, agent="reshard")
