"""From a task and its plan to the report's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.bridge.layouts import layouts_of
from shard_gym.bridge.perf import ranks_per_host, samples_per_rank, table_perfs
from shard_gym.bridge.storage import FORMULAS, Memory, Storage, storage
from shard_gym.bridge.storage_shards import Feature, Setup, Shards, Table, shards_of
from shard_gym.bridge.storage_true import STATE_BYTES, STATES
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.plan import Plan, violations
from shard_gym.simulators import Simulator
from shard_gym.stats.values import PHASES, Budget, Phases, Rank, Stats, TableStats
from shard_gym.tasks import ACCOUNTINGS, Constraints, Task

ENDLESS = 2**62  # bytes; no task fills a device of it


@dataclass(frozen=True, eq=False)
class Placed:
    """The S shards of a plan, table by table, and their ranks."""

    tables: tuple[Table, ...]
    kinds: tuple[str, ...]  # of each table
    rank: np.ndarray  # (S,)
    shards: Shards


def plan_stats(
    task: Task,
    plan: Plan,
    simulator: Simulator | None = None,
    *,
    accounting: str | None = None,
    tables: Sequence[Table] | None = None,
    setup: Setup | None = None,
    budget: Budget | None = None,
) -> Stats:
    """The report on a plan. `tables` and `setup` say what a task cannot: kernels, features, sequences, a pipeline.

    Bytes are counted by the task's accounting unless told. A split table's pieces are the column shards of one table,
    as TorchRec has them: under "torchrec" they take less of a row-wise state than pieces that are tables of their own.
    """
    setup, budget, accounting = setup or setup_of(task), budget or Budget(), accounting or task.accounting
    placed = place(task, plan, tables or tables_of(task), setup)
    size, notes = bytes_of(placed.shards, setup, accounting), _not_modelled(task, placed)
    pieces = None if notes else _pieces(task, placed.shards)
    latency = None if pieces is None or simulator is None else simulator.latency(pieces, placed.rank)
    ours = None if latency is None else np.stack([getattr(latency, phase) for phase in PHASES], axis=-1)
    theirs = None if pieces is None else table_perfs(pieces)[:, [0, 1, 3, 2]]  # in the order of PHASES
    perfs = (ours, None if theirs is None else _sums(theirs, placed.rank, task.num_devices))
    ranks = tuple(_ranks(task, placed, size, perfs, budget))
    return Stats(
        accounting=accounting,
        objective=task.objective,
        simulator=None if simulator is None else simulator.id,
        makespan=None if latency is None else float(latency.makespan(task.objective)),
        setup=setup,
        budget=budget,
        ranks=ranks,
        tables=tuple(_tables(task, placed, size, theirs)),
        problems=(*_over(ranks), *_broken(task, plan)),
        notes=notes,
    )


def setup_of(task: Task, pipeline: str = "none") -> Setup:
    """How TorchRec runs a task: a rank's samples, and as many ranks a host as a group of links has."""
    return Setup(task.num_devices, samples_per_rank(task), ranks_per_host(task), pipeline=pipeline)


def tables_of(task: Task, kernel: str = "fused", pooled: bool = True) -> tuple[Table, ...]:
    """A task's tables as TorchRec sees them: of one feature each, with all bags of the table."""
    t = task.tables
    bags = t.bags.astype(np.float64)
    ids = t.pooling / np.where(bags > 0, bags, 1.0)  # of one bag
    features = map(Feature, ids.tolist(), bags.tolist())
    columns = zip(t.rows.tolist(), t.dim.tolist(), t.element_bytes.tolist(), features, strict=True)
    return tuple(
        Table(rows, dim, element, (feature,), pooled=pooled, optimizer=task.optimizer, kernel=kernel)
        for rows, dim, element, feature in columns
    )


def place(task: Task, plan: Plan, tables: Sequence[Table], setup: Setup) -> Placed:
    """The shards that TorchRec makes of a plan; copies (dp) are looked up by the dense kernel."""
    if setup.device != "cuda" or setup.world_size != task.num_devices:
        found = f"{setup.world_size} of {setup.device}"
        raise InvalidTask(f"the report is on the task's {task.num_devices} CUDA devices, the setup has {found}")
    if len(tables) != task.num_tables:
        raise InvalidTask(f"the task has {task.num_tables} tables, {len(tables)} were given")
    numbered = tuple(str(i) for i in range(task.num_tables))  # a task's own names may repeat
    layouts = layouts_of(plan, replace(task, tables=task.tables.with_(name=numbered)), setup.local_world_size)
    kinds = tuple(layouts[name].kind for name in numbered)
    dense = [replace(t, kernel="dense") if kind == "dp" else t for t, kind in zip(tables, kinds, strict=True)]
    sizes = [[(rows, columns) for _, rows, _, columns, _ in layouts[name].shards] for name in numbered]
    rank = np.array([shard[-1] for name in numbered for shard in layouts[name].shards])
    return Placed(tuple(dense), kinds, rank, shards_of(dense, kinds, sizes, setup))


