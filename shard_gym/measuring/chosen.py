"""Whole plans, chosen by what a planner predicts before anything of them is measured, and what they took then."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InfeasibleTask, SimulatorError
from shard_gym.measuring.measurements import Measurements
from shard_gym.plan.plan import Plan
from shard_gym.records.files import read_json, write_whole
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import plan_latency
from shard_gym.task import suites
from shard_gym.task.task import Task

SCHEMA = "shard-gym/chosen-plans/1"
SCHEMA_2 = "shard-gym/chosen-plans/2"  # of several suites, with plans that split tables, and solvers that found none
SUITE, POOL = "tight-80x8", "metasyn_3_856"  # tables that no fit has seen
CLOSE = 0.02  # predicted makespans this near to each other count as close

Shard = tuple[tuple[int, ...], tuple[int, ...]]  # tables by index in their pool, and their dims
Solver = Callable[[Task, Simulator], Plan]


@dataclass(frozen=True)
class Pick:
    """Some test tasks of a suite, as they are measured."""

    suite: str
    first: int
    count: int

    def tasks(self) -> dict[int, Task]:
        """The tasks by number."""
        return {number: task_of(self.suite, number) for number in range(self.first, self.first + self.count)}


@cache
def task_of(suite: str, number: int) -> Task:
    """A test task of a suite; of iterations the compute alone, as MetaSyn-80x8 has it."""
    task = suites.get(suite).bank_of("test")[number]
    return task if task.objective == "kernel" else as_measured(task)


def as_measured(task: Task) -> Task:
    """The task as shards are measured: fp16 tables, compute alone, no limit of memory."""
    fp16 = task.tables.with_(dtype=("fp16",) * task.num_tables)
    memory = (2**50,) * task.num_devices
    return replace(task, tables=fp16, memory=memory, objective="kernel", optimizer="sgd", accounting="weights")


def shards_of(task: Task, plan: Plan) -> Iterator[Shard]:
    """Tables, or pieces of their columns, of each device that has any; tables are named `metasyn<seed>_<index>`."""
    task = task.split(plan.splits)
    index = np.array([int(name.partition("/")[0].rsplit("_", 1)[1]) for name in task.tables.name])
    device = np.array(plan.device)
    for d in range(task.num_devices):
        mine = np.flatnonzero(device == d)
        if len(mine):
            yield tuple(index[mine].tolist()), tuple(task.tables.dim[mine].tolist())


def choose(
    planner: Simulator, solvers: Mapping[str, Solver], picks: Sequence[Pick]
) -> tuple[dict[str, Any], Measurements]:
    """Plans of the tasks picked with their predicted makespans, and their shards, not measured yet."""
    plans = [
        {"suite": pick.suite, "task": number, "solver": name, **_planned(task, solve, planner)}
        for pick in picks
        for number, task in pick.tasks().items()
        for name, solve in solvers.items()
    ]
    chosen = {"schema": SCHEMA_2, "planner": planner.id, "plans": plans}
    return chosen, listed(chosen)


def listed(chosen: dict[str, Any]) -> Measurements:
    """The different shards of chosen plans, not measured yet."""
    found = (
        shard
        for entry in chosen["plans"]
        if entry["predicted"] is not None
        for shard in shards_of(task_of(entry.get("suite", SUITE), entry["task"]), _plan(entry))
    )
    return Measurements.unmeasured(POOL, list(dict.fromkeys(found)), kind="searched")


def _planned(task: Task, solve: Solver, planner: Simulator) -> dict[str, Any]:
    """The entry of a solver on a task."""
    try:
        plan = solve(task, planner)
    except InfeasibleTask:
        return {"predicted": None}
    predicted = float(plan_latency(planner, task, plan).makespan("kernel"))
    splits = {"splits": list(plan.splits)} if plan.splits else {}
    return {"predicted": predicted, "device": list(plan.device), **splits}


def save(path: Path, chosen: dict[str, Any]) -> None:
    """Write as JSON, one plan a line."""
    head = {key: value for key, value in chosen.items() if key != "plans"}
    lines = ",\n".join(json.dumps(plan) for plan in chosen["plans"])
    write_whole(path, f'{json.dumps(head)[:-1]}, "plans": [\n{lines}\n]}}\n')


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote."""
    chosen = read_json(path)
    if not isinstance(chosen, dict) or chosen.get("schema") not in (SCHEMA, SCHEMA_2):
        raise CorruptFile(f"{path} does not hold plans of schema {SCHEMA} or {SCHEMA_2}")
    return chosen


def again(chosen: dict[str, Any], planner: Simulator) -> dict[str, Any]:
    """The same plans with what another planner predicts of them."""
    plans = [entry | {"predicted": _predicted(entry, planner)} for entry in chosen["plans"]]
    return chosen | {"planner": planner.id, "plans": plans}


def _predicted(entry: dict[str, Any], planner: Simulator) -> float | None:
    """The makespan of an entry's plan, None where there is none."""
    if entry["predicted"] is None:
        return None
    task = task_of(entry.get("suite", SUITE), entry["task"])
    return float(plan_latency(planner, task, _plan(entry)).makespan("kernel"))


