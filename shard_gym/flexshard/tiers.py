"""Sequence tables whose rows are shared out in tiers, and what that costs each GPU.

The most frequent rows of a table are replicated on every GPU (DP), the next in every node and split within it (Flex),
the rest is split over all GPUs (RW). Costs are a row's bytes times a line in its probability: see `lines`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPlan, InvalidTask
from shard_gym.flexshard.curves import Curve
from shard_gym.flexshard.network import COPIES, TIERS, Line, Network, Rows, costs, lines
from shard_gym.plan.plan import Plan
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.guard import expect, guarded
from shard_gym.records.numbers import whole

SCHEMA = "shard-gym/tiered-plan/1"
GB = 2**30


@dataclass(frozen=True, eq=False)
class SequenceTable:
    """Rows of `dim` elements that samples look up without summing them.

    A `pooled` table's rows are summed: each GPU that has any of them sends one row a sample whatever is looked up, so
    nothing is gained until no row of it is split, and the table goes to one tier as a whole.
    """

    name: str
    curve: Curve
    dim: int
    element_bytes: int = 4
    pooled: bool = False

    @guarded("rows and tiers", InvalidTask)
    def __post_init__(self) -> None:
        sizes = dim, element_bytes = _whole(self, "dim"), _whole(self, "element_bytes")
        expect(self.curve, Curve, InvalidTask)
        if min(sizes) < 1:
            raise InvalidTask(f"table {self.name!r} needs dim and element_bytes from 1, got {dim} and {element_bytes}")

    @property
    def row_bytes(self) -> int:
        """One row."""
        return self.dim * self.element_bytes


@dataclass(frozen=True, eq=False)
class RowTask:
    """Share out the rows of sequence tables on a network so that a step communicates least."""

    tables: tuple[SequenceTable, ...]
    network: Network
    batch: int  # samples a GPU
    extra_bytes: float = 0.0  # a GPU may use, beyond what it uses if all rows are split over all GPUs
    copies: float = COPIES  # of a replicated row that a GPU keeps: weights, gradients, state

    @guarded("rows and tiers", InvalidTask)
    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        expect(self.network, Network, InvalidTask)
        for table in self.tables:
            expect(table, SequenceTable, InvalidTask)
        names = [table.name for table in self.tables]
        if not names or len(set(names)) < len(names):
            raise InvalidTask(f"a task needs tables with names of their own, got {names}")
        if _whole(self, "batch") < 1:
            raise InvalidTask(f"a batch has one sample or more, got {self.batch}")
        if not 1 <= self.copies < math.inf:  # stretches of rows are best only where replicas take room
            raise InvalidTask(f"a GPU keeps one copy of a replicated row or more, got copies={self.copies}")
        if not math.isfinite(self.extra_bytes):
            raise InvalidTask(f"extra_bytes is a number of bytes, got {self.extra_bytes}")

    @cached_property
    def lines(self) -> Mapping[str, Line]:
        """Costs of a row in each tier."""
        return lines(self.network, self.batch, self.copies)

    @cached_property
    def budget_bytes(self) -> float:
        """Bytes that a GPU may use."""
        return self.extra_bytes + worth(self, TieredPlan.uniform(self, "rw")).memory_bytes


def _whole(of: SequenceTable | RowTask, name: str) -> int:
    try:
        return whole(getattr(of, name))
    except TypeError as error:
        raise InvalidTask(f"{name} of a {type(of).__name__}: {error}") from error


@dataclass(frozen=True)
class TieredPlan:
    """Rows of each table in DP and in Flex, the most frequent first; the rest is RW."""

    dp_rows: tuple[int, ...]
    flex_rows: tuple[int, ...]

    @guarded("rows and tiers", InvalidTask)
    def __post_init__(self) -> None:
        try:
            for name in ("dp_rows", "flex_rows"):
                object.__setattr__(self, name, tuple(whole(rows) for rows in getattr(self, name)))
        except TypeError as error:
            raise InvalidPlan(f"a tiered plan is whole numbers of rows: {error}") from error
        if len(self.dp_rows) != len(self.flex_rows) or min((*self.dp_rows, *self.flex_rows), default=0) < 0:
            raise InvalidPlan("a tiered plan has as many dp_rows as flex_rows, one a table, none negative")

    @classmethod
    def uniform(cls, task: RowTask, tier: str) -> TieredPlan:
        """All rows in one tier."""
        rows, none = tuple(t.curve.num_rows for t in task.tables), (0,) * len(task.tables)
        return cls(rows if tier == "dp" else none, rows if tier == "flex" else none)

    def cuts(self, task: RowTask, table: int) -> tuple[int, int, int, int]:
        """First row of each tier of a table, and one past its last."""
        dp, both = self.dp_rows[table], self.dp_rows[table] + self.flex_rows[table]
        return 0, dp, both, task.tables[table].curve.num_rows

    def save(self, path: str | Path, task: RowTask) -> None:
        """Write as JSON, with the tables' names and numbers of rows, whole or not at all."""
        rows = zip(task.tables, self.dp_rows, self.flex_rows, strict=True)
        tables = {t.name: {"rows": t.curve.num_rows, "dp": dp, "flex": flex} for t, dp, flex in rows}
        write_whole(path, json.dumps({"schema": SCHEMA, "tables": tables}) + "\n")

    @classmethod
    def load(cls, path: str | Path, task: RowTask) -> TieredPlan:
        """Read what `save` wrote; a plan for other tables is refused."""
        data: Any = read_json(path)
        with guarded(f"{path} is no tiered plan"):
            if data["schema"] != SCHEMA:
                raise CorruptFile(f"{path} has schema {data['schema']}, expected {SCHEMA}")
            rows = {name: told["rows"] for name, told in data["tables"].items()}
            tiers = {name: (told["dp"], told["flex"]) for name, told in data["tables"].items()}
        if rows != {t.name: t.curve.num_rows for t in task.tables}:
            raise InvalidPlan(f"{path} is a plan for tables of other names or rows")
        plan = cls(*(tuple(tiers[t.name][tier] for t in task.tables) for tier in (0, 1)))
        check(task, plan)
        return plan


