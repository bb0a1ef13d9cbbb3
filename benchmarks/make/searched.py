"""Shards that plans are made of: `python -m benchmarks.searched --weights W.safetensors --round 1 --out FILE.npz`

Where a search believes in a bargain, a network is most likely wrong, and shards drawn at random do not show it. Measure
what this writes (`shard-gym measure --shard-file FILE.npz`), add it to the data, fit again. Shards that tell the
machine's pace are among them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pace import yardstick

from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.measuring.chosen import as_measured, shards_of
from shard_gym.measuring.measurements import Measurements
from shard_gym.records import commands
from shard_gym.simulators.learned import Learned
from shard_gym.task import suites
from shard_gym.task.suites import SPLITS
from shard_gym.task.task import Task
from shard_gym_agents import make


def searched(
    tasks: Sequence[Task], pool: str, planner: simulators.FastSimulator, budget: float, number: int
) -> Measurements:
    """Different shards of random plans, cost-greedy's and local search's for these tasks, not measured yet."""
    solvers = (make("random", seed=number), make("cost-greedy"), make("local-search", seed=number, budget=budget))
    found = dict.fromkeys(s for task in tasks for solve in solvers for s in shards_of(task, solve(task, planner)))
    return Measurements.unmeasured(pool, list(found), kind="searched", round=number)


def write(options: Namespace) -> None:
    """Write the shards of one round."""
    suite = suites.get(options.suite)
    seed, tables = suite.pools[SPLITS.index(options.split)]
    tasks = suite.tasks(options.split)[options.first : options.first + options.tasks]
    pool, planner = f"metasyn_{seed}_{tables}", Learned(options.weights)
    found = searched([as_measured(task) for task in tasks], pool, planner, options.budget, options.round)
    found = Measurements.concat([found, *yardstick(Hardware(options.hardware), pool)])
    found.save(options.out)
    print(f"{len(found)} shards to measure in {options.out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Find the shards of one round."""
    parser = commands.parser("searched", __doc__)
    parser.add_argument("--weights", type=Path, required=True, help="the fit to search on")
    parser.add_argument("--hardware", default="cpu", help="whose pace is told: files HARDWARE-*.npz")
    parser.add_argument("--suite", default="metasyn-80x8")
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--first", type=int, default=0, help="task to begin with")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of search a task")
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return commands.run(parser, write, argv)


if __name__ == "__main__":
    raise SystemExit(main())
