"""Commands on plans: make one (`solve`, `reshard`), and tell what it is worth (`score`, `diff`)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from shard_gym.errors import InvalidTask
from shard_gym.plan.moves import delta
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.results.evaluate import score
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.cli.constraints import add_constraints, constrained
from shard_gym_agents.cli.plans import assumed, delta_json, delta_report, plan_json, repaid, repaid_json, report
from shard_gym_agents.cli.show import add_picture, draw
from shard_gym_agents.cli.solving import add_out, add_solver, solved
from shard_gym_agents.cli.tasks import add_task, task_of
from shard_gym_agents.search.reshard import Reshard

SOLVE = """Plan a task, and tell what the plan is worth.

Ctrl-C ends a search with the best plan so far, which is told and kept as any other. Seconds of a search are of this
machine: give --calls for the same plan on any."""
SOLVE_EXAMPLES = (
    "shard-gym solve --suite core-80x8 --agent auto --budget 1s",
    "shard-gym solve --tables tables.csv --hardware dgx-h100 --agent auto --out plan.json",
    "shard-gym solve --tables tables.csv --devices 8 --memory-gb 40 --agent cost-greedy --pin user=0 --json",
)
RESHARD = """Change the plan in use where the time that is saved repays the time of moving tables."""
RESHARD_EXAMPLES = (
    "shard-gym reshard --tables tables.csv --hardware dgx-h100 --base plan.json --out new.json",
    "shard-gym reshard --suite core-80x8 --base plan.json --horizon 100000 --bandwidth-gb-s 10 --budget 5s",
)
SCORE_EXAMPLES = (
    "shard-gym score --suite core-80x8 --index 3 --plan plan.json",
    "shard-gym score --tables tables.csv --hardware dgx-h100 --plan plan.json --json",
)
DIFF_EXAMPLES = (
    "shard-gym diff old.json new.json --suite core-80x8",
    "shard-gym diff old.json new.json --tables tables.csv --hardware dgx-h100 --picture",
)
PLAN_FILE = "a file that --out of `shard-gym solve` wrote"


def solve(options: argparse.Namespace) -> int:
    """Let an agent plan a task, and tell what the plan is worth."""
    task, planner, judge = _told_task(options)
    plan, stopped = solved(options, task, planner)
    commands.answer(
        options,
        "solved/1",
        lambda: _told(task, planner, judge, plan) | {"interrupted": stopped},
        lambda: report(task, plan, judge),
    )
    return _stopped("shard-gym solve", options) if stopped else 0


def reshard(options: argparse.Namespace) -> int:
    """Change the plan in use where that pays, and tell what has to move."""
    base = Plan.load(options.base) if options.base else None
    if base is not None and not base.whole_tables:  # constraints have one device a table
        options.in_use, options.base = base, None
    task, planner, judge = _told_task(options)
    if base is None:
        base = Plan(task.constraints.base)
    if not base.device:
        raise InvalidTask("reshard starts from the plan in use: give --base PLAN.json, or base in --constraints")
    plan, stopped = solved(options, task, planner)
    moves, scores = delta(task, base, plan), [score(task, p, judge) for p in (base, plan)]
    rate = options.bandwidth_gb_s
    more = {"interrupted": stopped, "moved": delta_json(moves, scores)} | repaid_json(moves, scores, rate)
    lines = (report(task, plan, judge), "", delta_report(task, moves, scores), repaid(moves, scores, rate))
    commands.answer(options, "resharded/1", lambda: _told(task, planner, judge, plan) | more, lambda: "\n".join(lines))
    return _stopped("shard-gym reshard", options) if stopped else 0


def score_plan(options: argparse.Namespace) -> None:
    """Tell what a stored plan is worth."""
    task, planner, judge = _told_task(options)
    plan = Plan.load(options.plan)
    commands.answer(options, "scored/1", lambda: _told(task, planner, judge, plan), lambda: report(task, plan, judge))


def diff(options: argparse.Namespace) -> None:
    """Tell what moves from one stored plan to another, and what both are worth; or draw both."""
    task, planner, judge = task_of(options)
    if options.picture or options.out:
        draw(options, task, judge, [options.old, options.new])
        return
    old, new = Plan.load(options.old), Plan.load(options.new)
    scores = [score(task, plan, judge) for plan in (old, new)]
    moves = delta(task, old, new)
    commands.answer(
        options,
        "diff/1",
        lambda: {"judge": judge.id, **delta_json(moves, scores)},
        lambda: f"{assumed(task, planner, judge)}\n{delta_report(task, moves, scores)}",
    )


def _told_task(options: argparse.Namespace) -> tuple[Task, Simulator, Simulator]:
    """The task with its constraints, planner and judge; what they assume is printed."""
    task, planner, judge = task_of(options)
    task = constrained(task, options)
    if not options.json:
        commands.show(assumed(task, planner, judge))
    return task, planner, judge


def _told(task: Task, planner: Simulator, judge: Simulator, plan: Plan) -> dict[str, Any]:
    """The answer of a command that ends with a plan."""
    assumes = assumed(task, planner, judge).removeprefix("assumes ")
    return {"assumes": assumes, "planner": planner.id, "task": task.hash, **plan_json(task, plan, judge)}


def _stopped(name: str, options: argparse.Namespace) -> int:
    """Say what Ctrl-C kept, and how to go on; the exit code."""
    where = f"kept in {options.out}" if options.out else "told above and kept in no file, which --out FILE names"
    further = f"`shard-gym reshard --base {options.out or 'FILE'}` goes on from it, the same command begins again"
    commands.complain(name, "Interrupted", f"stopped; the best plan so far is {where}; {further}", options.json)
    sys.stderr.flush()
    return commands.INTERRUPTED


def solve_parser() -> commands.Parser:
    """Options of `solve`."""
    parser = commands.parser("shard-gym solve", SOLVE, examples=SOLVE_EXAMPLES, answer="the plan and its worth")
    add_task(parser)
    parser.add_argument("--agent", required=True, help="a name from `shard-gym agents`, or module:Class")
    add_solver(parser)
    add_out(parser)
    told = "of each device's memory, to keep free; default 0"
    parser.add_argument("--headroom", type=float, metavar="SHARE", help=told)
    told = "a trained policy of yours, or the folder of its run; default: the one that is shipped"
    parser.add_argument("--checkpoint", metavar="PATH", help=told)
    parser.set_defaults(run=solve)
    return parser


def reshard_parser() -> commands.Parser:
    """Options of `reshard`."""
    answer = "the new plan, its worth, and what moves"
    parser = commands.parser("shard-gym reshard", RESHARD, examples=RESHARD_EXAMPLES, answer=answer)
    add_task(parser)
    add_solver(parser)
    add_out(parser)
    steps = f"steps that the plan is used for; default {Reshard.horizon:g}"
    parser.add_argument("--horizon", type=float, default=Reshard.horizon, metavar="STEPS", help=steps)
    rate = f"that a device sends and receives tables at, 1e9 bytes a second; default {Reshard.bandwidth_gb_s:g}"
    parser.add_argument("--bandwidth-gb-s", type=float, default=Reshard.bandwidth_gb_s, metavar="GB/s", help=rate)
    parser.set_defaults(run=reshard, agent="reshard")
    return parser


def score_parser() -> commands.Parser:
    """Options of `score`."""
    about = "Tell what a plan is worth: its makespan, and memory and cost of each device."
    parser = commands.parser("shard-gym score", about, examples=SCORE_EXAMPLES, answer="the plan's worth")
    add_task(parser)
    add_constraints(parser)
    parser.add_argument("--plan", required=True, metavar="FILE", help=PLAN_FILE)
    parser.set_defaults(run=score_plan)
    return parser


def diff_parser() -> commands.Parser:
    """Options of `diff`."""
    about = "Tell what moves from one plan to another, and what both are worth; or draw both on one scale."
    parser = commands.parser("shard-gym diff", about, examples=DIFF_EXAMPLES, answer="what moves")
    parser.add_argument("old", metavar="OLD", help=PLAN_FILE)
    parser.add_argument("new", metavar="NEW", help="another one")
    add_task(parser)
    parser.add_argument("--picture", action="store_true", help="draw both plans on one scale instead")
    add_picture(parser)
    parser.set_defaults(run=diff)
    return parser
