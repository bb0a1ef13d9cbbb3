"""Gains of a policy over its features, over imitation and over search: `python -m benchmarks.controls [--runs runs]`.

Policies are those of finished runs, `<runs>/<learner>/<suite>-<seed>`; nothing is trained here. Of each there is the
policy alone, the best of its samples in the same time as local search and random search have, and the greedy argmin
over the costs that it sees, in its order. Writes controls.json and controls.md to benchmarks/results.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks import pages
from benchmarks.learners import SUITES, best_known, both_feasible
from benchmarks.pages import Row, spread, table
from benchmarks.policies import Scored, add_options, scored, seeds_of
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.feasibility import follow
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import one
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.simulators import FastSimulator, Latency, Simulator, single_costs
from shard_gym.simulators.single import costs_with
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents import make
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.rollouts import LEANS, TaskTensors

SCHEMA = "shard-gym/controls/1"
BUDGET = 0.1  # seconds of search a task
ORDERS = {"cost": (0.0, np.inf), "size": (np.inf,)}  # by the order of a policy that has but one, and by size after
FIRST, MOST = 8, 512  # samples drawn at once


@dataclass(frozen=True, eq=False)
class BestOf:
    """The policy's own plan and as many samples as the time allows; the best by the planner's makespan."""

    track: ClassVar[str] = "search"
    policy: Any  # with `samples(task, planner, count, seed)`
    budget: float = BUDGET
    seed: int = 0

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        end = time.perf_counter() + self.budget
        plans = self._own(task, planner)
        best, worth = (plans[0], _worth(task, planner, plans)[0]) if len(plans) else (None, np.inf)
        count, took, drawn = FIRST, 0.0, 0
        while (left := end - (start := time.perf_counter())) > took or not drawn:
            if drawn and left > 2 * took:  # twice as many take twice as long at most
                count = min(MOST, 2 * count)
            plans = _feasible(task, self.policy.samples(task, planner, count, self.seed + drawn))
            if len(plans) and (found := _worth(task, planner, plans)).min() < worth:
                best, worth = plans[found.argmin()], found.min()
            drawn, took = drawn + 1, time.perf_counter() - start
        if best is None:
            raise InfeasibleTask(f"no plan among {drawn} batches of samples keeps to memory")
        return Plan(tuple(best.tolist()))

    def _own(self, task: Task, planner: Simulator) -> np.ndarray:
        try:
            return _feasible(task, np.array([self.policy(task, planner).device]))
        except InfeasibleTask:
            return np.empty((0, task.num_tables), np.int64)


def _feasible(task: Task, plans: np.ndarray) -> np.ndarray:
    return plans[(device_bytes(task, plans) <= task.capacity).all(axis=1)]


def _worth(task: Task, planner: Simulator, plans: np.ndarray) -> np.ndarray:
    return planner.latency(task, plans).makespan(task.objective)


@dataclass(frozen=True, eq=False)
class Argmin:
    """Put each table on the device that then costs least; try the orders one by one until one ends well."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    leans: tuple[float, ...]  # how much bytes count in the order, beside costs; infinity: alone
    costs: FastSimulator | None = None  # who predicts; None: the planner

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        predictor = self.costs or planner
        if not isinstance(predictor, FastSimulator):
            raise InvalidTask(f"{planner.id} keeps no running sums: this control plans with a fast simulator")
        for lean in self.leans[:-1]:
            with contextlib.suppress(InfeasibleTask):
                return _argmin(task, predictor, lean)
        return _argmin(task, predictor, self.leans[-1])


def _argmin(task: Task, costs: FastSimulator, lean: float) -> Plan:
    rules = Rules.of(task)
    tables, size = rules.merged(costs.embed(task)), rules.merged(table_bytes(task))
    placing, alone = one(Options.of(task, tables, rules), track=True), rules.merged(single_costs(costs, task))
    by = size if lean == np.inf else np.maximum(alone / alone.mean(), lean * size / size.mean())

    def cheapest(table: int) -> int:
        legal = placing.legal(table)[0]
        cost = costs_with(task, costs, placing.sums[0], tables[table])
        return int(np.where(legal, cost, np.inf).argmin()) if legal.any() else -1

    return Plan(tuple(follow(placing, np.argsort(-by, kind="stable"), cheapest).tolist()))


class OwnCosts(FastSimulator):
    """DreamShard's cost network as a simulator; its unit is not ms."""

    def __init__(self, nets: Any) -> None:
        self.nets, self.id = nets, "dreamshard's own costs"

    @torch.inference_mode()
    def embed(self, task: Task) -> np.ndarray:
        tensors = TaskTensors.of([task], self.nets.scaling.numpy(), limits=self.nets.limits.numpy())
        return self.nets.cost.table(tensors.features[0]).double().numpy()

    @torch.inference_mode()
    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        slowness = torch.from_numpy(1 / np.array(task.speed, np.float32)).expand(sums.shape[:-1])
        phases = self.nets.cost.phases(torch.from_numpy(sums).float(), slowness).double().numpy()
        forward, comm, backward = np.moveaxis(phases, -1, 0)
        return Latency(forward, comm, comm, backward)


