"""Costs of plans on each device, in few characters: the page draws them when a task is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym import simulators
from shard_gym.bounds import lower_bound
from shard_gym.errors import ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import expanded
from shard_gym.plan.violations import plan_bytes
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import latency_of
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.page.board import Board

PARTS = {  # of a device's cost, in the order they run
    "kernel": ("forward compute", "backward compute"),
    "iteration": ("forward compute", "wait", "forward communication", "backward communication", "backward compute"),
}
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LEVELS = len(DIGITS) ** 2  # of a number that takes two characters
MOST_CHARACTERS = 1_200_000  # of all plans of a page
FULLEST = 2.0  # times its memory that a device may hold; more is drawn as so much


@dataclass(frozen=True, eq=False)
class Costs:
    """A plan by the judge: ms of each part of each device's cost, (P, K), and the share of its memory in use, (K,)."""

    parts: np.ndarray
    memory: np.ndarray

    def packed(self, top: float) -> str:
        """Two characters a number: parts as shares of `top` ms, memory of FULLEST."""
        shares = np.vstack([self.parts / top, self.memory[None] / FULLEST])
        levels = np.rint(np.clip(shares, 0, 1) * (LEVELS - 1)).astype(int).ravel()
        return "".join(DIGITS[n // len(DIGITS)] + DIGITS[n % len(DIGITS)] for n in levels.tolist())


def parts_of(objective: str) -> tuple[str, ...]:
    """Names of the parts of a device's cost."""
    return PARTS["kernel" if objective == "kernel" else "iteration"]


def drawn(board: Board, characters: int) -> list[dict[str, object]]:
    """Plans of all agents, the best known one, and the bound, for as many tasks as so many characters hold."""
    judge = simulators.make(board.judge) if board.judged_by != "measured" else None
    if not isinstance(judge, FastSimulator):
        return []  # drawing would be measuring again
    each = (len(board.entrants) + 1) * board.suite.num_devices * (1 + len(parts_of(board.suite.objective))) * 2
    tasks = board.tasks[: max(1, characters // each)]
    by_task = zip(*(e.plans() for e in board.entrants), strict=True)
    return [_task(task, plans, board, judge) for task, plans in zip(tasks, by_task, strict=False)]


def _task(task: Task, plans: Sequence[Plan | None], board: Board, judge: FastSimulator) -> dict[str, object]:
    found = costs(task, [*plans, board.best_plans.get(task.hash)], judge)
    bound = _bound(task, judge)
    tops = [float(one.parts.sum(axis=0).max()) for one in found if one is not None]
    top = max(tops, default=1.0) or 1.0
    packed = [None if one is None else one.packed(top) for one in found]
    slowest = [None if one is None else _brief(one.parts.sum(axis=0).max()) for one in found]
    return {"top": _brief(top), "bound": bound, "plans": packed[:-1], "best": packed[-1], "slowest": slowest}


def costs(task: Task, plans: Iterable[Plan | None], judge: FastSimulator) -> list[Costs | None]:
    """Costs of each plan."""
    plans = list(plans)
    used = [plan_bytes(task, plan)[0] / np.array(task.memory) if plan else None for plan in plans]
    return [
        None if latency is None or memory is None else Costs(_parts(latency, task.objective), memory)
        for latency, memory in zip(latencies(task, plans, judge), used, strict=True)
    ]


def latencies(task: Task, plans: Sequence[Plan | None], simulator: FastSimulator) -> list[Latency | None]:
    """The latency of each plan; those of whole tables are asked about together."""
    placed = [None if plan is None else expanded(task, plan) for plan in plans]
    whole = [i for i, plan in enumerate(plans) if plan is not None and placed[i] is None]
    found: list[Latency | None] = [
        None if plan is None or shards is None else latency_of(simulator, task, plan, shards)
        for plan, shards in zip(plans, placed, strict=True)
    ]
    if whole:
        together = simulator.latency(task, np.array([plans[i].device for i in whole]))  # type: ignore[union-attr]
        for row, i in enumerate(whole):
            found[i] = Latency(*(getattr(together, phase)[row] for phase in PHASES))
    return found


PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")


def _parts(latency: Latency, objective: str) -> np.ndarray:
    """The parts of each device's cost, ms, (P, K)."""
    forward, backward = latency.forward_compute, latency.backward_compute
    if len(parts_of(objective)) == 2:
        return np.array([forward, backward])
    return np.array([forward, forward.max() - forward, latency.forward_comm, latency.backward_comm, backward])


def _bound(task: Task, judge: FastSimulator) -> float | None:
    """Milliseconds that no plan of the task beats, where a bound is known."""
    try:
        return _brief(lower_bound(task, judge, 0.0))
    except ShardGymError:
        return None


def planned(board: Board) -> list[np.ndarray]:
    """Makespans by the planner of each entrant's plans, ms, (T,); NaN where it gave none."""
    planner = simulators.make(board.planner)
    makespans = np.full((len(board.entrants), len(board.tasks)), np.nan)
    if isinstance(planner, FastSimulator):
        for t, task in enumerate(board.tasks):
            found = latencies(task, [e.plans()[t] for e in board.entrants], planner)
            for i, latency in enumerate(found):
                if latency is not None:
                    makespans[i, t] = latency.makespan(task.objective)
    return list(makespans)


def _brief(ms: float) -> float:
    """A time in few digits."""
    return float(f"{ms:.6g}")
