"""References of each task: random plans, and the best plan that anybody found, or a frozen one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import CorruptFile, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import random_placements
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import arrays_of, guarded
from shard_gym.records.locks import held
from shard_gym.results import Result
from shard_gym.results.evaluate import Score, score
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.suite import BEST_KNOWN, FROZEN_PLAN, Suite
from shard_gym.task.task import Task
from shard_gym.torchrec.report import runs

SCHEMA = "shard-gym/best-known/2"
SHIPPED = "makespans.npz"  # beside this file: best known makespans without their plans, by suite and judge
Entry = dict[str, Any]  # of a best known plan: makespan, plan, and who found it: solver, options, seed, planner, date
# Random plans a task where the suite holds no frozen reference: as frozen ones have, or what can be measured.
FAST_PLANS, MEASURED_PLANS = 1_000, 10


@dataclass(frozen=True, eq=False)
class References:
    """Per task: what a random plan takes on average, and the plan that gaps are to; ms, (T,)."""

    random: np.ndarray
    best: np.ndarray  # NaN where nothing is known
    note: str = ""
    gap_to: str = BEST_KNOWN


def references(suite: Suite, split: str, tasks: int, judge: str, best_known: Path) -> References:
    """The references of a suite's first tasks, by that judge: of plans in `best_known`, and those that are shipped."""
    used = suite.tasks(split)[:tasks]
    note = ""
    try:
        random = suite.random_makespans(split, judge)[: len(used)]
    except UnknownName:
        random, plans = _drawn(used, simulators.make(judge))
        note = f"The random reference was drawn here, {plans} plans a task: {judge} has no frozen one."
    if suite.gap_to == FROZEN_PLAN and judge == suite.judge and suite.has_reference_plans(split):
        return References(random, suite.reference_makespans(split)[: len(used)], note, FROZEN_PLAN)
    known = load_best(best_known / f"{suite.key}.json", judge, used)
    best = np.array([known[t.hash]["makespan"] if t.hash in known else np.nan for t in used])
    return References(random, np.fmin(best, shipped_makespans(suite.key, split, judge, len(used))), note)


def shipped_makespans(suite: str, split: str, judge: str, tasks: int) -> np.ndarray:
    """The best known makespans of a suite's first tasks that came with this package, (T,); NaN where there are none.

    They are numbers without plans, so that nobody who has the package has the answers.
    """
    found = _shipped().get(f"{suite}/{judge}") if split == "test" else None
    return np.full(tasks, np.nan) if found is None else found[:tasks]


@cache
def _shipped() -> dict[str, np.ndarray]:
    return arrays_of(Path(__file__).parent / SHIPPED)


def load_best(path: Path, judge: str, tasks: Iterable[Task]) -> dict[str, Entry]:
    """Task hash -> best known plan by that judge; a plan that is not worth what the file says is refused."""
    known = _read(path).get(judge, {})
    simulator = simulators.make(judge)
    for task in tasks:
        if task.hash in known and isinstance(simulator, FastSimulator):
            entry = known[task.hash]
            again = score(task, Plan.from_dict(entry["plan"]), simulator)
            if not again.feasible or again.makespan != entry["makespan"]:
                told = "infeasible" if not again.feasible else f"worth {again.makespan} ms"
                raise CorruptFile(f"{path}: task {task.hash} says {entry['makespan']} ms, its plan is {told}")
    return known


def update_best(path: Path, judge: str, rows: Iterable[tuple[Result, Score | None]]) -> int:
    """Keep the plans of `rows` that beat what the file knows; returns for how many tasks."""
    return keep_best(path, judge, ((r.task, _entry(r, found)) for r, found in rows if found and found.feasible))


def keep_best(path: Path, judge: str, offered: Iterable[tuple[str, Entry]]) -> int:
    """Keep what is offered for a task, by its hash, where it beats what the file knows; returns for how many tasks."""
    with held(path.parent, wait=True):  # another command may have better plans
        best = _read(path)
        known, improved = best.setdefault(judge, {}), set()
        for task, entry in offered:
            if task not in known or entry["makespan"] < known[task]["makespan"]:
                known[task] = entry
                improved.add(task)
        if improved:
            lines = ",\n".join(f"{json.dumps(j)}: {_lines(best[j])}" for j in sorted(best))
            write_whole(path, f'{{"schema": "{SCHEMA}", "best": {{\n{lines}\n}}}}\n')
        return len(improved)


