"""The command that fits a cost network to measured shards. Its options need no torch, fitting does."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from shard_gym import simulators
from shard_gym.errors import InvalidPool
from shard_gym.measuring.drift import settled
from shard_gym.measuring.measurements import Measurements, at_pace_of
from shard_gym.measuring.operator import imported
from shard_gym.measuring.predictors import of_pools, predicted_by
from shard_gym.records import commands
from shard_gym.records.files import read_json
from shard_gym.records.guard import guarded
from shard_gym.records.installing import install
from shard_gym.simulators.networks import ARCHITECTURES, links_of

ROLES = ("planner", "judge")
ABOUT = """Fit a cost network to measured shards: a simulator that predicts what shards of these tables cost.

Equal arguments give equal weights."""
EXAMPLES = (
    "shard-gym fit --data campaign --out my.safetensors",
    "shard-gym fit --data campaign more.npz --architecture ours --role judge --seed 1 --out judge.safetensors",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit as told on the command line."""
    given = list(sys.argv[1:] if argv is None else argv)
    made = parser()
    made.set_defaults(command=shlex.join(["shard-gym", "fit", *given]))
    return commands.run(made, write, given)


def parser() -> commands.Parser:
    """Options of `fit`."""
    made = commands.parser("shard-gym fit", ABOUT, examples=EXAMPLES, answer="the file and its errors")
    add = made.add_argument
    data = "measurements, .npz or folders of them; several are joined"
    add("--data", type=Path, nargs="+", required=True, metavar="FILE", help=data)
    add("--architecture", choices=ARCHITECTURES, default="ours", help="of the network; default ours")
    add("--seed", type=int, default=0, metavar="N", help="of weights and held-out tables; default 0")
    add("--role", choices=ROLES, default="planner", help="written on the card; default planner")
    add("--id", help="of a fit to be published; default: its simulator is called by its hash")
    add("--comm", type=Path, metavar="FILE", help="what `shard-gym measure comm` wrote; its links are kept")
    pace = "a campaign that shares shards with each of --data: its pace is taken"
    add("--pace", type=Path, metavar="FILE", help=pace)
    trend = "id or file of a fit by which drift is seen and taken out; needs --pace"
    add("--trend", metavar="ID|FILE", help=trend)
    add("--pools", nargs="+", metavar="NAME", help="fit only shards of these pools; default all")
    add("--epochs", type=int, metavar="N", help="at most; default 200 of ours, 300 of the published networks")
    add("--out", type=Path, required=True, metavar="FILE", help="the weights with their card: .safetensors")
    return made


def _engine() -> ModuleType:
    """The module that fits, which needs torch."""
    imported("torch", install("torch"))
    from shard_gym.measuring import fit

    return fit


def write(options: argparse.Namespace) -> None:
    """Fit, and write the weights with their card."""
    engine = _engine()
    measured = _joined(options.data, options.pace, options.trend)
    if options.pools:
        measured = of_pools(measured, options.pools)
    settings = engine.effort_of(options.architecture)
    if options.epochs:
        settings = replace(settings, epochs=options.epochs)
    weights = engine.fit(measured, options.architecture, options.seed, settings, tell=None if options.json else _tell)
    if options.id:
        weights.card["id"] = options.id
    weights.card["role"] = options.role
    if options.comm:
        weights.card["links"] = _links(options.comm)
    weights.card["command"] = options.command
    weights.save(options.out)
    held_out = weights.card["held_out"]
    commands.answer(
        options,
        "fitted/1",
        lambda: {"file": options.out, "held_out": held_out},
        lambda: f"{options.out}: {json.dumps(held_out)}",
    )


def _links(path: Path) -> dict[str, Any]:
    """The links of a file of all-to-alls."""
    with guarded(f"{path} holds no fit of all-to-alls"):
        links: dict[str, Any] = read_json(path)["fit"]["all"]["links"]
        links_of({"links": links})
        return links


def _joined(paths: Sequence[Path], reference: Path | None, trend: str | None) -> Measurements:
    """Measurements of files, and of every .npz in folders, at the pace of the reference if there is one.

    `trend` is the fit by which the drift of their campaigns is seen.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    if not files:
        raise InvalidPool(f"no measurements (.npz) in {', '.join(map(str, paths))}")
    parts = [Measurements.load(file) for file in files]
    if reference is None:
        if trend:
            raise InvalidPool("--trend needs --pace: a level is not known without shards measured again")
        return Measurements.concat(parts)
    common = Measurements.load(reference)
    if not trend:
        return Measurements.concat(at_pace_of(common, parts))
    predict = predicted_by(simulators.make(trend))
    return Measurements.concat([settled(part, common, predict) for part in parts])


def _tell(epoch: int, epochs: int, loss: float) -> None:
    terminal = sys.stderr.isatty()
    if terminal or epoch % 20 == 0 or epoch == epochs:
        end = "\r" if terminal and epoch < epochs else "\n"
        sys.stderr.write(f"epoch {epoch}/{epochs}, held-out loss {loss:.5f}{end}")
        sys.stderr.flush()
