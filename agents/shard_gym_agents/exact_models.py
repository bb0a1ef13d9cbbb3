"""The programs that `exact` solves: a planner's costs as linear rows over placements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from shard_gym.bounds_learned import network_shares
from shard_gym.bounds_phases import Share, additive_shares, costs_alone, pieces_of
from shard_gym.cost_models.networks import Ours
from shard_gym.links import Links
from shard_gym.memory import table_bytes
from shard_gym.nodes import Nodes, halvings
from shard_gym.plan import Plan
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.learned import Learned
from shard_gym.simulators.roofline import Roofline
from shard_gym.tasks import Constraints, Task
from shard_gym_agents.milp import INFINITY, LARGE, Model

MEGABYTE = 1e6  # the solver allows rows to be off by a millionth: of this, a byte


@dataclass(frozen=True, eq=False)
class Phase:
    """A device's ms in one phase are at least each of these sums over its tables, plus a constant; speed 1."""

    weights: np.ndarray  # (J, M), of one piece of each node
    constant: float = 0.0  # of a device that is not empty
    share: Share | None = None  # what makes a bound of these sums one on the cost, where the sums alone do not


@dataclass(frozen=True, eq=False)
class Program:
    """What is minimised: the sum of the longest times of some phases, the last one with two all-to-alls."""

    nodes: Nodes  # the pieces that are placed
    phases: Sequence[Phase]
    links: Links | None = None
    batch: int = 0
    exact: bool = False  # the planner itself, but for what an empty device does not cost

    @classmethod
    def of(cls, task: Task, planner: FastSimulator) -> Program:
        """That of a planner: the roofline itself, the weights of a learned one's bound, or costs beside the mean.

        Only the roofline's splits tables, where the task allows it and it is not too LARGE then.
        """
        names = ["both"] if task.objective == "kernel" else ["forward", "backward"]
        tables = Nodes.of(task, split_action=False)
        if isinstance(planner, Roofline):
            halved = Nodes.of(task, split_action=True, every=True)
            nodes = halved if len(halved) * task.num_devices <= LARGE else tables
            pieces = pieces_of(replace(nodes.pieces, splits_allowed=False), planner)
            each = [list(additive_shares(planner, pieces, name)) for name in names]
            phases = [Phase(np.stack([s.weights for s in shares]), shares[0].least(0.0)) for shares in each]
            links = task.links or planner.hardware.links
            return cls(nodes, phases, None if task.objective == "kernel" else links, task.batch, exact=True)
        if isinstance(planner, Learned) and isinstance(planner.network, Ours):
            unsplit = replace(task, splits_allowed=False)
            pieces = pieces_of(unsplit, planner)
            forward, backward = costs_alone(unsplit, planner, pieces.embedding)
            alone = {"forward": forward, "backward": backward, "both": forward + backward}
            shares = [next(network_shares(planner, pieces, alone[n], n, task.num_devices)) for n in names]
            links = task.links or planner.links
            phases = [Phase(share.weights[None], share=share) for share in shares]
            return cls(tables, phases, None if task.objective == "kernel" else links, planner.batch)
        return cls(tables, [Phase(weights[None]) for weights in _beside_the_mean(task, planner)])

    @property
    def has_all_plans(self) -> bool:
        """Whether the program's plans are all that the task allows, of at most 8 pieces a table."""
        return len(self.nodes) > self.nodes.task.num_tables or not halvings(self.nodes.task, every=True).any()

    @property
    def words(self) -> str:
        """What is placed."""
        if len(self.nodes) > self.nodes.task.num_tables:
            return "tables in at most 8 pieces"
        return "whole tables" if self.has_all_plans else "whole tables; the bound on plans with splits is not its own"

    @property
    def order(self) -> np.ndarray:
        """Tables in the order that devices are numbered by, the heaviest first."""
        weights = np.sum([phase.weights[0] for phase in self.phases], axis=0)
        return np.argsort(-weights[self.nodes.whole], kind="stable")

    @property
    def has_constants(self) -> bool:
        """Whether a device that is not empty pays something for that."""
        return any(phase.constant > 0 for phase in self.phases)

    def certified(self, bound: float) -> float:
        """The makespan that none of the program's plans is below, if its value is `bound` at least; 0: unknown."""
        share = self.phases[0].share
        if self.exact:
            return bound
        if share is None or len(self.phases) > 1 or not np.isfinite(bound):
            return 0.0
        total = float(share.weights.sum())
        return min(share.least(min(bound * speed, total)) / speed for speed in set(self.nodes.task.speed))

    def model(self, busy: bool, end: float = INFINITY) -> Model:
        """min sum of each phase's longest time. `busy`: no device is empty, so each pays its constant.

        Otherwise those pay that hold a table, or none on tasks of more than LARGE placements of one table: such a
        program is below the costs, which its bound allows.
        """
        model, task = Model(self.nodes, end), self.nodes.task
        add_memory(model)
        used = [] if busy or not self.has_constants or model.place.size > LARGE else _used_devices(model)
        comm: list[list[tuple[int, float]]] = [[] for _ in task.memory]
        wires = 0.0
        if self.links is not None and task.num_devices > 1:
            comm, wires = _add_links(model, self.links, self.batch)
        for number, phase in enumerate(self.phases):
            longest, last = model.variable(cost=1.0), number == len(self.phases) - 1
            for k, speed in enumerate(task.speed):
                constant = busy * phase.constant / speed + last * wires
                others = [*(comm[k] if last else ()), *((used[k], phase.constant / speed) for _ in used[:1])]
                for weights in phase.weights:
                    model.at_least(longest, k, weights / speed, constant, others)
        if interchangeable(task):
            model.break_symmetry(alike_devices(task, self.links), self.order)
        return model

    def start(self, model: Model, plan: Plan) -> np.ndarray | None:
        """A plan's counts, its devices numbered as the model wants them; None if it splits more than the program."""
        if plan.splits and len(self.nodes) == self.nodes.task.num_tables:
            return None
        counts = model.counts(plan)
        if not interchangeable(self.nodes.task):
            return counts
        rank = np.argsort(self.order)[self.nodes.table]
        first = np.where(counts > 0, rank[:, None], len(rank)).min(axis=0)
        return counts[:, old_devices(first, alike_devices(self.nodes.task, self.links))]


