"""Search over all kinds of sharding: tables in turn to the cheapest of all their options, some taken out and put back.

Costs that add up over a device's shards are searched exactly, and shards swapped between devices until all are even. Of
others, options are compared by what shards add near the best plan so far, and each change is asked about. The aim is
the sum of fourth powers of the devices' loads, which knows how even all devices are, and bytes at the price that the
bound comes with (Lagrange's relaxation, `bounds.prices`): dear memory goes to the tables that gain most by it. A
table's pieces are alike, so those of one form go, one by one, where they add least: that is best for the form.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.bounds.prices import prices
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.fitting import evenly, lacking
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_board import LIFT, Board
from shard_gym_agents.search.kinds_greedy import greedy_board, of_few_kinds
from shard_gym_agents.search.kinds_pieces import Pieces, improved
from shard_gym_agents.search.kinds_ruins import ruined
from shard_gym_agents.search.kinds_swaps import even_out
from shard_gym_agents.search.state import Budget, Costs
from shard_gym_agents.solvers.solver import Progress, require_number, task_rng

POLISH = 0.25  # share of the changes after which shards are swapped until no swap helps
WILD, WILDEST = 0.002, 0.5  # share of the changes that begin with a table in any option: for each in vain, at most
NARROWER = 0.7  # of the gap to the bound that options were left out for, before more are
GUESSED = 0.1  # of the bound: the gap where it is no bound, as costs do not add up
LOW = -0.5  # in the end: what is far below the slowest counts for nothing
WARM = 0.0003  # of the bound: how much for the worse a change may be at first
ROUNDS = 4  # of a search by costs that do not add up: the costs of shards are asked about anew
NOISE = 0.0, 1.5  # of the price of memory
CLOSE = 1e-4  # to the bound: good enough
CHECK = 256  # changes after which running sums are added up anew


class Search:
    """A search for the best plan of a task by a planner; `plan` tells the best so far."""

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
        self._aim(np.repeat(reference[None], task.num_devices, axis=0))

    def _aim(self, sums: np.ndarray) -> None:
        """Set costs of shards, those near these sums where they do not add up, and prices by them."""
        self.offset = np.zeros(self.task.num_devices)
        if (rates := self.rates) is None:
            rates, self.offset = self._near(sums)
        self.loads, self.asked_of = self.choices.loads(rates), {}
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

    def resumed(self, plan: Plan) -> Board:
        """A board with what it can of a plan of whole tables and columns, and the rest in turn."""
        board, options = self.board(self.prices.price), self.choices.options(plan)
        for item in self.choices.items.tolist():
            if item in options:
                board.put(item, options[item])
        for item in self.choices.items.tolist():
            if item not in options and (option := board.best(item)) is not None:
                board.put(item, option)
        self.seen(board)
        return board

    def seen(self, board: Board) -> bool:
        """Keep a board's plan if it is complete, and better than the best; True if whoever follows says to stop."""
        self._count(board)
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
        return self.progress is not None and bool(self.progress(makespan, self.budget.spent_seconds))

    def run(self, board: Board, rng: np.random.Generator) -> None:
        """Search from a board until the budget is spent; with progress, Ctrl-C ends it as well."""
        rounds = 1 if self.rates is not None else ROUNDS
        try:
            for number in range(rounds):
                if number and self.chosen:
                    self._aim(self.choices.sums(self.chosen))
                    board.reprice(self.loads, self.offset, self.unit)
                if self._improve(board, rng, (number + 1) / rounds):
                    break
        except KeyboardInterrupt:
            if self.progress is None or not self.chosen:
                raise

    def _improve(self, board: Board, rng: np.random.Generator, share: float) -> bool:
        """Take out some tables and put them back, again and again, until a share of the budget is spent; True: stop."""
        missing = [item for item in self.choices.items.tolist() if item not in board.chosen]
        if not missing:
            self.polish(board, rng)
            self.seen(board)
        changes, vain, begun, gap = 0, 0, self._spent, self._narrow(board, np.inf)
        while self._spent < share and (missing or self._worth_more):
            left = max(0.0, 1 - (self._spent - begun) / max(share - begun, 1e-9))
            board.raised(LOW + (LIFT - LOW) * left)
            heat = WARM * left * ((1 + board.lift) ** 3 if board.ask is None else 1.0)
            best, wild = self.makespan, rng.random() < min(WILDEST, vain * WILD)
            lost = self._changed(board, missing, rng, heat * float(rng.exponential()), wild)
            if lost is not None:
                missing = lost
                if not missing and rng.random() < POLISH:
                    self.polish(board, rng)
                if self.seen(board):
                    return True
                gap = self._narrow(board, gap)
            self._count(board)
            changes, vain = changes + 1, 0 if self.makespan < best else vain + 1
            if changes % CHECK == 0:
                board.settle()
        return False

    def polish(self, board: Board, rng: np.random.Generator) -> None:
        """Move and swap shards until no change tried helps."""
        if self.pieces is None:
            even_out(board, rng)
        else:
            improved(board, self.pieces, self.budget, rng)

    def _changed(
        self, board: Board, missing: list[int], rng: np.random.Generator, worse: float, wild: bool
    ) -> list[int] | None:
        """Take some items out and put them and those missing in; what is missing then, or None where it was undone.

        It is undone if the aim is more than that much worse. A wild change puts the first item anywhere.
        """
        before = board.worth
        out = ruined(board, self.prices.excess, rng)
        old = {item: board.chosen[item] for item in out}
        for item in out:
            board.take(item)
        back, lost, noise = [*missing, *out], [], float(rng.uniform(*NOISE))
        for number, item in enumerate(back):
            option = board.any(item, rng) if wild and not number else board.best(item, noise)
            if option is None:
                lost.append(item)
            else:
                board.put(item, option)
        if len(lost) < len(missing) or (len(lost) == len(missing) and board.worth <= before + worse):
            return lost
        for item in back:
            if item in board.chosen:
                board.take(item)
        for item, option in old.items():
            board.put(item, option)
        return None

    def _count(self, board: Board) -> None:
        self.costs.planner.calls += board.asked // self.task.num_devices
        board.asked %= self.task.num_devices

    def _narrow(self, board: Board, before: float) -> float:
        """Leave out options so dear that no plan with them is better; where costs do not add up, that is a guess."""
        if len(board.chosen) < len(self.choices.items):
            return before
        gap = self.makespan - self.prices.bound if self.pieces is None else GUESSED * self.unit
        if gap < NARROWER * before:
            board.narrow(self.may & (self.prices.excess <= gap))
            return gap
        return before

    @property
    def over(self) -> bool:
        """True once the budget is spent."""
        return self.spent(1.0)

    def spent(self, share: float) -> bool:
        """True once a share of the budget is spent."""
        return self._spent >= share

    @property
    def _worth_more(self) -> bool:
        """True while the bound leaves room for better plans."""
        return self.makespan > self.prices.bound * (1 + CLOSE) or self.rates is None

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


