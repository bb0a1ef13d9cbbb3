"""Costs of a shard on the hardware at hand: FBGEMM's fused operator, run and timed.

Algorithms 2 and 3 of AutoShard: warm-up runs, measured runs, the extremes dropped, the mean of the rest; forward and
backward apart. Every run looks up fresh ids and starts from cleared caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.measuring.host import (
    CLOCKS,
    Hold,
    caches,
    default_arena_gb,
    elapsed_ms,
    free_bytes,
    machine,
    mark,
    pinned,
)
from shard_gym.measuring.operator import (
    DTYPES,
    OP_FAILURES,
    OPTIMIZERS,
    Arena,
    make_operator,
    require,
)
from shard_gym.measuring.shards import Ids
from shard_gym.simulators.base import Latency, checked
from shard_gym.tables.pool import GB, TablePool
from shard_gym.task.task import Task

if TYPE_CHECKING:
    import torch

BATCH = {"cpu": 2_048, "cuda": 65_536}
STATE_SHARE = 0.125  # of the arena for the optimizer's 4 bytes a row
STATISTICS = ("mean", "median")
CACHE_SHARE = 0.125  # of the memory left beside the arena, for draws that are kept
LATE_RUNS = 10  # runs repeated for one shard before it counts as failed
CLEAR_FACTOR = 2  # caches worth written between two runs: replacement is not exactly least recently used


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement; all of it goes on the card of the data."""

    device: str = "cpu"  # or "cuda", "cuda:1"
    batch: int = 0  # 0: the device's default
    optimizer: str = "rowwise_adagrad"
    dtype: str = "fp16"  # of the weights; pooled output is fp32
    statistic: str = "mean"  # of the runs that are kept; "median" is over all runs
    warmups: int = 5
    runs: int = 10
    drop: int = 2  # highest and lowest runs left out of the mean
    cold: bool = True  # False: one set of ids again and again, caches not cleared (to show the difference)
    arena_gb: float = 0.0  # memory for tables; 0: the device's default
    cache_gb: float = 0.0  # memory for draws that are kept; 0: an eighth of what the arena leaves
    production: bool = False  # stochastic rounding and FBGEMM's own check of ids, as it has them by default
    clock: str = "wall"  # of a CPU; "thread" leaves out the time that other processes took from ours

    def __post_init__(self) -> None:
        kind = self.device.partition(":")[0]
        for what, value, valid in (
            ("device", kind, BATCH),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("dtype", self.dtype, DTYPES),
            ("statistic", self.statistic, STATISTICS),
            ("clock", self.clock, CLOCKS),
        ):
            if value not in valid:
                raise UnknownName(what, value, valid)
        object.__setattr__(self, "batch", self.batch or BATCH[kind])
        positive = self.batch >= 1 and min(self.warmups, self.drop, self.arena_gb, self.cache_gb) >= 0
        if not positive or self.runs <= 2 * self.drop:
            raise SimulatorError(f"batch and memory must be positive and runs exceed 2 x drop, got {self}")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one shard, and their standard deviation over the runs that were kept."""

    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float
    repeated: int = 0  # runs that were done again, as the host was late
    run_ms: tuple[tuple[float, float], ...] = ()  # forward and backward of each run, warm-ups left out


class Bench:
    """Times shards one after the other, on one device, in memory taken once."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = s = settings or Settings()
        require(s.device)
        import torch

        self.device = torch.device(s.device)
        if self.device.index is not None:  # "cuda" is whichever is current, and torch refuses to set it
            torch.cuda.set_device(self.device)
        arena = int((s.arena_gb or default_arena_gb(s.device)) * GB)
        state = int(arena * STATE_SHARE)
        self.weights = Arena(s.device, DTYPES[s.dtype], arena - state)
        self.state = Arena(s.device, "float32", state)
        self.hold = Hold(s.device)
        self._dirt = torch.zeros(caches(s.device)["l3_bytes"] * CLEAR_FACTOR // 4, device=self.device)
        free = max(free_bytes(s.device) - arena, 0)
        self.ids = Ids(self.device, s.batch, s.cold, int(s.cache_gb * GB or free * CACHE_SHARE))

    def pinned(self, core: int | None) -> AbstractContextManager[None]:
        """One thread on one core, if this bench is a CPU's."""
        return pinned(self.settings.device, core)

    def machine(self) -> dict[str, Any]:
        """Hardware and versions that this bench stands on."""
        return machine(self.settings.device)

    def take_memory(self) -> None:
        """Take the arenas now, so that a device too small for them is told before anything is measured."""
        for arena in (self.weights, self.state):
            arena.buffer.numel()

    def alive(self) -> bool:
        """False once the device answers nothing any more, as after an illegal access on a GPU."""
        import torch

        try:
            return bool(torch.ones(1, device=self.device).item())
        except OP_FAILURES:
            return False

    def measure(self, tables: TablePool, seed: int = 0) -> Timing:
        """Time a shard of `tables` under traces of their own statistics; `seed` picks the ids."""
        import torch

        operator, rows = self.operator(tables), torch.tensor(tables.rows, device=self.device)
        return self.time(operator, rows, self.ids.sets(tables, np.random.default_rng([seed, len(tables)])))

    def operator(self, tables: TablePool) -> Any:
        """The fused operator of a shard, in the arena."""
        try:
            s = self.settings
            return make_operator(tables.rows, tables.dim, s.optimizer, self.weights, self.state, s.production)
        except OP_FAILURES as error:
            raise SimulatorError(self._failed(error)) from error

    def time(self, operator: Any, rows: torch.Tensor, sets: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Timing:
        """Time an operator on (indices, offsets) sets, one a run; a run that the host was late for is done again."""
        s = self.settings
        times: list[tuple[float, float]] = []
        late = 0
        try:
            while len(times) < s.warmups + s.runs:
                measured = len(times) >= s.warmups
                *passes, on_time = self._run(operator, rows, *next(sets), measured)
                if on_time or not measured:
                    times.append((passes[0], passes[1]))
                elif (late := late + 1) > LATE_RUNS:
                    raise SimulatorError(f"the host fills the queue of {s.device} too slowly: free its cores")
        except OP_FAILURES as error:
            raise SimulatorError(self._failed(error)) from error
        (forward, forward_spread), (backward, backward_spread) = (self._summary(t) for t in zip(*times, strict=True))
        return Timing(forward, backward, forward_spread, backward_spread, late, tuple(times[s.warmups :]))

    def _run(
        self, operator: Any, rows: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, measured: bool
    ) -> tuple[float, float, bool]:
        """Forward ms, backward ms, and whether the host was on time."""
        import torch

        s = self.settings
        check_trace(rows, s.batch, indices, offsets)
        gradient = torch.ones(s.batch, operator.total_D, device=self.device)
        if s.cold and measured:
            self._dirt.add_(1.0)  # reads and writes: a plain fill may go past the caches
        self.hold.begin()
        start = mark(s.device, s.clock)
        output = operator(indices, offsets)
        middle = mark(s.device, s.clock)
        output.backward(gradient)
        end = mark(s.device, s.clock)
        on_time = not self.hold.late(start)
        return elapsed_ms(start, middle), elapsed_ms(middle, end), on_time

    def _summary(self, times: tuple[float, ...]) -> tuple[float, float]:
        """Mean and standard deviation without the extremes, or the median of all."""
        s = self.settings
        measured = np.sort(times[s.warmups :])
        kept = measured[s.drop : len(measured) - s.drop]
        spread = float(kept.std(ddof=1)) if len(kept) > 1 else 0.0
        return float(np.median(measured) if s.statistic == "median" else kept.mean()), spread

    def _failed(self, error: BaseException) -> str:
        import torch

        device = self.settings.device
        if not self.alive():
            return f"{device} answers no more after: {error}"
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return f"FBGEMM failed on {device} with {free_bytes(device)} bytes free: {error}"


def check_trace(rows: torch.Tensor, batch: int, indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """Refuse what would make the operator read outside a table or a bag; FBGEMM itself is not asked to look.

    Table t's sample s looks up indices[offsets[t * batch + s]:offsets[t * batch + s + 1]].
    """
    import torch

    if len(offsets) != len(rows) * batch + 1:
        raise SimulatorError(f"{len(rows)} tables and {batch} samples need {len(rows) * batch + 1} offsets")
    if offsets[0] != 0 or offsets[-1] != len(indices) or (offsets.diff() < 0).any():
        raise SimulatorError(f"offsets must rise from 0 to {len(indices)}, the number of indices")
    starts = offsets[::batch].contiguous()  # of each table's lookups
    outside = (indices < 0) | (indices >= torch.repeat_interleave(rows, starts.diff()))
    if outside.any():
        first = int(outside.nonzero()[0])
        t = int(torch.searchsorted(starts, first, right=True)) - 1
        raise SimulatorError(f"table {t} has {int(rows[t])} rows, but its trace looks up row {int(indices[first])}")


class Fbgemm:
    """The measured simulator: each distinct shard of the placements is run for real, at the simulator's batch."""

    basis = "measured"

    def __init__(self, settings: Settings | None = None) -> None:
        self.bench = Bench(settings)
        self.id = simulator_id(self.bench.settings)

    def latency(self, task: Task, placements: np.ndarray) -> Latency:
        """Latencies of placements, int (..., N) with -1 for a table not placed; communication by the task's links."""
        placements = checked(task, placements)
        held = placements[..., None, :] == np.arange(task.num_devices)[:, None]  # (..., K, N)
        flat = held.reshape(-1, task.num_tables)
        shards, shard_of = np.unique(flat, axis=0, return_inverse=True)
        with pinned(self.bench.settings.device):
            timings = [self._timing(task, np.flatnonzero(shard)) for shard in shards]
        columns = np.array([(t.forward_ms, t.backward_ms, t.forward_spread, t.backward_spread) for t in timings])
        per_device = columns[shard_of.reshape(-1)].reshape(*held.shape[:-1], 4)
        forward, backward, *spreads = np.moveaxis(per_device, -1, 0) / np.array(task.speed)
        comm = self._comm(task, (held * task.tables.columns_sent).sum(axis=-1))
        return Latency(forward, comm, comm, backward, spread=np.hypot(*spreads))

    def _timing(self, task: Task, shard: np.ndarray) -> Timing:
        return self.bench.measure(task.tables.take(shard)) if len(shard) else Timing(0.0, 0.0, 0.0, 0.0)

    def _comm(self, task: Task, dims: np.ndarray) -> np.ndarray:
        if task.objective == "kernel":
            return np.zeros(dims.shape)
        if task.links is None:
            raise SimulatorError(f"{self.id} measures computation only: give the task links for its all-to-all")
        return task.links.all_to_all_ms(dims, self.bench.settings.batch)


def make_fbgemm(device: str) -> Fbgemm:
    """The operator at hand with default settings; needs torch and FBGEMM."""
    return Fbgemm(Settings(device=device))


def simulator_id(settings: Settings) -> str:
    """ "fbgemm:cpu" for the defaults; another batch, optimizer or dtype is another simulator and says so."""
    defaults = Settings(device=settings.device)
    changed = [f"-b{settings.batch}"] if settings.batch != defaults.batch else []
    kept = [(getattr(settings, f), getattr(defaults, f)) for f in ("optimizer", "dtype")]
    changed += [f"-{ours}" for ours, default in kept if ours != default]
    changed += ["-warm"] * (not settings.cold) + ["-production"] * settings.production
    return f"fbgemm:{settings.device.partition(':')[0]}{''.join(changed)}"
