"""Cost of a step of the vector environment, against the number of environments and the size of the task.

    python -m benchmarks.vector_throughput [--repeats 15]

Writes benchmarks/results/vector.md, .png and .svg. On one core, each case in a process of its own, by
`gym.make_vec` with default arguments, whose observations are copies. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks import pages
from shard_gym.measuring.host import hardware
from shard_gym.records.commands import count
from shard_gym.records.files import write_whole
from shard_gym.task import suites

PICTURE = "![cost of a step](vector.png)"
SMALL, OBSERVATIONS = "MetaSyn-80x8", ("table", "full", "set")
SIMULATORS = ("learned:cpu-v1", "roofline:rtx2080ti-x4-v1")  # one that is fitted, one that is not
MANY = 1024
ENVIRONMENTS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536)
DEVICES = tuple(range(8, 81, 8))
OTHERS = ("Core-80x8", "Tight-80x8", "Hetero-80x8", "Mixed-10to59x4", "Mixed-10to59x4-Split", "Prod-1000x128")
OTHERS += ("Core-80x8-AllKinds", "TightMix-80x8-AllKinds")
LONG_RUN = 10_000_000  # steps
LEAST_STEPS = 50_000  # of a repeat, all environments together
LONGEST = 15.0  # seconds of CPU time after which there are no more repeats, once there are three


@dataclass(frozen=True)
class Case:
    """One environment to measure."""

    name: str
    num_envs: int
    observation: str
    simulator: str  # id

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `gym.make_vec`."""
        return {"observation": self.observation, "simulator": self.simulator}


@dataclass(frozen=True)
class Cost:
    """Cost of a case; rates in million steps a second."""

    case: Case
    median: float
    best: float
    bytes_each: float  # that one more environment takes, its share of the first episode's arrays with it


def make(name: str, num_envs: int, **settings: Any) -> gym.vector.VectorEnv:
    """A vector environment by the public way, every task prepared before anything is timed."""
    env = gym.make_vec(f"shard_gym:ShardGym-{name}", num_envs=num_envs, **settings)
    for task in env.unwrapped.bank.tasks:  # type: ignore[attr-defined]
        env.reset(options={"task": task})
    env.reset(seed=0)
    return env


def cart_pole(num_envs: int) -> gym.vector.VectorEnv:
    """Gymnasium's own example of a vector environment in numpy, for comparison."""
    env = gym.make_vec("CartPole-v1", num_envs=num_envs)
    env.reset(seed=0)
    return env


