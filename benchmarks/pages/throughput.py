"""Speed of the package, on one core, each figure beside its target.

    python -m benchmarks.throughput [--json] [--only step] [--repeats 15]

Times are the median and the best of the repeats. Every case runs in a process of its own: once a process has
freed a large array, glibc keeps such memory, and what is measured later is up to twice as fast. Steps take turns
with those of gymnasium's CartPole-v1 in one process, so that the ratio survives a change of clock rate. `--base TREE`
compares with another checkout instead, see `benchmarks.pages.ratios`, and makes the page speed.md unless `--only` picks
rows; `--check` fails where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import shard_gym_agents
from benchmarks import RESULTS, pages
from benchmarks.pages import ratios
from benchmarks.vector_throughput import Player, calls, cart_pole, make
from shard_gym import simulators
from shard_gym.errors import UnknownName
from shard_gym.memory.usage import device_sums
from shard_gym.records import commands
from shard_gym.records.commands import count
from shard_gym.records.files import write_whole
from shard_gym.tables.metasyn import load_metasyn, metasyn
from shard_gym.tables.traces import trace
from shard_gym.task import suites

STEPS = 4_000  # of a repeat, in whole episodes
SMALL, LARGE = "MetaSyn-80x8", "MetaSyn-800x80"
MANY = 1024  # environments stepped together
LEARNED, ROOFLINE = "learned:cpu-v1", "roofline:rtx2080ti-x4-v1"
GREEDIES = ("size", "dim", "lookup", "size-lookup", "size-lookup-log")


@dataclass(frozen=True)
class Figure:
    """One measured quantity; at most `target`, or at least it where `more_is_better`."""

    what: str
    unit: str
    median: float
    best: float
    target: float | None = None
    more_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Share of the target used up: 1 or less meets it."""
        if self.target is None:
            return None
        return self.target / self.median if self.more_is_better else self.median / self.target

    def line(self) -> str:
        """One row of the report."""
        target = "" if self.target is None else f"{self.target:g}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}{'  MISSED' if self.ratio > 1 else ''}"
        return f"{self.what:48} {self.median:10.3f} {self.best:10.3f} {target:>7}  {self.unit:12} {ratio}"


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(what: str, call: Callable[[], Any], repeats: int, target_ms: float | None) -> list[Figure]:
    """Milliseconds of a call, after one to warm up."""
    call()
    ms = [1e3 * seconds(call) for _ in range(repeats)]
    return [Figure(what, "ms", float(np.median(ms)), min(ms), target_ms)]


def microseconds_a_step(env: gym.Env, actions: list[int]) -> float:
    """Mean CPU time of a step over whole episodes, ends included, resets not.

    Not wall time: on a busy machine the slower of two environments would be interrupted more often.
    """
    spent, steps = 0.0, 0
    while steps < len(actions):
        env.reset()
        over, start = False, time.thread_time()
        while not over:
            over = env.step(actions[steps % len(actions)])[2]
            steps += 1
        spent += time.thread_time() - start
    return 1e6 * spent / steps


def step(repeats: int, name: str, observation: str, wrapped: bool, target: float | None) -> list[Figure]:
    """Random steps of the environment beside CartPole's; every task was prepared before."""
    rng = np.random.default_rng(0)
    env, cart = gym.make(f"ShardGym-{name}", observation=observation), gym.make("CartPole-v1")
    devices, tasks = env.get_wrapper_attr("num_devices"), env.get_wrapper_attr("bank").tasks
    cart.reset(seed=0)
    env.reset(seed=0)
    for task in tasks:
        env.reset(options={"task": task})
    actions, pushes = rng.integers(devices, size=STEPS).tolist(), rng.integers(2, size=STEPS).tolist()
    ours, theirs = (env, cart) if wrapped else (env.unwrapped, cart.unwrapped)
    microseconds_a_step(ours, actions)
    microseconds_a_step(theirs, pushes)
    pairs = [(microseconds_a_step(ours, actions), microseconds_a_step(theirs, pushes)) for _ in range(repeats)]
    us, cart_us = np.array(pairs).T
    best_ratio = float(us.min() / cart_us.min())  # not the least ratio, which picks CartPole's worst moment
    what = f"step {name}, {observation}{', gym.make' if wrapped else ''}"
    return [
        Figure(what, "us", float(np.median(us)), float(us.min())),
        Figure(f"{what} / CartPole", "x", float(np.median(us / cart_us)), best_ratio, target),
    ]