@dataclass(frozen=True)
class Worth:
    """Costs of a tiered plan for a GPU."""

    memory_bytes: float
    comm_ms: float  # of a step
    lookups: Mapping[str, float]  # rows a sample looks up in each tier

    def covered(self, tier: str) -> float:
        """Share of all lookups in a tier."""
        total = sum(self.lookups.values())
        return self.lookups[tier] / total if total else 0.0


def check(task: RowTask, plan: TieredPlan) -> None:
    """Refuse a plan that is not one for these tables."""
    expect(task, RowTask, InvalidTask)
    expect(plan, TieredPlan, InvalidPlan)
    if len(plan.dp_rows) != len(task.tables):
        raise InvalidPlan(f"the plan is for {len(plan.dp_rows)} tables, the task has {len(task.tables)}")
    for table, dp, flex in zip(task.tables, plan.dp_rows, plan.flex_rows, strict=True):
        if dp + flex > (rows := table.curve.num_rows):
            raise InvalidPlan(f"table {table.name!r} has {rows:,} rows, {dp:,} DP and {flex:,} Flex ones are too many")
        if table.pooled and {dp, flex} - {0, rows}:
            raise InvalidPlan(f"table {table.name!r} is pooled: all its {rows:,} rows go to one tier")


@dataclass(frozen=True)
class Part:
    """The rows of a table in one tier, and what they cost a GPU."""

    table: str
    tier: str
    rows: int
    lookups: float  # of these rows by a sample
    memory_bytes: float
    comm_ms: float  # but for latencies


def parts(task: RowTask, plan: TieredPlan) -> list[Part]:
    """List the tiers that have rows of a table, table by table."""
    check(task, plan)
    found = []
    for i, table in enumerate(task.tables):
        cuts = plan.cuts(task, i)
        covered = [table.curve.covered(rows) for rows in cuts]
        for tier, start, end, before, after in zip(TIERS, cuts, cuts[1:], covered, covered[1:], strict=False):
            if end > start:
                size, looked_up = table.row_bytes * (end - start), table.row_bytes * (after - before)
                lines = task.lines[tier].memory, task.lines[tier].ms
                cost = tuple(constant * size + slope * looked_up for constant, slope in lines)
                cost = whole_table(task, table, tier) if table.pooled else cost
                found.append(Part(table.name, tier, end - start, after - before, *cost))
    return found


def worth(task: RowTask, plan: TieredPlan) -> Worth:
    """Memory, communication and coverage, from the curves."""
    found = parts(task, plan)
    lookups = {tier: sum(part.lookups for part in found if part.tier == tier) for tier in TIERS}
    latency = sum(task.lines[tier].latency_ms for tier in {part.tier for part in found})
    return Worth(sum(p.memory_bytes for p in found), sum(p.comm_ms for p in found) + latency, lookups)


def whole_table(task: RowTask, table: SequenceTable, tier: str) -> tuple[float, float]:
    """Memory and communication, but for latencies, of a pooled table that is in one tier."""
    rows = Rows(table.curve.num_rows, table.dim, table.curve.length, table.element_bytes, pooled=True)
    found = costs(rows, tier, task.network, task.batch, task.copies)
    return found.memory_bytes, found.comm_ms - task.lines[tier].latency_ms


