"""AutoShard's experiments (its Figures 8 to 12 and Table 2) with our learner: what is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.papers_lab import Found, Lab, row, spent
from benchmarks.scored import scored
from benchmarks.trained_runs import TrainedRun, Wanted
from shard_gym import simulators, suites
from shard_gym.evaluate import score
from shard_gym.plan import Plan
from shard_gym.random_plans import random_placements
from shard_gym_agents import make
from shard_gym_agents.learners import ablations

SUITE = "metasyn-80x8"
HEURISTICS = ("random", "size-greedy", "dim-greedy", "lookup-greedy", "cost-greedy")
COUNTS = (1, 10, 100, 1_000, 10_000)  # samples of random search
RATIOS = tuple(range(0, 101, 20))  # per cent of unseen tables
SIZES = tuple(range(80, 801, 80))
LARGER = tuple(f"metasyn-{n}x{n // 10}" for n in SIZES)
SEEDS = 5  # the paper's, of runs that are there anyway
SHORT = 300  # iterations of what is trained here
GOOD = 0.8  # the balance that the paper counts samples to
ABLATIONS = {"w/o cost model": (("cost_model", False),)} | {
    f"w/o {group}": (("drop", group),) for group in ablations.GROUPS
}


def figure_8(lab: Lab) -> Found:
    """The policy beside heuristics, on the suite it was trained on."""
    runs = lab.finished("autoshard", SUITE, SEEDS)
    return {"rows": _rows(lab, SUITE, runs, (*HEURISTICS, "random-search")), "spent": spent(runs)}


def _rows(lab: Lab, suite: str, runs: Sequence[TrainedRun], names: Sequence[str]) -> dict[str, Found]:
    greedy = lab.scored("cost-greedy", suite)
    rows = {name: row(lab.agents(name, suite), greedy) for name in names}
    return rows | {"autoshard": row([lab.scored(one, suite) for one in runs], greedy)}


def figure_9(lab: Lab) -> Found:
    """Random search for balance, by the number of samples; seconds are the planner's and ours, not a GPU's."""
    seeds = lab.seeds or SEEDS
    found: Found = {"samples": COUNTS, "balance": [], "speedup": [], "seconds": []}
    searches = [_random_searches(lab, seed) for seed in range(seeds)]
    for at in range(len(COUNTS)):
        for name in ("balance", "speedup", "seconds"):
            found[name].append([search[name][at] for search in searches])
    runs = lab.finished("autoshard", SUITE, SEEDS)
    names = ("lookup-greedy", "cost-greedy")
    return found | {"rows": _rows(lab, SUITE, runs, names), "spent": spent(runs)}


def _random_searches(lab: Lab, seed: int) -> dict[str, list[float]]:
    """Mean over tasks of the plan that the planner thinks best balanced among the first so many."""
    suite = suites.get(SUITE)
    planner, judge = simulators.make(suite.planner), simulators.make(suite.judge)
    tasks, random = suite.tasks("test")[: lab.tasks], suite.random_makespans("test")
    worth = np.zeros((3, len(COUNTS), len(tasks)))
    for i, task in enumerate(tasks):
        rng, best, found, seconds, drawn = np.random.default_rng([seed, i]), -1.0, None, 0.0, 0
        for at, count in enumerate(COUNTS):
            start = time.perf_counter()
            plans = random_placements(task, count - drawn, rng)
            balance = planner.latency(task, plans).balance
            if balance.max() > best:
                best, found = float(balance.max()), plans[balance.argmax()]
            seconds, drawn = seconds + time.perf_counter() - start, count
            assert found is not None
            judged = score(task, Plan(tuple(found.tolist())), judge)
            worth[:, at, i] = judged.balance, random[i] / judged.makespan, seconds
    means = worth.mean(axis=-1).tolist()
    return dict(zip(("balance", "speedup", "seconds"), means, strict=True))


def table_2(lab: Lab) -> Found:
    """Parts left out. Features are hidden from the policy alone: the planner's costs keep theirs."""
    seeds, iterations = range(lab.seeds or 1), lab.iterations or SHORT
    variants = {**ABLATIONS, "autoshard": ()}
    wanted = {
        name: [Wanted("autoshard", SUITE, seed, iterations, options) for seed in seeds]
        for name, options in variants.items()
    }
    runs = lab.train([one for some in wanted.values() for one in some])
    greedy = lab.scored("cost-greedy", SUITE)
    rows = {name: row([lab.scored(runs[one], SUITE) for one in some], greedy) for name, some in wanted.items()}
    return {"rows": rows | {"cost-greedy": row([greedy], greedy)}, "spent": spent(list(runs.values()))}


def figure_10(lab: Lab) -> Found:
    """Unseen tables. Training tasks of all these suites come from one half of the pool: one policy serves all."""
    wanted = [Wanted("autoshard", f"{SUITE}-unseen0", seed, lab.iterations or SHORT) for seed in range(lab.seeds or 1)]
    runs = list(lab.train(wanted).values())
    rows = {str(ratio): _rows(lab, f"{SUITE}-unseen{ratio}", runs, HEURISTICS) for ratio in RATIOS}
    return {"ratios": rows, "spent": spent(runs)}


def figure_11(lab: Lab) -> Found:
    """More tables than in training; with the share of tasks that one table binds."""
    runs = lab.finished("autoshard", SUITE, SEEDS)
    rows = {suite: _rows(lab, suite, runs, HEURISTICS) for suite in LARGER}
    return {"sizes": rows, "bound": {s: suites.get(s).bound_share() for s in LARGER}, "spent": spent(runs)}


def figure_12(lab: Lab) -> Found:
    """Balance while training, and the time a plan takes on one core."""
    runs = lab.finished("autoshard", SUITE, SEEDS)
    torch.set_num_threads(1)
    solvers = {"autoshard": runs[0].policy(), "cost-greedy": make("cost-greedy")}
    times = {
        name: {key: scored(solver, suites.get(key), limit=lab.tasks).plan_seconds for key in LARGER}
        for name, solver in solvers.items()
    }
    return {"curves": [curve(one) for one in runs], "times": times, "spent": spent(runs)}


def curve(run: TrainedRun) -> Found:
    """Balance of validation plans; seconds by the run's mean an iteration, validation left out."""
    lines = [json.loads(line) for line in (run.folder / "scalars.jsonl").read_text(encoding="utf-8").splitlines()]
    validated = [line for line in lines if "val/balance" in line]
    iterations = [line["iteration"] for line in validated]
    episodes = run.card["config"]["num_envs"]
    calls = np.cumsum([line["simulator_calls"] for line in lines])
    each = run.spent["seconds"] / max(1, run.spent["iteration"])
    return {
        "balance": [line["val/balance"] for line in validated],
        "plans": [i * episodes for i in iterations],
        "simulator_calls": [float(calls[i - 1]) for i in iterations],
        "seconds": [i * each for i in iterations],
    }


def first_good(found: Found) -> tuple[int, float] | None:
    """Plans and seconds until the balance is above that of the paper's remark."""
    for balance, plans, seconds in zip(found["balance"], found["plans"], found["seconds"], strict=True):
        if balance > GOOD:
            return plans, seconds
    return None
