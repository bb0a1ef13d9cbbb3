"""Rollouts: tables of many tasks placed one after another, side by side; and REINFORCE on them. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from shard_gym.errors import InfeasibleTask, InvalidTask, UnknownName
from shard_gym.plan.feasibility import dead_end
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import One, Placing, one
from shard_gym.plan.plan import Plan
from shard_gym.plan.rules import Rules
from shard_gym.plan.violations import violations
from shard_gym.tables.pool import FEATURES, NUM_BINS
from shard_gym.task.task import Task
from shard_gym_agents.learners.learner import SuiteLearner, descend

ILLEGAL = -1e9  # the score of a device without room
LEANS = (0.0, 1 / 8, 1 / 4, 1 / 2, 1.0, math.inf)  # orders that are tried one after the other, see `leaning`
TIE = 1e-5  # scores and costs this close count as equal: rounding differs with the shape of a matrix product
HIDDEN = 1e30  # the deviation of a feature that is not shown: finite, as environments want it
GROUPS: dict[str, tuple[str, ...]] = {  # of features that a learner can be trained without: DreamShard's Table 11
    "dim": ("dim",),
    "rows": ("rows",),
    "pooling": ("pooling",),
    "size": ("size_gb",),
    "distribution": tuple(f"uses_{b}" for b in range(NUM_BINS)),
}


def require_group(group: str) -> None:
    """Refuse names that are no group of features; "" is none."""
    if group and group not in GROUPS:
        raise UnknownName("group of features", group, GROUPS)


def without(scaling: np.ndarray, group: str) -> np.ndarray:
    """The scaling (2, 21), means and deviations; those of a group are so large that its features are about 0.

    With "" it is the same scaling. As networks keep their scaling, a trained policy plans as it was trained.
    """
    require_group(group)
    hidden = np.isin(FEATURES, GROUPS[group] if group else ())
    return np.stack([scaling[0], np.where(hidden, HIDDEN, scaling[1])])


def standardised(task: Task, scaling: np.ndarray) -> np.ndarray:
    """Features of its tables, (N, 21)."""
    return (task.tables.features() - scaling[0]) / np.where(scaling[1] > 0, scaling[1], 1)


def ranges(tasks: Sequence[Task], scaling: np.ndarray) -> np.ndarray:
    """The least and the largest of each feature of these tasks, standardised, (2, 21)."""
    features = np.concatenate([standardised(task, scaling) for task in tasks])
    return np.stack([features.min(axis=0), features.max(axis=0)])


@dataclass(frozen=True, eq=False)
class TaskTensors:
    """B tasks with equally many devices; those with fewer tables than the largest are padded."""

    options: Options  # of all tasks that these were taken from, see `options_of`
    row: Tensor  # (B, N) int64 row of a table in the options
    features: Tensor  # (B, N, 21), standardised; zeros where padded
    size: Tensor  # (B, N) int64 bytes; 0 where padded
    real: Tensor  # (B, N) float32: 1, or 0 where padded
    slowness: Tensor  # (B, K) float32: 1 / speed

    @classmethod
    def of(
        cls,
        tasks: Sequence[Task],
        scaling: np.ndarray,
        device: str | torch.device = "cpu",
        limits: np.ndarray | None = None,
        vectors: Sequence[np.ndarray] | None = None,
    ) -> TaskTensors:
        """`scaling` is the mean and the deviation of the features, (2, 21); `limits` are where they are cut off.

        `vectors` (N, H) are what tables of each task add to sums.
        """
        options, most = options_of(tasks, vectors), max(task.num_tables for task in tasks)
        features = np.zeros((len(tasks), most, scaling.shape[1]), np.float32)
        for i, task in enumerate(tasks):
            found = standardised(task, scaling)
            features[i, : task.num_tables] = found if limits is None else found.clip(*limits)
        columns = (
            np.arange(len(tasks) * most).reshape(len(tasks), most),
            features,
            options.size.reshape(len(tasks), most),
            (options.table >= 0).astype(np.float32).reshape(len(tasks), most),
            np.stack([1 / np.array(task.speed, np.float32) for task in tasks]),
        )
        return cls(options, *(torch.from_numpy(column).to(device) for column in columns))

    def take(self, rows: Tensor) -> TaskTensors:
        """Some of the tasks; repeats are legal."""
        names = [column.name for column in fields(self)][1:]
        return TaskTensors(self.options, *(getattr(self, name)[rows] for name in names))

    def by(self, values: Tensor) -> TaskTensors:
        """The same tasks, tables with the largest of `values` (B, N) first, ties by index, padding last."""
        values = torch.where(self.real > 0, (values / TIE).round(), -torch.inf)
        return self.ordered(values.argsort(dim=1, descending=True, stable=True))

    def ordered(self, order: Tensor) -> TaskTensors:
        """The same tasks, tables in this order, (B, N)."""
        features = self.features.gather(1, order[..., None].expand_as(self.features))
        row, size, real = (column.gather(1, order) for column in (self.row, self.size, self.real))
        return TaskTensors(self.options, row, features, size, real, self.slowness)

    def begin(self, track: bool = False) -> tuple[One | Placing, np.ndarray]:
        """Nothing placed of any task, and the rows of tables as they come, (B, N); `track` keeps sums."""
        rows = self.row.cpu().numpy()
        if len(rows) == len(self.options.tasks) == 1:
            return one(self.options, track), rows
        placing = Placing(self.options, len(rows), track)
        if len(self.options.tasks) > 1:
            placing.begin(np.arange(len(rows)), rows[:, 0] // rows.shape[1])
        return placing, rows


def options_of(tasks: Sequence[Task], vectors: Sequence[np.ndarray] | None = None) -> Options:
    """Options of several tasks' whole tables: N rows for each task, empty ones where it has fewer tables."""
    added: Sequence[np.ndarray | None] = [None] * len(tasks) if vectors is None else vectors
    if len(tasks) == 1:
        return Options.of(tasks[0], added[0])
    most, binding = max(task.num_tables for task in tasks), any(Rules.of(task).binding for task in tasks)
    rules = [replace(Rules.of(task), binding=binding) for task in tasks]
    each = [Options.of(*told) for told in zip(tasks, added, rules, strict=True)]

    def padded(columns: Sequence[np.ndarray], fill: int = 0) -> np.ndarray:
        ends = [[(0, most - len(column))] + [(0, 0)] * (column.ndim - 1) for column in columns]
        return np.concatenate([np.pad(c, end, constant_values=fill) for c, end in zip(columns, ends, strict=True)])

    return Options(
        size=padded([options.size for options in each]),
        vector=padded([options.vector for options in each]),
        table=padded([options.table for options in each], -1),
        changes=padded([options.changes for options in each]),
        tasks=list(tasks),
        capacity=np.concatenate([options.capacity for options in each]),
        rules=Rules.side_by_side(rules) if binding else rules[0],
        held=np.append(np.concatenate([o.held[: len(o.size)] for o in each]), 0),
    )


