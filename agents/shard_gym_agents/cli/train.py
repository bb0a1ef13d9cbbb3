"""Train a learner on a suite; the same command goes on after a crash.

`shard-gym train NAME --help` tells the learner's own settings as well, where torch is installed. The folder then holds
best.safetensors, the policy with the lowest makespan on validation tasks: `shard-gym solve --checkpoint DIR`."""

from __future__ import annotations

import argparse
import inspect
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidTask, MissingDependency
from shard_gym.records import commands
from shard_gym.records.installing import install
from shard_gym.task import suites
from shard_gym.work.cluster import Cluster
from shard_gym.work.parts import add_ray
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.schedule import Schedule

if TYPE_CHECKING:
    from shard_gym_agents.learners.learner import SuiteLearner
    from shard_gym_agents.learners.training import Tally

VALUES = {int: "N", float: "NUMBER", str: "NAME"}  # as help shows them
EXAMPLES = (
    "shard-gym train autoshard --suite core-60x4 --seed 0 --out runs/autoshard",
    "shard-gym train maskable-ppo --suite core-80x8 --out runs/ppo --iterations 50 --patience 5",
)


def add_config(parser: argparse.ArgumentParser, config: type, overrides: Mapping[str, Any] | None = None) -> None:
    """One `--flag` for each field of a dataclass, typed and defaulted by the field; its comment is the help."""
    about, room = _comments(config), config.__module__.rpartition(".")[2]
    group = parser.add_argument_group("how long" if room == "schedule" else f"settings of {room}")
    for field in fields(config):
        flag, default = f"--{field.name.replace('_', '-')}", (overrides or {}).get(field.name, field.default)
        told = f"{about.get(field.name, field.name.replace('_', ' '))}; default {default if default != '' else 'none'}"
        told = told.replace("%", "%%")
        if isinstance(field.default, bool):
            group.add_argument(flag, default=default, action=argparse.BooleanOptionalAction, help=told)
        else:
            kind = type(field.default)
            group.add_argument(flag, default=default, type=kind, metavar=VALUES[kind], help=told)


def _comments(config: type) -> dict[str, str]:
    """Comments of the fields of a dataclass and of those that it extends, by name."""
    found: dict[str, str] = {}
    for made in reversed(config.__mro__[:-1]):
        found |= dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(made), re.MULTILINE))
    return found


def main(arguments: Sequence[str]) -> int:
    """Train as told on the command line."""
    given = list(arguments)
    return commands.ended("shard-gym train", lambda: _main(given), as_json="--json" in given)


def _main(given: list[str]) -> None:
    name = next((word for word in given if word in LEARNERS), None)
    asks = {"-h", "--help"} & set(given)
    module = _module(name, needed=not asks) if name else None
    made = _parser(module, LEARNERS[name][1] if name else {})
    options = made.parse_args(given)
    if options.learner != name:  # another word is a learner's name, too: a folder perhaps
        made.error(f"name the learner first: shard-gym train {options.learner} ...")
    progress = _train(module, options, shlex.join(["shard-gym", "train", *given]))
    path = options.out / "best.safetensors"
    commands.answer(
        options,
        "trained/1",
        lambda: {"file": path, **asdict(progress)},
        lambda: f"{path}: {progress.best:.4f} x cost-greedy on validation tasks",
    )


def _module(name: str, needed: bool = True) -> Any:
    """The learner's module, which needs torch; None where torch is missing and only help is asked for."""
    try:
        return import_module(LEARNERS[name][0])
    except ModuleNotFoundError as error:
        if needed:
            extra = "torch" if error.name == "torch" else "sb3"
            raise MissingDependency(f"{name} needs {error.name}: {install(extra)}") from error
        return None


def parser() -> commands.Parser:
    """Options of any learner."""
    return _parser(None, {})


def _parser(module: Any, overrides: Mapping[str, Any]) -> commands.Parser:
    answer, kept = "what came of it", ""  # training itself says what is kept
    parser = commands.parser("shard-gym train", __doc__, examples=EXAMPLES, answer=answer, kept=kept)
    parser.add_argument("learner", choices=LEARNERS, help=f"one of {', '.join(LEARNERS)}", metavar="LEARNER")
    parser.add_argument("--suite", required=True, help="a name from `shard-gym suites`")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and episodes; default 0")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the run; the same folder resumes it")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of torch; default cpu")
    threads = "of torch; with 1 a run can be repeated to the bit; default 1"
    parser.add_argument("--threads", type=int, default=1, metavar="N", help=threads)
    add_config(parser, Schedule)
    if module is not None:
        add_config(parser, module.Config, overrides)
        if module.Learner.on_ray:
            add_ray(parser)
    return parser


def _train(module: Any, options: argparse.Namespace, command: str) -> Tally:
    import torch

    config, settings = (
        made(**{field.name: getattr(options, field.name) for field in fields(made)})
        for made in (module.Config, Schedule)
    )
    counts = (options.threads, settings.iterations, settings.validate_every, settings.patience)
    if options.seed < 0 or min(counts) < 1:
        raise InvalidTask("--seed is 0 or more; --threads, --iterations, --validate-every and --patience 1 or more")
    if not 0 < options.learning_rate < math.inf:
        raise InvalidTask(f"--learning-rate is a number above 0, got {options.learning_rate}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InvalidTask("torch finds no CUDA device here: train with --device cpu")
    torch.set_num_threads(options.threads)
    made = partial(module.Learner, suites.get(options.suite), config, options.seed, options.device)
    if getattr(options, "ray", None) is None:
        return _trained(made(), options.out, settings, command)
    with Cluster.joined(options.ray, modules=("torch",)) as cluster:
        return _trained(made(cluster=cluster), options.out, settings, command)


def _trained(learner: SuiteLearner, out: Path, settings: Schedule, command: str) -> Tally:
    from shard_gym_agents.learners.training import train

    try:
        return train(learner, out, settings, command)
    finally:
        learner.end()
