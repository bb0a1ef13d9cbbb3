"""Train a learner: shard-gym train NAME --suite S --seed 0 --out DIR; the same command goes on after a crash."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from shard_gym.errors import InvalidTask, MissingDependency
from shard_gym.records import commands
from shard_gym.task import suites
from shard_gym.work.cluster import Cluster
from shard_gym.work.parts import add_ray
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.learner import SuiteLearner
from shard_gym_agents.learners.training import Schedule, Tally, train


def add_config(parser: argparse.ArgumentParser, config: type) -> None:
    """One `--flag` for each field of a dataclass, typed and defaulted by the field."""
    for field in fields(config):
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(flag, default=field.default, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, default=field.default, type=type(field.default), help=f"default {field.default}")


def main(arguments: Sequence[str]) -> int:
    """Train as told on the command line."""
    return commands.ended("shard-gym train", lambda: _main(list(arguments)))


def _main(given: list[str]) -> None:
    name = next((word for word in given if word in LEARNERS), None)
    module = _module(name) if name else None
    parser = _parser(module, LEARNERS[name][1] if name else {})
    options = parser.parse_args(given)
    if options.learner != name:  # another word is a learner's name, too: a folder perhaps
        parser.error(f"name the learner first: shard-gym train {options.learner} ...")
    progress = _train(module, options, shlex.join(["shard-gym", "train", *given]))
    sys.stderr.write(f"{options.out / 'best.safetensors'}: {progress.best:.4f} x cost-greedy on validation tasks\n")


def _module(name: str) -> Any:
    try:
        return import_module(LEARNERS[name][0])
    except ModuleNotFoundError as error:
        raise MissingDependency(f"{name} needs {error.name}: pip install torch, then shard-gym[sb3]") from error


def _parser(module: Any, overrides: Mapping[str, Any]) -> argparse.ArgumentParser:
    parser = commands.parser("shard-gym train", __doc__)
    parser.add_argument("learner", choices=LEARNERS)
    parser.add_argument("--suite", required=True, help="a name from `shard-gym suites`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1, help="of torch; with 1 a run can be repeated to the bit")
    add_config(parser, Schedule)
    if module is not None:
        add_config(parser, module.Config)
        parser.set_defaults(**overrides)
        if module.Learner.on_ray:
            add_ray(parser)
    return parser


def _train(module: Any, options: argparse.Namespace, command: str) -> Tally:
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
    try:
        return train(learner, out, settings, command)
    finally:
        learner.end()
