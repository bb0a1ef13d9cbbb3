"""Headroom cards: how much a task leaves to find, and what is in the way.

Makespans are the judge's, ms. All searches are on the judge itself, so that a gap is what the search missed and not
what a fitted planner got wrong; where planner and judge differ, `planned` is what 0.1 s of local search is worth that
asks the planner.

`resource`, the first that holds:

- memory: without limits of memory local search (or the best known plan) is better by more than `MEMORY_GAIN`;
- one table: the device of some table takes, whatever the plan, at least `ONE_TABLE` of the best known makespan;
- comm, compute: what the device that sets the pace spends most of the best known plan's makespan on, all-to-alls or
  computation, the wait for the slowest forward pass included.

`tier`, the first that holds:

- easy: cost-greedy is within `NEAR` of the best known plan;
- medium: local search of 0.1 s is;
- hard: the best known plan is within `CERTAIN` of the lower bound: it takes a long search, which is known to succeed;
- open: none of these, so nobody knows how good the best known plan is;
- infeasible, unsolved: there is no plan, proved; or none was found.

`seconds` is what was computed on the task, at least; `disturbed` says that the 0.1 s had to be shared with other work.
`proved`: the best known plan is within `PROVED` of the bound, so that a better one would make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.headroom_runs import Attempt, Line, undisturbed
from benchmarks.references import Entry
from shard_gym.bounds import Bound, certificate
from shard_gym.errors import CorruptFile
from shard_gym.evaluate import score
from shard_gym.files import read_json, write_whole
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.tasks import Task
from shard_gym_agents.exact import decide

SCHEMA = "shard-gym/headroom/1"
NEAR = 0.005
CERTAIN = 0.01
PROVED = 1e-4
ONE_TABLE = 0.95
MEMORY_GAIN = 0.01
BOUND_SECONDS = 1.0
DECIDE_SECONDS = 5.0  # for whether there is a plan, where none is known
TIERS = ("easy", "medium", "hard", "open", "unsolved", "infeasible")
RESOURCES = ("one table", "compute", "comm", "memory")
GAUGE = {"local-search": 0.1, "cost-greedy": 0.0}  # seconds
GAUGE_CALLS = 10_000  # instead, where a campaign counts calls: about as many as are asked in that time
PROGRAM = "mixed-integer program"
Card = dict[str, Any]


@dataclass(frozen=True)
class Tried:
    """What came of all attempts on a task: makespans (None: no plan), the bound of a program, and the seeds used."""

    gauges: dict[str, float | None]
    program: float
    effort: dict[str, list[int]]
    seconds: float  # of computation
    disturbed: bool = False  # other work took the processor from local search's gauge

    @classmethod
    def of(cls, lines: Iterable[tuple[Attempt, Line]], judge: str, before: Card) -> Tried:
        """Of the lines of a campaign, and of what an earlier card tells of others."""
        gauges: dict[str, float | None] = {k: before[k] for k in ("greedy", "local", "planned") if k in before}
        worth = [before["unlimited"]] if before.get("unlimited") else []
        effort = {label: set(seeds) for label, seeds in before.get("effort", {}).items()}
        program = before["bound"] if before.get("bound_by") == PROGRAM else 0.0
        seconds, disturbed = 0.0, bool(before.get("disturbed"))
        for attempt, line in lines:
            if attempt.unlimited:
                worth.append(line["makespan"])
            elif (name := gauge_name(attempt, judge)) is not None:
                gauges[name] = line["makespan"]
                disturbed = not undisturbed(line) if name == "local" else disturbed
            if attempt.planner == judge and not attempt.unlimited and attempt.agent != "cost-greedy":
                effort.setdefault(attempt.label, set()).add(attempt.seed)
            program, seconds = max(program, line.get("bound", 0.0)), seconds + line.get("cpu", 0.0)
        gauges["unlimited"] = min((w for w in worth if w is not None), default=None)
        ordered = {label: sorted(effort[label]) for label in sorted(effort)}
        return cls(gauges, program, ordered, max(seconds, before.get("seconds", 0.0)), disturbed)


def gauge_attempts(planner: str, judge: str, by_calls: bool) -> list[Attempt]:
    """What every task is gauged by."""
    budget, calls = (0.0, GAUGE_CALLS) if by_calls else (GAUGE["local-search"], 0)
    found = [Attempt("cost-greedy", judge), Attempt("local-search", judge, budget, calls)]
    return found if planner == judge else [*found, Attempt("local-search", planner, budget, calls)]


def gauge_name(attempt: Attempt, judge: str) -> str | None:
    """What a card calls it; None for an attempt that is no gauge."""
    if attempt.agent == "cost-greedy":
        return "greedy"
    if attempt.agent != "local-search" or attempt.seed:
        return None
    if (attempt.budget, attempt.calls) not in ((GAUGE["local-search"], 0), (0.0, GAUGE_CALLS)):
        return None
    return "local" if attempt.planner == judge else "planned"


def make_card(index: int, task: Task, judge: FastSimulator, best: Entry | None, tried: Tried) -> Card | None:
    """A task's card; None while it is not gauged."""
    if not {"greedy", "local"} <= tried.gauges.keys():
        return None
    work = {
        "effort": tried.effort,
        "seconds": round(tried.seconds, 1),
        **({"disturbed": True} if tried.disturbed else {}),
    }
    if best is None:
        verdict = decide(task, DECIDE_SECONDS)
        tier = "infeasible" if verdict.feasible is False else "unsolved"
        return {"index": index, "tier": tier, "reason": verdict.reason, **work}
    ours = certificate(task, judge, BOUND_SECONDS)
    bound, by = max((ours.makespan, ours.method), (tried.program, PROGRAM))
    makespan = best["makespan"]
    worth = {name: value for name, value in tried.gauges.items() if name != "unlimited"}
    free = tried.gauges["unlimited"]
    card: Card = {
        "index": index,
        "tier": "",
        "resource": resource(task, judge, best, ours, free),
        "proved": makespan <= bound * (1 + PROVED),
        "plans": "all fit" if table_bytes(task).sum() <= min(task.memory) else "some fit",
        "best": makespan,
        "bound": bound,
        "bound_by": by,
        **({} if free is None else {"unlimited": free}),
        **worth,
        **gaps(makespan, worth),
        **work,
    }
    return card | {"tier": tier_of(card)}


