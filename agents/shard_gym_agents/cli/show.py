"""Plans drawn: `shard-gym show`, and `shard-gym diff --picture` of two."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

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
from shard_gym_agents.cli.tasks import add_constraints, add_task, constrained, task_of

FORMS: dict[str, Callable[[Sequence[Bars]], str | bytes]] = {".svg": svg, ".png": png, ".txt": text}
BOUND_SECONDS = 0.3  # that a bound may take


def show(options: argparse.Namespace) -> None:
    """Draw one plan."""
    task, _, judge = task_of(options)
    draw(constrained(task, options), judge, [options.plan], options.out)


def draw(task: Task, judge: Simulator, files: Sequence[str], out: Path | None) -> None:
    """Draw the plans of some files as text on the terminal, or as what the name of a file says."""
    bound = _bound(task, judge)
    plans = [bars(task, Plan.load(file), judge, title=Path(file).stem, bound=bound) for file in files]
    if out is None:
        commands.show(text(plans))
    else:
        write_whole(out, FORMS[out.suffix](plans))


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
    told = f"the picture, {', '.join(FORMS)}; .png needs the plots extra; default: text on the terminal"
    command.add_argument("--out", type=picture_file, metavar="FILE", help=told)


def add_show(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `show`."""
    command.add_argument("plan", metavar="PLAN.json")
    add_task(command)
    add_constraints(command)
    add_picture(command)
    command.set_defaults(run=show)