def _plan(entry: dict[str, Any]) -> Plan:
    return Plan(tuple(entry["device"]), tuple(entry.get("splits", ())))


@dataclass(frozen=True, eq=False)
class Outcome:
    """Plans of T tasks by S solvers: makespans by planner and judge (T, S), K devices measured R times; all ms.

    Where a solver found no plan all of it is infinite.
    """

    planner: str
    solvers: tuple[str, ...]
    predicted: np.ndarray
    judged: np.ndarray  # NaN where there is no judge
    expected: np.ndarray  # each device as the planner predicts it, (T, S, K)
    devices: np.ndarray  # (R, T, S, K)
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of `expected`, 0 where the planner tells none

    @property
    def runs(self) -> np.ndarray:
        """Makespan in each run, (R, T, S): the largest of K noisy times, so somewhat too long."""
        return self.devices.max(axis=-1)

    @property
    def measured(self) -> np.ndarray:
        """Makespan of each device's median over the runs, (T, S): a burst of other work in one run does not count."""
        return np.median(self.devices, axis=0).max(axis=-1)

    @property
    def crossed(self) -> np.ndarray:
        """The device slowest by the other runs, as this run measured it; mean over the runs, (T, S).

        The largest of several noisy times is too long; this is not, and a little too short where the other runs pick
        the wrong device.
        """
        runs = len(self.devices)
        others = [np.delete(self.devices, r, axis=0).mean(axis=0).argmax(axis=-1) for r in range(runs)]
        picked = [np.take_along_axis(self.devices[r], others[r][..., None], -1)[..., 0] for r in range(runs)]
        return np.mean(picked, axis=0)

    def of_tasks(self, kept: np.ndarray) -> Outcome:
        """The outcome of some of the tasks."""
        per_task = {name: getattr(self, name)[kept] for name in ("predicted", "judged", "expected")}
        per_task["spread"] = self.spread[kept] if self.spread.size else self.spread
        return replace(self, devices=self.devices[:, kept], **per_task)


def outcome(
    chosen: dict[str, Any],
    runs: Sequence[Measurements],
    planner: Simulator,
    judge: Simulator | None = None,
    suite: str = SUITE,
) -> Outcome:
    """Times of the plans chosen for a suite in each run; tasks with a shard that some run lacks are left out."""
    if planner.id != chosen["planner"]:
        raise SimulatorError(f"these plans were chosen with {chosen['planner']}, not with {planner.id}")
    entries = [entry for entry in chosen["plans"] if entry.get("suite", SUITE) == suite]
    solvers = tuple(dict.fromkeys(entry["solver"] for entry in entries))
    known = {number: task_of(suite, number) for number in dict.fromkeys(entry["task"] for entry in entries)}
    rows = {number: row for row, number in enumerate(known)}
    predicted, judged = np.full((2, len(known), len(solvers)), np.nan)
    expected, spread = np.zeros((2, *predicted.shape, suites.get(suite).num_devices))
    devices = np.zeros((len(runs), *expected.shape))
    times = [_times(run) for run in runs]
    for entry in entries:
        at, task = (rows[entry["task"]], solvers.index(entry["solver"])), known[entry["task"]]
        if entry["predicted"] is None:
            predicted[at] = judged[at] = expected[at] = devices[:, *at] = np.inf
            continue
        plan = _plan(entry)
        predicted[at] = entry["predicted"]
        if judge is not None:
            judged[at] = plan_latency(judge, task, plan).makespan("kernel")
        latency, shards = plan_latency(planner, task, plan), list(shards_of(task, plan))
        compute = latency.compute
        expected[at][: len(shards)] = compute[compute > 0]
        if latency.spread is not None:
            spread[at][: len(shards)] = latency.spread[compute > 0]
        for r, of in enumerate(times):
            devices[(r, *at)][: len(shards)] = [of.get(shard, np.nan) for shard in shards]
    whole = ~np.isnan(devices).any(axis=(0, 2, 3)) & ~np.isnan(predicted).any(axis=1)
    if not whole.any():
        raise SimulatorError("no task has all its shards measured in every run: measure for longer")
    return Outcome(chosen["planner"], solvers, predicted, judged, expected, devices, spread).of_tasks(whole)


def passes(measured: Measurements) -> list[Measurements]:
    """The passes over a list of shards, in the order they were listed."""
    first = measured.key(0)
    starts = [i for i in range(len(measured)) if measured.key(i) == first]
    ends = [*starts[1:], len(measured)]
    return [measured.take(np.arange(a, b)) for a, b in zip(starts, ends, strict=True)]


def _times(measured: Measurements) -> dict[Any, float]:
    """Milliseconds of each shard, (tables, dims), of one run."""
    return {measured.key(i)[1:]: float(ms) for i, ms in enumerate(measured.total_ms)}