@dataclass(frozen=True, eq=False)
class Rollout:
    """Placements made side by side."""

    placing: One | Placing  # at the end
    rows: np.ndarray  # (B, N) of the tables as they came
    seen: np.ndarray  # (K,) the devices as the policy saw them
    actions: Tensor  # (B, N) the device of each table, as they came and as it was seen; fewer if it was given up
    legal: Tensor  # (B, N, K) devices that it might go to
    alive: np.ndarray  # (B,) True if every table had a device that it might go to

    def devices(self) -> np.ndarray:
        """The device of each table in the order of its task, (B, N)."""
        found, actions = np.full(self.rows.shape, -1), self.actions.cpu().numpy()
        tables = self.rows % self.rows.shape[1]
        np.put_along_axis(found, tables[:, : actions.shape[1]], self.seen[actions], 1)
        return found

    def refused(self, task: Task) -> InfeasibleTask | None:
        """The error that names the first table without a device, if the first placement is no plan of its task."""
        devices, order = self.devices()[0], self.rows[0]
        finished = self.actions.shape[1] == len(order)
        if self.alive[0] or (finished and not violations(task, Plan(tuple(devices.tolist())))):
            return None
        placing = one(Options.of(task))
        for table in order.tolist():
            if not placing.legal(table).any():
                return dead_end(placing, table)
            placing.put(table, int(devices[table]))
        raise AssertionError("every table went where it may go")

    def plan(self, task: Task) -> Plan:
        """The first placement, as a plan."""
        if (why := self.refused(task)) is not None:
            raise why
        return Plan(tuple(self.devices()[0].tolist()))


