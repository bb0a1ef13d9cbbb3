"""Speed of this tree over that of another one, a checkout of an older commit, in CPU time.

    git worktree add --detach ../base 638910d
    python -m benchmarks.throughput --base ../base [--only auto] [--check]

Each row is a program that both trees run in turns, every time in a new process, and that prints its seconds; bytecode
is compiled before. Answers are printed too, where a row is about speed alone, and must be the same. All rows make the
page speed.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import pages

ROOT = Path(__file__).parents[2]
# The table of `benchmarks.scaling` for trees that have it elsewhere; `timed` prints seconds, then what it found.
PRELUDE = """
import hashlib, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, gymnasium

def timed(call, repeats=1):
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        found = call()
        seconds.append(time.process_time() - start)
    print(min(seconds), hashlib.sha256(repr(found).encode()).hexdigest()[:12])

def scaled(tables, devices, objective="kernel"):
    try:
        from shard_gym.tables.metasyn import metasyn
    except ImportError:  # trees of before there was that folder
        from shard_gym.metasyn import metasyn
    from shard_gym import Task
    rng = np.random.default_rng(0)
    pool = metasyn(7, 856)
    drawn = pool.take(rng.integers(len(pool), size=tables))
    drawn = drawn.with_(dim=rng.choice([4, 8, 16, 32, 64, 128], tables).astype(np.int32))
    capacity = int(max(2 * drawn.weight_bytes.sum() / devices, drawn.weight_bytes.max()))
    return Task(drawn, (capacity,) * devices, objective=objective)

def first(suite):
    from shard_gym import suites
    return suites.get(suite).tasks("test")[0]

def learned():
    from shard_gym import simulators
    return simulators.make("learned:cpu-v1")

def planned_anew(solver, suite):  # each time a task that nothing is known of
    from dataclasses import replace
    from shard_gym_agents import make
    task, planner, solve = first(suite), learned(), make(solver)
    solve(task, planner)
    tasks = [replace(task) for _ in range(15)]
    timed(lambda: solve(tasks.pop(), planner).device, 15)

def costed(suite, plans, calls=1):
    task, planner = first(suite), learned()
    placements = np.random.default_rng(0).integers(task.num_devices, size=(plans, task.num_tables))
    def costs():
        for _ in range(calls):
            latency = planner.latency(task, placements)
        return latency.compute.tobytes()
    costs()
    timed(costs, 15)

def planned(solver, task, simulator="roofline:h100-v1", repeats=1, **settings):
    from shard_gym import simulators
    from shard_gym_agents import make
    planner = simulators.make(simulator)
    make("lookup-greedy")(task, planner)
    timed(lambda: make(solver, **settings)(task, planner).device, repeats)
"""


@dataclass(frozen=True)
class Row:
    """A program, and how many times as fast as the other tree's it is to be."""

    what: str
    program: str
    at_least: float | None = None
    same: bool = True  # the answer in both trees
    core: str = ""  # the SHARD_GYM_CORE that the program runs with; "": what is there