def argmin_of(policy: Any) -> Argmin | None:
    """The policy with its scores replaced by its costs; None if it sees none."""
    own = getattr(getattr(policy, "nets", None), "cost", None)
    if own is None and policy.track != "search":
        return None
    order = getattr(policy, "card", {}).get("order")
    return Argmin(ORDERS.get(str(order), LEANS), None if own is None else OwnCosts(policy.nets))


def measure(options: argparse.Namespace) -> pages.Found:
    """Rows of each suite."""
    torch.set_num_threads(1)
    asked, o = [suites.get(key) for key in options.suite.split(",")], options
    rows = {suite.key: _suite(suite, o.runs, o.seeds, o.tasks, o.budget) for suite in asked}
    return {"budget": options.budget, "suites": rows}


def _suite(suite: Suite, runs: Path, seeds: int, limit: int | None, budget: float) -> list[Row]:
    solvers: dict[tuple[str, str], list[Any]] = {("cost-greedy", "alone"): [make("cost-greedy")]}
    for name in ("random-search", "local-search"):
        solvers[name, "search"] = [make(name, budget=budget)]
    for name in LEARNERS:
        policies = [one.policy() for one in seeds_of(runs, name, suite.key, seeds)]
        if not policies:
            continue
        solvers[name, "alone"] = policies
        if hasattr(policies[0], "samples"):
            solvers[name, "best of samples"] = [BestOf(policy, budget) for policy in policies]
        if all(found := [argmin_of(policy) for policy in policies]):
            solvers[name, "argmin of its costs"] = found
    plans = {key: [scored(one, suite, limit=limit) for one in some] for key, some in solvers.items()}
    best, _ = best_known(suite, limit, [one for some in plans.values() for one in some])
    greedy = plans["cost-greedy", "alone"][0]
    return [_row(*key, some, greedy, best) for key, some in plans.items()]


def _row(name: str, how: str, some: Sequence[Scored], greedy: Scored, best: np.ndarray) -> Row:
    return {
        "name": name,
        "how": how,
        "gap": [one.gap(best) for one in some],
        "to_greedy": [one.ratio(greedy) for one in some],
        "both": [both_feasible(one, greedy) for one in some],
        "feasible": [one.feasible for one in some],
        "plan_ms": float(np.median([1e3 * one.plan_seconds for one in some])),
    }


def page(found: pages.Found) -> str:
    """The page."""
    command, budget = found["command"], found["budget"]
    lines = [
        "# Controls",
        "",
        f"Made by `{command}`. By each suite's judge, test tasks, mean ± deviation over training seeds; gap to "
        "the best known plan (of this page where none is kept), a task without a feasible plan counts as a mean random "
        "plan; `both feasible` is the ratio on tasks that cost-greedy solves too. Nothing was measured on a GPU.",
        "",
        f"- best of samples: the policy's own plan and as many samples as fit in {1e3 * budget:.0f} ms, best by the "
        "planner, beside local search and random search of the same time. One batch is drawn whatever it takes.",
        "- argmin of its costs: the costs that the policy sees, the planner's or DreamShard's own, decide alone, in "
        "the policy's order (by size, or leaning to it, after a dead end). What the policy is better by, it adds to "
        "its features.",
        "- cloning imitates plans of local search. memoryless-ppo and recurrent-ppo see one table at a time, ppo and "
        "maskable-ppo see the devices: the differences are what memory and full observation are worth.",
        "",
    ]
    head = ("", "", "x cost-greedy", "both feasible", "gap", "feasible", "plan ms")
    for key, rows in found["suites"].items():
        missing = [name for name in LEARNERS if name not in {row["name"] for row in rows}]
        suite = suites.get(key)
        remark = f" The suite is {suite.remark}." if suite.remark else ""
        lines += [f"## {suite.name}", "", f"Planner {suite.planner}, judge {suite.judge}.{remark}", ""]
        lines += [*table(head, [_cells(row) for row in rows]), ""]
        lines += [f"No runs here: {', '.join(missing)}.", ""] if missing else []
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    both = [one for one in row["both"] if one is not None]
    cells = [row["name"], row["how"], spread(row["to_greedy"], ".4f"), spread(both, ".4f") if both else "-"]
    return [*cells, spread(row["gap"], "+.2%"), spread(row["feasible"], ".1%"), f"{row['plan_ms']:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    made = pages.parser("controls", __doc__)
    add_options(made, 1, SUITES)
    made.add_argument("--budget", type=float, default=BUDGET, help="seconds of search a task")
    return pages.run(made, measure, page, arguments, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
