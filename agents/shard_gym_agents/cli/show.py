"""Plans drawn: `shard-gym show`, and `shard-gym diff --picture` of two."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shard_gym.bounds import lower_bound
from shard_gym.errors import InfeasibleTask, SimulatorError
from shard_gym.pictures.bars import Bars, bars
from shard_gym.pictures.png import png
from shard_gym.pictures.svg import svg
from shard_gym.pictures.text import text
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.cli.constraints import add_constraints, constrained
from shard_gym_agents.cli.tasks import add_task, task_of

FORMS: dict[str, Callable[[Sequence[Bars]], str | bytes]] = {".svg": svg, ".png": png, ".txt": text}
BOUND_SECONDS = 0.3  # that a bound may take


def show(options: argparse.Namespace) -> None:
    """Draw one plan."""
    task, _, judge = task_of(options)
    draw(options, constrained(task, options), judge, [options.plan])


def draw(options: argparse.Namespace, task: Task, judge: Simulator, files: Sequence[str]) -> None:
    """Draw the plans of some files as text on the terminal, or as what the name of a file says."""
    bound, out = _bound(task, judge), options.out
    plans = [bars(task, Plan.load(file), judge, title=Path(file).stem, bound=bound) for file in files]
    if out is not None:
        write_whole(out, FORMS[out.suffix](plans))
    commands.answer(
        options,
        "shown/1",
        lambda: {"judge": judge.id, "file": out, "plans": list(map(_bars_json, plans))},
        lambda: text(plans) if out is None else "",
    )


def _bars_json(plan: Bars) -> dict[str, Any]:
    """The numbers of a picture."""
    return {
        "title": plan.title,
        "makespan_ms": plan.makespan,
        "bound_ms": plan.bound,
        "cost_ms": plan.cost,
        "phases_ms": {phase.name: phase.ms for phase in plan.phases},
        "used_bytes": plan.used,
        "memory_bytes": plan.capacity,
        "violations": plan.violations,
    }


def _bound(task: Task, judge: Simulator) -> float | None:
    """Milliseconds that no plan beats; None where the simulator tells none, or no plan exists."""
    with suppress(SimulatorError, InfeasibleTask):
        return lower_bound(task, judge, BOUND_SECONDS)
    return None


def picture_file(text: str) -> Path:
    """A file whose name ends as a picture's."""
    path = Path(text)
    if path.suffix not in FORMS:
        raise argparse.ArgumentTypeError(f"{text!r} ends in none of {', '.join(FORMS)}")
    return path


def add_picture(command: argparse.ArgumentParser) -> None:
    """Add where the picture goes."""
    told = f"the picture, {', '.join(FORMS)}; .png needs the extra `plots`; default: text on the terminal"
    command.add_argument("--out", type=picture_file, metavar="FILE", help=told)


def show_parser() -> commands.Parser:
    """Options of `show`."""
    examples = (
        "shard-gym show plan.json --suite core-80x8",
        "shard-gym show plan.json --tables tables.csv --hardware dgx-h100 --out plan.svg",
    )
    about = "Draw a plan: what each device costs, phase by phase, and what it holds of its memory."
    parser = commands.parser("shard-gym show", about, examples=examples, answer="the numbers of the picture")
    parser.add_argument("plan", metavar="PLAN.json", help="a file that --out of `shard-gym solve` wrote")
    add_task(parser)
    add_constraints(parser)
    add_picture(parser)
    parser.set_defaults(run=show)
    return parser
