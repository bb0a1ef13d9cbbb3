"""Make a trained policy part of the package: `python -m benchmarks.ship RUN [RUN ...]`. Needs torch.

The runs are folders that `shard-gym train` left, of one learner on one suite with different seeds. The policy that
was best on validation tasks goes to the package's weights in half precision, with a card of what it took and the
command that trains it again. Test tasks are not looked at. `--list` shows what is shipped.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.records import commands
from shard_gym.records import tensors as card_files
from shard_gym.records.files import read_json
from shard_gym.task import suites
from shard_gym_agents.learners import LEARNERS, trained
from shard_gym_agents.learners.training import Validation

BUDGET = 2_000_000  # bytes of all files together
AGAIN = "train it again"
EXACT = "scaling"  # tensors of this name are means and deviations of features, whose range half precision lacks


@dataclass(frozen=True)
class Run:
    """The folder of a run, and what its best policy says of itself."""

    folder: Path
    learner: str  # a name in LEARNERS
    suite: str
    planner: str
    seed: int
    config: dict[str, Any]
    best: float  # makespan of validation plans over cost-greedy's
    best_at: int  # iteration
    spent: dict[str, Any]  # iteration, steps, simulator_calls, seconds: of the whole run where its end is known
    command: str

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read the folder that `shard-gym train` left."""
        card = read_json(folder / "card.json")
        try:
            spent = card["progress"]
            if (folder / "checkpoint.safetensors").exists():
                spent = trained.read_card(folder / "checkpoint.safetensors")["progress"]
            kept = {name: card[name] for name in ("learner", "suite", "planner", "seed", "config", "command")}
            best, best_at = card["progress"]["best"], card["progress"]["best_at"]
            return cls(folder, **kept, best=best, best_at=best_at, spent=spent)
        except (KeyError, TypeError) as error:
            raise CorruptFile(f"{folder / 'card.json'} is not the card of a run: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Ship, or list."""
    parser = commands.parser("python -m benchmarks.ship", __doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a folder that `shard-gym train` left")
    parser.add_argument("--list", action="store_true", help="show what is shipped, after shipping the runs if any")

    def command(options: argparse.Namespace) -> None:
        if options.runs:
            ship([Run.read(folder) for folder in options.runs])
        elif not options.list:
            parser.error("name the folders of runs, or --list")
        if options.list:
            print(listing())

    return commands.run(parser, command, arguments)


def ship(runs: Sequence[Run]) -> Path:
    """Write the weights file of the best run; nothing is written when it does not load or is too large."""
    same = ("learner", "suite", "planner", "config")
    for name in same:
        if len(told := {json.dumps(getattr(run, name), sort_keys=True) for run in runs}) > 1:
            raise InvalidTask(f"these runs are not one learner's with different seeds: {name} is {' and '.join(told)}")
    if len({run.seed for run in runs}) < len(runs):
        raise InvalidTask(f"two of these runs have the same seed: {sorted(run.seed for run in runs)}")
    best = min(runs, key=lambda run: run.best)
    tensors, card = card_files.read(best.folder / "best.safetensors", trained.SCHEMA, AGAIN)
    tensors = {name: halved(name, tensor) for name, tensor in tensors.items()}
    card |= card_of(best, [run.seed for run in runs]) | {"val": validated(best, tensors, card)}
    path = trained.WEIGHTS / best.learner / f"{best.suite}.safetensors"
    held = sum(file.stat().st_size for file in shipped_files() if file != path)
    if (total := held + sum(t.nbytes for t in tensors.values()) + len(json.dumps(card))) > BUDGET:
        raise InvalidTask(f"with this file the weights would be {total:,} bytes, more than {BUDGET:,}")
    card_files.write(path, trained.SCHEMA, tensors, card)
    print(f"{path}: seed {best.seed}, {card['val']:.4f} x cost-greedy on validation tasks, {best.best:.4f} in training")
    return path


def halved(name: str, tensor: np.ndarray) -> np.ndarray:
    """A tensor in half precision; scalings, whole numbers and what is so already as they are."""
    if name.rpartition(".")[2] == EXACT or tensor.dtype.kind != "f":
        return tensor
    with np.errstate(over="ignore"):
        half = tensor.astype(np.float16)
    if not np.isfinite(half).all():
        raise InvalidTask(f"{name} has values beyond half precision, or no numbers: it cannot be shipped")
    return half


def validated(run: Run, tensors: dict[str, np.ndarray], card: dict[str, Any]) -> float:
    """Makespan of the halved policy's validation plans over cost-greedy's; it is loaded as users will."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "halved.safetensors"
        card_files.write(path, trained.SCHEMA, tensors, card)
        solver = trained.Trained(run.learner, checkpoint=str(path))
        val = Validation(suites.get(run.suite))(solver)["val/makespan"]
    if not math.isfinite(val):
        raise InvalidTask(f"{run.folder}: its plans are worth {val} x cost-greedy's")
    return val


def card_of(run: Run, seeds: Sequence[int]) -> dict[str, Any]:
    """Make the card of shipped weights."""
    return {
        "learner": run.learner,
        "suite": run.suite,
        "planner": run.planner,
        "seed": run.seed,
        "config": run.config,
        "iterations": run.spent["iteration"],
        "best_at": run.best_at,
        "steps": run.spent["steps"],
        "simulator_calls": run.spent["simulator_calls"],
        "minutes": round(run.spent["seconds"] / 60, 2),  # validation left out
        "command": repeated(run),
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in ("torch", "numpy")},
        "note": f"best of seeds {', '.join(map(str, sorted(seeds)))} by validation" if len(seeds) > 1 else "",
    }


def repeated(run: Run) -> str:
    """The run's command, with the folder that `--retrain` uses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    _, words = parser.parse_known_args(shlex.split(run.command))
    return shlex.join([*words, "--out", str(trained.RETRAINED / run.learner / run.suite)])


def shipped_files() -> list[Path]:
    """List the weights in the package."""
    return [path for learner in LEARNERS for path in trained.shipped(learner).values()]


def listing() -> str:
    """One line a file."""
    lines = [
        f"{'learner':18} {'suite':22} {'kB':>6} {'steps':>11} {'calls':>9} {'minutes':>7} {'val':>6} planner, note"
    ]
    for path in shipped_files():
        c = trained.read_card(path)
        size = f"{path.stat().st_size / 1000:6.1f}"
        took = f"{c['steps']:11,} {c['simulator_calls']:9,} {c['minutes']:7.1f} {c['val']:6.3f}"
        told = ", ".join(filter(None, (c["planner"], c["note"])))
        lines.append(f"{c['learner']:18} {c['suite']:22} {size} {took} {told}")
    total = sum(path.stat().st_size for path in shipped_files())
    return "\n".join([*lines, f"{total / 1000:.1f} of {BUDGET / 1000:,.0f} kB"])


if __name__ == "__main__":
    sys.exit(main())
