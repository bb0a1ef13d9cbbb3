"""Plan the same tables on several machines, and compare: a line a machine.

Where a machine's file tells a price, so does its line. Ctrl-C ends with the machines that are planned by then."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import plan_bytes
from shard_gym.records import commands
from shard_gym.results.evaluate import score
from shard_gym.simulators import Simulator
from shard_gym.tables.pool import GB
from shard_gym.task.machines import Machine
from shard_gym.task.task import Task
from shard_gym.torchrec.report import grid
from shard_gym_agents.cli.constraints import constrained
from shard_gym_agents.cli.plans import assumed, plan_json
from shard_gym_agents.cli.solving import add_solver, solved
from shard_gym_agents.cli.tasks import add_tables, machine_of, task_of

MS_PER_HOUR, STEPS = 3.6e6, 1e6  # a price is told of so many steps


@dataclass(frozen=True)
class Swept:
    """The plan of one machine, or why there is none."""

    machine: Machine
    task: Task
    judge: Simulator
    plan: Plan | None
    why: str = ""


def sweep(options: argparse.Namespace) -> int:
    """Plan on each machine, and compare."""
    each = [argparse.Namespace(**vars(options) | {"hardware": name}) for name in options.hardware]
    asked = [(on, machine_of(on), *task_of(on)) for on in each]  # what is wrong is told before anything is planned
    found: list[Swept] = []
    stopped = False
    for on, machine, own, planner, judge in asked:
        task = constrained(own, on)
        if not options.json:
            commands.show(f"{machine.name} {assumed(task, planner, judge)}")
        try:
            plan, stopped = solved(on, task, planner)
            found.append(Swept(machine, task, judge, plan))
        except InfeasibleTask as error:
            found.append(Swept(machine, task, judge, None, str(error)))
        except KeyboardInterrupt:  # before there was any plan
            stopped = True
        if stopped:
            break
    commands.answer(
        options,
        "swept/1",
        lambda: {"machines": list(map(_json, found)), "interrupted": stopped},
        lambda: "\n".join(sweep_report(found)),
    )
    if stopped:
        kept = f"stopped; {len(found)} of {len(asked)} machines are told above, with the best plans so far"
        commands.complain("shard-gym sweep", "Interrupted", f"{kept}; the same command begins again", options.json)
    return commands.INTERRUPTED if stopped else 0


def _json(swept: Swept) -> dict[str, Any]:
    """A machine and its plan as JSON."""
    machine, task = swept.machine, swept.task
    about = {"hardware": machine.name, "hosts": machine.hosts, "devices": task.num_devices, "price": machine.price}
    return about | ({"error": swept.why} if swept.plan is None else plan_json(task, swept.plan, swept.judge))


def sweep_report(found: Sequence[Swept]) -> Iterator[str]:
    """A line a machine: devices, memory, makespan, and the price of the steps where one is known."""
    priced = any(swept.machine.price is not None for swept in found)
    hosted = any(swept.task.residences != ("hbm",) for swept in found)
    heads = ["hardware", "hosts", "devices", "GiB each", "fullest GiB"]
    heads += ["host GiB each", "fullest GiB"] if hosted else []
    heads += ["makespan ms", *(["price/h", f"price/{STEPS:.0e} steps"] if priced else []), ""]
    yield from grid(heads, [[*_row(swept, hosted, priced), ""] for swept in found])
    for swept in found:
        if swept.plan is None:
            yield f"\n{swept.machine.name}: {swept.why}"


def _row(swept: Swept, hosted: bool, priced: bool) -> list[str]:
    machine, task, plan = swept.machine, swept.task, swept.plan
    makespan, used = None, None
    if plan is not None and (found := score(task, plan, swept.judge)).feasible:
        makespan, used = found.makespan, plan_bytes(task, plan)
    cells = [machine.name, f"{machine.hosts}", f"{task.num_devices}"]
    for tier, room in enumerate((max(task.memory), *([task.host_memory] if hosted else []))):
        cells += [f"{room / GB:.2f}", "" if used is None else f"{used[tier].max() / GB:.2f}"]
    cells.append("NO PLAN" if makespan is None else f"{makespan:.3f}")
    if priced:
        price = machine.price
        steps = None if price is None or makespan is None else price * makespan * STEPS / MS_PER_HOUR
        cells += ["" if number is None else f"{number:,.2f}" for number in (price, steps)]
    return cells


def parser() -> commands.Parser:
    """Options of `sweep`."""
    examples = (
        "shard-gym sweep --tables tables.csv --hardware dgx-a100-80,dgx-h100,mine.toml",
        "shard-gym sweep --tables tables.csv --hardware dgx-h100,dgx-h200 --agent cost-greedy --json",
    )
    made = commands.parser("shard-gym sweep", __doc__, examples=examples, answer="the machines with their plans")
    add_tables(made)
    made.add_argument("--agent", default="auto", help="a name from `shard-gym agents`, or module:Class; default auto")
    add_solver(made)
    made.set_defaults(run=sweep, out=None)
    return made
