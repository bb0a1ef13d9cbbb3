"""Reports on plans and on what moves between them, in words and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from shard_gym.memory.shards import KINDS, Shards
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.moves import Delta
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import plan_bytes
from shard_gym.results.evaluate import Score, score
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.base import plan_latency
from shard_gym.tables.pool import GB
from shard_gym.task.task import RESIDENCES, Constraints, Task
from shard_gym.torchrec.report import grid


def assumed(task: Task, planner: Simulator, judge: Simulator) -> str:
    """One line of what a plan is made and judged for."""
    told = [" and ".join(sorted(set(task.tables.dtype))), task.optimizer, f"batch {task.batch:,}"]
    told += [f"{task.accounting!r} bytes", _devices(task), _wires(task, planner), *_kinds(task), planner.id]
    told[-1] += "" if judge.id == planner.id else f", judged by {judge.id}"
    own = planner.own_settings(task) if isinstance(planner, FastSimulator) else ""
    return f"assumes {'; '.join(told)}" + (f", which answers for {own}" if own else "")


def _devices(task: Task) -> str:
    group = task.devices_per_host
    hosts = f"{task.num_devices // group} host{'s' if group < task.num_devices else ''} of {group}"
    slow, fast = min(task.speed), max(task.speed)
    return hosts if slow == fast == 1 else f"{hosts}, speeds {slow:g} to {fast:g}"


def _wires(task: Task, planner: Simulator) -> str:
    """The rates of an all-to-all, 1e9 bytes a second, where the objective has any."""
    if task.objective == "kernel":
        return "no links (kernel)"
    whole = replace(
        task, kinds=(), residences=("hbm",), constraints=Constraints()
    )  # which all simulators have wires for
    found = planner.all_to_all(whole) if isinstance(planner, FastSimulator) else None
    if found is None:
        return "the simulator's links"
    links, _ = found
    rates = {"": links.port, f" a group of {links.group}": links.uplink, " in all": links.fabric}
    told = [f"{rate / 1e6:.4g} GB/s{which}" for which, rate in rates.items() if rate < math.inf]
    return ", ".join([*told, f"{1e3 * links.latency_ms:.4g} us"])


def _kinds(task: Task) -> Iterator[str]:
    """Kinds and residences, where the task names any."""
    if beyond_columns(task):
        yield f"kinds {', '.join(task.kinds_allowed)}"
    if task.residences != ("hbm",):
        link = "the simulator's link" if task.host_link is None else f"{task.host_link / 1e6:.4g} GB/s"
        yield f"rows in {', '.join(task.residences)}"
        yield f"host memory {task.host_memory / GB:.4g} GiB a device, {link}"


def report(task: Task, plan: Plan, judge: Simulator) -> str:
    """Makespan and balance, then memory and cost of each device, then the kinds of tables that are not whole on one."""
    found, (used, in_host) = score(task, plan, judge), plan_bytes(task, plan)
    cost, placed = plan_latency(judge, task, plan).cost(task.objective), shards(task, plan)
    lines = [f"makespan {found.makespan:.3f} ms ({task.objective}), balance {found.balance:.3f}, by {judge.id}"]
    lines += [f"INFEASIBLE: {violation}" for violation in found.violations]
    heads = ["device", "tables" if plan.table_wise else "shards", "used GiB", "of GiB"]
    heads += ["host GiB", "of GiB"] if in_host.any() else []
    counts, rows = np.bincount(placed.device, minlength=task.num_devices), []
    for d, capacity in enumerate(task.memory):
        sizes = [used[d], capacity, *([in_host[d], task.host_memory] if in_host.any() else [])]
        rows.append([f"{d}", f"{counts[d]}", *(f"{size / GB:.2f}" for size in sizes), f"{cost[d]:.3f}", ""])
    lines += grid([*heads, "cost ms", ""], rows)
    return "\n".join([*lines, *([] if plan.table_wise else ["", *kinds_report(plan, placed)])])


def plan_json(task: Task, plan: Plan, judge: Simulator) -> dict[str, Any]:
    """The same as JSON, the plan with it."""
    found, (used, in_host) = score(task, plan, judge), plan_bytes(task, plan)
    cost, placed = plan_latency(judge, task, plan).cost(task.objective), shards(task, plan)
    counts = np.bincount(placed.device, minlength=task.num_devices)
    devices = [
        {
            "shards": counts[d],
            "used_bytes": used[d],
            "memory_bytes": memory,
            "host_used_bytes": in_host[d],
            "host_memory_bytes": task.host_memory,
            "cost_ms": cost[d],
        }
        for d, memory in enumerate(task.memory)
    ]
    return {
        "objective": task.objective,
        "judge": judge.id,
        "makespan_ms": found.makespan,
        "balance": found.balance,
        "feasible": found.feasible,
        "violations": found.violations,
        "devices": devices,
        "plan": plan.to_dict(),
    }


def kinds_report(plan: Plan, placed: Shards) -> Iterator[str]:
    """Tables by kind, by the pieces and shards that each has, and by where its rows live."""
    counts: Counter[tuple[int, int, int, int, float]] = Counter()
    first = np.searchsorted(placed.table, np.arange(placed.table[-1] + 2))
    for table, (start, end) in enumerate(pairwise(first.tolist())):
        pieces, kind = len(set(placed.column[start:end].tolist())), KINDS.index(placed.kind[start])
        counts[kind, pieces, end - start, RESIDENCES.index(plan.residence[table]), plan.share[table]] += 1
    rows = []
    for (kind, pieces, number, where, share), count in sorted(counts.items()):
        lives = RESIDENCES[where] + (f" {share:g}" if RESIDENCES[where] == "cached" else "")
        rows.append([f"{count}", KINDS[kind], f"{pieces}", f"{number}", lives])
    yield from grid(["tables", "kind", "pieces", "shards", "rows in"], rows)


def delta_report(task: Task, delta: Delta, scores: Sequence[Score]) -> str:
    """Makespans of the old and the new plan, then what moves."""
    old, new = scores
    lines = [f"makespan {old.makespan:.3f} -> {new.makespan:.3f} ms ({task.objective})"]
    for which, found in zip(("old", "new"), scores, strict=True):
        lines += [f"INFEASIBLE, the {which} plan: {violation}" for violation in found.violations]
    lines.append(f"{delta.tables} of {task.num_tables} tables move, {delta.bytes / GB:.2f} GiB")
    if delta.moves:
        lines += _moves(task, delta)
    return "\n".join(lines)


def _moves(task: Task, delta: Delta) -> Iterator[str]:
    """Lines of what moves; with rows, where not all of a table's do."""
    wide, by_rows = max(5, *(len(move.name) for move in delta.moves)), any(move.rows for move in delta.moves)
    digits = len(f"{task.tables.rows.max()}")
    rows = f" {'rows':>{2 * digits + 1}}" if by_rows else ""
    yield f"{'table':{wide}} {'columns':>9}{rows} {'GiB':>8} {'from':>5} {'to':>5}"
    for move in delta.moves:
        if by_rows:
            top, end = move.rows or (0, int(task.tables.rows[move.table]))
            rows = f" {top:{digits}}-{end - 1:<{digits}}"
        columns = f"{move.columns[0]:4}-{move.columns[1] - 1:<4}"
        yield f"{move.name:{wide}} {columns}{rows} {move.bytes / GB:8.3f} {move.source:5} {move.target:5}"


def delta_json(delta: Delta, scores: Sequence[Score]) -> dict[str, Any]:
    """The same as JSON; a move tells its rows where they are not all of the table's."""
    worth = {which: asdict(score) for which, score in zip(("old", "new"), scores, strict=True)}
    told = asdict(delta)
    told["moves"] = [{name: value for name, value in move.items() if value is not None} for move in told["moves"]]
    return worth | {"tables": delta.tables, "bytes": delta.bytes, **told}


def repaid_json(delta: Delta, scores: Sequence[Score], gb_s: float) -> dict[str, Any]:
    """The time that moving takes, and the steps that repay it: null where nothing is gained."""
    ms, gain = 1e3 * delta.seconds(gb_s * 1e9), scores[0].makespan - scores[1].makespan
    return {"moving_ms": ms, "repaid_steps": ms / gain if gain > 0 else None}


def repaid(delta: Delta, scores: Sequence[Score], gb_s: float) -> str:
    """The same in words."""
    found = repaid_json(delta, scores, gb_s)
    told = f"moving takes {found['moving_ms']:.1f} ms at {gb_s:g} GB/s a device"
    return f"{told}, repaid after {found['repaid_steps']:,.0f} steps" if found["repaid_steps"] else told
