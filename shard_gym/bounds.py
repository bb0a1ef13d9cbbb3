"""Lower bounds: what no plan of a task can beat by a simulator, and which resource is in the way.

Never the sum of what tables cost alone: a fused shard costs less than its tables one by one. Every bound here
follows from four facts about the roofline and our fitted networks:

- monotone: a device with more tables never costs less, so a table's device costs what the table does alone;
- pigeonhole: of weights that add up to W over the devices, some device holds at least its part of any way to share
  out W; and of m K + 1 tables some device holds m + 1;
- the links carry every column to every device: parts of an all-to-all take the same on each however columns lie;
- memory: a device holds what all others have no room for, at the least the cheapest per byte.

Other constraints are left out, but for pins where a table is looked at alone; that can only make a bound lower. Column
splits are allowed for where the task allows them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.bounds_learned import network_shares
from shard_gym.bounds_memory import least_filled, must_hold
from shard_gym.bounds_phases import Pieces, Share, additive_shares, costs_alone, pieces_of
from shard_gym.errors import SimulatorError
from shard_gym.links import Links
from shard_gym.memory import table_bytes
from shard_gym.random_plans import no_room
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import Counted, CountedCalls
from shard_gym.simulators.learned import Learned
from shard_gym.simulators.roofline import Roofline
from shard_gym.tasks import Task

Bounded = Roofline | Learned
SAFETY = 1 - 1e-9  # for the rounding of float64 in the bounds themselves
SHOWS = 1e-3  # a resource binds when it lifts the bound by this share of it
GRID = 257  # points at which a device's cost is guessed


@dataclass(frozen=True)
class Bound:
    """No plan of the task is faster than `makespan` ms.

    `resource` says what is in the way: "one table", "compute", "comm", or "memory" where a table fits only on slow
    devices (or is pinned to one), or only beside others that have no room elsewhere. `fill` is the share of all memory
    that the tables take.
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
    fast = _bounded(simulator)
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


class _Reached:
    """Bounds of the phases of a task, and how they add up to a makespan."""

    def __init__(self, task: Task, simulator: Bounded, pieces: Pieces, end: float) -> None:
        self.task, self.simulator, self.pieces = task, simulator, pieces
        self.speed = np.array(task.speed)
        forward, backward = costs_alone(task, simulator, pieces.embedding)
        self.wait = 0.0
        self.filled: dict[str, np.ndarray] = {}
        if task.objective == "kernel":
            self.alone, self.first = forward + backward, np.zeros_like(forward)
            self.floor, self.comm = np.zeros(task.num_devices), np.zeros((*forward.shape, task.num_devices))
            self.rest = self._least("both", self.alone, end)
        else:
            self.alone, self.first = backward, forward
            self.floor, self.comm = _comm(task, simulator, pieces)
            self.wait = self._least("forward", forward, (end + time.perf_counter()) / 2)
            self.rest = self._least("backward", backward, end)
            self._fill("both", forward + backward)
        self.spread = self.wait + self.rest

    def held(self, fits: np.ndarray, full: bool) -> np.ndarray:
        """What the device of each table costs at least, wherever the table, or one piece of it, may lie; (N,).

        makespan = the longest forward pass + the longest rest; of both, the table's own device is one. `full`: with
        what each device must hold beside the table.
        """
        alone = {"forward": self.first, "backward": self.alone, "both": self.first + self.alone}
        cost = {phase: ms[..., None] / self.speed for phase, ms in alone.items()}  # (V, N, K)
        if full:
            cost |= {phase: np.maximum(cost[phase], ms / self.speed) for phase, ms in self.filled.items()}
        rest = "both" if self.task.objective == "kernel" else "backward"
        wait, rest_ms = np.maximum(self.wait, cost["forward"]), np.maximum(self.rest, 2 * self.comm + cost[rest])
        least = np.maximum(wait + rest_ms, 2 * self.comm + cost["both"])
        return np.where(fits, least, np.inf).min(axis=(0, 2))

    def _least(self, phase: str, alone: np.ndarray, end: float) -> float:
        """The longest that this phase takes on a device, at least; with communication, unless it is the forward one."""
        offset = np.zeros_like(self.floor) if phase == "forward" else 2 * self.floor
        found = float(offset.max())
        for share in self._shares(phase, alone):
            found = max(found, shared_out(share, self.speed, offset))
            found = max(found, self._crowded(share, offset, found))
            if time.perf_counter() > end and not isinstance(self.simulator, Roofline):  # whose shares cost nothing
                break
        self._fill(phase, alone)
        return found

    def _shares(self, phase: str, alone: np.ndarray) -> Iterable[Share]:
        if isinstance(self.simulator, Roofline):
            return additive_shares(self.simulator, self.pieces, phase)
        return network_shares(self.simulator, self.pieces, alone, phase, self.task.num_devices)

    def _fill(self, phase: str, alone: np.ndarray) -> None:
        """What each device costs with each table and all that it must hold beside it, (N, K) ms at speed 1."""
        pieces, needed = self.pieces, must_hold(int(table_bytes(self.task).sum()), self.task.capacity)
        if not needed.any() or not isinstance(self.simulator, Roofline):
            return
        size, unsplit = (pieces.bytes * pieces.parts).max(axis=0), (pieces.parts == 1).all(axis=0)
        each, device = np.unique(needed, return_inverse=True)
        filled = [
            [[share.least(float(w)) for w in least_filled(share.weights, size, int(n))] for n in each]
            for share in self._shares(phase, alone)
        ]
        self.filled[phase] = np.where(unsplit, np.max(filled, axis=0), 0.0)[device].T

    def _crowded(self, share: Share, offset: np.ndarray, known: float) -> float:
        """Some device holds m + 1 of the m K + 1 heaviest tables that cannot be split; at least the m + 1 lightest."""
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


def unwrapped(simulator: Simulator) -> Simulator:
    """The simulator itself, out of all that counts its calls."""
    while isinstance(simulator, Counted | CountedCalls):
        simulator = simulator.simulator
    return simulator


def _bounded(simulator: Simulator) -> Bounded:
    simulator = unwrapped(simulator)
    if not isinstance(simulator, Roofline | Learned):
        raise SimulatorError(f"no bound is known for {simulator.id}: give a roofline or a learned simulator")
    return simulator


def _fits(task: Task, pieces: Pieces) -> np.ndarray:
    """Devices that one piece of each table may lie on, (V, N, K); of a table that fits nowhere there is no plan."""
    fits = pieces.bytes[..., None] <= task.capacity
    for table, device in task.constraints.pin:
        fits[:, table] &= np.arange(task.num_devices) == device
    if len(nowhere := np.flatnonzero(~fits.any(axis=(0, 2)))):
        raise no_room(task, int(nowhere[0]), task.capacity)
    return fits


def _comm(task: Task, simulator: Bounded, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Least ms of one all-to-all on each device: of any plan (K,), and with one piece of each table there (V, N, K).

    Of any plan: each term is a maximum of what is sent and what is received. Weighted so that the device's own columns
    cancel, the two make what equal columns everywhere would; only traffic in one of several groups has no such floor.
    With a piece of d columns: what it would take if there were no other table.
    """
    if isinstance(simulator, Roofline):
        links, batch = task.links or simulator.hardware.links, task.batch
    else:
        links, batch = task.links or simulator.links, simulator.batch
    devices = task.num_devices
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
