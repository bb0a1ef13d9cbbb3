"""Tasks as tensors, side by side, for policies that place tables of many tasks at once. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from shard_gym.errors import InfeasibleTask
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan, violations
from shard_gym.room import Room, Rules, dead_end
from shard_gym.tasks import Task

ILLEGAL = -1e9  # the score of a device without room
LEANS = (0.0, 1 / 8, 1 / 4, 1 / 2, 1.0, math.inf)  # orders that are tried one after the other, see `leaning`
TIE = 1e-5  # scores and costs this close count as equal: rounding differs with the shape of a matrix product


@dataclass(frozen=True, eq=False)
class Board:
    """B tasks with equally many devices; those with fewer tables than the largest are padded."""

    features: Tensor  # (B, N, 21), standardised; zeros where padded
    table: Tensor  # (B, N) int64 its index in its task
    size: Tensor  # (B, N) int64 bytes; 0 where padded
    real: Tensor  # (B, N) float32: 1, or 0 where padded
    capacity: Tensor  # (B, K) int64 bytes
    slowness: Tensor  # (B, K) float32: 1 / speed

    @classmethod
    def of(
        cls,
        tasks: Sequence[Task],
        scaling: np.ndarray,
        device: str | torch.device = "cpu",
        limits: np.ndarray | None = None,
    ) -> Board:
        """`scaling` is the mean and the deviation of the features, (2, 21); `limits` are where they are cut off."""
        most = max(task.num_tables for task in tasks)
        features = np.zeros((len(tasks), most, scaling.shape[1]), np.float32)
        size, real = np.zeros(features.shape[:2], np.int64), np.zeros(features.shape[:2], np.float32)
        for i, task in enumerate(tasks):
            n, found = task.num_tables, standardised(task, scaling)
            features[i, :n] = found if limits is None else found.clip(*limits)
            size[i, :n], real[i, :n] = table_bytes(task), 1
        columns = (
            features,
            np.tile(np.arange(most), (len(tasks), 1)),
            size,
            real,
            np.stack([task.capacity for task in tasks]),
            np.stack([1 / np.array(task.speed, np.float32) for task in tasks]),
        )
        return cls(*(torch.from_numpy(column).to(device) for column in columns))

    def take(self, rows: Tensor) -> Board:
        """Some of the tasks; repeats are legal."""
        return Board(*(getattr(self, column.name)[rows] for column in fields(self)))

    def devices(self, order: Sequence[int] | np.ndarray) -> Board:
        """The same tasks with their devices in another order."""
        picked = torch.as_tensor(np.asarray(order))
        return replace(self, capacity=self.capacity[:, picked], slowness=self.slowness[:, picked])

    def in_order(self, order: Tensor) -> Board:
        """The same tasks with their tables in another order, (B, N)."""
        features = self.features.gather(1, order[..., None].expand_as(self.features))
        table, size, real = (column.gather(1, order) for column in (self.table, self.size, self.real))
        return Board(features, table, size, real, self.capacity, self.slowness)

    def by(self, values: Tensor) -> Tensor:
        """The order of the tables, largest of `values` (B, N) first, ties by index, padding last: (B, N)."""
        values = (values / TIE).round()
        return torch.where(self.real > 0, values, -torch.inf).argsort(dim=1, descending=True, stable=True)


def standardised(task: Task, scaling: np.ndarray) -> np.ndarray:
    """Features of its tables, (N, 21)."""
    return (task.tables.features() - scaling[0]) / np.where(scaling[1] > 0, scaling[1], 1)


def ranges(tasks: Sequence[Task], scaling: np.ndarray) -> np.ndarray:
    """The least and the largest of each feature of these tasks, standardised, (2, 21)."""
    features = np.concatenate([standardised(task, scaling) for task in tasks])
    return np.stack([features.min(axis=0), features.max(axis=0)])


def legal(size: Tensor, free: Tensor) -> Tensor:
    """Devices that have room for a table, (B,) and (B, K) -> bool (B, K); all of them where none has."""
    fits = size[:, None] <= free
    return fits | ~fits.any(dim=1, keepdim=True)


def overshoot(free: Tensor, capacity: Tensor) -> Tensor:
    """max_k (used_k - capacity_k) / capacity_k where a device is over its memory, else 0: (B, K) -> (B,)."""
    return (-free / capacity).amax(dim=1).clamp(min=0).to(torch.float32)


def choose(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """A device drawn from the softmax of scores (B, K); without a generator the best, ties to the lowest: (B,)."""
    if generator is None:
        return (scores >= scores.amax(dim=1, keepdim=True) - TIE).to(torch.uint8).argmax(dim=1)
    return torch.multinomial(scores.softmax(dim=1), 1, generator=generator)[:, 0]


def to_table_order(order: Tensor, actions: Tensor) -> Tensor:
    """Actions by step as devices by table: both (B, N)."""
    return torch.empty_like(actions).scatter_(1, order, actions)


def device_order(task: Task) -> np.ndarray:
    """Roomiest first, then fastest: how policies see devices, so that ties do not depend on how they are numbered."""
    return np.lexsort((-np.array(task.speed), -task.capacity))


def missed(task: Task, order: np.ndarray, placement: np.ndarray) -> InfeasibleTask | None:
    """Why a placement cannot be used: the first table, in this order, that may go nowhere; None where it can be."""
    if not violations(task, Plan(tuple(placement.tolist()))):
        return None
    room = Room(task)
    for t in order.tolist():
        if not room.legal(t)[0, placement[t]]:
            return dead_end(room, t)
        room.place(t, placement[t])
    raise AssertionError("every table went where it may go")


class Ruled:
    """Where tables of one task may go in placements side by side under its constraints.

    `seen` is the order in which a policy sees the devices.
    """

    def __init__(self, task: Task, count: int, seen: np.ndarray) -> None:
        self.room, self.seen = Room(task, count), seen

    def legal(self, table: np.ndarray) -> np.ndarray:
        """Devices that a table of each placement may go to, (B,) -> bool (B, K); all of them where none is left."""
        found = self.room.legal(table)[:, self.seen]
        return found | ~found.any(axis=1, keepdims=True)

    def place(self, table: np.ndarray, chosen: np.ndarray) -> None:
        """A table of each placement goes to a device, (B,) each."""
        self.room.place(table, self.seen[chosen])


def ruled(task: Task, count: int, seen: np.ndarray) -> Ruled | None:
    """None where memory is all that counts: `legal` says it then."""
    return None if Rules.of(task) is None else Ruled(task, count, seen)


def leaning(costs: Tensor, size: Tensor, lean: float) -> Tensor:
    """What tables are ordered by, largest first: the larger of their share of the costs and `lean` times of the bytes.

    A lean of 0 is by cost, infinity by size. Where an order runs into a dead end, one that leans more to size may
    not. All (..., N), zeros where padded; shares are in multiples of the mean table's.
    """
    cost = costs / costs.abs().mean(dim=-1, keepdim=True).clamp(min=1e-12)
    if lean == 0:
        return cost
    share = size / size.double().mean(dim=-1, keepdim=True).clamp(min=1)
    return share if lean == math.inf else cost.maximum(lean * share)


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
