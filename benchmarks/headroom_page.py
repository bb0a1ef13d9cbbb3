"""The page of all headroom cards, and what a long search gains over a short one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.headroom_cards import (
    CERTAIN,
    MEMORY_GAIN,
    NEAR,
    ONE_TABLE,
    PROVED,
    RESOURCES,
    TIERS,
    Card,
    load_cards,
)
from benchmarks.references import load_best
from benchmarks.scored import table
from shard_gym.errors import CorruptFile
from shard_gym.files import read_json, write_whole
from shard_gym.suites import SUITES, Suite

if TYPE_CHECKING:
    from benchmarks.headroom import Campaign

_TIER_HEAD = ["suite", "tasks", *TIERS, "proved", "bound gap", "greedy gap", "local gap", "planned gap"]
_WORK_HEAD = ["suite", *RESOURCES, "effort", "seconds", "most records"]
CHECK_SCHEMA = "shard-gym/headroom-check/1"
INTRO = f"""# Headroom

How much the test tasks of each suite leave to find, by the suite's judge. Made by `python -m benchmarks.headroom` from
the cards in `headroom/`, whose rules are told in `benchmarks/headroom_cards.py`. All searches ask the judge itself.

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


def write_page(results: Path) -> Path:
    """Make the page of the cards and best known plans under `results`."""
    told = [(s, cards) for s in SUITES.values() if (cards := _cards(results, s))]
    missing = [s.key for s in SUITES.values() if s not in [suite for suite, _ in told]]
    lines = [INTRO, "", "## Tiers and gaps", "", *table(_TIER_HEAD, [_tier_row(s, c) for s, c in told])]
    lines += [
        "",
        "## What binds, and who searched",
        "",
        *table(_WORK_HEAD, [_work_row(results, s, c) for s, c in told]),
    ]
    if missing:
        lines += ["", f"No cards yet: {', '.join(missing)}."]
    if disturbed := sum("disturbed" in card for _, cards in told for card in cards):
        lines += [
            "",
            f"Of {disturbed} tasks the 0.1 s of local search were shared with other work, and their local gaps",
        ]
        lines += ["are too large: `--seeds 0` measures them again."]
    path = results / "headroom.md"
    write_whole(path, "\n".join([*lines, *_check_section(results)]) + "\n")
    return path


def check_rows(campaign: Campaign, short: float, long: float) -> Iterator[dict[str, Any]]:
    """What runs of two budgets found on each task that has both."""
    for index, task in enumerate(campaign.tasks):
        found: dict[float, list[tuple[float, str, float]]] = {short: [], long: []}
        for attempt, line in campaign.ledger.of(task, campaign.judge):
            searched = attempt.planner == campaign.judge and not attempt.unlimited and line["makespan"] is not None
            if searched and attempt.budget in found:
                found[attempt.budget].append((line["makespan"], attempt.agent, line.get("cpu", 0.0)))
        if all(found.values()):
            runs = {f"{budget:g}s": _summary(found[budget]) for budget in (short, long)}
            yield {"suite": campaign.suite.key, "index": index, "runs": runs}


def save_check(results: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Keep the rows of a check beside those of other tasks."""
    kept = {(row["suite"], row["index"]): row for row in (*_check(results), *rows)}
    lines = ",\n".join(json.dumps(kept[key]) for key in sorted(kept))
    write_whole(_check_path(results), f'{{"schema": "{CHECK_SCHEMA}", "rows": [\n{lines}\n]}}\n')


def _summary(found: list[tuple[float, str, float]]) -> dict[str, Any]:
    """Of runs: makespan, agent and seconds computed."""
    best, by, _ = min(found)
    mean, seconds = (float(np.mean([run[i] for run in found])) for i in (0, 2))
    return {"runs": len(found), "best": best, "mean": mean, "by": by, "seconds": round(seconds, 2)}


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
    """Of what is known, with how many that is where it is not all."""
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


def _check(results: Path) -> list[dict[str, Any]]:
    path = _check_path(results)
    if not path.exists():
        return []
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != CHECK_SCHEMA:
        raise CorruptFile(f"{path} does not hold a check of schema {CHECK_SCHEMA}")
    return data["rows"]
