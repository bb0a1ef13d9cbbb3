"""Choose plans that will be measured: `python -m benchmarks.sim_to_real choose --shards FILE.npz`

Writes plans of 50 tasks by four solvers, with what the planner predicts, to measurements/HARDWARE-plans.json, and their
shards to `--shards`, with some that tell the machine's pace. These are then measured in three runs, each in a
shuffled order of its own:

    shard-gym measure --shard-file SHARDS --seed 1 ... --out RUN1

`python -m benchmarks.fidelity` tells what came out.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pace import yardstick

from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.measuring import chosen
from shard_gym.measuring.measurements import Measurements
from shard_gym.records import commands
from shard_gym_agents import make

TASKS = 50
SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "lookup-greedy": ("lookup-greedy", {}),
    "cost-greedy": ("cost-greedy", {}),
    "local-search, 1 s": ("local-search", {"budget": 1.0}),
}


def choose(options: Namespace) -> None:
    """Write the plans and their shards."""
    hardware = Hardware(options.hardware)
    planner = simulators.make(options.planner or hardware.planner)
    solvers = {name: make(solver, **settings) for name, (solver, settings) in SOLVERS.items()}
    found, shards = chosen.choose(planner, solvers, TASKS)
    chosen.save(hardware.plans, found)
    shards = Measurements.concat([shards, *yardstick(hardware, chosen.POOL)])
    shards.save(options.shards)
    print(f"{len(shards)} shards to measure in {options.shards}")


def main(argv: Sequence[str] | None = None) -> int:
    """Choose the plans."""
    parser = commands.parser("sim_to_real", __doc__)
    parser.add_argument("step", choices=["choose"])
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    parser.add_argument("--planner", help="id or weights file; default learned:HARDWARE-v1")
    parser.add_argument("--shards", type=Path, required=True, help="file of the shards to measure")
    return commands.run(parser, choose, argv)


if __name__ == "__main__":
    raise SystemExit(main())
