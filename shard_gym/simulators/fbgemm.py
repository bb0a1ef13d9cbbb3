"""What a shard costs on the hardware at hand: FBGEMM's fused operator, run and timed.

Algorithms 2 and 3 of AutoShard: warm-up runs, measured runs, the extremes dropped, the mean of the rest; forward and
backward apart. Every run looks up fresh ids and starts from cleared caches.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.simulators.base import Latency, checked
from shard_gym.simulators.host import CLOCKS, cache_bytes, elapsed_ms, mark, pinned
from shard_gym.simulators.operator import (
    DTYPES,
    OP_FAILURES,
    OPTIMIZERS,
    Arena,
    check_trace,
    free_bytes,
    make_operator,
    require,
)
from shard_gym.tables import GB, TablePool
from shard_gym.tasks import Task
from shard_gym.traces import draws, scatter

if TYPE_CHECKING:
    import torch

BATCH = {"cpu": 2_048, "cuda": 65_536}
ARENA_GB = {"cpu": 4.0, "cuda": 8.0}  # a table of 12.5 M rows and 128 columns has 3.2 GB
STATE_SHARE = 0.125  # of the arena for the optimizer's 4 bytes a row
STATISTICS = ("mean", "median")
DRAWS = 4  # batches drawn of a table; runs take them in turn, each time with new ids
CACHED_LOOKUPS = 2**29  # ranks kept in host memory, 4 bytes each
CLEAR_FACTOR = 2  # caches worth written between two runs: replacement is not exactly least recently used


@dataclass(frozen=True)
class Settings:
    """How shards are measured; all of it goes on the card of the data."""

    device: str = "cpu"  # or "cuda", "cuda:1"
    batch: int = 0  # 0: the device's default
    optimizer: str = "rowwise_adagrad"
    dtype: str = "fp16"  # of the weights; pooled output is fp32
    statistic: str = "mean"  # of the runs that are kept; "median" is over all runs
    warmups: int = 5
    runs: int = 10
    drop: int = 2  # highest and lowest runs left out of the mean
    cold: bool = True  # False: one set of ids again and again, caches not cleared (to show the difference)
    arena_gb: float = 0.0  # 0: the device's default
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
        object.__setattr__(self, "arena_gb", self.arena_gb or ARENA_GB[kind])
        if self.batch < 1 or self.warmups < 0 or self.runs <= 2 * self.drop or self.drop < 0 or self.arena_gb < 0:
            raise SimulatorError(f"batch and memory must be positive and runs exceed 2 x drop, got {self}")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one shard, and their standard deviation over the runs that were kept."""

    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float


