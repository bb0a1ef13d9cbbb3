"""Local search: take work off the slowest device, by moves and swaps scored in batches on running sums."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.memory import device_bytes, device_sums, table_bytes
from shard_gym.plan import Plan
from shard_gym.random_plans import first_fit_decreasing
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.tasks import Task
from shard_gym_agents.greedy import CostGreedy
from shard_gym_agents.solver import refuse_constraints, require_fast, require_number, task_rng

PARTNERS = 8  # devices that may take or swap tables with the slowest one, in one round
CANDIDATES = 20_000  # moves and swaps scored in one round, at most; a random part of them where there are more
KICK = 4  # tables that change places at random when no move helps


@dataclass(frozen=True)
class LocalSearch:
    """Improve cost-greedy's plan until the time is up; returns the best plan seen."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = False
    seed: int = 0
    budget: float = 0.1  # seconds

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        refuse_constraints(task)
        planner = require_fast(planner)
        end = time.perf_counter() + self.budget
        rng = task_rng(self.seed, task)
        search = _Search(task, planner, _start(task, planner))
        best, best_makespan = search.placement.copy(), search.makespan
        while time.perf_counter() < end and task.num_devices > 1:
            if search.step(rng):
                continue
            if search.makespan < best_makespan:
                best, best_makespan = search.placement.copy(), search.makespan
            else:
                search.restart(best)
            search.kick(rng)
        chosen = search.placement if search.makespan < best_makespan else best
        return Plan(tuple(chosen.tolist()))


def _start(task: Task, planner: FastSimulator) -> np.ndarray:
    try:
        return np.array(CostGreedy()(task, planner).device)
    except InfeasibleTask:
        return first_fit_decreasing(task)


class _Search:
    """A placement with its running sums; every change keeps memory within bounds."""

    def __init__(self, task: Task, planner: FastSimulator, placement: np.ndarray) -> None:
        self.task, self.planner = task, planner
        self.tables, self.size = planner.embed(task), table_bytes(task)
        self.restart(placement)

    def restart(self, placement: np.ndarray) -> None:
        self.placement = placement.copy()
        self.sums = device_sums(self.tables, placement, self.task.num_devices)
        self.free = self.task.capacity - device_bytes(self.task, placement)
        self._rescore()

    def step(self, rng: np.random.Generator) -> bool:
        """Make the best move or swap of the slowest device, if one lowers the makespan."""
        out, device, back = self._candidates(rng)
        if not len(out):
            return False
        makespans = self._makespans(out, device, back)
        best = int(makespans.argmin())
        if makespans[best] >= self.makespan:
            return False
        self._apply(int(out[best]), int(device[best]), int(back[best]))
        return True

    def kick(self, rng: np.random.Generator) -> None:
        """Move a few random tables to random devices with room."""
        for t in rng.integers(self.task.num_tables, size=KICK).tolist():
            room = np.flatnonzero(self.free >= self.size[t])
            if len(room):
                self._apply(t, int(rng.choice(room)), -1)
            else:
                self._swap_at_random(t, rng)

    def _swap_at_random(self, t: int, rng: np.random.Generator) -> None:
        """Where memory is too tight to move: swap with a table that leaves both devices room."""
        spare, home = self.free[self.placement], self.free[self.placement[t]]
        fits = (self.size[t] - self.size <= spare) & (self.size - self.size[t] <= home)
        partners = np.flatnonzero(fits & (self.placement != self.placement[t]))
        if len(partners):
            u = int(rng.choice(partners))
            self._apply(t, int(self.placement[u]), u)

    def _candidates(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Feasible (table out of the slowest device, device it goes to, table that comes back or -1)."""
        slowest = int(self.cost.argmax())
        noise = 1 + 0.1 * rng.random(len(self.cost))
        partners = np.argsort(self.cost * noise)[:PARTNERS]
        partners = partners[partners != slowest]
        mine = rng.permutation(np.flatnonzero(self.placement == slowest))[:CANDIDATES]
        theirs = np.flatnonzero(np.isin(self.placement, partners))
        theirs = rng.permutation(theirs)[: max(1, CANDIDATES // max(1, len(mine)))]
        out = np.concatenate([np.repeat(mine, len(partners)), np.repeat(mine, len(theirs))])
        device = np.concatenate([np.tile(partners, len(mine)), np.tile(self.placement[theirs], len(mine))])
        back = np.concatenate([np.full(len(mine) * len(partners), -1), np.tile(theirs, len(mine))])
        gain = self.size[out] - np.where(back >= 0, self.size[back], 0)
        fits = (gain <= self.free[device]) & (-gain <= self.free[slowest])
        return out[fits], device[fits], back[fits]

    def _makespans(self, out: np.ndarray, device: np.ndarray, back: np.ndarray) -> np.ndarray:
        change = self.tables[out] - np.where((back >= 0)[:, None], self.tables[back], 0.0)  # (C, H)
        candidates = np.broadcast_to(self.sums, (len(out), *self.sums.shape)).copy()
        each = np.arange(len(out))
        candidates[each, self.placement[out]] -= change
        candidates[each, device] += change
        return self.planner.decode(self.task, candidates).makespan(self.task.objective)

    def _apply(self, out: int, device: int, back: int) -> None:
        for table, target in ((out, device), (back, int(self.placement[out]))):
            if table >= 0:
                home = int(self.placement[table])
                self.sums[home] -= self.tables[table]
                self.sums[target] += self.tables[table]
                self.free[home] += self.size[table]
                self.free[target] -= self.size[table]
                self.placement[table] = target
        self._rescore()

    def _rescore(self) -> None:
        self.cost = self.planner.decode(self.task, self.sums).cost(self.task.objective)
        self.makespan = float(self.cost.max())
        require_number(self.makespan, self.planner)
