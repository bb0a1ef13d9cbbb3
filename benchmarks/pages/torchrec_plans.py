"""TorchRec's planner beside `auto` over all kinds of sharding: `python -m benchmarks.torchrec_plans`.

Forty drawn tasks, plans of TorchRec's four configurations and of ours by four aims, each judged by TorchRec's own
estimate, by its critical path, and by our roofline. Plans are kept in benchmarks/results/torchrec_plans, so the page
`torchrec_plans.md` is made of them in less than a minute, and `--check` makes sure that it says what they do.
`--theirs` runs TorchRec's planner on what is missing, an hour for all; `--ours` plans ours anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import pages, torchrec_runs
from benchmarks.drawn import HOST
from benchmarks.torchrec_both import PERF
from benchmarks.torchrec_runs import AIMS, BY_BOTH, CRITICAL, ESTIMATE, LIMIT, ROOFLINE, SIZES, WAYS, Run, Size
from shard_gym.bounds import lower_bound
from shard_gym.errors import ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.records import commands
from shard_gym.records.commands import names
from shard_gym.records.files import write_whole
from shard_gym.results.evaluate import score
from shard_gym.simulators.torchrec import CRITICAL_PATH
from shard_gym.task.task import Task

DEFAULT, PERF_FIRST = list(WAYS)[:2]
BEST = "best of TorchRec's"
NAMES = {DEFAULT: "TorchRec's default", PERF_FIRST: "the same, greedy-perf"}
NAMES |= {aim: f"ours, by {'the ' * (aim != BY_BOTH)}{aim}" for aim in AIMS}
MEASURES = 3  # TorchRec's estimate, its critical path, our roofline; ms
HEAD = ("plan", "plans", "CPU s", "estimate over bound: mean", "worst", "below default", "below best: mean", "least")
WORSE = 1e-9  # relative: estimates are sums of floats
_OWN = ((ESTIMATE, 0), (CRITICAL, 1))  # the measure that a plan is made for
JUDGED = ("plan", "estimate", "critical path", "roofline", "mean of estimate and roofline")
ABOUT = f"""Made by `python -m benchmarks.torchrec_plans` of the plans in [torchrec_plans](torchrec_plans), whose README
says how tasks were drawn and plans found. `best`: of TorchRec's four configurations, {LIMIT:g} s of CPU time each, by
TorchRec's own estimate. Ours are plans of `auto` by four aims: TorchRec's estimate, its critical path, our
{ROOFLINE.id}, and the sum of estimate and roofline, scaled alike. Percentages are means over the tasks where there is a
plan to compare with. The bound is of plans that cut columns in 2, 4 or 8, as ours do; TorchRec cuts 384 in three, too,
and may be below it."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The plans for the T tasks of a size: ms by each measure, NaN where there is no plan."""

    size: Size
    bound: np.ndarray  # (T,), of the estimate
    ms: dict[str, np.ndarray]  # of each way and aim, (T, MEASURES)
    seconds: dict[str, np.ndarray]  # of CPU time, (T,)

    @property
    def best(self) -> np.ndarray:
        """The least that a plan of TorchRec's takes, by each measure, (T, MEASURES)."""
        return np.fmin.reduce([self.ms[way] for way in WAYS])

    @property
    def shown(self) -> dict[str, np.ndarray]:
        """The rows of tables."""
        ours = {aim: self.ms[aim] for aim in AIMS}
        return {DEFAULT: self.ms[DEFAULT], PERF_FIRST: self.ms[PERF_FIRST], BEST: self.best, **ours}

    def rows(self) -> list[list[str]]:
        """Rows by TorchRec's estimate, beside the bound, its default and its best."""
        default, best = self.ms[DEFAULT][:, 0], self.best[:, 0]
        seconds = self.seconds | {BEST: np.sum([self.seconds[way] for way in WAYS], axis=0)}
        found = []
        for name, ms in self.shown.items():
            over, less, saved = ms[:, 0] / self.bound - 1, 1 - ms[:, 0] / default, 1 - ms[:, 0] / best
            plans = int(np.isfinite(ms[:, 0]).sum())
            cells = [NAMES.get(name, name), f"{plans} of {len(ms)}", _mean(seconds[name])]
            cells += [_percent(over, np.nanmean, 2), _percent(over, np.nanmax, 2), _percent(less, np.nanmean)]
            found.append([*cells, _percent(saved, np.nanmean), _percent(saved, np.nanmin)])
        return found

    def judged(self) -> list[list[str]]:
        """Rows by every measure, beside the least of TorchRec's plans by it: mean of the difference."""
        found = []
        for name, ms in self.shown.items():
            beside = ms / self.best
            columns = [*beside.T, beside[:, [0, 2]].mean(axis=1)]
            found.append([NAMES.get(name, name), *(_percent(column - 1, np.nanmean, 1, "+") for column in columns)])
        return found


def judge(size: Size, theirs: dict[tuple[str, str], Run], ours: dict[tuple[str, str], Run]) -> Judged:
    """Replay the plans that are kept."""
    tasks, kept = torchrec_runs.tasks(size), theirs | ours
    ms, seconds = {}, {}
    for way in (*WAYS, *AIMS):
        runs = [kept.get((task.name, way)) for task in tasks]
        ms[way] = np.array([_measured(task, run) for task, run in zip(tasks, runs, strict=True)])
        seconds[way] = np.array([np.nan if run is None else run.seconds for run in runs])
    run = np.isfinite([seconds[way] for way in WAYS]).all(axis=0)
    for way in WAYS:
        ms[way][~run] = np.nan  # the others may be better
    return Judged(size, np.array([lower_bound(task, PERF) for task in tasks]), ms, seconds)