class Bench:
    """Times shards one after the other, on one device, in memory taken once."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = s = settings or Settings()
        require(s.device)
        import torch

        self.device = torch.device(s.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        state = int(s.arena_gb * GB * STATE_SHARE)
        self.weights = Arena(s.device, DTYPES[s.dtype], int(s.arena_gb * GB) - state)
        self.state = Arena(s.device, "float32", state)
        self._dirt = torch.zeros(cache_bytes(s.device) * CLEAR_FACTOR // 4, device=self.device)
        self._draws: OrderedDict[bytes, list[tuple[torch.Tensor, torch.Tensor]]] = OrderedDict()
        self._drawn = 0

    def measure(self, tables: TablePool, seed: int = 0) -> Timing:
        """Time a shard of `tables` under traces of their own statistics; `seed` picks the ids."""
        operator = self.operator(tables)
        rows = torch_tensor(tables.rows, self.device)
        sets = self._index_sets(tables, np.random.default_rng([seed, len(tables)]))
        return self.time(operator, rows, sets)

    def operator(self, tables: TablePool) -> Any:
        """The fused operator of a shard, in the arena."""
        try:
            return make_operator(tables.rows, tables.dim, self.settings.optimizer, self.weights, self.state)
        except OP_FAILURES as error:
            raise SimulatorError(self._failed(error)) from error

    def time(self, operator: Any, rows: torch.Tensor, sets: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Timing:
        """Time an operator on (indices, offsets) sets, one a run."""
        s = self.settings
        try:
            times = [self._run(operator, rows, *next(sets), measured=i >= s.warmups) for i in range(s.warmups + s.runs)]
        except OP_FAILURES as error:
            raise SimulatorError(self._failed(error)) from error
        (forward, forward_spread), (backward, backward_spread) = (self._summary(t) for t in zip(*times, strict=True))
        return Timing(forward, backward, forward_spread, backward_spread)

    def _run(
        self, operator: Any, rows: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, measured: bool
    ) -> tuple[float, float]:
        s = self.settings
        check_trace(rows, s.batch, indices, offsets)
        gradient = self._gradient(operator.total_D)
        if s.cold and measured:
            self._dirt.add_(1.0)  # reads and writes: a plain fill may go past the caches
        start = mark(s.device, s.clock, hold=True)
        output = operator(indices, offsets)
        middle = mark(s.device, s.clock)
        output.backward(gradient)
        end = mark(s.device, s.clock)
        return elapsed_ms(start, middle), elapsed_ms(middle, end)

    def _gradient(self, columns: int) -> torch.Tensor:
        import torch

        return torch.ones(self.settings.batch, columns, device=self.device)

    def _summary(self, times: tuple[float, ...]) -> tuple[float, float]:
        """(mean, standard deviation) without the extremes, or the median of all."""
        s = self.settings
        measured = np.sort(times[s.warmups :])
        kept = measured[s.drop : len(measured) - s.drop]
        spread = float(kept.std(ddof=1)) if len(kept) > 1 else 0.0
        return float(np.median(measured) if s.statistic == "median" else kept.mean()), spread

    def _index_sets(self, tables: TablePool, rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Endless (indices, offsets) of a shard, made just before each run and outside the timed region."""
        import torch

        drawn = [self._drawn_of(tables, t) for t in range(len(tables))]
        turns = [self._fused([d[i % len(d)] for d in drawn]) for i in range(max(map(len, drawn)))]
        turn = int(rng.integers(len(turns)))
        while True:
            ranks, offsets, ends = turns[turn % len(turns)]
            indices = torch.empty_like(ranks)
            for t, rows in enumerate(tables.rows.tolist()):
                step, shift = scatter(rng, rows)
                inside = slice(ends[t], ends[t + 1])
                torch.mul(ranks[inside], step, out=indices[inside])
                indices[inside].add_(shift).remainder_(rows)
            while not self.settings.cold:
                yield indices, offsets
            yield indices, offsets
            turn += 1

    def _fused(self, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Ranks and offsets of all tables one after the other, on the device, and where each table's ranks end."""
        import torch

        ends = np.cumsum([0, *(len(ranks) for ranks, _ in parts)]).tolist()
        ranks = torch.cat([r for r, _ in parts]).to(self.device).long()
        tails = [offsets[1:] + start for (_, offsets), start in zip(parts, ends[:-1], strict=True)]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), *tails]).to(self.device)
        return ranks, offsets, ends

    def _drawn_of(self, tables: TablePool, t: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draws of one table, kept for the next shard that holds it."""
        key = b"".join(getattr(tables, c)[t].tobytes() for c in ("rows", "pooling", "distinct", "uses", "accesses"))
        key += tables.name[t].encode()
        if key in self._draws:
            self._draws.move_to_end(key)
            return self._draws[key]
        count = max(1, min(DRAWS, tables.reference_batch // self.settings.batch))
        made = draws(tables.take([t]), 0, self.settings.batch, count, zlib.crc32(key))
        self._draws[key] = [(torch_tensor(r), torch_tensor(o)) for r, o in made]
        self._drawn += sum(len(r) for r, _ in made)
        while self._drawn > CACHED_LOOKUPS and len(self._draws) > 1:
            _, oldest = self._draws.popitem(last=False)
            self._drawn -= sum(len(r) for r, _ in oldest)
        return self._draws[key]

    def _failed(self, error: BaseException) -> str:
        import torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return f"FBGEMM failed on {self.settings.device} with {free_bytes(self.settings.device)} bytes free: {error}"


class Fbgemm:
    """The measured simulator: each distinct shard of the placements is run for real, at the simulator's batch."""

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


def simulator_id(settings: Settings) -> str:
    """ "fbgemm:cpu" for the defaults; another batch, optimizer or dtype is another simulator and says so."""
    defaults = Settings(device=settings.device)
    changed = [f"-b{settings.batch}"] if settings.batch != defaults.batch else []
    kept = [(getattr(settings, f), getattr(defaults, f)) for f in ("optimizer", "dtype", "cold")]
    changed += [f"-{ours if isinstance(ours, str) else 'warm'}" for ours, default in kept if ours != default]
    return f"fbgemm:{settings.device.partition(':')[0]}{''.join(changed)}"


def torch_tensor(array: np.ndarray, device: Any = "cpu") -> torch.Tensor:
    """A copy of the array as a tensor on the device."""
    import torch

    return torch.tensor(array, device=device)
