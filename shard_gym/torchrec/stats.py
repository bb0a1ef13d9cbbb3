"""Statistics of a task and its plan, the report's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import groupby
from typing import Any

import numpy as np

from shard_gym.errors import InvalidPlan, InvalidTask, UnknownName
from shard_gym.memory.shards import CACHED, IN_UVM, Feature, Setup, Shards, Table, Tables, cut, shards_of
from shard_gym.memory.storage import storage
from shard_gym.memory.terms import Step, number
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import broken_constraints, forbidden
from shard_gym.simulators import Simulator
from shard_gym.simulators.base import latency_of
from shard_gym.simulators.torchrec import estimate
from shard_gym.task.task import Constraints, Task
from shard_gym.torchrec.values import PHASES, Capacity, Phases, Rank, Stats, TableStats

NEAR = 5  # names that are told where one is not known
SCHEMA = "shard-gym/explanation/1"
UNITS = {"sent": "bytes", "read and written": "bytes", "copy": "bytes", "rate": "bytes a ms"}  # of steps; else ms


@dataclass(frozen=True, eq=False)
class PlanShards:
    """The shards of a plan, table by table."""

    tables: tuple[Table, ...]
    kinds: tuple[str, ...]  # of each table
    shards: Shards


def plan_stats(
    task: Task,
    plan: Plan,
    simulator: Simulator | None = None,
    *,
    accounting: str | None = None,
    tables: Sequence[Table] | None = None,
    setup: Setup | None = None,
    capacity: Capacity | None = None,
) -> Stats:
    """The report on a plan. `tables` and `setup` say what a task cannot: kernels, features, sequences, a pipeline.

    Bytes are counted by the task's accounting unless told.
    """
    setup, capacity, accounting = setup or Setup.of(task), capacity or Capacity(), accounting or task.accounting
    placed = plan_shards(task, plan, tables or tables_of(task), setup)
    of_task = shards(task, plan, devices_per_host=setup.local_world_size)
    found, notes = storage(placed.shards, setup, accounting), _not_modelled(task, placed, of_task)
    size = np.stack([found.hbm.bytes, found.ddr.bytes, found.input, found.output], axis=1)
    latency = None
    if simulator is not None and not notes:
        try:
            latency = latency_of(simulator, task, plan, of_task)
        except InvalidPlan as error:
            notes = (f"no time is told but TorchRec's: {error}",)
    ours = None if latency is None else np.stack([getattr(latency, phase) for phase in PHASES], axis=-1)
    theirs = estimate(placed.shards, setup).phases[:, [0, 1, 3, 2]]  # in the order of PHASES
    perfs = (ours, _sums(theirs, placed.shards.device, task.num_devices))
    comm = _comm_of_kinds(theirs[:, 1:3], placed.shards, task.num_devices)
    ranks = tuple(_ranks(task, placed, size, perfs, comm, capacity))
    other = forbidden(task, plan, placed.shards)
    chosen = task.kinds or task.constraints.kinds or task.residences != ("hbm",)  # what the plan has was thought of
    return Stats(
        accounting=accounting,
        objective=task.objective,
        simulator=None if simulator is None else simulator.id,
        makespan=None if latency is None else float(latency.makespan(task.objective)),
        setup=setup,
        capacity=capacity,
        ranks=ranks,
        tables=tuple(_tables(task, placed, size, theirs, setup.batch)),
        problems=(*_over(ranks), *(other if chosen else ()), *broken_constraints(task, plan)),
        notes=notes if chosen else (*notes, *other[:1]),
    )


def tables_of(task: Task, kernel: str = "fused", sequence: bool = False) -> tuple[Table, ...]:
    """A task's tables as TorchRec sees them: of one feature each, with all its bags; `sequence`: none pools."""
    t = task.tables
    bags = t.bags.astype(np.float64)
    ids = t.pooling / np.where(bags > 0, bags, 1.0)  # of one bag
    features = ((Feature(*feature),) for feature in zip(ids.tolist(), bags.tolist(), strict=True))
    columns = zip(t.rows.tolist(), t.dim.tolist(), t.element_bytes.tolist(), features, strict=True)
    pooled = np.zeros_like(t.pooled) if sequence else t.pooled
    how = zip(pooled.tolist(), t.weighted.tolist(), task.optimizers.tolist(), strict=True)
    return tuple(
        Table(*column, pooled=pools, weighted=weighted, optimizer=optimizer, kernel=kernel)
        for column, (pools, weighted, optimizer) in zip(columns, how, strict=True)
    )


