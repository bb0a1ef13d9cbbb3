"""What a tiered plan does, as text or data: rows, lookups, memory and communication by table and tier."""

from __future__ import annotations

from typing import Any

from shard_gym.errors import InvalidPlan
from shard_gym.plan import Plan
from shard_gym.rowwise.tiers import TIERS, RowTask, TieredPlan, parts, worth

GB = 2**30


def report(task: RowTask, plan: TieredPlan) -> dict[str, Any]:
    """JSON-ready; memory is a GPU's, communication a step's."""
    found, rw = worth(task, plan), worth(task, TieredPlan.uniform(task, "rw"))
    rows = [
        {
            "table": task.tables[part.table].name,
            "tier": part.tier,
            "rows": part.rows,
            "lookups": part.lookups,
            "memory_bytes": part.memory_bytes,
            "comm_ms": part.comm_ms,
        }
        for part in parts(task, plan)
    ]
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
    lines = [f"{'table':16} {'tier':5} {'rows':>14} {'lookups a sample':>16} {'memory GB':>10} {'comm ms':>9}"]
    for part in told["parts"]:
        lines.append(
            f"{part['table']:16.16} {part['tier']:5} {part['rows']:14,} {part['lookups']:16,.1f} "
            f"{part['memory_bytes'] / GB:10.3f} {part['comm_ms']:9.3f}"
        )
    latency = ", ".join(f"{tier} {ms:g}" for tier, ms in told["latency_ms"].items())
    saved = 1 - told["comm_ms"] / told["rw_comm_ms"] if told["rw_comm_ms"] else 0.0
    lines += [
        f"communication {told['comm_ms']:.3f} ms a step, latencies among it ({latency} ms); "
        f"all RW takes {told['rw_comm_ms']:.3f} ms, {saved:.1%} saved",
        f"memory {told['memory_bytes'] / GB:.3f} GB a GPU of {told['budget_bytes'] / GB:.3f}; "
        f"all RW takes {told['rw_memory_bytes'] / GB:.3f}",
        f"lookups in DP {told['covered']['dp']:.1%}, Flex {told['covered']['flex']:.1%}, RW {told['covered']['rw']:.1%}"
        f"; probabilities of rows are within {told['curve_error']:.2%}",
    ]
    return "\n".join(lines)


def uniform_plan(task: RowTask, plan: TieredPlan) -> Plan:
    """The plan as TorchRec can have it, where each table is in one tier: DP and RW; anything else is refused."""
    kinds = {}
    for part in parts(task, plan):
        name = task.tables[part.table].name
        if part.tier == "flex" or name in kinds:
            raise InvalidPlan(
                f"TorchRec shards a table in one way, and {name!r} has rows in "
                f"{'Flex' if part.tier == 'flex' else 'several tiers'}: divide it into a table for each tier with "
                "`divided`, or run it as shard_gym.rowwise.embedding.TieredEmbedding"
            )
        kinds[name] = part.tier
    ranks = tuple(range(task.network.gpus))
    kind = tuple(kinds[table.name] for table in task.tables)
    return Plan((0,) * len(kind), kind=kind, devices=(ranks,) * len(kind))


def divided(task: RowTask, plan: TieredPlan) -> list[tuple[str, str, int, int]]:
    """Each table as tables of one tier: (new name, tier, first row, rows), rows most frequent first.

    An id's position in descending frequency says which of them it belongs to, and its row there.
    """
    found, start = [], dict.fromkeys(range(len(task.tables)), 0)
    for part in parts(task, plan):
        name = f"{task.tables[part.table].name}/{part.tier}"
        found.append((name, part.tier, start[part.table], part.rows))
        start[part.table] += part.rows
    return found
