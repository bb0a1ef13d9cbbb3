"""Write a plan as TorchRec's sharding plan, by names of tables. Needs neither torch nor TorchRec.

Where the model is trained, `shard_gym.torchrec.stored.from_named_json` reads the file for DistributedModelParallel. The
task is told as `solve` was told it. Ranks are the devices of the plan."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.torchrec.plans import named_json
from shard_gym_agents.cli.constraints import add_constraints, constrained
from shard_gym_agents.cli.tasks import add_task, task_of


def parser() -> commands.Parser:
    """Options of `export`."""
    examples = (
        "shard-gym export plan.json --tables tables.csv --hardware dgx-h100 --out sharding_plan.json",
        "shard-gym export plan.json --suite core-80x8 --module model.embeddings",
    )
    made = commands.parser("shard-gym export", __doc__, examples=examples, answer="the sharding plan")
    made.add_argument("plan", metavar="PLAN.json", help="a file that --out of `shard-gym solve` wrote")
    add_task(made)
    add_constraints(made)
    module = "of the model's EmbeddingBagCollection, as in `named_modules`; default: the model itself"
    made.add_argument("--module", default="", metavar="PATH", help=module)
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of the ranks; default cuda")
    made.add_argument("--out", type=Path, metavar="FILE", help="where to write it; default: print it")
    made.set_defaults(run=export)
    return made


def export(options: argparse.Namespace) -> None:
    """The sharding plan, in a file or on the terminal."""
    task = constrained(task_of(options)[0], options)
    text = named_json(Plan.load(options.plan), task, options.module, device=options.device)
    if options.out:
        write_whole(options.out, text + "\n")
    wrote = f"wrote {options.out}: {task.num_tables} tables on {task.num_devices} ranks"
    commands.answer(
        options,
        "exported/1",
        lambda: {"file": options.out, "tables": task.num_tables, "ranks": task.num_devices, "plan": json.loads(text)},
        lambda: wrote if options.out else text,
    )
