"""Search over all kinds of sharding: tables in turn to the cheapest of all their options, some taken out and put back.

Costs that add up over a device's shards are searched exactly; others by what shards add near the best plan so far, and
every plan that comes out is asked about. The aim is the sum of fourth powers of the devices' loads, which knows how
even all devices are, and bytes at the price that the bound comes with (Lagrange's relaxation, `bounds.prices`): dear
memory goes to the tables that gain most by it. A table's pieces are alike, so those of one form go, one by one, where
they add least: that is best for the form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.bounds.prices import prices
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.shards import Shards
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.fitting import evenly
from shard_gym.plan.forms import ALL, DEVICE, HOST, Forms
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.plan.violations import rooms, violations
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task
from shard_gym_agents.search.state import Budget, Costs
from shard_gym_agents.solvers.solver import Progress, require_number, task_rng

RUIN = (2, 9)  # tables taken out at a time: from, below
FROM_SLOW = 0.8  # share of the times that they are taken from the slowest device and another
DEARER = 4.0  # the price of memory, each time a table finds no room
DEAREST = 12  # times
LIFT = 8.0  # of all loads at first, in units of the bound: costs count beside their evenness
LIKELY = (
    1.0  # part of the gap to the bound that one option may cost: with 1 no better plan is left out where costs add up
)
SOONER = 0.7
LOW = -0.5  # in the end: what is far below the slowest counts for nothing
WARM = 0.0003  # of the bound: how much for the worse a change may be at first
ROUNDS = 4  # of a search by costs that do not add up: the costs of shards are asked about anew
NOISE = 0.7, 1.3  # of the price of memory
CLOSE = 1e-4  # to the bound: good enough
CHECK = 256  # changes after which running sums are added up anew


@dataclass(frozen=True)
class Option:
    """A form, a choice, and the device or host of each piece (0 for others), with what it adds to the aim."""

    worth: float
    form: int
    choice: int
    targets: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Piecewise:
    """Forms of an item whose pieces go to devices, or to hosts of `span` devices, one by one."""

    forms: np.ndarray  # (r,)
    choice: int
    span: int
    pieces: np.ndarray  # (r,)
    loads: np.ndarray  # (r, K, J) of j + 1 pieces on a device
    size: np.ndarray  # (Q, r, K, J) bytes of them
    taken: np.ndarray  # (Q, r) bytes of all pieces


@dataclass(frozen=True, eq=False)
class Everywhere:
    """Forms of an item that put a shard on every device."""

    forms: np.ndarray  # (r,)
    choice: np.ndarray  # (r,)
    loads: np.ndarray  # (r, K)
    size: np.ndarray  # (Q, r, K)
    taken: np.ndarray  # (Q, r)


class Choices:
    """The fixed part of a search: options of each item, which is a table or those that must be together."""

    def __init__(self, task: Task, embed: Callable[[Shards], np.ndarray]) -> None:
        if task.constraints.max_moves is not None:
            raise InvalidTask("max_moves is for whole tables on single devices: a task of more kinds has no moves")
        self.task, self.rules = task, Rules.of(task)
        self.forms = Forms.of(task, embed)
        self.items = np.flatnonzero(self.rules.leads)
        self.host = task.devices_per_host
        resources = 2 if task.residences != ("hbm",) else 1
        self.size = self.forms.bytes[:resources].astype(np.float64)
        self.room = np.stack(rooms(task)).astype(np.float64)[:resources]
        self.may = self.forms.may.copy()
        if self.rules.binding:
            self._bind()
        self.at = [slice(a, b) for a, b in zip(self.forms.first[:-1], self.forms.first[1:], strict=True)]

    def _bind(self) -> None:
        """Keep tables whose device is constrained whole on one; those together are the first one's forms."""
        task, forms, rules = self.task, self.forms, self.rules
        c = task.constraints
        held = [*(t for t, _ in c.pin), *(t for group in (*c.together, *c.apart) for t in group)]
        self.may[np.isin(forms.table, held) & (forms.level > 0)] = False
        self.may[np.isin(forms.table, held), 1:] = False
        whole = np.arange(len(forms.residences))
        for table in np.flatnonzero(~rules.leads).tolist():
            mine, leader = forms.first[table] + whole, forms.first[rules.leader[table]] + whole
            self.size[:, leader] += self.size[:, mine]
            self.may[leader] &= self.may[mine]

    def loads(self, rates: np.ndarray) -> np.ndarray:
        """What each choice adds to each device, (R, 4, K), of items."""
        loads, whole = self.forms.loads(rates), np.arange(len(self.forms.residences))
        for table in np.flatnonzero(~self.rules.leads).tolist():
            loads[self.forms.first[self.rules.leader[table]] + whole] += loads[self.forms.first[table] + whole]
        return loads

    def all_chosen(self, chosen: dict[int, Option]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Form, choice and targets of every table, those of a group as their leader's."""
        found = []
        for table, leader in enumerate(self.rules.leader[:-1].tolist()):
            option = chosen[leader]
            form = option.form - self.forms.first[leader] + self.forms.first[table]
            found.append((int(form), option.choice, option.targets))
        return found

    def plan(self, chosen: dict[int, Option]) -> Plan:
        """The plan that these options make."""
        return self.forms.plan(self.all_chosen(chosen))

    def times(self, option: Option) -> np.ndarray:
        """Pieces that an option puts on each device, (K,)."""
        k = self.task.num_devices
        span = {DEVICE: 1, HOST: self.host}.get(option.choice, k)
        return np.bincount(option.targets, minlength=k // span).repeat(span)

    def rows(self, item: int, option: Option) -> np.ndarray:
        """What an item adds to the sum of each device, exact, (K, H)."""
        forms, lead = self.forms, self.forms.first[item]
        group = np.flatnonzero(self.rules.leader[:-1] == item)
        rows = forms.vector[forms.first[group] + option.form - lead][:, forms.column[option.choice]].sum(axis=0)
        return rows * self.times(option)[:, None]

    def sums(self, chosen: dict[int, Option]) -> np.ndarray:
        """Each device's sum of the rows of its shards, exact, (K, H)."""
        return np.sum([self.rows(item, option) for item, option in chosen.items()], axis=0)


class Board:
    """Items placed so far, what devices cost, and what is free; loads are in units of a target."""

    def __init__(
        self,
        choices: Choices,
        loads: np.ndarray,
        offset: np.ndarray,
        price: np.ndarray,
        unit: float,
        ask: Callable[[np.ndarray], float] | None = None,
    ) -> None:
        self.choices, self.loads, self.unit, self.ask = choices, loads / unit, unit, ask
        self.sums = np.zeros((choices.task.num_devices, choices.forms.vector.shape[2]))  # where costs do not add up
        self.offset = offset / unit + LIFT
        self.lift = LIFT
        self.price = price[: len(choices.room)] / unit
        self.asked = 0
        self.load, self.free = self.offset.copy(), choices.room.copy()
        n, k = choices.task.num_tables, choices.task.num_devices
        self.cost, self.held = np.zeros((n, k)), np.zeros((n, len(choices.room), k))
        self.near = np.zeros((choices.rules.apart.shape[1], k), np.int64)
        self.chosen: dict[int, Option] = {}
        self.narrow(choices.may)

    @property
    def worth(self) -> float:
        """The aim: fourth powers of loads, or what is told of the sums, and bytes at their price."""
        used = (self.choices.room - self.free).sum(axis=1)
        if self.ask is not None:
            return self.ask(self.sums) / self.unit + float(self.price @ used)
        return float((np.maximum(self.load, 0.0) ** 4).sum() / 4 + self.price @ used)

    @property
    def longest(self) -> float:
        """The load of the slowest device."""
        return float(self.load.max()) - self.lift

    def raised(self, lift: float) -> None:
        """Raise all loads by so much, and no more by what they were raised by before."""
        self.load += lift - self.lift
        self.offset = self.offset + (lift - self.lift)
        self.lift = lift

    def put(self, item: int, option: Option) -> None:
        """Place an item."""
        cost, held = self._of(option)
        self.cost[item], self.held[item] = cost, held
        self.load += cost
        self.free -= held
        self.chosen[item] = option
        if self.ask is not None:
            self.sums += self.choices.rows(item, option)
        if self.choices.rules.binding:
            self._stands(item, option, 1)

    def take(self, item: int) -> None:
        """Take an item out."""
        self.load -= self.cost[item]
        self.free += self.held[item]
        option = self.chosen.pop(item)
        if self.ask is not None:
            self.sums -= self.choices.rows(item, option)
        if self.choices.rules.binding:
            self._stands(item, option, -1)
        self.cost[item] = 0.0
        self.held[item] = 0.0

    def settle(self) -> None:
        """Add up running sums anew."""
        self.load = self.offset + self.cost.sum(axis=0)

    def reprice(self, loads: np.ndarray, offset: np.ndarray, unit: float) -> None:
        """Go on with other costs of shards."""
        self.loads, self.offset = loads / unit, offset / unit + self.lift
        for item, option in self.chosen.items():
            self.cost[item] = self._of(option)[0]
        self.settle()
        self.asked_of.clear()

    def _of(self, option: Option) -> tuple[np.ndarray, np.ndarray]:
        times = self.choices.times(option)
        loads, size = self.loads[option.form, option.choice], self.choices.size[:, option.form, option.choice]
        return loads * times, size * times

    def _stands(self, item: int, option: Option, times: int) -> None:
        rules = self.choices.rules
        if rules.rival[item] >= 0:
            self.near[:, option.targets[0]] += times * rules.apart[item]

    def best(self, item: int, noise: float = 1.0) -> Option | None:
        """The option that adds least to the aim; None if there is room for none."""
        if (asked := self.asked_of.get(item)) is None:
            asked = self.asked_of[item] = self._asked_of(item)
        pieces, everywhere = asked
        square = np.maximum(self.load, 0.0) ** 2
        power = square * square
        price = self.price * noise
        found = None if everywhere is None else self._everywhere(everywhere, power, price)
        for some in pieces:
            option = self._piecewise(item, some, power, price)
            if option is not None and (found is None or option.worth < found.worth):
                found = option
        return found

    def _asked_of(self, item: int) -> tuple[list[Piecewise], Everywhere | None]:
        """The options of an item as arrays: by pieces, and on all devices."""
        c = self.choices
        rows, pieces = c.at[item], []
        for choice, span in ((DEVICE, 1), (HOST, c.host)):
            some = rows.start + np.flatnonzero(self.may[rows, choice])
            if len(some):
                count = c.forms.pieces[some]
                times = np.arange(1, count.max() + 1)
                size = c.size[:, some, choice]
                taken = count * size[:, :, :span].sum(axis=2)
                loads = self.loads[some, choice][..., None] * times
                pieces.append(Piecewise(some, choice, span, count, loads, size[..., None] * times, taken))
        found, spread = np.nonzero(self.may[rows, ALL:])
        if not len(found):
            return pieces, None
        forms, choices = found + rows.start, spread + ALL
        size = c.size[:, forms, choices]
        return pieces, Everywhere(forms, choices, self.loads[forms, choices], size, size.sum(axis=2))

    def _everywhere(self, some: Everywhere, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms on all devices."""
        fits = (some.size <= self.free[:, None]).all(axis=(0, 2))
        self.asked += len(some.forms)
        if not fits.any():
            return None
        cost = np.maximum(self.load + some.loads, 0.0)
        cost *= cost
        cost *= cost
        worth = np.where(fits, (cost.sum(axis=1) - power.sum()) / 4 + price @ some.taken, np.inf)
        i = int(worth.argmin())
        return Option(float(worth[i]), int(some.forms[i]), int(some.choice[i]), (0,))

    def _piecewise(self, item: int, some: Piecewise, power: np.ndarray, price: np.ndarray) -> Option | None:
        """The best of forms whose pieces go to devices, or hosts: as each adds more than the one before, the cheapest
        places are found by sorting."""
        span, (count, k, most) = some.span, some.loads.shape
        cost = self.load[:, None] + some.loads
        np.maximum(cost, 0.0, out=cost)
        cost *= cost
        cost *= cost  # (r, K, J)
        fits = (some.size <= self.free[:, None, :, None]).all(axis=0)
        if span > 1:
            cost = cost.reshape(count, k // span, span, most).sum(axis=2)
            fits = fits.reshape(count, k // span, span, most).all(axis=2)
            power = power.reshape(-1, span).sum(axis=1)
        cost[..., 1:] -= cost[..., :-1].copy()
        cost[..., 0] -= power
        cost[~fits] = np.inf
        if span == 1 and self.choices.rules.binding:
            cost[:, ~self._allowed(item)] = np.inf
        self.asked += count * cost.shape[1]
        flat = cost.reshape(count, -1)
        if most > 1:
            least = np.sort(flat, axis=1)[:, :most].cumsum(axis=1)[np.arange(count), some.pieces - 1]
        else:
            least = flat.min(axis=1)
        least = least / 4 + price @ some.taken
        i = int(least.argmin())
        if least[i] == np.inf:
            return None
        if some.pieces[i] == 1:
            return Option(float(least[i]), int(some.forms[i]), some.choice, (int(flat[i].argmin()) // most,))
        order = flat[i].argsort(kind="stable")[: some.pieces[i]] // most
        return Option(float(least[i]), int(some.forms[i]), some.choice, tuple(sorted(order.tolist())))

    def any(self, item: int, rng: np.random.Generator) -> Option | None:
        """A random option that has room; None if none of a few has."""
        c, rows = self.choices, self.choices.at[item]
        for row, choice in rng.permutation(np.argwhere(self.may[rows])).tolist():
            form, span = rows.start + row, {DEVICE: 1, HOST: c.host}.get(choice, len(self.load))
            left, targets = self.free.copy(), []
            size = c.size[:, form, choice]
            for _ in range(int(c.forms.pieces[form])):
                fits = (left >= size).all(axis=0).reshape(-1, span).all(axis=1)
                if choice == DEVICE and c.rules.binding:
                    fits &= self._allowed(item)
                if not fits.any():
                    break
                targets.append(int(rng.choice(np.flatnonzero(fits))))
                block = slice(targets[-1] * span, (targets[-1] + 1) * span)
                left[:, block] -= size[:, block]
            else:
                return Option(0.0, form, choice, tuple(sorted(targets)))
        return None

    def narrow(self, may: np.ndarray) -> None:
        """Leave only some choices of forms to items, (R, 4)."""
        self.may = may
        self.asked_of: dict[int, tuple[list[Piecewise], Everywhere | None]] = {}

    def _allowed(self, item: int) -> np.ndarray:
        """Devices that pins and rivals leave an item; rivals have no shards but on one device."""
        rules = self.choices.rules
        rival = rules.rival[item]
        return rules.allowed[item] & ((rival < 0) | (self.near[rival] == 0))


class Search:
    """A search for the best plan of a task by a planner; `plan` tells the best so far."""

    def __init__(self, task: Task, planner: FastSimulator, budget: Budget, progress: Progress | None = None) -> None:
        if why := disproof(task):
            raise InfeasibleTask(why)
        self.task, self.costs, self.budget, self.progress = task, Costs(task, planner), budget, progress
        self.choices = Choices(task, lambda shards: planner.embed_shards(task, shards))
        self.rates = planner.rates(task)
        self.makespan, self.chosen = np.inf, dict[int, Option]()
        reference = self.choices.forms.vector[self.choices.forms.first[:-1], 0].sum(axis=0) / task.num_devices
        self._aim(np.repeat(reference[None], task.num_devices, axis=0))

    def _aim(self, sums: np.ndarray) -> None:
        """Set costs of shards, those near these sums where they do not add up, and prices by them."""
        self.offset = np.zeros(self.task.num_devices)
        if (rates := self.rates) is None:
            rates, self.offset = self._near(sums)
        self.loads = self.choices.loads(rates)
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

    def greedy(self) -> Board:
        """A board with every item in turn, costliest first, in its best option; the price of memory rises until all
        have room."""
        forms = self.choices.forms
        least = np.where(self.choices.may[..., None], self.loads, np.inf).sum(axis=2)
        cost = np.minimum.reduceat(least.min(axis=1), forms.first[:-1])
        size = np.maximum.reduceat(self.choices.size[0, :, DEVICE, 0], forms.first[:-1])
        by_cost = np.argsort(-cost[self.choices.items], kind="stable")
        by_size = np.argsort(-size[self.choices.items], kind="stable")
        price, most = self.prices.price, None
        floor = self.unit / self.choices.room.sum(axis=1).mean()
        for attempt in range(DEAREST):
            for order in (by_cost, by_size):
                ask = None if self.rates is not None else self._value
                board = Board(self.choices, self.loads, self.offset, price, self.unit, ask)
                for item in self.choices.items[order].tolist():
                    if (option := board.best(item)) is not None:
                        board.put(item, option)
                if len(board.chosen) == len(order):
                    self.seen(board)
                    return board
                if most is None or len(board.chosen) > len(most.chosen):
                    most = board
            price = np.maximum(DEARER * price, floor * DEARER**attempt * (forms.size.any(axis=(1, 2))))
            if self.budget.over(self.costs):
                break
        assert most is not None
        return most

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
        changes, begun, gap = 0, self._spent, self._narrow(board, np.inf)
        while self._spent < share and (missing or self._worth_more):
            left = max(0.0, 1 - (self._spent - begun) / max(share - begun, 1e-9))
            board.raised(LOW + (LIFT - LOW) * left)
            heat = WARM * left * ((1 + board.lift) ** 3 if board.ask is None else 1.0)
            lost = self._changed(board, missing, rng, heat * float(rng.exponential()))
            if lost is not None:
                missing = lost
                if self.seen(board):
                    return True
                gap = self._narrow(board, gap)
            self._count(board)
            changes += 1
            if changes % CHECK == 0:
                board.settle()
        return False

    def _changed(self, board: Board, missing: list[int], rng: np.random.Generator, worse: float) -> list[int] | None:
        """Take some items out and put them and those missing in; what is missing then, or None where it was undone."""
        before = board.worth
        out = self._ruined(board, rng)
        old = {item: board.chosen[item] for item in out}
        for item in out:
            board.take(item)
        back, lost, noise = [*missing, *out], [], float(rng.uniform(*NOISE))
        for item in rng.permutation(back).tolist():
            if (option := board.best(item, noise)) is None:
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
        """Leave out options that cost so much over the cheapest that no plan with them is likely to be better."""
        if len(board.chosen) < len(self.choices.items):
            return before
        gap = board.longest * self.unit - self.prices.bound
        if gap < SOONER * before:
            board.narrow(self.choices.may & (self.prices.excess <= gap * LIKELY))
            return gap
        return before

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

    def _ruined(self, board: Board, rng: np.random.Generator) -> list[int]:
        """Items to take out: some of the slowest device, or of all."""
        placed = np.fromiter(board.chosen, np.int64, len(board.chosen))
        count = min(int(rng.integers(*RUIN)), len(placed))
        if rng.random() < FROM_SLOW:
            slow = int(board.load.argmax())
            other = int(rng.integers(len(board.load)))
            mine, theirs = (placed[board.cost[placed, d] > 0] for d in (slow, other))
            some = rng.permutation(mine)[: (count + 1) // 2]
            return list(dict.fromkeys([*some.tolist(), *rng.permutation(theirs)[: count // 2].tolist()]))
        return rng.choice(placed, count, replace=False).tolist()

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
) -> Search:
    """A search that is done, and has a plan: greedy's, where the gain is below `sure` deviations of the planner."""
    search = Search(task, planner, budget, progress)
    board = search.greedy()
    makespan, chosen = search.makespan, search.chosen
    search.run(board, task_rng(seed, task))
    if chosen and makespan - search.makespan <= sure * search.costs.doubt(search.sums, search.choices.sums(chosen)):
        search.makespan, search.chosen = makespan, chosen
    return _found(search)


def greedy(task: Task, planner: FastSimulator) -> Plan:
    """Plan of every table in turn, costliest first, in the best of all its options."""
    search = Search(task, planner, Budget(np.inf, 0))
    search.greedy()
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
    latency = search.costs.planner.decode(search.task, search.sums)  # running sums are rounded, these are not
    search.makespan = float(latency.makespan(search.task.objective))
    return search