def merged(task: RowTask) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Buckets of all tables but pooled ones, most frequent first: probability, rows, bytes a row, table."""
    index = [i for i, t in enumerate(task.tables) if not t.pooled]
    curves = [task.tables[i].curve for i in index]
    table = np.repeat(np.array(index, np.int64), [len(curve.rows) for curve in curves])
    p = np.concatenate([np.empty(0), *(curve.probability for curve in curves)])
    rows = np.concatenate([np.empty(0, np.int64), *(curve.rows for curve in curves)])
    order = np.argsort(-p, kind="stable") if len(curves) > 1 else np.arange(len(p))
    row_bytes = np.array([t.row_bytes for t in task.tables])[table]
    return p[order], rows[order], row_bytes[order], table[order]


def report(task: RowTask, plan: TieredPlan) -> dict[str, Any]:
    """JSON-ready; memory is a GPU's, communication a step's."""
    found, rw = worth(task, plan), worth(task, TieredPlan.uniform(task, "rw"))
    rows = [asdict(part) for part in parts(task, plan)]
    return {
        "parts": rows,
        "memory_bytes": found.memory_bytes,
        "budget_bytes": task.budget_bytes,
        "rw_memory_bytes": rw.memory_bytes,
        "comm_ms": found.comm_ms,
        "rw_comm_ms": rw.comm_ms,
        "latency_ms": {tier: task.lines[tier].latency_ms for tier in TIERS if any(r["tier"] == tier for r in rows)},
        "covered": {tier: found.covered(tier) for tier in TIERS},
        "curve_error": max(table.curve.error for table in task.tables),
    }


def text(task: RowTask, plan: TieredPlan) -> str:
    """The report as a table and three lines."""
    told = report(task, plan)
    lines = [f"{'table':16} {'tier':5} {'rows':>14} {'lookups a sample':>16} {'memory GiB':>10} {'comm ms':>9}"]
    for part in told["parts"]:
        lines.append(
            f"{part['table']:16.16} {part['tier']:5} {part['rows']:14,} {part['lookups']:16,.1f} "
            f"{part['memory_bytes'] / GB:10.3f} {part['comm_ms']:9.3f}"
        )
    latency = ", ".join(f"{tier} {ms:g}" for tier, ms in told["latency_ms"].items())
    saved = 1 - told["comm_ms"] / told["rw_comm_ms"] if told["rw_comm_ms"] else 0.0
    memory, budget, rw_memory = (told[of] / GB for of in ("memory_bytes", "budget_bytes", "rw_memory_bytes"))
    dp, flex, rw = told["covered"].values()
    lines += [
        f"communication {told['comm_ms']:.3f} ms a step, latencies among it ({latency} ms); "
        f"all RW takes {told['rw_comm_ms']:.3f} ms, {saved:.1%} saved",
        f"memory {memory:.3f} GiB a GPU of {budget:.3f}; all RW takes {rw_memory:.3f}",
        f"lookups in DP {dp:.1%}, Flex {flex:.1%}, RW {rw:.1%}; probabilities of rows are within "
        f"{told['curve_error']:.2%}",
    ]
    return "\n".join(lines)


def uniform_plan(task: RowTask, plan: TieredPlan) -> Plan:
    """The plan as TorchRec can have it, where each table is in one tier: DP and RW; anything else is refused."""
    kinds = {}
    for part in parts(task, plan):
        if part.tier == "flex" or part.table in kinds:
            raise InvalidPlan(
                f"TorchRec shards a table in one way, and {part.table!r} has rows in "
                f"{'Flex' if part.tier == 'flex' else 'several tiers'}: divide it into a table for each tier with "
                "`divided`, or run it as shard_gym.flexshard.embedding.TieredEmbedding"
            )
        kinds[part.table] = part.tier
    ranks, kind = tuple(range(task.network.gpus)), tuple(kinds[table.name] for table in task.tables)
    return Plan((0,) * len(kind), kind=kind, devices=(ranks,) * len(kind))


def divided(task: RowTask, plan: TieredPlan) -> list[tuple[str, str, int, int]]:
    """Each table as tables of one tier: (new name, tier, first row, rows), rows most frequent first.

    An id's position in descending frequency says which of them it belongs to, and its row there.
    """
    found, start = [], Counter[str]()
    for part in parts(task, plan):
        found.append((f"{part.table}/{part.tier}", part.tier, start[part.table], part.rows))
        start[part.table] += part.rows
    return found
