"""The contract of all simulators: placements in, per-device latencies out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from shard_gym.errors import InvalidPlan, InvalidTask, SimulatorError, UnknownName
from shard_gym.memory.usage import device_sums
from shard_gym.plan.plan import Plan
from shard_gym.records.guard import expect, guarded
from shard_gym.task.constraints import OF_ONE, Constraints
from shard_gym.task.links import Links
from shard_gym.task.task import OBJECTIVES, Task

if TYPE_CHECKING:  # imported where they are needed
    from shard_gym.core import Iteration
    from shard_gym.memory.shards import Shards

FEW_DEVICES, MANY_VALUES = 32, 512  # from where `along_devices` turns arrays
EMBEDDINGS, KEPT_TABLES = 32, 4096  # embeddings of tasks that are kept, each of so many tables at most
SUMS_AT_ONCE = 2**17  # numbers in the sums of plans that are costed in one go: they stay in the cache
TINY = np.finfo(np.float64).tiny  # ms: less than any cost but 0
GRAIN = 2.0**14  # embeddings are multiples of 1/GRAIN: float64 sums of them are exact in any order
PASSES = {"forward": (True, False), "backward": (False, True), "both": (True, True)}  # of a phase: forward, backward


@dataclass(frozen=True, eq=False)
class Latency:
    """Milliseconds of each phase on each device, float64 (..., K). Kernel tasks have no communication: zeros."""

    forward_compute: np.ndarray
    forward_comm: np.ndarray
    backward_comm: np.ndarray
    backward_compute: np.ndarray
    # Of each device, where the simulator knows them:
    spread: np.ndarray | None = None  # standard deviation of its compute, ms
    distance: np.ndarray | None = None  # how far its tables are outside what was fitted, 0 inside

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Latency):
            return NotImplemented
        return all(np.array_equal(values, getattr(other, name)) for name, values in vars(self).items())

    @property
    def compute(self) -> np.ndarray:
        """Forward and backward computation of each device, (..., K)."""
        return self.forward_compute + self.backward_compute

    def cost(self, objective: str) -> np.ndarray:
        """The cost of each device, (..., K).

        "kernel": its computation (AutoShard). "iteration": the slowest forward computation, which all wait for,
        then its own communication and backward computation (DreamShard). "torchrec-critical-path" is the same sum, of
        a simulator that counts what each device waits for in communication as the device's own.
        """
        expect(objective, str, SimulatorError)
        if objective == "kernel":
            return self.compute
        if objective not in OBJECTIVES:
            raise UnknownName("objective", objective, OBJECTIVES)
        wait = along_devices(np.maximum, self.forward_compute)
        return wait + self.forward_comm + self.backward_comm + self.backward_compute

    def makespan(self, objective: str) -> np.ndarray:
        """Milliseconds of the slowest device, (...): the number that plans are ranked by."""
        return along_devices(np.maximum, self.cost(objective))[..., 0][()]  # a number of one plan

    @property
    def balance(self) -> np.ndarray:
        """Fastest over slowest device, computation only; 0 when a device is empty (...)."""
        compute = self.compute
        least, most = (along_devices(ufunc, compute)[..., 0][()] for ufunc in (np.minimum, np.maximum))
        return least / np.maximum(most, TINY)


@runtime_checkable
class Simulator(Protocol):
    """Answers what placements of a task's tables cost; partial placements (-1) are legal."""

    id: str

    def latency(self, task: Task, placements: np.ndarray) -> Latency:
        """Latencies of placements, int (..., N) with -1 for a table not placed."""
        ...


@dataclass(frozen=True)
class Maxima:
    """A phase that takes a shard the longest of some sums, and a fixed time where the shard has a table; speed 1."""

    sums: tuple[tuple[int, ...], ...]  # of each sum the columns of the embedding that it adds up, us
    fixed_ms: float


