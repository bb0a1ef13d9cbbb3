"""Numbers of a plan: ranks, tables, phases, and the memory that its devices have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.memory.shards import DEVICES, ID_BYTES, KERNELS, Setup, Table
from shard_gym.task.task import Task
from shard_gym.torchrec.imbalance import Imbalance, imbalance

if TYPE_CHECKING:
    from torch import nn

SCHEMA = "shard-gym/stats/1"
PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
COMM = PHASES[1:3]
ESTIMATES = ("perf", "torchrec")  # what a rank takes: by a simulator, and by TorchRec's estimate
TIERS = 5  # of peak memory that are told
ALIKE = 2**20  # bytes by which the ranks of a tier differ at most
DENSE_COPIES = 6  # of dense parameters in training: themselves, 2 of the optimizer's, 3 of distributed training's
KJT_COPIES = 20  # of a batch's ids: 2 batches under way, 10 copies each


@dataclass(frozen=True)
class Reserve:
    """Memory of each device that is not for tables: a share of it, and bytes besides.

    They are those of `torchrec.distributed.planner.storage_reservations`:

    | TorchRec | here |
    |---|---|
    | `FixedPercentageStorageReservation(p)` | `Reserve(share=p)` |
    | `FixedAbsoluteStorageReservation(bytes)` | `Reserve(fixed_bytes=bytes)` |
    | `HeuristicalStorageReservation(p)` | `Reserve(p, dense_bytes(model, collections), kjt_bytes(tables, batch))` |
    | `InferenceStorageReservation(p)` | the same, both with `inference=True` |
    """

    share: float = 0.0  # of HBM; TorchRec takes no share of a host's memory
    dense_bytes: int = 0
    kjt_bytes: int = 0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidTask(f"a reserve is a share of memory from 0 to 1, got {self.share}")

    def left(self, memory_bytes: int, device: str = "cuda") -> int:
        """Bytes of a device left for its tables; below 0, the bytes that are missing for the reserve itself."""
        if device not in DEVICES:
            raise UnknownName("device", device, DEVICES)
        if device == "cuda":
            memory_bytes = int((1 - self.share) * memory_bytes)
            memory_bytes = max(0, memory_bytes - self.fixed_bytes) if self.fixed_bytes else memory_bytes
        return memory_bytes - self.dense_bytes - self.kjt_bytes


@dataclass(frozen=True)
class Capacity:
    """Memory of each device, and what of it is not for tables."""

    hbm_bytes: int | None = None  # None: what the task says, reserves already taken off
    ddr_bytes: int | None = None  # a rank's share of its host's memory; None: not told, and not checked
    reserve: Reserve = field(default_factory=Reserve)

    def __post_init__(self) -> None:
        for name in ("hbm_bytes", "ddr_bytes"):
            if (given := getattr(self, name)) is not None and given <= 0:
                raise InvalidTask(f"{name} must be positive, got {given}")
        if self.hbm_bytes is None and self.reserve != Reserve():
            raise InvalidTask("of a task's memory reserves are taken off already: say hbm_bytes to take them off that")
        if self.hbm_bytes is not None and (left := self.reserve.left(self.hbm_bytes)) <= 0:
            raise InvalidTask(f"reserves leave nothing of {self.hbm_bytes:,} bytes of HBM: {1 - left:,} bytes too few")

    def left(self, task: Task) -> tuple[int, ...]:
        """Bytes of each rank's HBM that are left for tables."""
        if self.hbm_bytes is None:
            return task.memory
        return (self.reserve.left(self.hbm_bytes),) * task.num_devices

    def to_dict(self) -> dict[str, Any]:
        """Every part of it, bytes."""
        share = 0 if self.hbm_bytes is None else self.hbm_bytes - int((1 - self.reserve.share) * self.hbm_bytes)
        told = {"hbm_bytes": self.hbm_bytes, "ddr_bytes": self.ddr_bytes, "share_bytes": share}
        return told | asdict(self.reserve)


