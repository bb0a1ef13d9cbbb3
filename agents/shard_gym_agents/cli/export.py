"""Write a plan as TorchRec's sharding plan, by names of tables. Needs neither torch nor TorchRec.

    shard-gym export plan.json --tables tables.csv --hardware dgx-h100 --out sharding_plan.json

Where the model is trained, `shard_gym.torchrec.stored.from_named_json` reads the file for DistributedModelParallel. The
task is told as `solve` was told it. Ranks are the devices of the plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.torchrec.plans import named_json
from shard_gym_agents.cli.tasks import add_constraints, add_task, constrained, task_of


def main(arguments: Sequence[str]) -> int:
    """Write the sharding plan."""
    parser = commands.parser("shard-gym export", __doc__)
    parser.add_argument("plan", metavar="PLAN.json")
    add_task(parser)
    add_constraints(parser)
    parser.add_argument(
        "--module",
        default="",
        metavar="PATH",
        help="of the model's EmbeddingBagCollection, as in `named_modules`; default: the model itself",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of the ranks; default: cuda")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: print it")
    return commands.run(parser, export, arguments)


def export(options: argparse.Namespace) -> None:
    """The sharding plan, in a file or on the terminal."""
    task = constrained(task_of(options)[0], options)
    text = named_json(Plan.load(options.plan), task, options.module, device=options.device)
    if options.out:
        write_whole(options.out, text + "\n")
        commands.show(f"wrote {options.out}: {task.num_tables} tables on {task.num_devices} ranks")
    else:
        commands.show(text)
