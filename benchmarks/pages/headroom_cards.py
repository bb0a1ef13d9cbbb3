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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import Row, table
from shard_gym.bounds import Bound, certificate
from shard_gym.errors import CorruptFile
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.records.files import read_json, write_whole
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.base import plan_latency
from shard_gym.task.suite import BEST_KNOWN
from shard_gym.task.suites import SUITES, Suite
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.references import Entry, load_best
from shard_gym_agents.search.exact import decide

SCHEMA = "shard-gym/headroom/1"
PROGRAM = "mixed-integer program"
EVERY_PLAN = "every plan"
NEAR = 0.005
CERTAIN = 0.01
PROVED = 1e-4
ONE_TABLE = 0.95
MEMORY_GAIN = 0.01
BOUND_SECONDS = 1.0
DECIDE_SECONDS = 5.0  # for whether there is a plan, where none is known
TIERS = ("easy", "medium", "hard", "open", "unsolved", "infeasible")
RESOURCES = ("one table", "compute", "comm", "memory")
TIER_HEAD = ["suite", "tasks", *TIERS, "proved", "bound gap", "greedy gap", "local gap", "planned gap"]
WORK_HEAD = ["suite", *RESOURCES, "effort", "seconds", "most records"]
CHECK_SCHEMA = "shard-gym/headroom-check/1"
INTRO = f"""# Headroom

How much the test tasks of each suite leave to find, by the suite's judge. Made by `python -m benchmarks.headroom` from
the cards in `headroom/`, whose rules are told in `benchmarks/pages/headroom_cards.py`. All searches ask the judge
itself.

- easy: cost-greedy is within {NEAR:.1%} of the best known plan; medium: 0.1 s of local search is; hard: neither is, but
  the best known plan is within {CERTAIN:.0%} of the lower bound; open: nobody knows how good the best known plan is.
- proved: the best known plan is within {PROVED:.2%} of the lower bound; such a task is searched no more.
- bound gap: the best known plan over the lower bound. greedy gap, local gap: over the best known plan, means over the
  tasks where there is a feasible plan, with their number where it is not all. planned gap: 0.1 s of local search that
  asks the suite's planner, where that is not the judge.
- memory binds where local search without limits of memory is better by more than {MEMORY_GAIN:.0%}; one table, where
  its device takes at least {ONE_TABLE:.0%} of the best known makespan in any plan; comm or compute, what the slowest
  device does most of the time.
- effort: the runs on most tasks of the suite that are not proved, and the median of the seconds computed on a task. A
  run's budget is wall-clock time on two shared cores; best known plans come from runs of the leaderboard as well. Gaps
  and tiers are no surer than the effort: where it is local search of 0.1 s alone, that is its own best known plan."""
Card = dict[str, Any]


@dataclass(frozen=True)
class Tried:
    """Outcome of all attempts on a task: makespans (None: no plan), the bound of a program, and the seeds used."""

    gauges: dict[str, float | None]
    program: float
    effort: dict[str, list[int]]
    seconds: float  # of computation
    disturbed: bool = False  # other work took the processor from local search's gauge
    program_by: str = PROGRAM  # where its bound comes from


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
    bound, by = max((ours.makespan, ours.method), (tried.program, tried.program_by))
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
    """The resource that binds the task, by its best known plan."""
    makespan = best["makespan"]
    if unlimited is not None and unlimited < makespan * (1 - MEMORY_GAIN):
        return "memory"
    if bound.resource == "one table" and bound.makespan >= ONE_TABLE * makespan:
        return "one table"
    latency = plan_latency(judge, task, Plan.from_dict(best["plan"]))
    slowest = int(latency.cost(task.objective).argmax())
    comm = float(latency.forward_comm[slowest] + latency.backward_comm[slowest])
    return "comm" if task.objective != "kernel" and comm > makespan / 2 else "compute"


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


def page(results: Path) -> str:
    """The page of the cards and best known plans under `results`."""
    told = [(s, cards) for s in SUITES.values() if (cards := _cards(results, s))]
    carded = [suite for suite, _ in told]
    missing = [s.key for s in SUITES.values() if s.gap_to == BEST_KNOWN and s not in carded]
    lines = [INTRO, "", "## Tiers and gaps", "", *table(TIER_HEAD, [_tier_row(s, c) for s, c in told])]
    lines += ["", *(f"{suite.key} is {suite.remark}." for suite, _ in told if suite.remark)]
    lines += [
        "",
        "## What binds, and who searched",
        "",
        *table(WORK_HEAD, [_work_row(results, s, c) for s, c in told]),
    ]
    if missing:
        lines += ["", f"No cards yet: {', '.join(missing)}."]
    if disturbed := sum("disturbed" in card for _, cards in told for card in cards):
        lines += [
            "",
            f"Of {disturbed} tasks the 0.1 s of local search were shared with other work, and their local gaps",
        ]
        lines += ["are too large: `--seeds 0` measures them again."]
    return "\n".join([*lines, *_check_section(results)]) + "\n"