@dataclass(frozen=True)
class Phases:
    """Milliseconds of one step."""

    forward_compute: float
    forward_comm: float
    backward_comm: float
    backward_compute: float
    total: float = field(init=False)  # one after the other

    def __post_init__(self) -> None:
        total = self.forward_compute + self.forward_comm + self.backward_comm + self.backward_compute
        object.__setattr__(self, "total", total)


@dataclass(frozen=True)
class Rank:
    """Bytes and times of one rank."""

    rank: int
    hbm_bytes: int  # of its shards
    hbm_capacity: int  # left for shards, reserves taken off
    ddr_bytes: int
    ddr_capacity: int | None
    input_bytes: int  # of one batch
    output_bytes: int
    shards: dict[str, int]  # by kind
    perf: Phases | None = None
    torchrec: Phases | None = None
    torchrec_comm: dict[str, tuple[float, float]] = field(default_factory=dict)  # ms of each kind, forward and backward

    @property
    def margin_bytes(self) -> int:
        """HBM that is still free; negative where the rank is over."""
        return self.hbm_capacity - self.hbm_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"margin_bytes": self.margin_bytes}


@dataclass(frozen=True)
class TableStats:
    """Sharding of one table, and what it takes on all its ranks."""

    name: str
    kind: str
    kernel: str
    rows: int
    dim: int
    pooling: float  # ids a sample, of all its features
    ranks: tuple[int, ...]  # of its shards
    shard_sizes: tuple[tuple[int, int], ...]  # rows and columns of each
    hbm_bytes: int
    ddr_bytes: int
    input_bytes: int
    output_bytes: int
    pieces: int  # of its columns
    share: float  # of its rows in HBM: 1, 0, or that of its cache
    bags: float  # pooled rows a sample gets, or sequences, of all its features
    weighted: bool  # ids have weights
    sharder: str  # TorchRec's, of collections of such tables
    batches: tuple[int, ...]  # samples of a rank, of each feature; empty where all have the setup's
    torchrec: Phases | None = None


@dataclass(frozen=True)
class Slowest:
    """Time of a phase, and the ranks that it waits for."""

    ms: float
    ranks: tuple[int, ...]
    kinds: dict[str, Slowest] = field(default_factory=dict)  # where ranks wait after each kind