def gaps(best: float, worth: dict[str, float | None]) -> Card:
    """Shares by which gauges are above the best known plan; None where they found none."""
    return {f"{name}_gap": None if w is None else round(w / best - 1, 6) for name, w in worth.items()}


def tier_of(card: Card) -> str:
    """The tier that a card's numbers put a solved task into."""
    for name, key in (("easy", "greedy_gap"), ("medium", "local_gap")):
        if card[key] is not None and card[key] <= NEAR:
            return name
    return "hard" if card["best"] <= card["bound"] * (1 + CERTAIN) else "open"


def resource(task: Task, judge: FastSimulator, best: Entry, bound: Bound, unlimited: float | None) -> str:
    """What binds the task, by its best known plan."""
    makespan = best["makespan"]
    if unlimited is not None and unlimited < makespan * (1 - MEMORY_GAIN):
        return "memory"
    if bound.resource == "one table" and bound.makespan >= ONE_TABLE * makespan:
        return "one table"
    plan = Plan.from_dict(best["plan"])
    latency = judge.latency(task.split(plan.splits), np.array(plan.device))
    slowest = int(latency.cost(task.objective).argmax())
    comm = float(latency.forward_comm[slowest] + latency.backward_comm[slowest])
    return "comm" if task.objective != "kernel" and comm > makespan / 2 else "compute"


def inherited(task: Task, judge: FastSimulator, entry: Entry) -> Entry | None:
    """A plan of the same tables under another suite's rules, as an entry of this task; None if it does not serve."""
    plan = Plan.from_dict(entry["plan"])
    if plan.splits and not task.splits_allowed:
        return None
    found = score(task, plan, judge)
    return {**entry, "makespan": found.makespan} if found.feasible else None


def load_cards(path: Path, judge: str) -> dict[str, Card]:
    """Task hash -> card by that judge."""
    return _read(path).get(judge, {})


def save_cards(path: Path, judge: str, cards: dict[str, Card]) -> None:
    """Put cards beside those of other judges: one task a line, in the order of the suite."""
    kept = _read(path) | {judge: cards}
    blocks = ",\n".join(f"{json.dumps(name)}: {_entries(kept[name])}" for name in sorted(kept))
    write_whole(path, f'{{"schema": "{SCHEMA}", "cards": {{\n{blocks}\n}}}}\n')


def _entries(cards: dict[str, Card]) -> str:
    ordered = sorted(cards.items(), key=lambda pair: (pair[1]["index"], pair[0]))
    return "{\n" + ",\n".join(f'"{task}": {json.dumps(card, allow_nan=False)}' for task, card in ordered) + "\n}"


def _read(path: Path) -> dict[str, dict[str, Card]]:
    if not path.exists():
        return {}
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("cards"), dict):
        raise CorruptFile(f"{path} does not hold headroom cards of schema {SCHEMA}")
    return data["cards"]