def save_check(results: Path, rows: Iterable[Row]) -> None:
    """Keep the rows of a check beside those of other tasks."""
    kept = {(row["suite"], row["index"]): row for row in (*_check(results), *rows)}
    lines = ",\n".join(json.dumps(kept[key]) for key in sorted(kept))
    write_whole(_check_path(results), f'{{"schema": "{CHECK_SCHEMA}", "rows": [\n{lines}\n]}}\n')


def _tier_row(suite: Suite, cards: list[Card]) -> list[str]:
    tiers, solved = Counter(card["tier"] for card in cards), [card for card in cards if "best" in card]
    counts = [str(tiers[name] or "") for name in TIERS]
    bound_gap = [card["best"] / card["bound"] - 1 for card in solved]
    gauges = [_mean([card.get(f"{name}_gap") for card in solved]) for name in ("greedy", "local")]
    planned = _mean([card["planned_gap"] for card in solved]) if suite.planner != suite.judge else ""
    proved = str(sum(card["proved"] for card in solved))
    return [suite.key, _of(len(cards), suite), *counts, proved, _mean(bound_gap), *gauges, planned]


def _work_row(results: Path, suite: Suite, cards: list[Card]) -> list[str]:
    binds = Counter(card.get("resource") for card in cards)
    counts = [str(binds[name] or "") for name in RESOURCES]
    efforts = Counter(_effort(card) for card in cards if not card.get("proved"))
    effort = efforts.most_common(1)[0][0] if efforts else "all proved"
    seconds = float(np.median([card["seconds"] for card in cards]))
    known = load_best(results / "best_known" / f"{suite.key}.json", suite.judge, ())
    holders = Counter(entry["solver"] for entry in known.values()).most_common(3)
    return [suite.key, *counts, effort, f"{seconds:.1f}", ", ".join(f"{name} {count}" for name, count in holders)]


def _effort(card: Card) -> str:
    return ", ".join(f"{label} x {len(seeds)}" for label, seeds in card["effort"].items())


def _mean(values: Sequence[float | None]) -> str:
    """Mean of what is known, with the number of values where it is not all."""
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    return f"{np.mean(known):.2%}" + (f" ({len(known)})" if len(known) < len(values) else "")


def _of(count: int, suite: Suite) -> str:
    every = suite.num_tasks("test")
    return str(count) if count == every else f"{count} of {every}"


def _check_section(results: Path) -> list[str]:
    rows = _check(results)
    if not rows:
        return []
    runs_of = ["runs", "seconds each", "mean run", "best"]
    head = ["suite", "task", *runs_of, *(f"longer: {name}" for name in runs_of), "by", "gain", "gain on one run"]
    shown, gains = [], []
    for row in rows:
        short, long = row["runs"].values()
        gains.append((1 - long["best"] / short["best"], 1 - long["best"] / short["mean"]))
        told = [
            [f"{r['runs']} of {budget}", f"{r['seconds']:.1f}", f"{r['mean']:.4f}", f"{r['best']:.4f}"]
            for budget, r in row["runs"].items()
        ]
        last = [long["by"], *(f"{gain:.3%}" for gain in gains[-1])]
        shown.append([row["suite"], str(row["index"]), *told[0], *told[1], *last])
    best, one = np.mean(gains, axis=0)
    text = (
        f"On these {len(rows)} tasks the best of the longer runs is {best:.3%} better than the best of the short ones, "
        f"and {one:.3%} better than one of them on average. Makespans in ms; seconds "
        "each are those computed within the budget. Made by `--check`."
    )
    return ["", "## What longer runs gain", "", text, "", *table(head, shown)]


def _cards(results: Path, suite: Suite) -> list[Card]:
    return list(load_cards(results / "headroom" / f"{suite.key}.json", suite.judge).values())


def _check_path(results: Path) -> Path:
    return results / "headroom" / "check.json"


def _check(results: Path) -> list[Row]:
    path = _check_path(results)
    if not path.exists():
        return []
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != CHECK_SCHEMA:
        raise CorruptFile(f"{path} does not hold a check of schema {CHECK_SCHEMA}")
    return data["rows"]