Choose = Callable[[int, np.ndarray], np.ndarray]  # a step and which devices are legal (B, K) -> the chosen ones (B,)


def roll_out(
    placing: One | Placing,
    rows: np.ndarray,  # (B, N)
    choose: Choose,
    seen: np.ndarray | None = None,
    device: str | torch.device = "cpu",
    give_up: bool = False,
) -> Rollout:
    """Place all tables in their order; or give up where no placement can be finished without a dead end.

    Devices are shown, and chosen, in the order of `seen`, (K,); all are legal where a table may go to none.
    """
    devices = placing.free.shape[1]
    actions, legal = np.empty(rows.shape, np.int64), np.empty((*rows.shape, devices), bool)
    seen, alive = np.arange(devices) if seen is None else seen, np.ones(len(rows), bool)
    single = len(rows) == 1  # in plain numbers
    for step, row in enumerate(rows[0].tolist() if single else rows.T):
        found = placing.legal(row)
        fits = np.logical_or.reduce(found, axis=1)
        if not fits.all():
            alive &= fits
            found = found | ~fits[:, None]
        legal[:, step] = found[:, seen]
        if give_up and not alive.any():
            actions, legal = actions[:, :step], legal[:, :step]
            break
        actions[:, step] = choose(step, legal[:, step])
        if single:
            placing.put(row, int(seen[actions[0, step]]))
        else:
            placing.place(row, seen[actions[:, step]])  # type: ignore[union-attr]  # several are no `One`
    where = torch.device(device)
    return Rollout(placing, rows, seen, torch.from_numpy(actions).to(where), torch.from_numpy(legal).to(where), alive)


def choose(scores: Tensor, legal: np.ndarray, generator: torch.Generator | None) -> Tensor:
    """Legal devices (B,), drawn from the softmax of scores (B, K); without a generator the best, ties to the lowest."""
    scores = scores.masked_fill(torch.from_numpy(~legal).to(scores.device), ILLEGAL)
    if generator is None:
        return (scores >= scores.amax(dim=1, keepdim=True) - TIE).to(torch.uint8).argmax(dim=1)
    return torch.multinomial(scores.softmax(dim=1), 1, generator=generator)[:, 0]


def device_order(task: Task) -> np.ndarray:
    """Roomiest first, then fastest: how policies see devices, so that ties do not depend on how they are numbered."""
    return np.lexsort((-np.array(task.speed), -task.capacity))


def leaning(costs: Tensor, size: Tensor, lean: float) -> Tensor:
    """Keys that order tables, largest first: the larger of a table's share of the costs and `lean` times of the bytes.

    A lean of 0 is by cost, infinity by size. Where an order runs into a dead end, one that leans more to size may
    not. All (..., N), zeros where padded; shares are in multiples of the mean table's.
    """
    cost = costs / costs.abs().mean(dim=-1, keepdim=True).clamp(min=1e-12)
    if lean == 0:
        return cost
    share = size / size.double().mean(dim=-1, keepdim=True).clamp(min=1)
    return share if lean == math.inf else cost.maximum(lean * share)


def overshoot(placing: One | Placing) -> Tensor:
    """max_k (used_k - capacity_k) / capacity_k where a device is over its memory, else 0: (B,)."""
    free, capacity = torch.from_numpy(placing.free), torch.from_numpy(placing.options.capacity[placing.task])
    return (-free / capacity).amax(dim=1).clamp(min=0).to(torch.float32)