def _measured(task: Task, run: Run | None) -> list[float]:
    """Milliseconds of a plan by each measure; a plan that does not fit is refused."""
    if run is None or run.plan is None:
        return [np.nan] * MEASURES
    plan, critical = Plan.from_dict(run.plan), replace(task, objective=CRITICAL_PATH)
    found = [score(task, plan, PERF), score(critical, plan, PERF), score(task, plan, ROOFLINE)]
    if not found[0].feasible:
        raise ShardGymError(f"the plan of {run.way} for {task.name} does not fit")
    return [each.makespan for each in found]


def _mean(values: np.ndarray) -> str:
    return f"{np.nanmean(values):.2f}" if np.isfinite(values).any() else ""


def _percent(values: np.ndarray, of: np.ufunc, digits: int = 1, sign: str = "") -> str:
    return f"{of(values):{sign}.{digits}%}" if np.isfinite(values).any() else ""


@dataclass(frozen=True)
class Check:
    """Something that our plans must reach, and how far they come."""

    what: str
    reached: str
    passed: bool


def checks(judged: Sequence[Judged]) -> list[Check]:
    """Targets for plans by TorchRec's estimate and its critical path; none is missed where TorchRec has no plan."""
    worse = [(each.ms[aim] / each.best - 1)[:, column] for each in judged for aim, column in _OWN]
    over = np.concatenate([each.ms[ESTIMATE][:, 0] / each.bound - 1 for each in judged])
    default = np.concatenate([1 - (each.ms[ESTIMATE] / each.ms[DEFAULT])[:, 0] for each in judged])
    missing = sum(int(np.isnan(each.ms[aim]).any(axis=1).sum()) for each in judged for aim in AIMS)
    run = np.concatenate([np.isfinite([each.seconds[way] for way in WAYS]).all(axis=0) for each in judged])
    found = [
        Check("tasks that TorchRec's planner was run on", f"{run.sum()} of {len(run)}", bool(run.all())),
        Check("plans that we lack", f"{missing}", missing == 0),
    ]
    for what, of in (("estimate", worse[::2]), ("critical path", worse[1::2])):
        values = np.concatenate(of)
        above = int((values > WORSE).sum())
        told = f"{above} of {int(np.isfinite(values).sum())}, by {max(0.0, np.nanmax(values)):.2%} at most"
        found.append(Check(f"tasks where TorchRec's best has a lower {what}", told, above == 0))
    return [
        *found,
        Check(
            "estimate over the bound, mean: at most 1 %", _percent(over, np.nanmean, 2), bool(np.nanmean(over) <= 0.01)
        ),
        Check(
            "estimate over the bound, worst: at most 3 %", _percent(over, np.nanmax, 2), bool(np.nanmax(over) <= 0.03)
        ),
        Check("below TorchRec's default, mean: 20 %", _percent(default, np.nanmean), bool(np.nanmean(default) >= 0.2)),
        *(_below_best(each) for each in judged if each.size.devices == 2 * HOST),
    ]


def _below_best(judged: Judged) -> Check:
    """Savings over TorchRec's best plans, on two hosts."""
    saved = 1 - (judged.ms[ESTIMATE] / judged.best)[:, 0]
    what = f"below TorchRec's best, {judged.size} on two hosts, mean: 10 %"
    return Check(what, _percent(saved, np.nanmean), bool(np.nanmean(saved) >= 0.1))


def page(judged: Sequence[Judged]) -> str:
    """The whole page."""
    lines = ["# TorchRec's planner beside ours, over all kinds of sharding", "", ABOUT, ""]
    for each in judged:
        lines += [f"## {each.size}", "", *pages.table(HEAD, each.rows()), "", *pages.table(JUDGED, each.judged()), ""]
    lines += ["## What was to be reached", ""]
    rows = [(check.what, check.reached, "yes" if check.passed else "no") for check in checks(judged)]
    return "\n".join([*lines, *pages.table(("", "found", "reached"), rows), ""])


def replayed() -> list[Judged]:
    """All plans that are kept, judged."""
    theirs, ours = torchrec_runs.kept(torchrec_runs.THEIRS), torchrec_runs.kept(torchrec_runs.OURS)
    return [judge(size, theirs, ours) for size in SIZES]


def command(options: argparse.Namespace) -> int:
    """Run what is asked for, replay what is kept, and write the page or check it."""
    if options.theirs:
        torchrec_runs.run_theirs()
    if options.ours is not None:
        torchrec_runs.run_ours(options.ours)
    judged = replayed()
    text, path = page(judged), options.out / "torchrec_plans.md"
    if not options.check:
        write_whole(path, text)
        print(text)
        return 0
    stale = path.read_text() != text
    for check in checks(judged):
        print(f"{'passed' if check.passed else 'MISSED'}: {check.what}: {check.reached}")
    print(
        "MISSED: the page does not say what the plans do, write it anew" if stale else "passed: the page is as written"
    )
    return int(stale or not all(check.passed for check in checks(judged)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, write or check."""
    made = pages.parser("torchrec_plans", __doc__)
    made.add_argument("--theirs", action="store_true", help="run TorchRec's planner where it has not been run")
    made.add_argument("--ours", type=names, nargs="?", const=AIMS, help=f"plan anew, by some of {', '.join(AIMS)}")
    made.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a target is missed")
    return commands.run(made, command, arguments)


if __name__ == "__main__":
    sys.exit(main())