def vector(
    repeats: int,
    observation: str,
    target: float | None,
    simulator_id: str | None = None,
    name: str = SMALL,
    share: float | None = None,
) -> list[Figure]:
    """Steps of many environments together, by `gym.make_vec`, beside those of gymnasium's own vectorised CartPole.

    `target` is in million steps a second, `share` of CartPole's.
    """
    simulator_id = simulator_id or suites.get(name).planner
    env = make(name, MANY, observation=observation, simulator=simulator_id)
    ours, theirs = Player(env, calls(env, suites.get(name).num_tables)), Player(cart_pole(MANY), 80)
    ours.rate(), theirs.rate()
    rate, cart_rate = 1e-6 * np.array([(ours.rate(), theirs.rate()) for _ in range(repeats)]).T
    told = observation if name == SMALL else f"{observation} of {name}"
    what = f"vector, {told}, {simulator_id}"
    best_ratio = float(rate.max() / cart_rate.max())
    return [
        Figure(what, "M steps/s", float(np.median(rate)), float(rate.max()), target, True),
        Figure(f"vector, {told} / CartPole", "x", float(np.median(rate / cart_rate)), best_ratio, share, True),
    ]


def imports(repeats: int) -> list[Figure]:
    """Time of `import shard_gym` after gymnasium, each time in a new process."""
    program = "import time, gymnasium; t = time.perf_counter(); import shard_gym; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, capture_output=True)  # compiles
    ms = [1e3 * float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return [Figure("import shard_gym after gymnasium", "ms", float(np.median(ms)), min(ms), 100)]


def plan(
    repeats: int, solver: str, name: str, target: float | None, simulator_id: str = "roofline:rtx2080ti-x4-v1"
) -> list[Figure]:
    """One task of a suite planned by a solver."""
    task, planner, solve = (
        suites.get(name).tasks("test")[0],
        simulators.make(simulator_id),
        shard_gym_agents.make(solver),
    )
    what = f"{solver}, {name}" + ("" if target else f", {simulator_id}")
    return timed(what, lambda: solve(task, planner), repeats, target)


def predicted(repeats: int, simulator_id: str) -> list[Figure]:
    """Whole plans and single moves of 80 tables on 8 devices, costed from their placements and from running sums."""
    task, simulator = suites.get(SMALL).tasks("test")[0], simulators.make(simulator_id)
    assert isinstance(simulator, simulators.FastSimulator)
    placements = np.random.default_rng(0).integers(task.num_devices, size=(4_096, task.num_tables))
    tables = simulator.embed(task)
    sums = device_sums(tables, placements[:8], task.num_devices)[:, None]  # eight plans

    def moves() -> None:  # every table to every device
        simulator.decode(task, sums + tables[:, None])

    cases = {
        "plans": (lambda: simulator.latency(task, placements), len(placements), 0.3),
        "single moves": (moves, 8 * task.num_tables * task.num_devices, 5.0),
    }
    figures = []
    for what, (call, calls_each, target) in cases.items():
        call()
        rate = [calls_each / seconds(call) / 1e6 for _ in range(repeats)]
        name = f"{what}, {simulator_id}"
        figures.append(Figure(name, "M/s", float(np.median(rate)), max(rate), target, True))
    return figures


def build(repeats: int) -> list[Figure]:
    """A pool of 856 tables made up."""
    return timed("metasyn(0)", lambda: metasyn(0), repeats, 1000)


def load(repeats: int) -> list[Figure]:
    """The frozen pool read from its file."""

    def read() -> None:
        load_metasyn.cache_clear()
        load_metasyn()

    return timed("load_metasyn()", read, repeats, 50)


def indices(repeats: int) -> list[Figure]:
    """The index trace of a large table, a new one each time."""
    pool = load_metasyn()
    table = int(np.argsort(pool.lookups)[len(pool) * 9 // 10])
    count = len(trace(pool, table)[0])
    rate = [count / seconds(partial(trace, pool, table, seed=1 + i)) / 1e6 for i in range(repeats)]
    return [Figure(f"trace, {count:,} indices", "M indices/s", float(np.median(rate)), max(rate), 10, True)]


Case = Callable[[int], list[Figure]]
CASES: dict[str, list[Case]] = {
    "step": [
        *(
            partial(step, name=name, observation="table", wrapped=False, target=1.0)
            for name in (SMALL, LARGE, "Core-80x8", "Tight-80x8", "DLRM-10x4")
        ),
        *(partial(step, name=SMALL, observation=o, wrapped=False, target=None) for o in ("full", "set")),
        *(partial(step, name=SMALL, observation=o, wrapped=True, target=None) for o in ("table", "full", "set")),
    ],
    "vector": [
        *(
            partial(vector, observation=o, target=target, share=share)
            for o, target, share in (("table", 5.0, 2.0), ("full", 2.0, 0.4), ("set", None, 0.3))
        ),
        *(partial(vector, observation=o, target=None, simulator_id=ROOFLINE) for o in ("table", "full")),
        partial(vector, observation="flat", target=None, name="Core-60x4", share=0.4),
        partial(vector, observation="flat", target=None, share=0.4),
    ],
    "imports": [imports],
    "plans": [
        partial(plan, solver="random-search", name=SMALL, target=10.0),  # its default is 1,000 samples
        *(
            partial(plan, solver=solver, name=name, target=target)
            for name, target in ((SMALL, 0.3), (LARGE, 5.0))
            for solver in ("round-robin", *(f"{cost}-greedy" for cost in GREEDIES))
        ),
        partial(plan, solver="cost-greedy", name=SMALL, target=1.0),
        partial(plan, solver="cost-greedy", name=LARGE, target=50.0),
        *(partial(plan, solver="cost-greedy", name=name, target=None, simulator_id=LEARNED) for name in (SMALL, LARGE)),
    ],
    "predicted": [partial(predicted, simulator_id=LEARNED)],
    "pools": [build, load, indices],
}


def run(case: Case, repeats: int) -> list[Figure]:
    """A case, in the process that it was sent to."""
    return case(repeats)


def measure(group: str, repeats: int) -> Iterator[Figure]:
    """Measure all figures, or those of one group; every case in a fresh process."""
    cases = [case for name, group_cases in CASES.items() if group in ("", name) for case in group_cases]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for figures in pool.imap(partial(run, repeats=repeats), cases):
            yield from figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print each figure when it is there."""
    made = commands.parser("python -m benchmarks.throughput", __doc__)
    made.add_argument("--json", action="store_true", help="print one JSON object a line")
    made.add_argument(
        "--only", default="", help=f"one group of cases ({', '.join(CASES)}), or of --base part of a name"
    )
    made.add_argument("--base", default="", help="a checkout of another commit, to compare with")
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the page of --base goes")
    made.add_argument("--check", action="store_true", help="fail if a target is missed")
    made.add_argument("--repeats", type=count, default=15)
    return commands.run(made, tell, arguments)


def tell(options: argparse.Namespace) -> None:
    """Print the figures, from one core and one thread."""
    if not options.base and options.only not in ("", *CASES):
        raise UnknownName("group", options.only, CASES)
    pages.one_core()  # before the processes of the cases import numpy
    if not options.json:
        print(f"{'':48} {'median':>10} {'best':>10} {'target':>7}  {'unit':12} ratio")
    missed = []
    for f in over_base(options) if options.base else measure(options.only, options.repeats):
        print(json.dumps(asdict(f) | {"ratio": f.ratio}) if options.json else f.line(), flush=True)
        missed += [f.what] * (f.ratio is not None and f.ratio > 1)
    if options.check and missed:
        raise SystemExit(f"targets missed: {'; '.join(missed)}")


def over_base(options: argparse.Namespace) -> Iterator[Figure]:
    """Speed of this tree over that of another one."""
    found = []
    for row, seconds, times in ratios.ratios(options.base, options.only, options.repeats):
        found.append((row, seconds, times))
        yield Figure(f"{row.what}, {1e3 * seconds:.4g} ms", "x base", times, times, row.at_least, True)
    if not options.only:
        command = f"python -m benchmarks.throughput --base {Path(options.base).name} --repeats {options.repeats}"
        write_whole(options.out / "speed.md", ratios.page(found, command))


if __name__ == "__main__":
    sys.exit(main())