def rewards(makespans: Tensor, over: Tensor) -> Tensor:
    """Minus the makespan over the mean of the task's episodes; one over memory is below all of them.

    Both (tasks, episodes).
    """
    shares = makespans / makespans.mean(dim=1, keepdim=True)
    return -torch.where(over > 0, shares.amax(dim=1, keepdim=True) + over, shares)


def advantages(rewards: Tensor, divide: bool) -> Tensor:
    """Rewards (tasks, episodes) minus the mean of their task's episodes; over their deviation if told."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-8) if divide else centred


def reinforce_loss(log_policy: Tensor, actions: Tensor, advantage: Tensor, real: Tensor, entropy: float) -> Tensor:
    """Policy gradient: log_policy (E, N, K), actions and real (E, N), advantage (E,); mean over episodes.

    DreamShard's equation 2 is printed without the minus that a loss to be made small needs.
    """
    taken = log_policy.gather(2, actions[..., None])[..., 0]
    negentropy = (log_policy.exp() * log_policy).sum(dim=2)
    return ((entropy * negentropy - taken * advantage[:, None]) * real).sum(dim=1).mean()


@dataclass(frozen=True)
class Config:
    """Effort of REINFORCE on the planner's makespans; DreamShard's values where it has them."""

    updates: int = 10  # of the policy, an iteration
    tasks: int = 1  # an update
    episodes: int = 10  # of each of them
    entropy: float = 0.001
    learning_rate: float = 5e-4  # of Adam, at first; it falls linearly
    horizon: int = 200  # iterations until it is 0
    divide: bool = True  # advantages by their standard deviation

    def __post_init__(self) -> None:
        if min(self.updates, self.tasks, self.horizon) < 1 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, and episodes 2 or more: their mean is the baseline")


@dataclass(frozen=True, eq=False)
class Sampled:
    """Episodes of some tasks as they were played, side by side."""

    actions: Tensor  # (B, N)
    over: Tensor  # (B,) the most that a memory is over, as a share of it
    makespans: Tensor  # (B,) ms, by the planner
    log_policy: Tensor  # (B, N, A) log probabilities of actions at each step
    real: Tensor  # (B, N) 1, or 0 where padded


class Reinforce(SuiteLearner):
    """REINFORCE on the planner's makespans, an update after the episodes of a few tasks.

    Each adds an `optimizer`, `rates` of its parameters, and `sample`.
    """

    optimizer: torch.optim.Optimizer

    def rates(self, left: int) -> tuple[float, ...]:
        """The learning rates with so many iterations left of the horizon."""
        raise NotImplementedError

    def sample(self, rows: Tensor, generator: torch.Generator) -> Sampled:
        """Episodes of these training tasks."""
        raise NotImplementedError

    def iterate(self) -> dict[str, float]:
        c, before = self.config, self.planner.calls if self.iteration else 0  # what it took to begin counts, too
        generator, rates = self.generator(), self.rates(max(1, c.horizon - self.iteration))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        told = [self.update(generator) for _ in range(c.updates)]
        self.iteration += 1
        means = dict(zip(told[0], np.mean([list(one.values()) for one in told], axis=0).tolist(), strict=True))
        steps = sum(int(one["steps"]) for one in told)
        return {**means, "steps": steps, "simulator_calls": self.planner.calls - before}

    def update(self, generator: torch.Generator) -> dict[str, float]:
        """One step of the optimizer."""
        c = self.config
        rows = torch.randint(len(self.tasks), (c.tasks,), generator=generator, device=self.device)
        played = self.sample(rows.repeat_interleave(c.episodes), generator)
        makespans, over = (values.view(c.tasks, c.episodes) for values in (played.makespans, played.over))
        loss = reinforce_loss(
            played.log_policy,
            played.actions,
            advantages(rewards(makespans, over), c.divide).flatten().float().to(self.device),
            played.real,
            c.entropy,
        )
        return {
            "makespan": makespans.mean().item(),
            "over_memory": (over > 0).float().mean().item(),
            "policy_loss": descend(self.optimizer, loss),
            "steps": played.real.sum().item(),
        }