@dataclass(frozen=True)
class Stats:
    """The report as values; `to_dict` is what `shard-gym stats --json` prints."""

    accounting: str
    objective: str
    simulator: str | None
    makespan: float | None  # ms, by the simulator and objective
    setup: Setup
    capacity: Capacity
    ranks: tuple[Rank, ...]
    tables: tuple[TableStats, ...]
    problems: tuple[str, ...]  # why the plan cannot be used; empty where it can
    notes: tuple[str, ...]  # what is not told, and why

    def loads(self) -> dict[str, list[float]]:
        """One number a rank: total ms of each estimate, and bytes."""
        found = {
            which: [phases.total for phases in of_ranks] for which in ESTIMATES if (of_ranks := self.phases(which))
        }
        return found | {name: [float(getattr(r, f"{name}_bytes")) for r in self.ranks] for name in ("hbm", "ddr")}

    def phases(self, which: str) -> list[Phases]:
        """Phases of each rank; none where they are not known."""
        return [phases for rank in self.ranks if (phases := getattr(rank, which)) is not None]

    def imbalance(self) -> dict[str, Imbalance]:
        """Imbalance of each load that there is."""
        return {name: found for name, load in self.loads().items() if (found := imbalance(load))}

    def critical_path(self, which: str) -> dict[str, Slowest]:
        """The slowest ranks of each phase: where all wait for each other after each, a step takes the sum.

        By TorchRec they wait after the communication of each kind of sharding too, as its `EmbeddingStats` has it
        of one collection.
        """
        of_ranks = self.phases(which)
        if not of_ranks:
            return {}
        found = {name: _slowest([getattr(p, name) for p in of_ranks]) for name in PHASES}
        for there_or_back, name in enumerate(COMM if which == "torchrec" else ()):
            found[name] = self._of_kinds(there_or_back) or found[name]
        return found

    def _of_kinds(self, there_or_back: int) -> Slowest | None:
        """The slowest ranks of each kind of communication, one kind after the other; None if nothing is sent."""
        kinds = dict.fromkeys(kind for rank in self.ranks for kind in rank.torchrec_comm)
        each = {k: _slowest([r.torchrec_comm.get(k, (0.0, 0.0))[there_or_back] for r in self.ranks]) for k in kinds}
        each = {kind: slowest for kind, slowest in each.items() if slowest.ms}
        ranks = sorted({rank for slowest in each.values() for rank in slowest.ranks})
        return Slowest(sum(slowest.ms for slowest in each.values()), tuple(ranks), each) if each else None

    def peak(self) -> list[tuple[int, tuple[int, ...]]]:
        """The fullest HBM, a few tiers of it: bytes, and the ranks that hold as much but for a megabyte."""
        left = [(r.hbm_bytes, r.rank) for r in self.ranks]
        tiers: list[tuple[int, tuple[int, ...]]] = []
        while left and len(tiers) < TIERS:
            most, _ = max(left)
            tiers.append((most, tuple(rank for size, rank in left if most - size <= ALIKE)))
            left = [(size, rank) for size, rank in left if most - size > ALIKE]
        return tiers

    def kernels(self) -> dict[str, dict[str, int]]:
        """Tables and bytes of each compute kernel that is used."""
        found = {}
        for kernel in KERNELS:
            if own := [t for t in self.tables if t.kernel == kernel]:
                hbm, ddr = sum(t.hbm_bytes for t in own), sum(t.ddr_bytes for t in own)
                found[kernel] = {"tables": len(own), "hbm_bytes": hbm, "ddr_bytes": ddr}
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, schema `shard-gym/stats/1`."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in ("accounting", "objective", "simulator")},
            "makespan_ms": self.makespan,
            "feasible": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "setup": asdict(self.setup) | {"global_batch": self.setup.batch * self.setup.world_size},
            "budget": self.capacity.to_dict(),
            "ranks": [rank.to_dict() for rank in self.ranks],
            "tables": [asdict(table) for table in self.tables],
            "kernels": self.kernels(),
            "imbalance": {name: asdict(found) for name, found in self.imbalance().items()},
            "peak": [{"hbm_bytes": size, "ranks": list(ranks)} for size, ranks in self.peak()],
            "critical_path": {
                which: {"ms": sum(s.ms for s in path.values()), **{name: asdict(s) for name, s in path.items()}}
                for which in ESTIMATES
                if (path := self.critical_path(which))
            },
        }


def _slowest(ms: list[float]) -> Slowest:
    return Slowest(max(ms), tuple(rank for rank, took in enumerate(ms) if took == max(ms)))


def dense_bytes(model: nn.Module, collections: Iterable[nn.Module], inference: bool = False) -> int:
    """Bytes of all parameters outside the embedding collections, several copies in training, and of all buffers."""
    copies, held = 1 if inference else DENSE_COPIES, 0
    for sign, part in ((1, model), *((-1, collection) for collection in collections)):
        held += sign * copies * sum(p.numel() * p.element_size() for p in part.parameters())
        held += sign * sum(b.numel() * b.element_size() for b in part.buffers())
    return held


def kjt_bytes(tables: Sequence[Table], batch: int, inference: bool = False) -> int:
    """Bytes of the ids of one rank's samples, several copies in training."""
    told = [(feature.pooling, feature.batch or batch) for table in tables for feature in table.features]
    ids = sum(pooling * samples for pooling, samples in told)
    return math.ceil(ids * float(ID_BYTES)) * (1 if inference else KJT_COPIES)
