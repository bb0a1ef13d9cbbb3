"""Aim of a search over all kinds of sharding: costs of options, prices of memory, and the best plan so far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.bounds.prices import prices
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.fitting import lacking
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_board import Asked, Board
from shard_gym_agents.search.kinds_pieces import Pieces, improved
from shard_gym_agents.search.kinds_swaps import even_out
from shard_gym_agents.search.state import Budget, Costs
from shard_gym_agents.solvers.solver import Progress, require_number


class Aim:
    """A task's options, what they cost by a planner, the bound, and the best plan so far."""

    def __init__(self, task: Task, planner: FastSimulator, budget: Budget, progress: Progress | None = None) -> None:
        self.task, self.costs, self.budget, self.progress = task, Costs(task, planner), budget, progress
        self.choices = Choices(task, lambda shards: planner.embed_shards(task, shards))
        forms = self.choices.forms
        if why := lacking(task, forms):
            raise InfeasibleTask(why)
        if not self.choices.suffice(self.choices.may):
            fits = np.logical_or.reduceat((forms.fits & self.choices.may).any(axis=1), forms.first[:-1])
            table = int(fits.argmin())
            raise InfeasibleTask(f"table {table} fits on no device: constraints keep it whole on one")
        self.rates = planner.rates(task)
        self.pieces = None if self.rates is not None else Pieces(self.choices, self.costs)
        self.makespan, self.chosen = np.inf, dict[int, Option]()
        self.may = self.choices.may  # what the search chooses from
        reference = self.choices.forms.vector[self.choices.forms.first[:-1], 0].sum(axis=0) / task.num_devices
        self.aim(np.repeat(reference[None], task.num_devices, axis=0))

    def aim(self, sums: np.ndarray) -> None:
        """Set costs of shards, those near these sums where they do not add up, and prices by them."""
        self.offset = np.zeros(self.task.num_devices)
        if (rates := self.rates) is None:
            rates, self.offset = self._near(sums)
        self.loads, self.asked_of = self.choices.loads(rates), Asked()
        forms = replace(self.choices.forms, may=self.choices.may)
        self.prices = prices(forms, self.choices.forms.loads(rates))
        self.unit = max(self.prices.bound + float(self.offset.mean()), 1e-12)

    def _near(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of sums and what is left over, by asking for each column how costs grow from the mean of devices."""
        k, width = sums.shape
        mean = np.repeat(sums.mean(axis=0)[None], k, axis=0)
        step = np.maximum(np.abs(self.choices.forms.vector).mean(axis=(0, 1)), 1e-9)
        tried = np.repeat(np.repeat(mean[None], k, axis=0)[:, None], width, axis=1)
        device, column = np.indices((k, width))
        tried[device, column, device, column] += step
        base = self._cost(mean[None])[0]
        rates = (self._cost(tried)[device, column, device] - base[:, None]) / step
        return rates, base - (rates * mean).sum(axis=1)

    def _value(self, sums: np.ndarray) -> float:
        return float(self.costs.plans(sums).value)

    def _cost(self, sums: np.ndarray) -> np.ndarray:
        return self.costs.planner.decode(self.task, sums).cost(self.task.objective)

    @property
    def plan(self) -> Plan:
        """The best plan so far."""
        return self.choices.plan(self.chosen)

    def board(self, price: np.ndarray) -> Board:
        """A board with no item placed."""
        ask = None if self.pieces is None else self._value
        board = Board(self.choices, self.loads, self.offset, price, self.unit, ask)
        board.asked_of = self.asked_of
        return board

    def seen(self, board: Board) -> bool:
        """Keep a board's plan if it is complete, and better than the best; True if whoever follows says to stop."""
        self.count(board)
        if len(board.chosen) < len(self.choices.items):
            return False
        makespan = board.longest * self.unit
        if self.rates is None:
            latency = self.costs.planner.decode(self.task, board.sums)
            makespan = float(latency.makespan(self.task.objective))
        require_number(makespan, self.costs.planner)
        if makespan >= self.makespan * (1 - 1e-12):
            return False
        self.makespan, self.chosen = makespan, dict(board.chosen)
        if self.progress is not None and self.progress(makespan, self.budget.spent_seconds):
            self.budget.stopped = True
        return self.budget.stopped

    def polish(self, board: Board, rng: np.random.Generator) -> None:
        """Move and swap shards until no change tried helps."""
        if self.pieces is None:
            even_out(board, rng)
        else:
            improved(board, self.pieces, self.budget, rng)

    def count(self, board: Board) -> None:
        self.costs.planner.calls += board.asked // self.task.num_devices
        board.asked %= self.task.num_devices

    @property
    def over(self) -> bool:
        """True once the budget is spent."""
        return self.spent(1.0)

    def spent(self, share: float) -> bool:
        """True once a share of the budget is spent."""
        return self._spent >= share

    @property
    def _spent(self) -> float:
        """Share of the budget that is spent."""
        if self.budget.calls:
            return self.costs.planner.calls / self.budget.calls
        return self.budget.spent_seconds / max(self.budget.seconds, 1e-9)

    @property
    def sums(self) -> np.ndarray:
        """Each device's sum of the best plan so far, (K, H)."""
        return self.choices.sums(self.chosen)