def figures(found: Outcome) -> dict[str, Any]:
    """Optimism, speedup, order and regret."""
    predicted, measured, crossed, runs = found.predicted, found.measured, found.crossed, found.runs
    picked = measured[np.arange(len(measured)), predicted.argmin(axis=1)]
    rows = [
        {
            "solver": name,
            "predicted_ms": float(predicted[:, s].mean()),
            "measured_ms": float(measured[:, s].mean()),
            "optimism": float((measured[:, s] / predicted[:, s] - 1).mean()),
            "optimism_error": float((measured[:, s] / predicted[:, s]).std() / np.sqrt(len(measured))),
            "optimism_crossed": float((crossed[:, s] / predicted[:, s] - 1).mean()),
            "optimism_by_run": (runs / predicted - 1)[:, :, s].mean(axis=1).tolist(),
            "predicted_speedup": float((predicted[:, 0] / predicted[:, s]).mean()),
            "judge_optimism": float((measured[:, s] / found.judged[:, s] - 1).mean()),
            "judged_speedup": float((found.judged[:, 0] / found.judged[:, s]).mean()),
            "measured_speedup": float((measured[:, 0] / measured[:, s]).mean()),
            "crossed_speedup": float((crossed[:, 0] / crossed[:, s]).mean()),
        }
        for s, name in enumerate(found.solvers)
    ]
    held = found.expected > 0
    shard = np.median(found.devices, axis=0)[held] / found.expected[held] - 1
    return {
        "planner": found.planner,
        "shard_bias": float(shard.mean()),
        "shard_deviation": float(shard.std()),
        "tasks": len(measured),
        "runs": len(runs),
        "rows": rows,
        "order": order(predicted, measured),
        "order_of_runs": order(runs[0], found.devices[1:].mean(axis=0).max(axis=-1)),
        "regret": float((picked / measured.min(axis=1) - 1).mean()),
    }


def order(believed: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Share of pairs of plans of a task that both put in the same order: of all, and of those believed to be close.

    `apart` says how far apart the plans of each two solvers are believed to be, on average over tasks.
    """
    pairs = list(combinations(range(believed.shape[1]), 2))
    one, other = (np.array(side) for side in zip(*pairs, strict=True))
    gap = believed[:, one] / believed[:, other] - 1
    same = np.sign(gap) == np.sign(true[:, one] - true[:, other])
    close = abs(gap) < CLOSE
    apart = np.sort(abs(gap).mean(axis=0)).tolist()
    return {
        "all": float(same.mean()),
        "far": float(same[~close].mean()) if (~close).any() else float("nan"),
        "close": float(same[close].mean()) if close.any() else float("nan"),
        "share_close": float(close.mean()),
        "apart": apart,
    }


def section(found: dict[str, Any]) -> list[str]:
    """Section of a fidelity page, Markdown."""
    lines = [
        "## From predicted to measured plans",
        "",
        f"{found['tasks']} tasks of 80 unseen tables on 8 devices (the tables of {SUITE}'s test tasks), plans by "
        f"{found['planner']} chosen before anything was measured; their shards measured in {found['runs']} runs, each "
        "in an order of its own. Measured: the largest of the devices' medians over the runs. Optimism: measured over "
        "predicted makespan, minus 1, ± standard error over tasks. The largest of eight noisy times is too long, most "
        "of all in a single run (each is given). Crossed is free of that, and a little too short instead: the device "
        "that is slowest by the other runs, as a run measured it.",
        "",
        "| plans by | predicted, ms | measured, ms | optimism | crossed | single runs | of the judge "
        "| speedup predicted | judged | measured | crossed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in found["rows"]:
        runs = ", ".join(f"{x:+.1%}" for x in r["optimism_by_run"])
        judged = [_known(r["judge_optimism"], "+.1%"), _known(r["judged_speedup"], ".3f")]
        lines.append(
            f"| {r['solver']} | {r['predicted_ms']:.2f} | {r['measured_ms']:.2f} | {r['optimism']:+.1%} ± "
            f"{r['optimism_error']:.1%} | {r['optimism_crossed']:+.1%} | {runs} | {judged[0]} | "
            f"{r['predicted_speedup']:.3f} | {judged[1]} | {r['measured_speedup']:.3f} | {r['crossed_speedup']:.3f} |"
        )
    told, between = found["order"], found["order_of_runs"]
    apart = ", ".join(f"{share:.1%}" for share in told["apart"])
    return [
        *lines,
        "",
        f"Of two plans of a task the planner names the faster one in {told['all']:.1%} of pairs. If it predicts a "
        f"difference above {CLOSE:.0%}, it is right in {told['far']:.1%} of pairs; otherwise "
        f"({told['share_close']:.0%} of pairs) in {told['close']:.1%}. By its predictions the plans of each two "
        f"solvers are {apart} apart. One run against the mean of the others agrees on {between['all']:.1%}. "
        f"The plan predicted to be fastest takes {found['regret']:.2%} longer than the one measured to be. A device "
        f"takes {found['shard_bias']:+.1%} ± {found['shard_deviation']:.1%} more than predicted.",
        "",
    ]


def _known(value: float, form: str) -> str:
    return "" if np.isnan(value) else f"{value:{form}}"
