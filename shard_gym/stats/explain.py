"""How the bytes and the time of one table come about, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import groupby
from typing import Any

import numpy as np

from shard_gym.bridge import perf
from shard_gym.bridge.storage_shards import Setup, Table, cut, shards_of
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.simulators import Simulator
from shard_gym.stats.formulas import Step, first_shard, number, steps
from shard_gym.stats.plans import bytes_of
from shard_gym.stats.values import PHASES
from shard_gym.tasks import Constraints, Task

NEAR = 5  # names that are told where one is not known
SCHEMA = "shard-gym/explanation/1"


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
        """All of it, JSON-ready, schema `shard-gym/explanation/1`."""
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
    found = bytes_of(shards, setup, accounting)
    first = first_shard(table, kind, sizes[0], setup, accounting, found)
    told = list(steps(first))
    for where, memory in (("HBM", found.hbm), ("DDR", found.ddr)):
        each = memory.bytes.tolist()
        if any(each):
            told.append(Step(f"{where} of all shards", "", _runs(each), sum(each)))
    if kind in ("tw", "cw") and perf_is_known(table):
        told += perf_steps(table, sizes[0][1], setup)
    return Explanation(name, kind, len(sizes), *sizes[0], accounting, tuple(told))


def table_index(task: Task, name: str) -> int:
    """Of a table by its name, or by its index; a name wins. Near names are told where there is none."""
    names = task.tables.name
    if name in names:
        if (times := names.count(name)) > 1:
            raise InvalidTask(f"{times} tables are called {name!r}: give an index, the first is {names.index(name)}")
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    near = get_close_matches(name, names, NEAR, cutoff=0.4) or names[:NEAR]
    raise UnknownName("table", name, [*near, f"an index below {len(names)}"])


def perf_is_known(table: Table) -> bool:
    """Whether the formula of `shard_gym.bridge.perf` is for such tables."""
    (feature, *others) = table.features
    plain = not others and feature.poolings == 1 and feature.batch is None
    return plain and table.kernel == "fused" and table.pooled and not table.weighted


def perf_steps(table: Table, columns: int, setup: Setup) -> Iterator[Step]:
    """TorchRec's estimate of a shard with all rows and some columns: the formula of `shard_gym.bridge.perf`."""
    ids, element = table.features[0].pooling, table.element_bytes
    samples, width = setup.batch * setup.world_size, max(columns, perf.LEAST_COLUMNS)
    looked_up, bags = f"{number(ids)} x {samples:,}", f"min(1, {number(ids)}) x {samples:,}"
    sent, read_ids = min(ids, 1.0) * samples * columns * element, math.ceil(ids * samples * perf.ID_BYTES)
    read = read_ids + ids * samples * width * element + sent
    numbers = f"{bags} x {columns:,} x {element}"
    yield Step("sent", "bags that are not empty, by guess, x columns x bytes of a weight", numbers, sent)
    numbers = f"ceil({looked_up} x {perf.ID_BYTES}) + {looked_up} x {width:,} x {element} + {number(sent)}"
    yield Step("read and written", f"ids, rows of {perf.LEAST_COLUMNS} columns and more, and the output", numbers, read)
    penalty, forward = _penalty(columns), read * _penalty(columns) / perf.HBM
    numbers = f"{number(read)} x {penalty} / {number(perf.HBM)}"
    yield Step("forward compute", "bytes x penalty of narrow rows / HBM's bytes a ms", numbers, forward, "ms")
    within = setup.local_world_size >= setup.world_size
    link, said = (perf.INSIDE_HOST, "inside a host") if within else (perf.BETWEEN_HOSTS, "between hosts")
    numbers = f"{number(sent)} / {number(link)}"
    yield Step("forward comm", f"bytes sent / bytes a ms {said}; backward the same", numbers, sent / link, "ms")
    total = (1 + perf.BACKWARD) * forward + 2 * sent / link
    numbers = f"(1 + {number(perf.BACKWARD)}) x {forward} + 2 x {sent / link}"
    yield Step("TorchRec's perf", "backward computation takes twice as long as forward", numbers, total, "ms")


def _penalty(columns: int) -> float:
    if columns >= perf.FULL_BLOCK:
        return perf.FULL_BLOCK_PENALTY
    return perf.HALF_BLOCK_PENALTY if columns >= perf.HALF_BLOCK else perf.NARROW_PENALTY


def _runs(sizes: list[int]) -> str:
    """96 equal numbers and a smaller one as `96 x 5 + 4`."""
    runs = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return " + ".join(f"{count} x {size:,}" if count > 1 else f"{size:,}" for size, count in runs)


def alone(task: Task, table: int, columns: int, simulator: Simulator) -> Step:
    """What a shard of these columns takes on a rank that has nothing else, by a simulator."""
    one = task.tables.take([table]).with_(dim=np.array([columns], np.int32))
    latency = simulator.latency(replace(task, tables=one, constraints=Constraints()), np.array([0]))
    ms = [float(getattr(latency, phase)[0]) for phase in PHASES]
    said = f"of a rank with nothing else: {', '.join(phase.replace('_', ' ') for phase in PHASES)}"
    return Step(f"by {simulator.id}", said, " + ".join(map(str, ms)), sum(ms), "ms")