@dataclass(frozen=True, eq=False)
class Factors:
    """Passes that take a shard (base + fixed) * factor us each, as the mean of M members; speed 1.

    Bases and totals are the last columns of the shard's sum: Q totals, then the bases of each member's two passes. The
    factor is a network of one hidden layer, from the fourth roots of the totals. It grows with them: weights of
    `hidden`, `out` and `fixed` are positive.
    """

    own: int  # columns of the embedding that come before the totals
    fixed: np.ndarray  # (M, 2)
    hidden: np.ndarray  # (M, Q, U)
    hidden_bias: np.ndarray  # (M, U)
    out: np.ndarray  # (M, U, 2)
    out_bias: np.ndarray  # (M, 2)
    highest: float  # units stop here


class FastSimulator:
    """A simulator in two functions, so that callers can keep running sums instead of whole placements.

    The methods below `latency` are optional abilities, which bounds, exact solvers and searches use.
    """

    id: str
    basis = "analytic"  # what its numbers rest on: analytic, fitted or measured
    objectives: tuple[str, ...] = ("kernel", "iteration")  # that it can cost
    kinds: tuple[str, ...] = OF_ONE  # of sharding, in tasks that allow them
    model: np.ndarray | None = None  # its computation as the compiled core knows it, if it does
    sent: int | None = None  # column of an embedding that is what an all-to-all sends, where it tells `all_to_all`

    def embed(self, task: Task) -> np.ndarray:
        """The row that each table adds to its device's sum, float64 (N, H), in multiples of 1/GRAIN."""
        raise NotImplementedError

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        """The row that each shard adds to its device's sum, float64 (S, H), in multiples of 1/GRAIN.

        Of shards with all rows, in the device's memory, `embed` tells it, as they are tables of fewer columns. Other
        shards are refused, unless a simulator knows more.
        """
        refuse_objective(self, task)
        return self.embed(pieces_of(self.id, task, shards))

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Latencies from each device's sum of the rows of its tables or shards, (..., K, H)."""
        raise NotImplementedError

    def cost(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """The cost of each device by the task's objective, (..., K): of what `decode` tells all that many callers read.

        A simulator may know a shorter way to the same numbers.
        """
        return self.decode(task, sums).cost(task.objective)

    def latency(self, task: Task, placements: np.ndarray, threads: int = 1) -> Latency:
        """Latencies of placements, int (..., N) with -1 for a table not placed.

        Of many plans each thread takes a part at a time; the answer is the same, whatever their number.
        """
        placements, rows, simulator = checked(task, placements), embedded(self, task), self.uncounted
        plans, k = placements.shape[:-1], task.num_devices

        def told(some: np.ndarray) -> Latency:
            return simulator.decode(task, device_sums(rows, some, k))

        self.count(math.prod(plans))
        at_once = max(1, SUMS_AT_ONCE // (k * max(rows.shape[1], 1)))
        if math.prod(plans) <= at_once:
            return told(placements)
        flat = placements.reshape(-1, task.num_tables)
        parts = [flat[start : start + at_once] for start in range(0, len(flat), at_once)]
        if threads == 1:
            return _joined(list(map(told, parts)), (*plans, k))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            return _joined(list(pool.map(told, parts)), (*plans, k))

    @property
    def uncounted(self) -> FastSimulator:
        """The simulator itself, where this one counts the plans it is asked about."""
        return self

    def count(self, plans: int) -> None:
        """Count plans that were asked about in a shorter way, where this one counts."""

    def all_to_all(self, task: Task) -> tuple[Links, int] | None:
        """Links and batch of the all-to-alls of an iteration; None: communication is computed otherwise."""
        return None

    def iteration(self, task: Task) -> Iteration | None:
        """Costs of the task's plans as the compiled core knows them; None: it does not."""
        return None

    def maxima(self, phase: str) -> Maxima | None:
        """The costs of a phase (see PASSES) as maxima of sums, for bounds and exact solvers; None: they are not."""
        return None

    def rates(self, task: Task) -> np.ndarray | None:
        """Weights of each device's sum, (K, H), that give its cost, ms, where nothing else counts; None: it is more."""
        return None

    def longest(self, task: Task) -> list[np.ndarray]:
        """Weights as of `rates`, of each part of a step that ends when the slowest device is done with it.

        The longest times of all parts add up to the makespan. Empty: it is more.
        """
        return [] if (rates := self.rates(task)) is None else [rates]

    def floors(self, task: Task) -> list[np.ndarray]:
        """Weights as of `rates` that give no more than each device costs, for bounds."""
        if (rates := self.rates(task)) is not None:
            return [rates]
        maxima = self.maxima("both")
        if maxima is None:
            return []
        from shard_gym.memory.shards import Shards, Tables

        width = self.embed_shards(task, Shards.whole(Tables.of_task(task))).shape[1]
        counts = [np.bincount(columns, minlength=width).astype(np.float64) for columns in maxima.sums]
        return [np.multiply.outer(task.ms_per_us, count) for count in counts]

    def averages(self, task: Task) -> list[np.ndarray]:
        """Weights as of `floors`, one by one no less: devices cost so much on average, as they wait for each other."""
        return self.floors(task)

    def ahead(self, task: Task) -> list[np.ndarray]:
        """Parts of `floors` that end for all devices when the slowest is done with them."""
        return [np.zeros_like(floor) for floor in self.floors(task)]

    def least_ms(self, task: Task) -> float:
        """Milliseconds that a step takes on every device beside `floors` and `averages`, whatever the plan."""
        return 0.0

    def waits(self, task: Task, sums: np.ndarray) -> np.ndarray:
        """Milliseconds that each device waits beside all of these, however little others hold; sums (..., K, H).

        They add up over columns, and grow with the devices that hold more than 0 there; (..., K).
        """
        return np.zeros(sums.shape[:-1])

    def launch(self, task: Task) -> tuple[int, float]:
        """A column of sums, and the ms that a device with more than 0 there takes at least, beside all of these."""
        return 0, 0.0

    def factors(self) -> Factors | None:
        """The costs as products of sums and growing factors, for bounds; None: they are not."""
        return None

    def own_settings(self, task: Task) -> str:
        """Settings it answers for that are not the task's, such as "batch 2,048"; empty: it answers for the task's."""
        return ""

    def doubt(self, task: Task, sums: np.ndarray, other: np.ndarray) -> float | None:
        """Standard deviation of how much sooner one plan ends than another, ms, from the sums of both, (K, H).

        None: it knows no more than the spread of devices.
        """
        return None


def _joined(parts: list[Latency], shape: tuple[int, ...]) -> Latency:
    """Latencies of parts of plans as one."""
    columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    known = {name: values for name, values in columns.items() if values[0] is not None}
    return Latency(**{name: np.concatenate(values).reshape(shape) for name, values in known.items()})


class _Pair:
    """A simulator and a task, the same only as themselves: a task's hash takes longer than many an embedding."""

    def __init__(self, simulator: FastSimulator, task: Task) -> None:
        self.simulator, self.task = simulator, task

    def __hash__(self) -> int:
        return hash((id(self.simulator), id(self.task)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pair) and self.simulator is other.simulator and self.task is other.task


@lru_cache(maxsize=EMBEDDINGS)
def _kept(pair: _Pair) -> np.ndarray:
    rows = np.asarray(pair.simulator.embed(pair.task)).view()
    rows.flags.writeable = False
    return rows


def embedded(simulator: FastSimulator, task: Task) -> np.ndarray:
    """The simulator's `embed` of a task, (N, H), read only: those of the last few tasks are kept."""
    return _kept(_Pair(simulator.uncounted, task)) if task.num_tables <= KEPT_TABLES else simulator.embed(task)


def plan_latency(simulator: Simulator, task: Task, plan: Plan) -> Latency:
    """Latency of a plan of any kinds."""
    from shard_gym.plan.shards import expanded

    return latency_of(simulator, task, plan, expanded(task, plan))


def latency_of(simulator: Simulator, task: Task, plan: Plan, placed: Shards | None) -> Latency:
    """The `plan_latency` of a plan that is `expanded` already."""
    if placed is None:
        return simulator.latency(task, np.array(plan.device))
    if not isinstance(simulator, FastSimulator):
        return simulator.latency(pieces_of(simulator.id, task, placed), placed.device)
    rows = simulator.embed_shards(task, placed)
    return simulator.decode(task, device_sums(rows, placed.device, task.num_devices))


def pieces_of(simulator_id: str, task: Task, shards: Shards) -> Task:
    """The task whose tables are these shards, if all have all rows; columns cost what a table of so many does."""
    refuse_rows(simulator_id, shards)
    tables = task.tables.take(shards.table).with_(dim=shards.dim.astype(np.int32))
    return replace(task, tables=tables, constraints=Constraints())


def refuse_rows(simulator_id: str, shards: Shards) -> None:
    """Refuse shards that have not all rows in the memory of one device."""
    known = np.isin(shards.kind, OF_ONE) & (shards.of.kernel == "fused")
    if not known.all():
        odd = int(np.argmin(known))
        raise InvalidPlan(
            f"{simulator_id} costs whole tables and columns in the device's memory, and other shards only where it can "
            f"and the task's kinds and residences say so: table {shards.table[odd]} is {shards.kind[odd]}, of kernel "
            f"{shards.of.kernel[odd]}"
        )


def refuse_objective(simulator: FastSimulator, task: Task) -> None:
    """Refuse a task whose objective the simulator has no answer to."""
    if task.objective not in simulator.objectives:
        raise SimulatorError(
            f"{simulator.id} knows no objective {task.objective!r}, but {', '.join(simulator.objectives)}: take "
            f"torchrec:cuda-v1 for the critical path as TorchRec has it"
        )


def along_devices(ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
    """`ufunc.reduce` over the last axis, which is kept; in a tenth of the time where many plans have few devices."""
    if values.shape[-1] > FEW_DEVICES or values.size < MANY_VALUES:
        return ufunc.reduce(values, axis=-1, keepdims=True)
    first = values.transpose(values.ndim - 1, *range(values.ndim - 1))
    return ufunc.reduce(np.ascontiguousarray(first), axis=0)[..., None]


def checked(task: Task, placements: np.ndarray) -> np.ndarray:
    """Placements as an array, if every one gives each table a device of the task, or -1."""
    expect(task, Task, InvalidTask)
    with guarded("placements", InvalidPlan):
        placements = np.asarray(placements)
    if placements.shape[-1:] != (task.num_tables,) or placements.dtype.kind not in "iu":
        shape = f"{placements.dtype} {placements.shape}"
        raise InvalidPlan(f"placements are whole numbers, one for each of {task.num_tables} tables, got {shape}")
    if placements.size and not -1 <= placements.min() <= placements.max() < task.num_devices:
        found = f"{placements.min()}..{placements.max()}"
        raise InvalidPlan(f"devices are 0..{task.num_devices - 1}, or -1 where nothing is placed, got {found}")
    return placements


def counted(simulator: Simulator) -> Counted | CountedCalls:
    """The simulator, with the plans it is asked about counted in `calls`."""
    return Counted(simulator) if isinstance(simulator, FastSimulator) else CountedCalls(simulator)


class Counted(FastSimulator):
    """A fast simulator that counts the plans it was asked about."""

    def __init__(self, simulator: FastSimulator) -> None:
        self.simulator, self.id, self.calls = simulator, simulator.id, 0

    @property
    def uncounted(self) -> FastSimulator:
        return self.simulator.uncounted

    def embed(self, task: Task) -> np.ndarray:
        return self.simulator.embed(task)

    def embed_shards(self, task: Task, shards: Shards) -> np.ndarray:
        return self.simulator.embed_shards(task, shards)

    def rates(self, task: Task) -> np.ndarray | None:
        return self.simulator.rates(task)

    def longest(self, task: Task) -> list[np.ndarray]:
        return self.simulator.longest(task)

    def count(self, plans: int) -> None:
        self.calls += plans
        self.simulator.count(plans)

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        self.count(math.prod(sums.shape[:-2]))
        return self.uncounted.decode(task, sums)

    def cost(self, task: Task, sums: np.ndarray) -> np.ndarray:
        self.count(math.prod(sums.shape[:-2]))
        return self.uncounted.cost(task, sums)


class CountedCalls:
    """A simulator that is not fast, and counts the plans it was asked about."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.id, self.calls = simulator, simulator.id, 0

    def latency(self, task: Task, placements: np.ndarray) -> Latency:
        """Latencies of placements, (..., N)."""
        self.calls += math.prod(np.shape(placements)[:-1])
        return self.simulator.latency(task, placements)