def bytes_of(shards: Shards, setup: Setup, accounting: str) -> Storage:
    """Bytes of each shard by any accounting of tasks; input and output are always told, counted or not."""
    if accounting not in ACCOUNTINGS:
        raise UnknownName("accounting", accounting, ACCOUNTINGS)
    if accounting in FORMULAS:
        return storage(shards, setup, accounting)
    if odd := set(shards.of.kernel.tolist()) - {"fused", "dense"}:
        raise InvalidTask(f"accounting {accounting!r} knows no kernel {min(odd)!r}: take torchrec or true")
    counted, none = storage(shards, setup), np.zeros_like(shards.rows)
    a_row, a_weight = np.array([STATES[optimizer] for optimizer in shards.of.optimizer]).T
    state = STATE_BYTES * shards.rows * (a_row + a_weight * shards.dim)
    weights = shards.rows * shards.dim * shards.of.element_bytes
    kept = none if accounting == "weights" or setup.inference else state
    hbm = Memory(weights, kept, none, none, none)
    return Storage(hbm, Memory(none, none, none, none, none), counted.input, counted.output)


def _not_modelled(task: Task, placed: Placed) -> tuple[str, ...]:
    """What no simulator here knows: then nothing is told of time, as a sum without some shards would mislead."""
    odd = {
        **{f"kind {kind}": kind not in ("tw", "cw") for kind in placed.kinds},
        **{f"kernel {t.kernel}": t.kernel not in ("fused", "dense") for t in placed.tables},
        "sequences": not all(t.pooled for t in placed.tables),
        "weighted ids": any(t.weighted for t in placed.tables),
    }
    found = [what for what, is_odd in odd.items() if is_odd]
    features = zip((t.features for t in placed.tables), task.tables.bags, strict=True)
    if any(len(told) > 1 or told[0].poolings != bags or told[0].batch for told, bags in features):
        found.append("several features, or bags or batches of their own")
    return (f"no time is told, as no simulator here models: {', '.join(found)}",) if found else ()


def _pieces(task: Task, shards: Shards) -> Task:
    """The task whose tables are the shards: column shards cost what tables of their width do."""
    tables = task.tables.take(shards.table.tolist()).with_(dim=shards.dim.astype(np.int32))
    return replace(task, tables=tables, constraints=Constraints())


def _sums(values: np.ndarray, rank: np.ndarray, ranks: int) -> np.ndarray:
    """Of each rank's shards: (S, P) -> (K, P)."""
    sums = np.zeros((ranks, values.shape[1]), values.dtype)
    np.add.at(sums, rank, values)
    return sums


def _ranks(
    task: Task, placed: Placed, size: Storage, perfs: Sequence[np.ndarray | None], budget: Budget
) -> Iterator[Rank]:
    parts = np.stack([size.hbm.bytes, size.ddr.bytes, size.input, size.output], axis=1)
    counts = [Counter[str]() for _ in range(task.num_devices)]
    for rank, kind in zip(placed.rank.tolist(), placed.shards.kind.tolist(), strict=True):
        counts[rank][kind] += 1
    capacity = budget.capacity(task)
    for rank, (hbm, ddr, ids, output) in enumerate(_sums(parts, placed.rank, task.num_devices).tolist()):
        perf, torchrec = (None if of_ranks is None else Phases(*of_ranks[rank].tolist()) for of_ranks in perfs)
        memory = (hbm, capacity[rank], ddr, budget.ddr_bytes)
        yield Rank(rank, *memory, ids, output, dict(sorted(counts[rank].items())), perf, torchrec)


def _tables(task: Task, placed: Placed, size: Storage, theirs: np.ndarray | None) -> Iterator[TableStats]:
    shards, n = placed.shards, task.num_tables
    parts = np.stack([size.hbm.bytes, size.ddr.bytes, size.input, size.output], axis=1)
    sums, perf = _sums(parts, shards.table, n), None if theirs is None else _sums(theirs, shards.table, n)
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
            ranks=tuple(placed.rank[own].tolist()),
            shard_sizes=tuple(zip(shards.rows[own].tolist(), shards.dim[own].tolist(), strict=True)),
            **dict(zip(("hbm_bytes", "ddr_bytes", "input_bytes", "output_bytes"), sums[t].tolist(), strict=True)),
            torchrec=None if perf is None else Phases(*perf[t].tolist()),
        )


def _over(ranks: Sequence[Rank]) -> Iterator[str]:
    for r in ranks:
        for kind, used, capacity in (("HBM", r.hbm_bytes, r.hbm_capacity), ("DDR", r.ddr_bytes, r.ddr_capacity)):
            if capacity is not None and used > capacity:
                yield f"rank {r.rank} needs {used:,} bytes of {kind}, has {capacity:,}: {used - capacity:,} too few"


def _broken(task: Task, plan: Plan) -> list[str]:
    """Constraints that the plan breaks; memory is counted apart."""
    roomy = replace(task, memory=(ENDLESS,) * task.num_devices)
    if set(plan.kind) == {"tw"}:
        return violations(roomy, plan)
    return [] if task.constraints == Constraints() else ["constraints are judged of table-wise plans only"]