def packed(plan: Plan) -> Entry:
    """A plan in few bytes: devices in base 36, after how many digits each takes; of other kinds, a word a piece."""
    splits = {"splits": list(plan.splits)} if plan.splits else {}
    if not plan.table_wise:
        columns = zip(plan.kind, plan.devices, plan.residence, plan.share, strict=True)
        return {"pieces": [_piece(*column) for column in columns], **splits}
    width = len(np.base_repr(max(plan.device, default=0), 36))
    text = "".join(np.base_repr(device, 36).lower().zfill(width) for device in plan.device)
    return {"device": f"{width}:{text}", **splits}


def unpacked(data: Entry) -> Plan:
    """The plan that `packed` made these fields of."""
    splits = tuple(data.get("splits", ()))
    if "pieces" in data:
        kind, held, residence, share = zip(*map(_columns, data["pieces"]), strict=True)
        return Plan(tuple(d[0] for d in held), splits, kind, held, residence, share)
    width, text = data["device"].split(":")
    step = int(width)
    devices = (int(text[i : i + step], 36) for i in range(0, len(text), step))
    return Plan(tuple(devices), splits)


def _piece(kind: str, devices: tuple[int, ...], residence: str, share: float) -> str:
    """`rw 0-7`, or `cw 2,5 cached 0.2`."""
    return f"{kind} {runs(devices)}" + ("" if residence == "hbm" else f" {residence} {share!r}")


def _columns(piece: str) -> tuple[str, tuple[int, ...], str, float]:
    """Kind, devices, residence and share that `_piece` wrote."""
    kind, told, *lives = piece.split()
    residence, share = lives or ("hbm", "1")
    ends = ([int(end) for end in run.split("-")] for run in told.split(","))
    return kind, tuple(device for run in ends for device in range(run[0], run[-1] + 1)), residence, float(share)


def today() -> str:
    """The date, as entries hold it."""
    return datetime.now(UTC).date().isoformat()


def _entry(result: Result, found: Score) -> Entry:
    assert result.plan is not None  # it has a score
    return {
        "makespan": found.makespan,
        "plan": result.plan.to_dict(),
        "solver": result.agent,
        "options": {name: value for name, value in result.config.items() if value and name != "seed"},
        "seed": result.seed,
        "planner": result.planner,
        "date": today(),
    }


def _lines(known: dict[str, Entry]) -> str:
    """One task a line, so that a change can be read."""
    return "{\n" + ",\n".join(f'"{task}": {json.dumps(_line(known[task]))}' for task in sorted(known)) + "\n}"


def _line(entry: Entry) -> Entry:
    who = {name: value for name, value in entry.items() if name not in ("makespan", "plan")}
    return {"makespan": entry["makespan"], **packed(Plan.from_dict(entry["plan"])), **who}


def _read(path: Path) -> dict[str, dict[str, Entry]]:
    if not path.exists():
        return {}
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("best"), dict):
        raise CorruptFile(f"{path} does not hold best known plans of schema {SCHEMA}")
    with guarded(f"{path} holds an entry that is none"):
        return {judge: {task: _loaded(line) for task, line in known.items()} for judge, known in data["best"].items()}


def _loaded(line: Entry) -> Entry:
    who = {name: value for name, value in line.items() if name not in ("makespan", "device", "pieces", "splits")}
    if not isinstance(line["makespan"], int | float) or not line["makespan"] > 0:
        raise ValueError(f"a makespan is a number above 0, got {line['makespan']!r:.60}")
    return {"makespan": line["makespan"], "plan": unpacked(line).to_dict(), **who}


def _drawn(tasks: Iterable[Task], judge: Simulator) -> tuple[np.ndarray, int]:
    plans = FAST_PLANS if isinstance(judge, FastSimulator) else MEASURED_PLANS
    rng = np.random.default_rng(1000)
    latencies = ((t, judge.latency(t, random_placements(t, plans, rng))) for t in tasks)
    return np.array([latency.makespan(t.objective).mean() for t, latency in latencies]), plans
