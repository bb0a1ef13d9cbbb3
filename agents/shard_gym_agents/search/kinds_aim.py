"""Aim of a search over all kinds of sharding: costs of options, prices of memory, and the best plan so far."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from shard_gym.bounds.prices import prices
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.fitting import lacking
from shard_gym.plan.forms import DEVICE
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_board import Board
from shard_gym_agents.search.kinds_options import Options
from shard_gym_agents.search.kinds_swaps import even_out
from shard_gym_agents.search.kinds_trades import Trades, slopes, traded
from shard_gym_agents.search.state import Budget, Costs
from shard_gym_agents.solvers.solver import Progress, require_number

LEAST_SHARE = 0.02  # of a phase: one that takes no time at first counts as much


class Aim:
    """A task's options, what they cost by a planner, the bound, and the best plan so far.

    Costs that do not add up are told by phases, each of which is to be even over devices: forward computation,
    communication, and backward computation. Those that do are one phase.
    """

    def __init__(self, task: Task, planner: FastSimulator, budget: Budget, progress: Progress | None = None) -> None:
        self.task, self.costs, self.budget, self.progress = task, Costs(task, planner), budget, progress
        self.choices = Choices(task, lambda shards: planner.embed_shards(task, shards))
        forms = self.choices.forms
        if why := lacking(task, forms):
            raise InfeasibleTask(why)
        fits = np.logical_or.reduceat((forms.fits & self.choices.may).any(axis=1), forms.first[:-1])
        if not fits.all():
            raise InfeasibleTask(f"table {int(fits.argmin())} fits on no device: constraints keep it whole on one")
        self.rates = planner.rates(task)
        self.adds_up = self.rates is not None
        self.makespan, self.chosen = np.inf, dict[int, Option]()
        self.may = self.choices.may  # what the search chooses from
        whole = forms.part_vector[forms.part[forms.first[:-1], DEVICE, 0]].sum(axis=0)
        self.aim(np.repeat(whole[None] / task.num_devices, task.num_devices, axis=0))

    def aim(self, sums: np.ndarray) -> None:
        """Set costs of shards, those near these sums where they do not add up, and prices by them."""
        rates, self.offset, self.share = self._near(sums)
        self.phases = np.stack([self.choices.loads(phase) for phase in rates])
        self.options: Options | None = None  # of boards, once there is one
        self.loads = self.phases.sum(axis=0)
        self.prices = prices(self.choices.ruled, self.choices.forms.loads(rates.sum(axis=0)))
        self.unit = max(self.prices.bound + float(self.offset.sum(axis=0).mean()), 1e-12)

    def near(self, board: Board) -> None:
        """Set costs of shards near a board's sums, for it as well, where it is complete."""
        if len(board.chosen) == len(self.choices.items):
            self.aim(self.choices.sums(board.chosen))
            board.reprice(self.phases, self.offset, self.prices.price)

    def _near(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights of sums, (P, K, H), what is left over, (P, K), and the share of each phase, (P,).

        Where costs do not add up weights are asked for, column by column: how phases grow from the mean of devices.
        """
        k = len(sums)
        if self.rates is not None:
            return self.rates[None], np.zeros((1, k)), np.ones(1)
        mean = np.repeat(sums.mean(axis=0)[None], k, axis=0)
        base, step = self._phases(mean), self.choices.forms.grain
        rates = slopes(self._phases, mean, base, step)
        share = base.sum(axis=1) / max(float(base.sum()), 1e-12)
        return rates, base - (rates * mean).sum(axis=2), np.maximum(share, LEAST_SHARE)

    def _value(self, sums: np.ndarray) -> float:
        return float(self.costs.plans(sums).value)

    def _phases(self, sums: np.ndarray) -> np.ndarray:
        """Phases of each device's cost, (3, ..., K): forward computation, communication, backward computation."""
        latency = self.costs.planner.decode(self.task, sums)
        comm = latency.forward_comm + latency.backward_comm
        return np.stack([latency.forward_compute, comm, latency.backward_compute])

    @cached_property
    def trades(self) -> Trades:
        """The fixed part of trades, where costs do not add up."""
        return Trades(self.choices, self.costs)

    @property
    def plan(self) -> Plan:
        """The best plan so far."""
        return self.choices.plan(self.chosen)

    def board(self, price: np.ndarray) -> Board:
        """A board with no item placed."""
        ask = None if self.adds_up else self._value
        board = Board(self.choices, self.phases, self.offset, price, self.unit, ask, self.share, self.options)
        self.options = board.options
        return board

    def seen(self, board: Board) -> bool:
        """Keep a board's plan if it is complete, and better than the best; True if whoever follows says to stop."""
        self.count(board)
        if len(board.chosen) < len(self.choices.items):
            return False
        makespan = board.longest * self.unit
        if self.rates is None:
            makespan = float(self.costs.planner.cost(self.task, board.sums).max())
        require_number(makespan, self.costs.planner)
        return self.keep(makespan, dict(board.chosen))

    def keep(self, makespan: float, chosen: dict[int, Option]) -> bool:
        """Keep a plan if it is better than the best; True if whoever follows says to stop."""
        if makespan >= self.makespan * (1 - 1e-12):
            return False
        self.makespan, self.chosen = makespan, chosen
        if self.progress is not None and self.progress(makespan, self.budget.spent_seconds):
            self.budget.stopped = True
        return self.budget.stopped

    def polish(self, board: Board, rng: np.random.Generator) -> None:
        """Move and swap shards until no change tried helps."""
        if self.adds_up:
            even_out(board, rng)
        else:
            traded(board, self.trades, self.budget)

    def count(self, board: Board) -> None:
        """Count what a board asked as calls of the planner, a plan each."""
        self.costs.planner.count(board.asked // self.task.num_devices)
        board.asked %= self.task.num_devices

    @property
    def over(self) -> bool:
        """True once the budget is spent."""
        return self.spent(1.0)

    def spent(self, share: float) -> bool:
        """True once a share of the budget is spent."""
        return self.share_spent >= share

    @property
    def share_spent(self) -> float:
        """Share of the budget that is spent."""
        if self.budget.calls:
            return self.costs.planner.calls / self.budget.calls
        return self.budget.spent_seconds / max(self.budget.seconds, 1e-9)

    @property
    def sums(self) -> np.ndarray:
        """Each device's sum of the best plan so far, (K, H)."""
        return self.choices.sums(self.chosen)