def _beside_the_mean(task: Task, planner: FastSimulator) -> list[np.ndarray]:
    """What each table adds to a mean shard, ms: both passes, or one after the other."""
    one = replace(task, memory=(1,), speed=(), objective="kernel", constraints=Constraints())
    tables = planner.embed(task)
    mean = tables.sum(axis=0) / task.num_devices
    latency = planner.decode(one, np.concatenate([mean[None], mean + tables])[:, None])
    passes = [ms[1:, 0] - ms[0, 0] for ms in (latency.forward_compute, latency.backward_compute)]
    return [passes[0] + passes[1]] if task.objective == "kernel" else passes


def _used_devices(model: Model) -> list[int]:
    """A variable for each device, at least 1 where a table lies."""
    used = [model.variable() for _ in model.nodes.task.memory]
    for variable, column in zip(used, model.place.T, strict=True):
        for placed in column:
            model.row(0.0, [variable, placed], [model.upper[placed], -1.0], INFINITY)
    return used


def interchangeable(task: Task) -> bool:
    """Whether no constraint names a device."""
    return not task.constraints.pin and task.constraints.max_moves is None


def add_memory(model: Model, over: int | None = None) -> None:
    """Each device's bytes, less what variable `over` says it may have too many, in megabytes."""
    size = table_bytes(model.nodes.pieces) / MEGABYTE
    for k, capacity in enumerate(model.nodes.task.memory):
        extra = [] if over is None else [over]
        model.row(-INFINITY, [*model.place[:, k], *extra], [*size, *(-1.0 for _ in extra)], capacity / MEGABYTE)


def alike_devices(task: Task, links: Links | None) -> list[list[int]]:
    """Devices that can be exchanged without changing what a plan costs: of one memory, speed and group."""
    group = (links.group if links else 0) or task.num_devices
    kinds = [(task.memory[k], task.speed[k], k // group) for k in range(task.num_devices)]
    order = sorted(range(task.num_devices), key=lambda k: kinds[k])
    return [list(devices) for _, devices in groupby(order, key=lambda k: kinds[k])]


def old_devices(first: np.ndarray, alike: Sequence[Sequence[int]]) -> np.ndarray:
    """The device to put in each one's place, so that those alike are in order of the `first` table they hold, (K,)."""
    old = np.arange(len(first))
    for devices in alike:
        old[devices] = sorted(devices, key=lambda k: first[k])
    return old


def _add_links(model: Model, links: Links, batch: int) -> tuple[list[list[tuple[int, float]]], float]:
    """Two all-to-alls as `Links.all_to_all_ms` has them: variables with ms of each for every device, and a constant."""
    task = model.nodes.task
    dim, devices = model.nodes.pieces.tables.columns_sent, task.num_devices
    total, slice_bytes = float(task.tables.columns_sent.sum()), 4.0 * batch / devices
    columns = [model.variable() for _ in range(devices)]
    for k, variable in enumerate(columns):
        model.row(0.0, [*model.place[:, k], variable], [*dim, -1.0], 0.0)
    terms: list[list[tuple[int, float]]] = [[] for _ in range(devices)]
    for members in _groups(devices, links.group or devices):
        near, far = _traffic(model, links, columns, members, total)
        for k, variable in zip(members, near, strict=True):
            if links.port < math.inf:
                terms[k].append((variable, 2 * slice_bytes / links.port))
            if links.uplink < math.inf:
                terms[k].append((far, 2 * slice_bytes / links.uplink))
    fabric = total * (devices - 1) * slice_bytes / links.fabric
    return terms, 2 * (links.latency_ms + fabric)


def _traffic(
    model: Model, links: Links, columns: list[int], members: Sequence[int], total: float
) -> tuple[list[int], int]:
    """Variables, in columns: what each device of a group moves inside it, and what the group moves out of it."""
    devices, inside = len(columns), [columns[k] for k in members]
    one = np.ones(len(members))
    near, far = [model.variable() for _ in members], model.variable()
    for k, variable in zip(members, near, strict=True):
        if links.peer_to_peer:
            model.row(-INFINITY, [columns[k], variable], [len(members) - 1.0, -1.0], 0.0)
            others = [column for column in inside if column != columns[k]]
            model.row(-INFINITY, [*others, variable], [*one[1:], -1.0], 0.0)
        else:
            model.row(-INFINITY, [columns[k], variable], [devices - 1.0, -1.0], 0.0)
            model.row(-INFINITY, [columns[k], variable], [-1.0, -1.0], -total)
    out, back = (devices - len(members), len(members)) if links.peer_to_peer else (devices - 1, 1)
    model.row(-INFINITY, [*inside, far], [*(out * one), -1.0], 0.0)
    model.row(-INFINITY, [*inside, far], [*(-back * one), -1.0], -total * len(members))
    return near, far


def _groups(devices: int, size: int) -> Iterator[range]:
    for start in range(0, devices, size):
        yield range(start, min(start + size, devices))
