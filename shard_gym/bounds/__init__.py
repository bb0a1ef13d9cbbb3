"""Lower bounds: the makespan that no plan of a task can beat by a simulator, and the resource that sets it.

Never the sum of what tables cost alone: a fused shard costs less than its tables one by one. Every bound here
follows from six facts about simulators that tell their costs as maxima or as factors:

- monotone: a device with more tables never costs less, so a table's device costs what the table does alone;
- pigeonhole: of weights that add up to W over the devices, some device holds at least its part of any way to share
  out W; and of m K + 1 tables some device holds m + 1;
- the links carry every column to every device: parts of an all-to-all take the same on each however columns lie;
- memory: a device holds what all others have no room for, at the least the cheapest per byte;
- waits: a collective that carries anything takes its latency, so a plan waits for all collectives that it has;
- launches: each device with rows launches, and fewer such devices have more work each.

Other constraints are left out, but for pins where a table is looked at alone; that can only make a bound lower. Column
splits are allowed for where the task allows them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.bounds.kinds import ByWaits
from shard_gym.bounds.shares import Pieces, Share, no_bound, pieces_of, shares_of
from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import no_room
from shard_gym.plan.forms import beyond_columns
from shard_gym.records.guard import expect
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.links import Links
from shard_gym.task.task import Task

SAFETY = 1 - 1e-9  # for the rounding of float64 in the bounds themselves
SHOWS = 1e-3  # a resource binds when it lifts the bound by this share of it
GRID = 257  # points at which a device's cost is guessed


@dataclass(frozen=True)
class Bound:
    """No plan of the task is faster than `makespan` ms.

    `resource` is the reason why no plan is faster: "one table", "compute", "comm", or "memory" where a table fits only
    on slow devices (or is pinned to one), or only beside others that have no room elsewhere. `fill` is the share of all
    memory that the tables take.
    """

    makespan: float
    resource: str
    method: str
    table: int | None = None  # the one that binds
    comm_ms: float = 0.0  # of `makespan`, what the links take
    fill: float = 0.0


def lower_bound(task: Task, simulator: Simulator, budget: float = 1.0) -> float:
    """Milliseconds that no plan of this task beats."""
    return certificate(task, simulator, budget).makespan


def certificate(task: Task, simulator: Simulator, budget: float = 1.0) -> Bound:
    """The best bound found in about `budget` seconds, at the least the time of one, and what binds."""
    expect(task, Task, InvalidTask)
    if not isinstance(simulator, FastSimulator):
        raise no_bound(simulator)
    if not isinstance(budget, int | float):
        raise InvalidTask(f"a budget is seconds, got {budget!r:.60}")
    fast = simulator.uncounted
    if beyond_columns(task):
        return _of_kinds(task, fast)
    pieces = pieces_of(task, fast)
    fits = _fits(task, pieces)
    reached = _Reached(task, fast, pieces, time.perf_counter() + budget)
    anywhere = float(reached.held(np.ones_like(fits), full=False).max())
    held = reached.held(fits, full=True)
    table, tight = int(held.argmax()), float(held.max())
    makespan = max(tight, reached.spread)
    comm = min(2 * float(reached.floor.min()), makespan)
    one = anywhere > reached.spread * (1 + SHOWS)
    if tight > max(anywhere, reached.spread) * (1 + SHOWS):
        resource, method = "memory", f"the device of table {table}, and what it must hold for want of room elsewhere"
    elif one:
        resource, method = "one table", f"the device of table {table}"
    else:
        resource, method = "comm" if 2 * comm > makespan else "compute", "all work shared out"
    fill = float(table_bytes(task).sum() / task.capacity.sum())
    binding = None if resource in ("comm", "compute") else table
    return Bound(makespan * SAFETY, resource, method, binding, comm, fill)


def _of_kinds(task: Task, simulator: FastSimulator) -> Bound:
    """The bound of a task of all kinds: every sum that is no more than a device's cost, shared out over devices.

    Where devices wait for each other they cost more on average than by their own shards. A plan waits for each
    collective that it has anything to send by, launches both passes on each device, or has fewer that share all work,
    and waits for its slowest forward pass: the bound is that of the best of these cases.
    """
    if not simulator.floors(task):
        raise no_bound(simulator)
    cases = ByWaits(task, simulator)
    best = cases.binding.weakest.found
    assert best is not None
    resource, method = "compute", "all work shared out, each table sharded as is cheapest"
    if best.table is not None:
        resource, method = "one table", f"the dearest shard of table {best.table}, sharded as is best for it"
    elif best.price.any():
        resource, method = "memory", f"{method} at the price of memory"
    fill = float(table_bytes(task).sum() / task.capacity.sum())
    return Bound(cases.makespan * SAFETY, resource, method, best.table, fill=fill)


class _Reached:
    """Bounds of the phases of a task, and how they add up to a makespan."""

    def __init__(self, task: Task, simulator: FastSimulator, pieces: Pieces, end: float) -> None:
        self.task, self.simulator, self.pieces = task, simulator, pieces
        self.speed, self.wait = np.array(task.speed), 0.0
        self.filled: dict[str, np.ndarray] = {}
        if task.objective == "kernel":
            self.floor, self.comm = np.zeros(task.num_devices), np.zeros((*pieces.parts.shape, task.num_devices))
            self.rest = self._least("both", end)
        else:
            self.floor, self.comm = _comm(task, simulator, pieces)
            self.wait = self._least("forward", (end + time.perf_counter()) / 2)
            self.rest = self._least("backward", end)
            self._fill("both")
        self.spread = self.wait + self.rest

    def held(self, fits: np.ndarray, full: bool) -> np.ndarray:
        """The least cost of the device of each table, wherever the table, or one piece of it, may lie; (N,).

        makespan = the longest forward pass + the longest rest; of both, the table's own device is one. `full`: with
        what each device must hold beside the table.
        """
        cost = {phase: ms[..., None] / self.speed for phase, ms in self.pieces.alone.items()}  # (V, N, K)
        if full:
            cost |= {phase: np.maximum(cost[phase], ms / self.speed) for phase, ms in self.filled.items()}
        if self.task.objective == "kernel":
            return np.where(fits, np.maximum(self.rest, cost["both"]), np.inf).min(axis=(0, 2))
        wait, rest_ms = np.maximum(self.wait, cost["forward"]), np.maximum(self.rest, 2 * self.comm + cost["backward"])
        least = np.maximum(wait + rest_ms, 2 * self.comm + cost["both"])
        return np.where(fits, least, np.inf).min(axis=(0, 2))

    def _least(self, phase: str, end: float) -> float:
        """The longest time of this phase on a device, at least; with communication, unless it is the forward one."""
        offset = np.zeros_like(self.floor) if phase == "forward" else 2 * self.floor
        found, quick = float(offset.max()), self.simulator.maxima(phase) is not None
        for share in shares_of(self.simulator, self.pieces, phase, self.task.num_devices):
            found = max(found, shared_out(share, self.speed, offset))
            found = max(found, self._crowded(share, offset, found))
            if time.perf_counter() > end and not quick:
                break
        self._fill(phase)
        return found

    def _fill(self, phase: str) -> None:
        """Find the cost of each device with each table and all that it must hold beside it, (N, K) ms at speed 1."""
        pieces, needed = self.pieces, must_hold(int(table_bytes(self.task).sum()), self.task.capacity)
        if not needed.any() or self.simulator.maxima(phase) is None:
            return
        size, unsplit = (pieces.bytes * pieces.parts).max(axis=0), (pieces.parts == 1).all(axis=0)
        each, device = np.unique(needed, return_inverse=True)
        filled = [
            [[share.least(float(w)) for w in least_filled(share.weights, size, int(n))] for n in each]
            for share in shares_of(self.simulator, pieces, phase, self.task.num_devices)
        ]
        self.filled[phase] = np.where(unsplit, np.max(filled, axis=0), 0.0)[device].T

    def _crowded(self, share: Share, offset: np.ndarray, known: float) -> float:
        """The bound of m + 1 of the m K + 1 heaviest tables that cannot be split: some device holds so many of them."""
        whole = share.weights[(self.pieces.parts == 1).all(axis=0)]
        added, best = np.concatenate([[0.0], np.cumsum(np.sort(whole)[::-1])]), known
        devices, fastest, least = self.task.num_devices, float(self.speed.max()), float(offset.min())
        for m in range(1, (len(whole) - 1) // devices + 1):
            weight = float(added[m * devices + 1] - added[m * devices - m]) * SAFETY
            if least + share.guess(np.array([weight]))[0] / fastest > best:
                best = max(best, least + share.least(weight) / fastest)
        return best


def shared_out(share: Share, speed: np.ndarray, offset: np.ndarray) -> float:
    """max_k (offset_k + cost_k / speed_k) at least, where cost_k is that of device k's part of the weights.

    The weights are shared out so that all devices would end at the same time if each held a little of everything.
    Whatever the plan, some device holds its part or more, or one that was given nothing is not empty.
    """
    total = float(share.weights.sum())
    weight = np.linspace(0.0, total, GRID)
    cost = np.maximum.accumulate(share.guess(weight))
    low, high = 0.0, float((offset + cost[-1] / speed).max())
    for _ in range(60):
        middle = (low + high) / 2
        given = np.interp((middle - offset) * speed, cost, weight, left=0.0)
        low, high = (low, middle) if given.sum() >= total else (middle, high)
    given *= total / max(given.sum(), total, 1e-300) * SAFETY
    devices = {(float(g), float(s), float(o)) for g, s, o in zip(given, speed, offset, strict=True)}
    return min(o + share.least(g) / s for g, s, o in devices)


def must_hold(task_bytes: int, capacity: np.ndarray) -> np.ndarray:
    """Bytes that each device holds in every plan: all there are, less the room of all others; (K,), 0 where none."""
    return np.maximum(task_bytes - (capacity.sum() - capacity), 0)


def least_filled(weights: np.ndarray, size: np.ndarray, needed: int) -> np.ndarray:
    """Bound the weight of a device that holds table t and `needed` bytes in all, (N,).

    Beside the table it takes the lightest per byte, the last one in part. `size` is the most bytes that a table's
    pieces take, relative to its weight.
    """
    order = np.argsort(weights / size, kind="stable")
    bytes_so_far, so_far = (np.cumsum([0.0, *column[order]]) for column in (size, weights))
    before = np.empty(len(order))  # bytes of the tables that come earlier
    before[order] = bytes_so_far[:-1]
    rest = np.maximum(min(needed, bytes_so_far[-1]) - size, 0.0)
    late = before < rest  # the table itself is among those that would be taken, so more of the others is
    return np.interp(rest + late * size, bytes_so_far, so_far) + ~late * weights


def _fits(task: Task, pieces: Pieces) -> np.ndarray:
    """Devices that one piece of each table may lie on, (V, N, K); of a table that fits nowhere there is no plan."""
    fits = pieces.bytes[..., None] <= task.capacity
    for table, device in task.constraints.pin:
        fits[:, table] &= np.arange(task.num_devices) == device
    if len(nowhere := np.flatnonzero(~fits.any(axis=(0, 2)))):
        raise no_room(task, int(nowhere[0]), task.capacity)
    return fits


def _comm(task: Task, simulator: FastSimulator, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Least ms of one all-to-all on each device: of any plan (K,), and with one piece of each table there (V, N, K).

    Of any plan: each term is a maximum of what is sent and what is received. Weighted so that the device's own columns
    cancel, the two make what equal columns everywhere would; only traffic in one of several groups has no such floor.
    With a piece of d columns: what it would take if there were no other table.
    """
    if (wires := simulator.all_to_all(task)) is None:
        raise no_bound(simulator)
    (links, batch), devices = wires, task.num_devices
    grouped = links.peer_to_peer and 0 < links.group < devices
    anywhere = replace(links, port=math.inf) if grouped else links
    floor = anywhere.all_to_all_ms(np.full(devices, pieces.columns[0].sum() / devices), batch)
    own = np.array([_own(links, k, devices, batch) for k in range(devices)])
    latency = links.latency_ms if devices > 1 else 0.0
    with_piece = latency + np.multiply.outer(pieces.columns, own)
    return floor, np.maximum(floor, with_piece)


def _own(links: Links, device: int, devices: int, batch: int) -> float:
    """ms of one column that a device holds where nobody holds another, latency aside."""
    if devices == 1:
        return 0.0
    dims = (np.arange(devices) == device).astype(np.float64)
    return float(links.all_to_all_ms(dims, batch)[device]) - links.latency_ms
