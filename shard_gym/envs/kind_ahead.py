"""Costs of devices after each action, where tables may be of all kinds of sharding."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.plan.sharing import Sharing
from shard_gym.plan.ways import CACHE, HALVE, Actions
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

NUMBERS_AT_ONCE = 2**17  # numbers of sums decoded in one call where every action is tried in turn


def costs_ahead(task: Task, simulator: Any, placing: Sharing, plans: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Cost of the dearest device that each placing action of some plans puts the next piece on, (b, A - 2) ms.

    Where the task leaves no such choice, and in plans that are over, (b,), nothing is added.
    """
    cost = np.empty((len(plans), placing.actions.placing))
    for some in _parts(placing, len(plans)):
        added, _ = _puts(placing, placing.row[plans[some]])
        cost[some] = _dearest(task, simulator, placing, plans[some], added * ~over[some, None, None, None])
    return cost


def devices_ahead(
    task: Task, simulator: Any, placing: Sharing, plans: np.ndarray, over: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cost and forward computation of devices after each action of some plans, (b, A, K, 2) ms, and the bytes that it
    takes of devices' memory, (b, A).

    After a change the pieces are placed, too: each on a device or a host of its own, or all as one, where the dearest
    device that they are on costs least; where there are not as many as pieces, some take more. Nothing is added where
    the task leaves no such choice, by changes that are not legal, and in plans that are over, (b,).
    """
    a = placing.actions
    shown, size = np.empty((len(plans), a.count, a.devices, 2)), np.empty((len(plans), a.count), np.int64)
    for some in _parts(placing, len(plans)):
        live = ~over[some]
        added, taken = _puts(placing, placing.row[plans[some]])
        added, taken = added * live[:, None, None, None], taken * live[:, None]
        changed = [_changed(task, simulator, placing, plans[some], live, does) for does in (HALVE, CACHE)]
        added = np.concatenate([added, *(sums for sums, _ in changed)], axis=1)
        latency = _fast(simulator).decode(task, placing.sums[plans[some], None] + added)
        shown[some] = np.stack([latency.cost(task.objective), latency.forward_compute], axis=3)
        size[some] = np.concatenate([taken, *(taken for _, taken in changed)], axis=1)
    return shown, size


def reached(actions: Actions) -> np.ndarray:
    """True for devices that each action puts something on, (A, K)."""
    start, device = actions.start[:, None], np.arange(actions.devices)
    used: np.ndarray = (device >= start) & (device < start + actions.reach[actions.does][:, None])
    return used


def _parts(placing: Sharing, count: int) -> list[slice]:
    """Slices of so many plans that are decoded at once."""
    each = max(1, NUMBERS_AT_ONCE // (placing.actions.placing * placing.sums[0].size))
    return [slice(at, at + each) for at in range(0, count, each)]


def _fast(simulator: Any) -> FastSimulator:
    assert isinstance(simulator, FastSimulator)  # the environment refuses others
    return simulator


def _puts(placing: Sharing, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums that placing actions add to devices, (b, A - 2, K, H), and bytes that they take, (b, A - 2), with a piece of
    these forms each."""
    used, parts = reached(placing.actions)[:-2], placing.parts(rows)[:, placing.does[:-2]]
    taken: np.ndarray = (placing.ways.size[0].take(parts) * used).sum(axis=2)
    return placing.ways.vector[parts] * used[..., None], taken


def _dearest(task: Task, simulator: Any, placing: Sharing, plans: np.ndarray, added: np.ndarray) -> np.ndarray:
    """Cost of the dearest device that each placing action puts something on, (b, A - 2) ms."""
    cost = _fast(simulator).cost(task, placing.sums[plans, None] + added)
    dearest: np.ndarray = np.where(reached(placing.actions)[:-2], cost, 0).max(axis=2)
    return dearest


def _changed(
    task: Task, simulator: Any, placing: Sharing, plans: np.ndarray, live: np.ndarray, does: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sums that a change and the pieces after it add to devices, (b, 1, K, H), and bytes that they take, (b, 1)."""
    total, size = np.zeros((len(plans), 1, *placing.sums.shape[1:])), np.zeros((len(plans), 1), np.int64)
    at = np.flatnonzero(live)
    at = at[placing.may(plans[at])[:, does]]
    if not len(at):
        return total, size
    rows = placing.changed(plans[at], does)
    added, taken = _puts(placing, rows)
    cost = _dearest(task, simulator, placing, plans[at], added)
    legal = placing.masks_as(plans[at], rows)[:, : placing.actions.placing] > 0
    times = _spread(placing.actions, np.where(legal, cost, np.inf), placing.ways.pieces[rows])
    total[at] = (added * times[..., None, None]).sum(axis=1, keepdims=True)
    size[at] = (taken * times).sum(axis=1, keepdims=True)
    return total, size


def _spread(actions: Actions, cost: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """Pieces, (b,) of them, that take each placing action, (b, A - 2), by costs that are infinite where they must not.

    All make the same choice: that whose dearest action costs least.
    """
    does, choices = actions.does[: actions.placing], []
    for choice in np.unique(does).tolist():
        ours = np.where(does == choice, cost, np.inf)
        rank = ours.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        count = np.maximum((ours < np.inf).sum(axis=1), 1)[:, None]
        rounds, rest = np.divmod(pieces[:, None], count)
        times = np.where(ours < np.inf, rounds + (rank < rest), 0)
        worst = np.where(times > 0, ours, -np.inf).max(axis=1)
        choices.append((np.where(times.any(axis=1), worst, np.inf), times))
    best = np.argmin([worst for worst, _ in choices], axis=0)
    found: np.ndarray = np.stack([times for _, times in choices])[best, np.arange(len(cost))]
    return found
