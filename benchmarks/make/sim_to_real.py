"""Plans that are chosen before they are measured: `python -m benchmarks.sim_to_real choose --planner learned:cpu-v2`

Writes plans of test tasks by eight methods, with what the planner predicts, to measurements/HARDWARE-fresh.json. Commit
them; then `list --shards FILE.npz` writes their shards, with some that tell the machine's pace. Measure these in three
passes, each in a shuffled order of its own, and keep the result as measurements/HARDWARE-fresh.npz:

    shard-gym measure --shard-file FILE.npz --repeats 3 --seed 1 ... --out RUN

`python -m benchmarks.sim_to_real compare --judge learned:cpu-judge-v2` writes what came out to
benchmarks/results/sim_to_real.md: for each method how much faster its plans are than ladder's, predicted and measured,
task by task. (Plans of the first edition, of cost-greedy and of searches that split nothing, are told by
`python -m benchmarks.fidelity`.)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.pace import yardstick

from benchmarks.measured import Hardware
from benchmarks.pages import table
from shard_gym import simulators
from shard_gym.errors import MissingDependency, ShardGymError
from shard_gym.measuring import chosen
from shard_gym.measuring.chosen import Outcome, Pick, Solver
from shard_gym.measuring.drift import detrended
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.predictors import predicted_by
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.results.evaluate import score
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.expected import expected_max
from shard_gym.task import suites
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.leaderboard.statistics import holm, paired
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.trained import Trained
from shard_gym_agents.search.doubtful import Charged, Expected
from shard_gym_agents.solvers.solver import require_fast

# Tight-80x8's tables are of MetaSyn-80x8's dims, from a pool that no fit has seen; its first 50 tasks were measured.
PICKS = (Pick("fitsplit-24x8", 0, 32), Pick("fittightmix-80x8", 0, 30), Pick("tight-80x8", 50, 30))
GREEDIES = ("random", "cost-greedy", "halve-then-greedy", "ladder")
BASE, SEARCH = "ladder", "local-search"
SPREADS = 1.0  # that a search charges for
CALLS = 50_000  # questions of a search to the planner: the same on any machine
TREND = "learned:cpu-v1"  # sees the drift of the machine; it planned and judged none of these plans
WORTH = 0.03  # gain over ladder that a search is asked for
HEAD = ["plans by", "with a plan", "compared", "predicted", "judged", "measured", "95 % interval", "p", "optimism"]


@dataclass(frozen=True)
class Searched:
    """Local search on a planner that is read in some way."""

    read: Callable[[FastSimulator, Task], Simulator]
    calls: int

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        return make(SEARCH, calls=self.calls)(task, self.read(require_fast(planner), task))


def solvers_of(suite: str, planner: Simulator, calls: int) -> dict[str, Solver]:
    """The methods that plan the tasks of a suite, by name."""
    readings: dict[str, Callable[[FastSimulator, Task], Simulator]] = {
        "mean": lambda planner, task: planner,
        f"mean + {SPREADS:g} spread": lambda planner, task: Charged(planner, SPREADS),
        "expected slowest": Expected,
    }
    found: dict[str, Solver] = {name: make(name) for name in GREEDIES}
    found |= {f"{SEARCH} by {name}": Searched(read, calls) for name, read in readings.items()}
    learned = best_learner(suite, planner)
    return found if learned is None else found | {f"learner ({learned.learner})": learned}


def best_learner(suite: str, planner: Simulator) -> Trained | None:
    """The learner whose shipped policy is best on the suite's validation tasks, by the planner; None without one."""
    tasks, worths = suites.get(suite).tasks("val"), {}
    for name in LEARNERS:
        try:
            learner = Trained(name, suite=suite)
            learner.require_planner(planner.id)
            worths[learner] = np.mean([score(task, learner(task, planner), planner).makespan for task in tasks])
        except MissingDependency:
            raise
        except ShardGymError:  # no weights, other weights, or a task without a plan
            continue
    return min(worths, key=lambda learner: float(worths[learner])) if worths else None


def choose(options: Namespace) -> None:
    """Write the plans."""
    hardware = Hardware(options.hardware)
    planner = simulators.make(options.planner or hardware.planner)
    parts = [chosen.choose(planner, solvers_of(p.suite, planner, options.calls), [p])[0] for p in PICKS]
    plans = [entry for part in parts for entry in part["plans"]]
    chosen.save(hardware.fresh, parts[0] | {"plans": plans})
    print(f"{len(plans)} plans in {hardware.fresh}")


def list_shards(options: Namespace) -> None:
    """Write the shards of the plans."""
    if options.shards is None:
        raise ShardGymError("list needs --shards FILE.npz, where the shards go that are to be measured")
    hardware = Hardware(options.hardware)
    shards = Measurements.concat([chosen.listed(chosen.load(hardware.fresh)), *yardstick(hardware, chosen.POOL)])
    shards.save(options.shards)
    print(f"{len(shards)} shards to measure in {options.shards}")


@dataclass(frozen=True)
class Gain:
    """Gain of a method's plans over ladder's on tasks where both have one, as shares of ladder's time."""

    solver: str
    planned: int  # tasks that it found a plan for
    compared: int  # tasks that ladder found one for, too
    predicted: float
    judged: float
    measured: float
    low: float  # 95 % interval of the measured gain
    high: float
    p: float
    optimism: float  # measured over E[max], minus 1