def calls(env: gym.vector.VectorEnv, longest: int) -> int:
    """Calls of `step` in a repeat: whole episodes of so many tables, resets with them."""
    episodes = max(1, -(-LEAST_STEPS // (longest * env.num_envs)))
    return episodes * (longest + 1)


class Player:
    """Random actions for an environment, drawn before the clock starts."""

    def __init__(self, env: gym.vector.VectorEnv, count: int) -> None:
        rng, number = np.random.default_rng(0), int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.env, self.count = env, count
        self.actions = rng.integers(number, size=(min(count, 256), env.num_envs))

    def rate(self) -> float:
        """Steps a second of CPU time, of all environments together; steps that only begin an episode do not count.

        CPU time, not wall time: on a busy machine the slower of two environments would be interrupted more often.
        """
        env, actions, over = self.env, self.actions, []
        start = time.thread_time()
        for i in range(self.count):
            over.append(env.step(actions[i % len(actions)])[2])
        spent = time.thread_time() - start
        begun = sum(int(ended.sum()) for ended in over)
        return (self.count * env.num_envs - begun) / spent


def rates(player: Player, repeats: int) -> np.ndarray:
    """Steps a second of so many repeats, or fewer if they take long; after one to warm up."""
    player.rate()
    found, start = [], time.thread_time()
    while len(found) < repeats and (len(found) < 3 or time.thread_time() - start < LONGEST):
        found.append(player.rate())
    return np.array(found)


def planner(name: str) -> str:
    """The simulator of an id."""
    return suites.get(name).planner


def cases() -> Iterator[Case]:
    """Cases to measure, the long runs aside."""
    for observation in OBSERVATIONS:
        for simulator in dict.fromkeys((planner(SMALL), *SIMULATORS)):
            yield Case(SMALL, MANY, observation, simulator)
    for observation in OBSERVATIONS[:2]:
        yield from (Case(name, MANY, observation, planner(name)) for name in OTHERS)
        yield from (Case(SMALL, n, observation, planner(SMALL)) for n in ENVIRONMENTS if n != MANY)
        yield from (Case(f"MetaSyn-{10 * k}x{k}", MANY, observation, planner(SMALL)) for k in DEVICES[1:])


def measured(case: Case, repeats: int) -> Cost:
    """One case, in the process that it was sent to."""
    before = resident_bytes()
    few = make(case.name, 1, **case.settings)  # what tasks and libraries take belongs to no environment
    base = resident_bytes() - before
    del few
    env = make(case.name, case.num_envs, **case.settings)
    player = Player(env, calls(env, suites.get(case.name).num_tables))
    found = rates(player, repeats) / 1e6
    each = (resident_bytes() - before - base) / case.num_envs
    return Cost(case, float(sorted(found)[len(found) // 2]), float(found.max()), each)


def growth(case: Case) -> tuple[float, float]:
    """Megabytes of the process after a first episode, and their growth over the long run, as a share."""
    env = make(case.name, case.num_envs, **case.settings)
    player = Player(env, calls(env, suites.get(case.name).num_tables))
    for _ in range(5):
        player.rate()
    first = resident_bytes()
    for _ in range(-(-LONG_RUN // (player.count * env.num_envs))):
        player.rate()
    return first / 1e6, resident_bytes() / first - 1


def resident_bytes() -> int:
    """Memory of this process, of which only Linux tells."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def page(found: pages.Found) -> str:
    """The report."""
    costs: list[Cost] = found["costs"]
    small = [cost for cost in costs if cost.case.name == SMALL and cost.case.num_envs == MANY]
    by_n = [cost for cost in costs if cost.case.name == SMALL and cost.case.simulator == planner(SMALL)]
    by_n.sort(key=lambda cost: (cost.case.observation, cost.case.num_envs))
    by_size = [c for c in costs if c.case.name.startswith("MetaSyn") and c.case.num_envs == MANY and c not in small]
    others = [cost for cost in costs if cost.case.name in OTHERS]
    memory = [f"- `{name}`: {mb:.0f} MB, then {100 * share:+.2f} %" for name, (mb, share) in found["grown"].items()]
    about = [
        f"`{found['command']}`, one core of {hardware('cpu')['device']}, Python {platform.python_version()}.",
        f"Million steps a second of CPU time, median and best of up to {found['repeats']} repeats; steps that only",
        "begin an episode take time but do not count. Bytes: what one more environment takes of the process's memory.",
    ]
    sections = {
        "# Steps of the vector environment": about,
        f"## {SMALL}, {MANY:,} environments": [*table(small, ("observation", "simulator")), "", PICTURE],
        "## Other suites": table(others, ("name", "observation")),
        "## By the number of environments": table(by_n, ("observation", "num_envs")),
        "## By the size of the task": table(by_size, ("name", "observation")),
        f"## Memory over {LONG_RUN:,} steps": memory,
    }
    return "\n".join(line for title, lines in sections.items() for line in (title, "", *lines, ""))


def table(costs: list[Cost], columns: tuple[str, ...]) -> list[str]:
    """Rows of Markdown."""
    head = [*columns, "median M/s", "best M/s", "us a call", "bytes"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(columns) + "|---:" * 4 + "|"]
    for cost in costs:
        said = [f"{getattr(cost.case, column)}" for column in columns]
        call = cost.case.num_envs / cost.median
        each = f"{cost.bytes_each:,.0f}" if cost.case.num_envs >= MANY else ""  # of fewer it is lost among the rest
        numbers = [f"{cost.median:.3g}", f"{cost.best:.3g}", f"{call:,.0f}", each]
        lines.append("| " + " | ".join([*said, *numbers]) + " |")
    return lines


def plot(costs: list[Cost], figure: Any) -> None:
    """Nanoseconds a step against the number of environments and the size of the task."""
    left, right = figure.subplots(1, 2)
    for observation in OBSERVATIONS[:2]:
        ours = [c for c in costs if c.case.observation == observation and c.case.simulator == planner(SMALL)]
        by_n = sorted((c.case.num_envs, 1e3 / c.median) for c in ours if c.case.name == SMALL)
        sized = [c for c in ours if c.case.name.startswith("MetaSyn") and c.case.num_envs == MANY]
        by_size = sorted((suites.get(c.case.name).num_devices, 1e3 / c.median) for c in sized)
        left.plot(*zip(*by_n, strict=True), marker="o", label=observation)
        right.plot(*zip(*by_size, strict=True), marker="o", label=observation)
    left.set(xscale="log", yscale="log", xlabel="environments", ylabel="ns a step", title=SMALL)
    right.set(
        xlabel="devices, each with ten tables", ylabel="ns a step", title=f"{MANY:,} environments", ylim=(0, None)
    )
    left.legend()
    right.legend()


def measure(options: argparse.Namespace) -> pages.Found:
    """Every case, told as it comes, and the long runs; draws the pictures."""
    pages.one_core()
    costs = []
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for cost in pool.imap(partial(measured, repeats=options.repeats), cases()):
            costs.append(cost)
            print(f"{cost.case}  {cost.median:.3g} M/s, {cost.bytes_each:,.0f} bytes each", flush=True)
        long = [Case(SMALL, MANY, observation, planner(SMALL)) for observation in OBSERVATIONS]
        grown = dict(zip(OBSERVATIONS, pool.map(growth, long, chunksize=1), strict=True))
    for kind in ("png", "svg"):
        write_whole(options.out / f"vector.{kind}", pages.picture(partial(plot, costs), (11, 4.2), 120, kind))
    return {"costs": costs, "grown": grown, "repeats": options.repeats}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, say so as it comes, write the page."""
    made = pages.parser("vector_throughput", __doc__)
    made.add_argument("--repeats", type=count, default=15)
    return pages.run(made, measure, page, arguments, file="vector.md")


if __name__ == "__main__":
    sys.exit(main())
