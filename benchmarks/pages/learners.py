"""Results of every learner on the main suites: `python -m benchmarks.learners [--runs runs]`.

Policies are the best ones of finished runs, `<runs>/<learner>/<suite>-<seed>`; nothing is trained here. Writes
learners.json and learners.md to benchmarks/results; `--page` makes the page again without running anything.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import RESULTS, pages
from benchmarks.pages import Row, spread, table
from benchmarks.policies import Scored, TrainedRun, add_options, scored, seeds_of
from shard_gym import simulators
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import load_best, references
from shard_gym_agents.learners import LEARNERS

SCHEMA = "shard-gym/learners/1"
SUITES = ("metasyn-80x8", "dlrm-50x4", "core-60x4", "tightmix-80x8")
BASE = ("lookup-greedy", "cost-greedy")
FAR, NEAR = "metasyn-800x80", "metasyn-80x8"  # policies of the second are taken to the first
BySuite = dict[str, dict[str, Row]]  # suite -> agent -> figures, lists have an entry a seed


def measure(options: argparse.Namespace) -> pages.Found:
    """Measure the learners that have runs on these suites, beside the greedies."""
    torch.set_num_threads(1)
    asked = [suites.get(key) for key in options.suite.split(",")]
    return {"suites": {suite.key: _suite(suite, options.runs, options.seeds, options.tasks) for suite in asked}}


def _suite(suite: Suite, runs: Path, seeds: int, limit: int | None) -> dict[str, Row]:
    trained = {name: found for name in LEARNERS if (found := seeds_of(runs, name, suite.key, seeds))}
    plans = {name: [scored(make(name), suite, limit=limit)] for name in BASE}
    plans |= {name: [scored(one.policy(), suite, limit=limit) for one in found] for name, found in trained.items()}
    best, balance = best_known(suite, limit, [one for some in plans.values() for one in some])
    rows = {name: _row(some, plans["cost-greedy"][0], plans["lookup-greedy"][0], best) for name, some in plans.items()}
    for name, found in trained.items():
        rows[name] |= _training(found) | {"track": getattr(found[0].policy(), "track", "search")}
        if suite.key == NEAR:
            rows[name] |= _far(found, limit)
    for row in rows.values():
        row["of_best_balance"] = [one / balance for one in row["balance"]] if balance else []
    return rows


def best_known(suite: Suite, limit: int | None, found: Sequence[Scored]) -> tuple[np.ndarray, float | None]:
    """Makespans of the best plans known, or else of the best here; and their mean balance where all are known."""
    folder, tasks = RESULTS / "best_known", suite.tasks("test")[:limit]
    best = references(suite, "test", len(tasks), suite.judge, folder).best
    here = np.min([one.filled for one in found], axis=0)
    balance = None
    if np.isfinite(best).all():
        known, judge = load_best(folder / f"{suite.key}.json", suite.judge, tasks), simulators.make(suite.judge)
        plans = [Plan.from_dict(known[task.hash]["plan"]) for task in tasks]
        balance = float(np.mean([score(task, plan, judge).balance for task, plan in zip(tasks, plans, strict=True)]))
    return np.where(np.isfinite(best), best, here), balance


def _row(some: Sequence[Scored], greedy: Scored, lookup: Scored, best: np.ndarray) -> Row:
    stuck = ~np.isfinite(greedy.makespan)
    return {
        "seeds": len(some),
        "gap": [one.gap(best) for one in some],
        "to_greedy": [one.ratio(greedy) for one in some],
        "to_greedy_feasible": [both_feasible(one, greedy) for one in some],
        "to_lookup": [one.ratio(lookup) for one in some],
        "feasible": [one.feasible for one in some],
        "where_stuck": [float(np.isfinite(one.makespan[stuck]).mean()) for one in some] if stuck.any() else [],
        "balance": [one.mean_balance for one in some],
        "plan_ms": float(np.median([1e3 * one.plan_seconds for one in some])),
    }


def both_feasible(one: Scored, greedy: Scored) -> float | None:
    """Makespan over cost-greedy's where both have a feasible plan, mean over such tasks."""
    ratios = one.makespan / greedy.makespan
    return float(np.nanmean(ratios)) if np.isfinite(ratios).any() else None


def _training(found: Sequence[TrainedRun]) -> Row:
    keys = ("iteration", "steps", "simulator_calls", "seconds")
    mean = {key: float(np.mean([one.spent[key] for one in found])) for key in keys}
    return {"training": mean, "command": found[0].card.get("command", "")}


def _far(found: Sequence[TrainedRun], limit: int | None) -> Row:
    """The same policies on ten times the tables; a policy that cannot serve them has no figures."""
    suite = suites.get(FAR)
    greedy = scored(make("cost-greedy"), suite, limit=limit)
    some = [scored(one.policy(), suite, limit=limit) for one in found]
    if not all(one.feasible for one in some):
        return {}
    ms = float(np.median([1e3 * one.plan_seconds for one in some]))
    return {"far": {"to_greedy": [one.ratio(greedy) for one in some], "plan_ms": ms, "bound": suite.bound_share()}}


