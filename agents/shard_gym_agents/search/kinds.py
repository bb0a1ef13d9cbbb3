"""Search over all kinds of sharding: tables in turn to the cheapest of all their options, some taken out and put back.

Costs that add up over a device's shards are searched exactly, and shards swapped between devices until all are even. Of
others, options are compared by what shards add to each phase near the best plan so far, and trades are asked about. The
aim is the sum of fourth powers of the devices' loads, which knows how even all devices are, and bytes at the price that
the bound comes with (Lagrange's relaxation, `bounds.prices`): dear memory goes to the tables that gain most by it. A
table's pieces are alike, so those of one form go, one by one, where they add least: that is best for the form.
"""

from __future__ import annotations

import numpy as np

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.fitting import evenly
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds_aim import Aim
from shard_gym_agents.search.kinds_board import LIFT, Board
from shard_gym_agents.search.kinds_changes import annealed, can_change
from shard_gym_agents.search.kinds_greedy import greedy_board, seeded
from shard_gym_agents.search.kinds_ruins import ruined
from shard_gym_agents.search.state import Budget
from shard_gym_agents.solvers.solver import Progress, no_luck, task_rng

POLISH = 0.25  # share of the changes after which shards are swapped until no swap helps
WILD, WILDEST = 0.002, 0.5  # share of the changes that begin with a table in any option: for each in vain, at most
NARROWER = 0.7  # of the gap to the bound that options were left out for, before more are
LOW = -0.5  # in the end: what is far below the slowest counts for nothing
WARM = 0.0003  # of the bound: how much for the worse a change may be at first
# Where costs do not add up: rounds, after which costs of shards are asked about anew; what loads are raised by; how
# much dearer memory is, by a power of e; and the share of the times that a table goes anywhere
ROUNDS, RAISED, DEARER, ANYWHERE = 4, (0.5, 1, 2, 4, 8), (-0.1, 0.8), 0.3
PASSES = 0.3, 1.0  # of annealing: shares of the budget where they end
NOISE = 0.0, 1.5  # of the price of memory
CLOSE = 1e-4  # to the bound: good enough
CHECK = 256  # changes after which running sums are added up anew


class Search(Aim):
    """A search for the best plan of a task by a planner; `plan` tells the best so far."""

    def run(self, board: Board, rng: np.random.Generator) -> None:
        """Search from a board until the budget is spent; with progress, Ctrl-C ends it as well."""
        try:
            if self._improve(board, rng) or self.adds_up:
                return
            if can_change(self):
                for until in PASSES:
                    annealed(self, rng, until)
                return
            board = seeded(self, board, rng)
            for number in range(ROUNDS):
                board = self._shaken(board, rng, (number + 1) / ROUNDS)
                self.near(board)
        except KeyboardInterrupt:
            if self.progress is None or not self.chosen:
                raise

    def _improve(self, board: Board, rng: np.random.Generator) -> bool:
        """Take out some tables and put them back, again and again, until the budget is spent; True: stop.

        Where costs do not add up that ends where all tables have found room.
        """
        missing = [item for item in self.choices.items.tolist() if item not in board.chosen]
        if not missing:
            self.polish(board, rng)
            self.seen(board)
        changes, vain, begun, gap = 0, 0, self.share_spent, self._narrow(board, np.inf)
        while not self.over and (missing or self._worth_more):
            left = max(0.0, 1 - (self.share_spent - begun) / max(1 - begun, 1e-9))
            board.raised(LOW + (LIFT - LOW) * left)
            heat = WARM * left * (1 + board.lift) ** 3
            best, wild = self.makespan, rng.random() < min(WILDEST, vain * WILD)
            lost = self._changed(board, missing, rng, heat * float(rng.exponential()), wild)
            if lost is not None:
                missing = lost
                if not missing and rng.random() < POLISH:
                    self.polish(board, rng)
                if self.seen(board):
                    return True
                gap = self._narrow(board, gap)
            self.count(board)
            changes, vain = changes + 1, 0 if self.makespan < best else vain + 1
            if changes % CHECK == 0:
                board.settle()
        return False

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

    def _shaken(self, best: Board, rng: np.random.Generator, share: float) -> Board:
        """The best board on the way from this one: tables are taken out and put back, then shards traded."""
        while self.share_spent < share and not self.budget.stopped:
            board, lift, noise = best.copy(), float(rng.choice(RAISED)), float(np.exp(rng.uniform(*DEARER)))
            board.raised(lift)
            out, wild = ruined(board, self.prices.excess, rng), rng.random() < ANYWHERE
            for item in out:
                board.take(item)
            for number, item in enumerate(out):
                option = board.any(item, rng) if wild and not number else board.best(item, noise)
                if option is None:
                    break
                board.put(item, option)
            else:
                self.polish(board, rng)
                best = board if board.asked_value < best.asked_value else best
            self.seen(board)
        return best

    def _narrow(self, board: Board, before: float) -> float:
        """Leave out options so dear that no plan with them is better."""
        if not self.adds_up or len(board.chosen) < len(self.choices.items):
            return before
        gap = self.makespan - self.prices.bound
        if gap < NARROWER * before:
            board.narrow(self.may & (self.prices.excess <= gap))
            return gap
        return before

    @property
    def _worth_more(self) -> bool:
        """True while the bound leaves room for better plans, if costs add up."""
        return self.adds_up and self.makespan > self.prices.bound * (1 + CLOSE)


def searched(
    task: Task,
    planner: FastSimulator,
    budget: Budget,
    seed: int = 0,
    progress: Progress | None = None,
    sure: float = 0.0,
) -> Search:
    """A search that is done, and has a plan: greedy's, where the gain is below `sure` deviations of the planner."""
    search = Search(task, planner, budget, progress)
    board, rng = greedy_board(search), task_rng(seed, task)
    makespan, chosen = search.makespan, search.chosen
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
    for _ in range(tries):
        if chosen := random_options(choices, rng):
            return choices.plan(chosen)
    plan = evenly(task)
    if plan is None or violations(task, plan):
        raise no_luck("random options find no plan")
    return plan


def random_options(choices: Choices, rng: np.random.Generator) -> dict[int, Option]:
    """Random options that have room, items in random order; none where that leads nowhere."""
    k, width = choices.task.num_devices, choices.forms.vector.shape[2]
    board = Board(choices, choices.loads(np.zeros((k, width)))[None], np.zeros((1, k)), np.zeros(2), 1.0)
    for item in rng.permutation(choices.items).tolist():
        if (option := board.any(item, rng)) is None:
            return {}
        board.put(item, option)
    return board.chosen


def _found(search: Search) -> Search:
    if not search.chosen:
        raise InfeasibleTask(
            "some tables found no room, which does not prove that there is no plan: allow more time, or more kinds"
        )
    return search
