"""Shards that plans are made of: `python -m benchmarks.searched --weights W.safetensors --round 1 --out FILE.npz`

Where a search believes in a bargain, a network is most likely wrong, and shards drawn at random do not show it. Measure
what this writes (`shard-gym measure --shard-file FILE.npz`), add it to the data, fit again. Shards that tell the
machine's pace are among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.pace import yardstick
from shard_gym import simulators, suites
from shard_gym.measurements import Measurements
from shard_gym.plan import Plan
from shard_gym.simulators.learned import Learned
from shard_gym.suites import SPLITS
from shard_gym.tasks import Task
from shard_gym_agents import make

Shard = tuple[tuple[int, ...], tuple[int, ...]]  # tables by index in their pool, and their dims


def shards_of(task: Task, plan: Plan) -> Iterator[Shard]:
    """What each device holds, empty ones left out; tables are named metasyn<seed>_<index>."""
    index = np.array([int(name.rsplit("_", 1)[1]) for name in task.tables.name])
    device = np.array(plan.device)
    for d in range(task.num_devices):
        mine = np.flatnonzero(device == d)
        if len(mine):
            yield tuple(index[mine].tolist()), tuple(task.tables.dim[mine].tolist())


def as_measured(task: Task) -> Task:
    """The task as shards are measured: fp16 tables, compute alone, no limit of memory."""
    fp16 = task.tables.with_(dtype=("fp16",) * task.num_tables)
    memory = (2**50,) * task.num_devices
    return replace(task, tables=fp16, memory=memory, objective="kernel", optimizer="sgd", accounting="weights")


def searched(
    tasks: Sequence[Task], pool: str, planner: simulators.FastSimulator, budget: float, number: int
) -> Measurements:
    """Different shards of random plans, cost-greedy's and local search's for these tasks, not measured yet."""
    solvers = (make("random", seed=number), make("cost-greedy"), make("local-search", seed=number, budget=budget))
    found = dict.fromkeys(s for task in tasks for solve in solvers for s in shards_of(task, solve(task, planner)))
    return Measurements.unmeasured(pool, list(found), kind="searched", round=number)


def main() -> None:
    """Write the shards of one round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the fit to search on")
    parser.add_argument("--suite", default="metasyn-80x8")
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--first", type=int, default=0, help="task to begin with")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of search a task")
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    suite = suites.get(options.suite)
    seed, tables = suite.pools[SPLITS.index(options.split)]
    tasks = suite.tasks(options.split)[options.first : options.first + options.tasks]
    pool, planner = f"metasyn_{seed}_{tables}", Learned(options.weights)
    found = searched([as_measured(task) for task in tasks], pool, planner, options.budget, options.round)
    found = Measurements.concat([found, yardstick(pool)])
    found.save(options.out)
    print(f"{len(found)} shards to measure in {options.out}")


if __name__ == "__main__":
    main()
