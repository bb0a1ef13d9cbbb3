"""What is known of a plan, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from shard_gym.bridge.storage_reserves import Reserve
from shard_gym.bridge.storage_shards import KERNELS, Setup
from shard_gym.errors import InvalidTask
from shard_gym.stats.imbalance import Imbalance, imbalance
from shard_gym.tasks import Task

SCHEMA = "shard-gym/stats/1"
PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
ESTIMATES = ("perf", "torchrec")  # what a rank takes: by a simulator, and by TorchRec's estimate
TIERS = 5  # of peak memory that are told
ALIKE = 2**20  # bytes by which the ranks of a tier differ at most


@dataclass(frozen=True)
class Budget:
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

    def capacity(self, task: Task) -> tuple[int, ...]:
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

    @property
    def total(self) -> float:
        """One after the other."""
        return self.forward_compute + self.forward_comm + self.backward_comm + self.backward_compute

    def to_dict(self) -> dict[str, float]:
        """Each phase, and the total."""
        return asdict(self) | {"total": self.total}


@dataclass(frozen=True)
class Rank:
    """What one rank holds and does."""

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

    @property
    def margin_bytes(self) -> int:
        """HBM that is still free; negative where the rank is over."""
        return self.hbm_capacity - self.hbm_bytes

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return asdict(self) | _told(self) | {"margin_bytes": self.margin_bytes}


@dataclass(frozen=True)
class TableStats:
    """How one table is sharded, and what it takes on all its ranks."""

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
    torchrec: Phases | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return asdict(self) | {"torchrec": None if self.torchrec is None else self.torchrec.to_dict()}


@dataclass(frozen=True)
class Slowest:
    """What a phase takes, and the ranks that it waits for."""

    ms: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Stats:
    """The report as values; `to_dict` is what `shard-gym stats --json` prints."""

    accounting: str
    objective: str
    simulator: str | None
    makespan: float | None  # ms, by the simulator and objective
    setup: Setup
    budget: Budget
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
        """Of each rank; none where they are not known."""
        return [phases for rank in self.ranks if (phases := getattr(rank, which)) is not None]

    def imbalance(self) -> dict[str, Imbalance]:
        """Of each load that there is."""
        return {name: found for name, load in self.loads().items() if (found := imbalance(load))}

    def critical_path(self, which: str) -> dict[str, Slowest]:
        """The slowest ranks of each phase: where all wait for each other after each, a step takes the sum."""
        of_ranks = self.phases(which)
        return {name: _slowest([getattr(p, name) for p in of_ranks]) for name in PHASES} if of_ranks else {}

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
        return {
            kernel: {
                "tables": len(own),
                "hbm_bytes": sum(t.hbm_bytes for t in own),
                "ddr_bytes": sum(t.ddr_bytes for t in own),
            }
            for kernel in KERNELS
            if (own := [t for t in self.tables if t.kernel == kernel])
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-ready, schema `shard-gym/stats/1`."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in ("accounting", "objective", "simulator")},
            "makespan_ms": self.makespan,
            "feasible": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "setup": asdict(self.setup) | {"global_batch": self.setup.batch * self.setup.world_size},
            "budget": self.budget.to_dict(),
            "ranks": [rank.to_dict() for rank in self.ranks],
            "tables": [table.to_dict() for table in self.tables],
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


def _told(rank: Rank) -> dict[str, dict[str, float] | None]:
    return {which: None if (p := getattr(rank, which)) is None else p.to_dict() for which in ESTIMATES}
