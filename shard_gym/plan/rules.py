"""Constraints of a task as arrays: where tables may go, which must be together or apart, how many may still move.

What must stay somewhere has its bytes kept there from the start: a pinned table on its device and, where only so
many tables may move, each table where it is. So a plan in use that keeps to the task can be followed to the end by
whoever keeps to `Placing.legal`, in any order. Tables that must be together take their bytes when the first is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.records.guard import expect
from shard_gym.task.task import Constraints, Task


@dataclass(frozen=True, eq=False)
class Rules:
    """A row for each table of one task or of several; the last row, -1, is of pieces that no rule speaks of.

    Tables that must be together are a group and go by its first table, the leader, whose row all of them share.
    """

    leader: np.ndarray  # (R,) row of the leader; a table's own where it may go alone
    group: np.ndarray  # (R,) number of the group in its task; -1: of one table
    allowed: np.ndarray  # (R, K) devices that pins leave
    rival: np.ndarray  # (R,) number in its task among those that must be apart from some; -1: from none
    apart: np.ndarray  # (R, A + 1) rivals that a table must be apart from
    home: np.ndarray  # (R,) device where room is kept; -1: none
    away: np.ndarray | None  # (R, K) tables of the group that are not on that device now; None: any may move
    moves: np.ndarray  # (T,) tables of each task that may move, beside those that must
    first: np.ndarray  # (T + 1,) row of each task's first table, and the last row
    groups: int  # the most of a task
    binding: bool  # False: memory is all that counts

    @classmethod
    def of(cls, task: Task) -> Rules:
        """The rules of a task; a table that no constraint names may go anywhere."""
        expect(task, Task, InvalidTask)
        c = task.constraints
        speaks = c.pin or c.together or c.apart or c.max_moves is not None
        return _rules(c if speaks else Constraints(), task.num_tables, task.num_devices)

    @classmethod
    def side_by_side(cls, several: Sequence[Rules]) -> Rules:
        """The rules of several tasks, one after the other, those of all pieces without a rule last."""
        starts = np.cumsum([0, *(len(rules.leader) - 1 for rules in several)])
        widest = max(rules.apart.shape[1] for rules in several)
        aways = [np.zeros(rules.allowed.shape, np.int32) if rules.away is None else rules.away for rules in several]
        tamed = any(rules.away is not None for rules in several)

        def joined(columns: Sequence[np.ndarray]) -> np.ndarray:
            return np.concatenate([*(column[:-1] for column in columns), columns[-1][-1:]])

        return cls(
            leader=joined([rules.leader + start for rules, start in zip(several, starts, strict=False)]),
            group=joined([rules.group for rules in several]),
            allowed=joined([rules.allowed for rules in several]),
            rival=joined([rules.rival for rules in several]),
            apart=joined([np.pad(r.apart, ((0, 0), (0, widest - r.apart.shape[1]))) for r in several]),
            home=joined([rules.home for rules in several]),
            away=joined(aways) if tamed else None,
            moves=np.concatenate([rules.moves for rules in several]),
            first=starts,
            groups=max(rules.groups for rules in several),
            binding=any(rules.binding for rules in several),
        )

    def row(self, task: np.ndarray, table: np.ndarray) -> np.ndarray:
        """The rows of tables of several tasks, (B,); that of no rule for table -1."""
        return np.where(table < 0, -1, self.first[task] + table)

    @property
    def leads(self) -> np.ndarray:
        """True for tables of one task that are leaders, (N,)."""
        return (self.leader == np.arange(len(self.leader)))[:-1]

    def by_leader(self, order: np.ndarray) -> list[int]:
        """The leaders of one task in an order of its tables."""
        return order[self.leads[order]].tolist() if self.groups else order.tolist()

    def as_leader(self, device: list[int]) -> list[int]:
        """The devices of one task's tables: those of their leaders."""
        return np.array(device)[self.leader[:-1]].tolist() if self.groups else device

    def merged(self, values: np.ndarray) -> np.ndarray:
        """Values of one task's tables, (N, ...), summed over each group: in its leader's row, and 0 in the others'."""
        return _merged(values, self.leader[:-1]) if self.groups else values


@lru_cache(64)
def _rules(c: Constraints, n: int, k: int) -> Rules:
    leader, devices = _leaders(c, n), np.arange(k)
    allowed, home = np.broadcast_to(True, (n + 1, k)), np.full(n, -1)  # takes no memory
    for table, device in c.pin:
        allowed, group = np.array(allowed), np.flatnonzero(leader == leader[table])
        allowed[group], home[group] = devices == device, device
    rival, apart = _rivals(c, leader)
    away, moves = None, 0
    if c.max_moves is not None:
        leads = np.flatnonzero(leader == np.arange(n))
        away = _merged((np.array(c.base)[:, None] != devices).astype(np.int32), leader)
        home = np.where(allowed[:-1], away, n + 1).argmin(axis=1)
        moves = c.max_moves - int(away[leads, home[leads]].sum())
        away, home = np.pad(away[leader], ((0, 1), (0, 0))), home[leader]
    grouped = np.bincount(leader, minlength=n)[leader] > 1
    first, number = np.unique(leader[grouped], return_inverse=True)
    group = np.full(n + 1, -1)
    group[:n][grouped] = number
    return Rules(
        leader=np.append(leader, n),
        group=group,
        allowed=allowed,
        rival=np.append(rival, -1),
        apart=apart,
        home=np.append(home, -1),
        away=away,
        moves=np.array([moves]),
        first=np.array([0, n]),
        groups=len(first),
        binding=c != Constraints(),
    )


def kept_whole(task: Task) -> np.ndarray:
    """Tables that are not to be halved, (N,) bool: those named as such, and those whose device is constrained.

    A plan may keep to its constraints with halves as well, on one device or as a move; solvers do not look for it.
    """
    whole = on_one_device(task)
    whole[list(task.constraints.no_split)] = True
    return whole


def on_one_device(task: Task) -> np.ndarray:
    """Tables whose device is constrained, (N,) bool."""
    c = task.constraints
    held = np.full(task.num_tables, c.max_moves is not None)
    held[[*(t for t, _ in c.pin), *(t for group in (*c.together, *c.apart) for t in group)]] = True
    return held


def _leaders(c: Constraints, n: int) -> np.ndarray:
    leader = np.arange(n)
    for group in c.together:
        merged = np.isin(leader, leader[list(group)])
        leader[merged] = leader[merged].min(initial=n)
    return leader


def _merged(values: np.ndarray, leader: np.ndarray) -> np.ndarray:
    total, led = values.copy(), np.flatnonzero(leader != np.arange(len(leader)))
    total[led] = 0
    np.add.at(total, leader[led], values[led])
    return total


def _rivals(c: Constraints, leader: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each table's number among rivals, and from which of them it must be apart; a group stands in its leader's row."""
    named = sorted({int(leader[t]) for group in c.apart for t in group})
    number = np.full(len(leader), -1)
    number[named] = np.arange(len(named))
    rivals = np.zeros((len(named) + 1, len(named) + 1), bool)
    for group in c.apart:
        numbers = number[leader[list(group)]]
        rivals[np.ix_(numbers, numbers)] = True
    np.fill_diagonal(rivals, False)
    rival = number[leader]
    return rival, rivals[np.append(rival, -1)]