def plan_shards(task: Task, plan: Plan, tables: Sequence[Table], setup: Setup) -> PlanShards:
    """The shards that TorchRec makes of a plan; copies (dp) are looked up by the dense kernel."""
    if setup.device != "cuda" or setup.world_size != task.num_devices:
        found = f"{setup.world_size} of {setup.device}"
        raise InvalidTask(f"the report is on the task's {task.num_devices} CUDA devices, the setup has {found}")
    if len(tables) != task.num_tables:
        raise InvalidTask(f"the task has {task.num_tables} tables, {len(tables)} were given")
    placed = shards(task, plan, Tables.of(tables, setup), setup.local_world_size)
    first = placed.take(np.searchsorted(placed.table, np.arange(task.num_tables)))
    kept = zip(tables, first.of.kernel.tolist(), first.of.cache_load_factor.tolist(), strict=True)
    seen = tuple(replace(table, kernel=kernel, cache_load_factor=load) for table, kernel, load in kept)
    return PlanShards(seen, tuple(first.kind.tolist()), placed)


def _not_modelled(task: Task, placed: PlanShards, of_task: Shards) -> tuple[str, ...]:
    """Note what the task does not say: then only TorchRec's estimate is told, as a part of the time would mislead."""
    kernels = zip(placed.shards.of.kernel.tolist(), of_task.of.kernel.tolist(), strict=True)
    odd = {
        **{f"kernel {kernel}": True for kernel, known in kernels if kernel != known},
        "sequences": [t.pooled for t in placed.tables] != task.tables.pooled.tolist(),
        "weighted ids": [t.weighted for t in placed.tables] != task.tables.weighted.tolist(),
    }
    found = [what for what, is_odd in odd.items() if is_odd]
    features = zip((t.features for t in placed.tables), task.tables.bags, strict=True)
    if any(len(told) > 1 or told[0].poolings != bags or told[0].batch for told, bags in features):
        found.append("several features, or bags or batches of their own")
    return (f"no time is told but TorchRec's, as simulators here do not model: {', '.join(found)}",) if found else ()


def _sums(values: np.ndarray, rank: np.ndarray, ranks: int) -> np.ndarray:
    """Sum each rank's shards: (S, P) -> (K, P)."""
    sums = np.zeros((ranks, values.shape[1]), values.dtype)
    np.add.at(sums, rank, values)
    return sums


def _comm_of_kinds(ms: np.ndarray, shards: Shards, ranks: int) -> dict[str, list[tuple[float, float]]]:
    """Communication of each kind on each rank, forward and backward: (S, 2) -> (K, 2) each."""
    found = {}
    for kind in dict.fromkeys(shards.kind.tolist()):
        own = shards.kind == kind
        found[kind] = [(there, back) for there, back in _sums(ms[own], shards.device[own], ranks).tolist()]
    return found


def _ranks(
    task: Task,
    placed: PlanShards,
    size: np.ndarray,
    perfs: Sequence[np.ndarray | None],
    comm: dict[str, list[tuple[float, float]]],
    capacity: Capacity,
) -> Iterator[Rank]:
    counts = [Counter[str]() for _ in range(task.num_devices)]
    for rank, kind in zip(placed.shards.device.tolist(), placed.shards.kind.tolist(), strict=True):
        counts[rank][kind] += 1
    hbm_capacity = capacity.left(task)
    for rank, (hbm, ddr, ids, output) in enumerate(_sums(size, placed.shards.device, task.num_devices).tolist()):
        perf, torchrec = (None if of_ranks is None else Phases(*of_ranks[rank].tolist()) for of_ranks in perfs)
        memory = (hbm, hbm_capacity[rank], ddr, capacity.ddr_bytes or task.host_memory or None)
        of_kinds = {kind: of_ranks[rank] for kind, of_ranks in comm.items() if kind in counts[rank]}
        yield Rank(rank, *memory, ids, output, dict(sorted(counts[rank].items())), perf, torchrec, of_kinds)


def _tables(task: Task, placed: PlanShards, size: np.ndarray, theirs: np.ndarray, samples: int) -> Iterator[TableStats]:
    shards, n = placed.shards, task.num_tables
    sums, perf = _sums(size, shards.table, n), _sums(theirs, shards.table, n)
    first = np.searchsorted(shards.table, np.arange(n + 1))
    for t, (table, kind) in enumerate(zip(placed.tables, placed.kinds, strict=True)):
        own = slice(first[t], first[t + 1])
        yield TableStats(
            name=task.tables.name[t],
            kind=kind,
            kernel=table.kernel,
            rows=table.rows,
            dim=table.dim,
            pooling=sum(f.pooling * f.poolings for f in table.features),
            ranks=tuple(placed.shards.device[own].tolist()),
            shard_sizes=tuple(zip(shards.rows[own].tolist(), shards.dim[own].tolist(), strict=True)),
            **dict(zip(("hbm_bytes", "ddr_bytes", "input_bytes", "output_bytes"), sums[t].tolist(), strict=True)),
            pieces=len(set(shards.column[own].tolist())),
            share=table.cache_load_factor if table.kernel in CACHED else float(table.kernel not in IN_UVM),
            bags=sum(f.poolings for f in table.features),
            weighted=table.weighted,
            sharder=f"Embedding{'Bag' * table.pooled}CollectionSharder",
            batches=tuple(f.batch or samples for f in table.features) if any(f.batch for f in table.features) else (),
            torchrec=Phases(*perf[t].tolist()),
        )