def gains(found: Outcome) -> list[Gain]:
    """Gains of all methods but the base; times of the slowest device that other runs than the one read pick."""
    base = found.solvers.index(BASE)
    return [
        _gain(solver, found, [s, base], both)
        for s, solver in enumerate(found.solvers)
        if s != base and (both := np.isfinite(found.predicted[:, [s, base]]).all(axis=1)).any()
    ]


def _gain(solver: str, found: Outcome, pair: list[int], both: np.ndarray) -> Gain:
    told = found.of_tasks(both)
    ms = {name: np.log(getattr(told, name)[:, pair]) for name in ("predicted", "judged", "crossed")}
    ratio = paired(*ms["crossed"].T[..., None])
    predicted, judged, measured = (1 - float(np.exp((each[:, 0] - each[:, 1]).mean())) for each in ms.values())
    low, high = 1 - float(np.exp(ratio.high)), 1 - float(np.exp(ratio.low))
    planned = int(np.isfinite(found.predicted[:, pair[0]]).sum())
    return Gain(
        solver, planned, int(both.sum()), predicted, judged, measured, low, high, ratio.p, _optimism(told, pair[0])
    )


def _optimism(found: Outcome, solver: int) -> float:
    """The share by which a solver's plans take longer than the mean of the largest of devices known within a spread."""
    said = expected_max(found.expected[:, solver], found.spread[:, solver])
    return float((found.crossed[:, solver] / said).mean() - 1)


def steady_passes(hardware: Hardware) -> list[Measurements]:
    """The passes over the fresh plans' shards, without the drift of the machine."""
    trend = predicted_by(simulators.make(TREND))
    return [each for part in hardware.parts("fresh") for each in chosen.passes(detrended(part, trend(part)))]


def compare(options: Namespace) -> None:
    """Write the page."""
    hardware = Hardware(options.hardware)
    plans = chosen.load(hardware.fresh)
    planner, judge = simulators.make(plans["planner"]), simulators.make(options.judge or hardware.judge)
    passes = steady_passes(hardware)
    outcomes = {
        suite: chosen.outcome(plans, passes, planner, judge, suite)
        for suite in dict.fromkeys(entry["suite"] for entry in plans["plans"])
    }
    path = hardware.result("sim_to_real").with_suffix(".md")
    write_whole(path, page(plans["planner"], judge.id, outcomes))
    print(path)


def page(planner: str, judge: str, outcomes: dict[str, Outcome]) -> str:
    """The page, Markdown."""
    passes = len(next(iter(outcomes.values())).devices)
    lines = [
        "# Plans measured after they were chosen",
        "",
        f"Made by `python -m benchmarks.sim_to_real compare`. Plans by {planner}, judged by {judge}, of tables that no "
        f"fit has seen. They were written down before any of their shards was measured, in {passes} passes, each in an "
        f"order of its own; the drift of the machine is taken out (by {TREND}). Figures say how much less time than "
        f"{BASE}'s plans a method's take, task by task, where both have a plan. Measured is the device that is slowest "
        "by the other passes, which is free of the bias of a noisy maximum. Intervals resample tasks; p is corrected "
        "for the number of methods. Optimism is how much longer plans take than the planner expects of their slowest "
        "device; the level of the whole day is in it, so compare it with random's.",
    ]
    for suite, found in outcomes.items():
        lines += ["", f"## {suite}: {len(found.predicted)} tasks", "", *table(HEAD, _cells(found)), "", verdict(found)]
    return "\n".join([*lines, ""])


def verdict(found: Outcome) -> str:
    """Tells if any method is measured to beat ladder, and by so much that it is worth a search."""
    best = max(gains(found), key=lambda row: row.measured)
    told = f"{best.measured:+.1%} ({best.low:+.1%} .. {best.high:+.1%})"
    if best.low > 0:
        enough = "at least" if best.measured >= WORTH else "less than"
        return f"Best beside {BASE}: {best.solver}, measured {told}: better, by {enough} {WORTH:.0%}."
    return f"No method is measured to beat {BASE}: {best.solver} comes nearest, {told}."


def _cells(found: Outcome) -> list[list[str]]:
    rows = gains(found)
    corrected = holm([row.p for row in rows])
    return [
        [
            row.solver,
            f"{row.planned} of {len(found.predicted)}",
            f"{row.compared}",
            *(f"{share:+.1%}" for share in (row.predicted, row.judged, row.measured)),
            f"{row.low:+.1%} .. {row.high:+.1%}",
            f"{p:.3f}",
            f"{row.optimism:+.1%}",
        ]
        for row, p in zip(rows, corrected, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Choose the plans, list their shards, or tell what became of them."""
    parser = commands.parser("sim_to_real", __doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    parser.add_argument("--planner", help="id or weights file that chooses; default learned:HARDWARE-v1")
    parser.add_argument("--judge", help="id or weights file; default learned:HARDWARE-judge-v1")
    parser.add_argument("--calls", type=int, default=CALLS, help=f"of a search to the planner, default {CALLS}")
    parser.add_argument("--shards", type=Path, help="file of the shards to measure, of list")
    return commands.run(parser, lambda options: STEPS[options.step](options), argv)


STEPS = {"choose": choose, "list": list_shards, "compare": compare}


if __name__ == "__main__":
    raise SystemExit(main())
