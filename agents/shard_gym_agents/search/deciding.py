"""Deciding whether a task has a plan at all, by a program that minimises the bytes missing on a device."""

from __future__ import annotations

import time

import numpy as np

from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.feasibility import Verdict, quick
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import MOST_HALVINGS, Nodes
from shard_gym.plan.plan import check
from shard_gym.plan.violations import violations
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices
from shard_gym_agents.search.linear import MEGABYTE, OutOfTime
from shard_gym_agents.search.milp import Answer, Model
from shard_gym_agents.search.milp_kinds import OptionsModel
from shard_gym_agents.search.programs import alike_devices, interchangeable

SAFETY = 1 - 1e-5  # the solver works in floating point, to tolerances of a millionth
PROVED = 1e-3  # megabytes that must be missing before a task counts as infeasible, well above those tolerances


def decide(task: Task, seconds: float) -> Verdict:
    """Decide if there is a plan: simple counts first, then a program that minimises the bytes missing on a device.

    Where splits are allowed, plans come with at most 8 pieces a table; a proof that there is none holds for any number.
    """
    verdict, end = quick(task), time.perf_counter() + seconds
    if verdict.feasible is not None:
        return verdict
    if beyond_columns(task):
        return _of_kinds(task, seconds, end)
    nodes = Nodes.of(task, split_action=True, every=True)
    try:
        answer = _least_missing(nodes, end)
        if answer.plan is not None and not violations(task, answer.plan):
            return Verdict(True, "the program finds a plan", answer.plan)
        if answer.bound > PROVED:
            any_pieces = _least_missing(nodes, end, crumbs=True) if _has_finer(nodes) else answer
            if any_pieces.bound > PROVED:
                return Verdict(False, _missing(any_pieces.bound))
            pieces = f"with at most {2**MOST_HALVINGS} pieces a table"
            return Verdict(None, f"{pieces}, {_missing(answer.bound)}; finer splits are not ruled out")
    except OutOfTime:
        size = f"{len(nodes):,} pieces and tables on {task.num_devices:,} devices"
        return _too_large(seconds, size)
    nearest = "no plan keeps the constraints so far"
    if answer.plan is not None:
        used = device_bytes(check(task, answer.plan), np.array(answer.plan.device))
        nearest = f"the nearest plan has {(used - task.capacity).max():,} bytes too few on a device"
    return Verdict(None, f"not decided within {seconds:g} s: {nearest}, and nothing rules out a better one")


def _of_kinds(task: Task, seconds: float, end: float) -> Verdict:
    """The same over all options of a task of more kinds of sharding, the pieces of a table sharded alike."""
    choices = Choices(task, lambda shards: np.zeros((len(shards.rows), 0)))
    try:
        model = OptionsModel(choices, end)
        model.memory(model.variable(cost=1.0))
        found = model.solve(end - time.perf_counter(), gap=0.0)
    except OutOfTime:
        return _too_large(seconds, f"{len(choices.forms.table):,} forms of tables on {task.num_devices:,} devices")
    plan = None if found.values is None else choices.plan(model.chosen(found.values))
    if plan is not None and not violations(task, plan):
        return Verdict(True, "the program finds a plan", plan)
    if found.bound > PROVED:
        held = ", of tables that constraints name in one," if choices.rules.binding else ","
        pieces = f"with at most {2**MOST_HALVINGS} pieces a table, sharded alike{held}"
        return Verdict(False, f"{pieces} {_missing(found.bound)}")
    nearest = "no plan keeps the constraints so far"
    if plan is not None:
        nearest = f"of the nearest plan: {violations(task, plan)[0]}"
    return Verdict(None, f"not decided within {seconds:g} s: {nearest}; nothing rules out a better one")


def _too_large(seconds: float, size: str) -> Verdict:
    return Verdict(None, f"not decided: {seconds:g} s are too little to begin with a program of {size}")


def _least_missing(nodes: Nodes, end: float, crumbs: bool = False) -> Answer:
    """The plan with the least bytes missing on a device, in megabytes."""
    model, task = Model(nodes, end, crumbs), nodes.task
    over = model.variable(cost=1.0)
    model.memory(over)
    if interchangeable(task) and not crumbs:
        model.break_symmetry(alike_devices(task, None), np.argsort(-table_bytes(task), kind="stable"))
    return model.solve(end - time.perf_counter(), gap=0.0)


def _has_finer(nodes: Nodes) -> bool:
    """True if some table may be halved more often than its nodes are."""
    finest = ~nodes.may_split & (nodes.level == MOST_HALVINGS)
    return bool((nodes.pieces.tables.dim[finest] % 8 == 0).any())


def _missing(bound: float) -> str:
    if not np.isfinite(bound):
        return "constraints cannot be kept together, whatever the memory"
    return f"whatever the plan, on some device {int(bound * MEGABYTE * SAFETY):,} bytes are too few"