def searched(
    task: Task,
    planner: FastSimulator,
    budget: Budget,
    seed: int = 0,
    progress: Progress | None = None,
    sure: float = 0.0,
    start: Plan | None = None,
) -> Search:
    """A search that is done, and has a plan: greedy's, where the gain is below `sure` deviations of the planner.

    `start` is a plan of whole tables and columns to begin with, if it is better than greedy's.
    """
    search = Search(task, planner, budget, progress)
    board, rng = greedy_board(search), task_rng(seed, task)
    makespan, chosen = search.makespan, search.chosen
    if search.pieces is not None:
        board, search.may = of_few_kinds(search, board, rng)
    if start is not None and (other := search.resumed(start)).worth < board.worth:
        board = other
    search.run(board, rng)
    if chosen and makespan - search.makespan <= sure * search.costs.doubt(search.sums, search.choices.sums(chosen)):
        search.makespan, search.chosen = makespan, chosen
    latency = planner.decode(task, _found(search).sums)  # running sums are rounded, these are not
    search.makespan = float(latency.makespan(task.objective))
    return search


def greedy(task: Task, planner: FastSimulator) -> Plan:
    """Plan of every table in turn, costliest first, in the best of all its options."""
    search = Search(task, planner, Budget(np.inf, 0))
    greedy_board(search)
    return _found(search).plan


def random_plan(task: Task, rng: np.random.Generator, tries: int = 100) -> Plan:
    """A plan of random options that have room, tables in random order; `evenly` where that leads nowhere."""
    if why := disproof(task):
        raise InfeasibleTask(why)
    choices = Choices(task, lambda shards: np.zeros((len(shards.rows), 1)))
    loads, k = choices.loads(np.zeros((task.num_devices, 1))), task.num_devices
    for _ in range(tries):
        board = Board(choices, loads, np.zeros(k), np.zeros(2), 1.0)
        for item in rng.permutation(choices.items).tolist():
            if (option := board.any(item, rng)) is None:
                break
            board.put(item, option)
        else:
            return choices.plan(board.chosen)
    plan = evenly(task)
    if plan is None or violations(task, plan):
        raise InfeasibleTask("random options find no plan, which does not prove that there is none")
    return plan


def _found(search: Search) -> Search:
    if not search.chosen:
        raise InfeasibleTask(
            "some tables found no room, which does not prove that there is no plan: allow more time, or more kinds"
        )
    return search