ROWS = (
    *(
        Row(
            f"cost-greedy, learned, {size}, core {core}",
            f'planned_anew("cost-greedy", "MetaSyn-{size}")',
            least,
            core=core,
        )
        for core, leasts in (("c", (4, 8)), ("numpy", (1.8, 1.8)))
        for size, least in zip(("80x8", "800x80"), leasts, strict=True)
    ),
    *(
        Row(f"{what}, learned, core {core}", f"costed({which})", least if core == "c" else None, core=core)
        for core in ("c", "numpy")
        for what, which, least in (
            ("latency of one plan, 80x8", '"MetaSyn-80x8", 1, 100', 9),
            ("latency of 4,096 plans, 80x8", '"MetaSyn-80x8", 4_096', 3),
            ("latency of 256 plans, 800x80", '"MetaSyn-800x80", 256', 3),
        )
    ),
    *(
        Row(f"autoshard, {size}, core {core}", f'planned_anew("autoshard", "MetaSyn-{size}")', least, core=core)
        for core, least in (("c", 1.8), ("numpy", None))
        for size in ("80x8", "800x80")
    ),
    Row("auto, 10,000 x 1,000", 'planned("auto", scaled(10_000, 1_000), calls=1)', 5),
    Row("auto, 100,000 x 4,096", 'planned("auto", scaled(100_000, 4_096), calls=1)', 4),
    Row("cost-greedy, iteration, 1,024 x 1,024", 'planned("cost-greedy", scaled(1_024, 1_024, "iteration"))', 20),
    Row("import shard_gym", "timed(lambda: __import__('shard_gym') and None)", 1.5),
    Row(
        "gym.make",
        "import shard_gym; timed(lambda: gymnasium.make('ShardGym-MetaSyn-80x8') and None)",
        4,
    ),
    Row(
        "first episode, with its make",
        """
import shard_gym
def first():
    env = gymnasium.make("ShardGym-MetaSyn-80x8")
    env.reset(seed=0)
    for _ in range(80):
        env.step(0)
timed(first)""",
    ),
    Row(
        "task of 100,000 tables to JSON",
        "task = scaled(100_000, 4_096); task.hash; timed(lambda: task.to_json() and None)",
    ),
    Row(
        "task of 100,000 tables from JSON",
        "text = scaled(100_000, 4_096).to_json()\nfrom shard_gym import Task\ntimed(lambda: Task.from_json(text).hash)",
    ),
    Row(
        "plan of 100,000 tables",
        "from shard_gym import Plan\nd = tuple(np.arange(100_000).tolist())\ntimed(lambda: Plan(d) and None, 15)",
    ),
    Row(
        "vector, table, 1,024",
        """
env = gymnasium.make_vec("shard_gym:ShardGym-MetaSyn-80x8", num_envs=1024)
for task in env.unwrapped.bank.tasks:
    env.reset(options={"task": task})
env.reset(seed=0)
actions = np.random.default_rng(0).integers(8, size=(81, 1024))
timed(lambda: [float(env.step(a)[1].sum()) for a in actions], 15)""",
    ),
)


def ratios(base: str, only: str, repeats: int) -> Iterator[tuple[Row, float, float]]:
    """Each row, its seconds here, and how many times as fast as in the other tree that is: medians."""
    with tempfile.TemporaryDirectory() as cache:
        for tree in (Path(base), ROOT):
            _compile(tree, cache)
        for row in ROWS:
            if only not in row.what:
                continue
            times, answers = [], set()
            for _ in range(repeats):
                pair = [_run(tree, row, cache) for tree in (Path(base), ROOT)]
                times.append([seconds for seconds, _ in pair])
                answers |= {answer for _, answer in pair}
            if row.same and len(answers) > 1:
                raise SystemExit(f"{row.what}: the trees find different answers")
            there, here = np.array(times).T
            yield row, float(np.median(here)), float(np.median(there / here))


def page(found: Sequence[tuple[Row, float, float]], command: str) -> str:
    """The rows as Markdown."""
    rows = [
        [
            row.what,
            f"{1e3 * seconds:.4g}",
            f"{times:.2f}",
            "" if row.at_least is None else f"{row.at_least:g}",
            "missed" if row.at_least and times < row.at_least else "",
        ]
        for row, seconds, times in found
    ]
    lines = ["# Speed of this tree over an older one", "", f"`{command}`, CPU time of one core, medians.", ""]
    return "\n".join([*lines, *pages.table(("what", "ms", "times as fast", "wanted", ""), rows), ""])


def _compile(tree: Path, cache: str) -> None:
    """Compile the bytecode of a tree, and of what it imports."""
    folders = [tree.resolve() / name for name in ("shard_gym", "agents")]
    env = os.environ | {"PYTHONPYCACHEPREFIX": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-m", "compileall", "-q", *map(str, folders)], env=env, check=True)
    _run(tree, Row("", "import shard_gym; timed(lambda: gymnasium.make('ShardGym-MetaSyn-80x8') and None)"), cache)


def _run(tree: Path, row: Row, cache: str) -> tuple[float, str]:
    """CPU seconds and answer of a program, of its fastest repeat, on the code of a tree."""
    tree = tree.resolve()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'agents'}", "PYTHONPYCACHEPREFIX": cache}
    env |= {"SHARD_GYM_CORE": row.core} if row.core else {}
    command = [sys.executable, "-c", PRELUDE + row.program]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"in {tree}: {done.stderr.strip().splitlines()[-1]}")
    seconds, answer = done.stdout.split()
    return float(seconds), answer