def _over(ranks: Sequence[Rank]) -> Iterator[str]:
    for r in ranks:
        for kind, used, capacity in (("HBM", r.hbm_bytes, r.hbm_capacity), ("DDR", r.ddr_bytes, r.ddr_capacity)):
            if capacity is not None and used > capacity:
                yield f"rank {r.rank} needs {used:,} bytes of {kind}, has {capacity:,}: {used - capacity:,} too few"


@dataclass(frozen=True)
class Explanation:
    """The first shard of a table, step by step, and what all shards take."""

    table: str
    kind: str
    shards: int
    rows: int  # of the first shard
    dim: int
    accounting: str
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, schema `shard-gym/explanation/1`."""
        return {"schema": SCHEMA} | asdict(self)

    def text(self) -> str:
        """A line a step, and one for its formula."""
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        lines = [f"{self.table}: {self.kind}, {shards}, the first of {self.rows:,} rows x {self.dim:,} columns; "]
        lines[0] += f"bytes as {self.accounting!r} counts them"
        wide = max(len(step.name) for step in self.steps)
        for step in self.steps:
            value = number(step.value) if step.value == int(step.value) else f"{step.value:.6g}"
            lines += [f"  {step.name:{wide}} = {value} {step.unit}", f"  {'':{wide}}   = {step.numbers}"]
            lines += [f"  {'':{wide}}     {step.formula}"] if step.formula else []
        return "\n".join(lines)


def explain(
    table: Table,
    kind: str,
    setup: Setup,
    *,
    name: str = "table",
    accounting: str = "torchrec",
    sizes: Sequence[tuple[int, int]] | None = None,
) -> Explanation:
    """One table, sharded in one way; `sizes` are rows and columns of its shards, as TorchRec cuts it unless told."""
    sizes = sizes or cut(table, kind, setup.world_size, setup.local_world_size)
    shards = shards_of([table], [kind], [sizes], setup)
    found = storage(shards, setup, accounting)
    told = found.steps()
    for where, memory in (("HBM", found.hbm), ("DDR", found.ddr)):
        each = memory.bytes.tolist()
        if any(each):
            told.append(Step(f"{where} of all shards", "", _runs(each), sum(each)))
    told += perf_steps(shards, setup)
    return Explanation(name, kind, len(sizes), *sizes[0], accounting, tuple(told))


def table_index(task: Task, name: str) -> int:
    """Find a table by its name, or by its index; a name wins. Near names are told where there is none."""
    names = task.tables.name
    if name in names:
        if (times := names.count(name)) > 1:
            raise InvalidTask(f"{times} tables are called {name!r}: give an index, the first is {names.index(name)}")
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    near = get_close_matches(name, names, NEAR, cutoff=0.4) or names[:NEAR]
    raise UnknownName("table", name, [*near, f"an index below {len(names)}"])


def perf_steps(shards: Shards, setup: Setup) -> Iterator[Step]:
    """TorchRec's estimate of the first shard; what comes to nothing is left out."""
    for term in estimate(shards, setup).steps:
        if term.at(0):
            yield Step.of(term, unit=UNITS.get(term.name, "ms"))


def _runs(sizes: list[int]) -> str:
    """96 equal numbers and a smaller one as `96 x 5 + 4`."""
    runs = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return " + ".join(f"{count} x {size:,}" if count > 1 else f"{size:,}" for size, count in runs)


def alone(task: Task, table: int, columns: int, simulator: Simulator) -> Step:
    """Time of a shard of these columns on a rank that has nothing else, by a simulator."""
    one = task.tables.take([table]).with_(dim=np.array([columns], np.int32))
    latency = simulator.latency(replace(task, tables=one, constraints=Constraints()), np.array([0]))
    ms = [float(getattr(latency, phase)[0]) for phase in PHASES]
    said = f"of a rank with nothing else: {', '.join(phase.replace('_', ' ') for phase in PHASES)}"
    return Step(f"by {simulator.id}", said, " + ".join(map(str, ms)), sum(ms), "ms")