# What learners are to reach: (learners, suite) -> what, and whether a row does, beside cost-greedy's.
Reached = Callable[[Row, Row], bool]
BOTH = ("dreamshard", "dreamshard-planner", "ppo", "maskable-ppo")
TARGETS: list[tuple[tuple[str, ...], str, str, Reached]] = [
    (("autoshard",), NEAR, "balance >= 0.97 x the best known plan's", lambda r, g: _mean(r["of_best_balance"]) >= 0.97),
    (("autoshard",), NEAR, "gap no worse than cost-greedy's", lambda r, g: _mean(r["gap"]) <= _mean(g["gap"])),
    (("autoshard",), NEAR, "trained in 15 minutes", lambda r, g: r["training"]["seconds"] <= 900),
    (
        ("autoshard",),
        NEAR,
        "80 to 800 tables: <= 1.05 x cost-greedy",
        lambda r, g: _mean(r["far"]["to_greedy"]) <= 1.05,
    ),
    (("autoshard",), NEAR, "a plan of 80x8 in 10 ms", lambda r, g: r["plan_ms"] <= 10),
    (("autoshard",), NEAR, "a plan of 800x80 in 150 ms", lambda r, g: r["far"]["plan_ms"] <= 150),
    (BOTH, "dlrm-50x4", "gap no worse than cost-greedy's", lambda r, g: _mean(r["gap"]) <= _mean(g["gap"])),
    (BOTH, "core-60x4", "gap no worse than cost-greedy's", lambda r, g: _mean(r["gap"]) <= _mean(g["gap"])),
    (BOTH, "core-60x4", "15 % below lookup-greedy", lambda r, g: _mean(r["to_lookup"]) <= 0.85),
    (BOTH, "tightmix-80x8", "better than cost-greedy", lambda r, g: _mean(r["gap"]) < _mean(g["gap"])),
    (
        BOTH,
        "tightmix-80x8",
        "feasible on 99 % of tasks where cost-greedy dead-ends",
        lambda r, g: _mean(r["where_stuck"]) >= 0.99,
    ),
]
HEAD = (
    *("", "track", "seeds", "gap", "x cost-greedy", "both feasible", "x lookup-greedy", "feasible", "balance"),
    *("of best known's", "plan ms", "steps", "simulator calls", "minutes", "beats cost-greedy"),
)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def page(found: pages.Found) -> str:
    """The page."""
    command, by_suite = found["command"], found["suites"]
    lines = [
        "# What the learners reach",
        "",
        f"Made by `{command}`. Test tasks, one greedy plan a task of the policy that was best on validation tasks, "
        "scored by the suite's judge; mean ± standard deviation over training seeds. Gap is to the best known plan (of "
        "this page where none is kept). A task without a feasible plan counts as a mean random plan, as on the "
        "leaderboard; `both feasible` is the ratio to cost-greedy on tasks that both solve. Steps, simulator calls and "
        "minutes are of a whole training run, mean over seeds, on one thread of a shared machine. Nothing was measured "
        "on a GPU.",
        "",
    ]
    for key, rows in by_suite.items():
        suite = suites.get(key)
        who = f"Planner {suite.planner}, judge {suite.judge}, {suite.objective} objective."
        who += f" The suite is {suite.remark}." if suite.remark else ""
        missing = [name for name in LEARNERS if name not in rows]
        lines += [f"## {suite.name}", "", who, "", *table(HEAD, [_cells(name, rows) for name in rows]), ""]
        lines += [f"No runs here: {', '.join(missing)}.", ""] if missing else []
    lines += _transfer(by_suite.get(NEAR, {})) + _targets(by_suite)
    return "\n".join(lines)


def _cells(name: str, rows: dict[str, Row]) -> list[str]:
    row, training = rows[name], rows[name].get("training")
    both = [one for one in row["to_greedy_feasible"] if one is not None]
    cells = [name, row.get("track", "search" if name == "cost-greedy" else "blind"), str(row["seeds"])]
    cells += [spread(row["gap"], "+.2%"), spread(row["to_greedy"], ".4f"), spread(both, ".4f") if both else "-"]
    cells += [spread(row["to_lookup"]), spread(row["feasible"], ".1%"), spread(row["balance"])]
    cells += [spread(row["of_best_balance"]) if row["of_best_balance"] else "-", f"{row['plan_ms']:.1f}"]
    if not training:
        return [*cells, "-", "-", "-", "-"]
    cells += [f"{training[one]:,.0f}" for one in ("steps", "simulator_calls")] + [f"{training['seconds'] / 60:.1f}"]
    return [*cells, verdict(row, rows["cost-greedy"])]


def verdict(row: Row, greedy: Row) -> str:
    """Yes if the mean gap is below cost-greedy's without losing feasible tasks, and in how many seeds."""
    if row["gap"] == greedy["gap"] * row["seeds"] and row["feasible"] == greedy["feasible"] * row["seeds"]:
        return "no, as good"
    better = sum(gap < greedy["gap"][0] for gap in row["gap"])
    wins = _mean(row["gap"]) < greedy["gap"][0] and _mean(row["feasible"]) >= greedy["feasible"][0]
    return f"{'yes' if wins else 'no'} ({better} of {row['seeds']} seeds)"


def _transfer(rows: dict[str, Row]) -> list[str]:
    taken = [(name, row["far"]) for name, row in rows.items() if "far" in row]
    if not taken:
        return []
    cells = [[name, spread(far["to_greedy"], ".4f"), f"{far['plan_ms']:.0f}"] for name, far in taken]
    bound = f"One table alone takes 95 % of cost-greedy's makespan in {taken[0][1]['bound']:.0%} of its tasks."
    return [f"## From {NEAR} to {FAR}", "", bound, "", *table(("", "x cost-greedy", "plan ms"), cells), ""]


def _targets(found: BySuite) -> list[str]:
    cells = []
    for learners, key, what, reached in TARGETS:
        rows = found.get(key, {})
        for name in learners:
            if name in rows and ("far" in rows[name] or "800" not in what):
                told = "reached" if reached(rows[name], rows["cost-greedy"]) else "not reached"
                cells.append([name, key, what, told])
    head = ("learner", "suite", "target, mean over seeds", "")
    return ["## Targets", "", *table(head, cells), ""] if cells else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    made = pages.parser("learners", __doc__)
    add_options(made, 5, SUITES)
    return pages.run(made, measure, page, arguments, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
