"""A suite: settings, and data, so that its tasks are the same on every machine.

The data are `data/banks.npz` (which tables, which dims, how much memory) and `data/references.npz`;
`python -m benchmarks.freeze` made them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import overload

import numpy as np

from shard_gym.errors import UnknownName
from shard_gym.records.files import DATA
from shard_gym.records.guard import arrays_of, guarded
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import GB, REFERENCE_BATCH, TablePool
from shard_gym.task.links import Links
from shard_gym.task.task import Task

SPLITS = ("train", "val", "test")
MOST_ROWS = 10**9  # of tables whose rows are doubled
MOST_DOUBLINGS = 30
GROUPS = {  # what a suite is for
    "headline": "ranks can be decided: there is room, or dead ends, and 100 tasks or more",
    "core": "test tables that no training task holds",
    "parity": "as the papers drew them",
    "scaling": "planning time as tasks grow; on every task cost-greedy is within 0.5 % of the best known plan",
}
BEST_KNOWN, FROZEN_PLAN = "the best known plan", "a frozen reference plan"
PADDING = np.iinfo(np.uint16).max  # fills the rows of a bank whose tasks differ in length
Columns = dict[str, np.ndarray]  # of tasks: tables and dims (T, N), doublings too if any; memory (T,) if it differs


@dataclass(frozen=True)
class Suite:
    """A named set of tasks with the simulators that plan for it and judge it."""

    name: str  # "MetaSyn-80x8"; its environment id is ShardGym-<name>, its key the lower-case name
    num_tables: int  # the most that a task has
    num_devices: int
    objective: str
    planner: str  # simulator id that solvers and environments see
    judge: str  # simulator id that ranks plans
    memory_gb: tuple[float, ...]  # of each device, or one number for all
    pools: tuple[tuple[int, int], ...] = ((0, 856),) * 3  # (seed, tables) of the train, val and test pool
    dtype: str = "fp16"
    optimizer: str = "sgd"
    accounting: str = "weights"
    speed: tuple[float, ...] = ()
    links: Links | None = None
    splits_allowed: bool = False
    bank: str = ""  # key of the suite whose tasks, scaling and references these are; "": its own
    split_action: bool = False  # its environment may halve the next table's columns
    order: str = "cost"  # in which its environment deals tables; "size" where cost order runs into dead ends
    family: str = ""  # key of the suite whose trained weights serve this one where it has none of its own
    kinds: tuple[str, ...] = ()  # of sharding, residences and bytes in the host's memory: as tasks tell them
    residences: tuple[str, ...] = ("hbm",)
    host_memory_gb: float = 0.0
    tables: str = ""  # key of the suite whose tables these are, with memory and references of its own; "": its own
    batch: int = REFERENCE_BATCH  # samples a step, over all devices
    group: str = "core"  # one of GROUPS
    remark: str = ""  # a reader of its ranks should know
    gap_to: str = BEST_KNOWN  # or FROZEN_PLAN: the better of two that a planner found when the suite was frozen
    pays: str = ""  # default reward of its environment; "": balance for kernel suites, latency for iteration suites
    folder: str = ""  # with a banks.npz and a references.npz of its own; "": the package's

    @property
    def key(self) -> str:
        """Lower-case name, as command lines take it."""
        return self.name.lower()

    @property
    def frozen_as(self) -> str:
        """The key of its data."""
        return self.bank or self.key

    @property
    def drawn_as(self) -> str:
        """The key of its tables and their scaling."""
        return self.tables or self.frozen_as

    @property
    def ranked(self) -> bool:
        """False if ranks on it tell nothing."""
        return self.group != "scaling"

    @property
    def env_id(self) -> str:
        """The Gymnasium id."""
        return f"ShardGym-{self.name}"

    @property
    def most_steps(self) -> int:
        """No episode of it takes more steps: each piece of a table is one, and each change of a table.

        Halves may be halved in turn, three times; where there are more kinds a table is changed three times, and placed
        in eight pieces.
        """
        return self.num_tables * (15 if self.split_action else 11 if self.kinds else 1)

    @property
    def reward(self) -> str:
        """The default reward."""
        return self.pays or ("balance" if self.objective == "kernel" else "latency")

    def tasks(self, split: str = "train") -> tuple[Task, ...]:
        """The tasks of "train", "val" or "test"."""
        return self.bank_of(split)[:]

    def bank_of(self, split: str = "train") -> SuiteTasks:
        """The same tasks, each made when it is first asked for."""
        return _tasks(self, _known(split))

    def num_tasks(self, split: str = "train") -> int:
        """Number of tasks of a split."""
        return len(self._data("banks.npz")[f"{self.drawn_as}/{_known(split)}/tables"])

    def bound_share(self) -> float:
        """Share of test tasks bound by one table: alone it takes 95 % of cost-greedy's makespan; by the planner."""
        return float(self._data("references.npz")[f"{self.frozen_as}/bound/{self.planner}"])

    def random_makespans(self, split: str = "test", simulator_id: str | None = None) -> np.ndarray:
        """Mean makespan of 1,000 random feasible plans of each task, frozen; by the judge unless another is named.

        Plans have no splits, those of a -Split suite neither. A task that no known plan solves without them takes
        uniform plans, full devices or not. Of tasks of all kinds it is 100 plans, of whole tables, whose rows are where
        there is room; tables larger than a device lie by rows on all.
        """
        by = self.judge if simulator_id is None else simulator_id
        key = f"{self.frozen_as}/{_known(split)}/{by}"
        frozen = self._data("references.npz")
        if key not in frozen:
            known = [k.rsplit("/", 1)[1] for k in frozen if k.startswith(f"{self.frozen_as}/{split}/")]
            raise UnknownName(f"simulator with a random reference on {self.key}", by, known)
        return frozen[key]

    def has_reference_plans(self, split: str = "test") -> bool:
        """True if the plans that gaps are to were frozen with the suite."""
        return self._plans(split) in self._data("references.npz")

    def reference_makespans(self, split: str = "test") -> np.ndarray:
        """Makespan of each task's frozen reference plan by the judge, (T,) ms; NaN where none was found.

        It is the plan of `ladder` or of a search by `auto`, whichever the planner predicted to be faster. Nobody
        searched the judge for it, so plans may be better: their gap is below 0.
        """
        if not self.has_reference_plans(split):
            told = [key.replace("/plan/", " ") for key in self._data("references.npz") if "/plan/" in key]
            raise UnknownName("frozen reference plans", self._plans(split).replace("/plan/", " "), told)
        return self._data("references.npz")[self._plans(split)]

    def _plans(self, split: str) -> str:
        return f"{self.frozen_as}/plan/{_known(split)}/{self.judge}"

    def feature_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (21,) of the training tables' features; deviations of zero are given as 1."""
        data = self._data("banks.npz")
        with guarded(f"{self._place}, scaling of {self.drawn_as}"):
            mean, deviation = data[f"{self.drawn_as}/scaling"]
        return mean, deviation

    @property
    def _place(self) -> str:
        """The folder of its data, for errors."""
        return self.folder or "the data of shard_gym"

    def _data(self, name: str) -> Mapping[str, np.ndarray]:
        return _archive(self.folder, name)


def _known(split: str) -> str:
    if not isinstance(split, str) or split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    return split


@cache
def _archive(folder: str, name: str) -> Mapping[str, np.ndarray]:
    """An archive of arrays; of the package's own each is unpacked when asked for."""
    if folder:
        return arrays_of(Path(folder) / name)
    return np.load(io.BytesIO((DATA / name).read_bytes()), allow_pickle=False)


class SuiteTasks(Sequence[Task]):
    """The tasks of a split, as a sequence that makes each when it is first asked for; they differ in tables and memory.

    Their tables are those of a pool, some columns wide, and with rows doubled so many times.
    """

    def __init__(self, suite: Suite, split: str, pool: Callable[[], TablePool], columns: Columns) -> None:
        self.suite, self.split, self.pool = suite, split, pool
        with guarded(f"{suite._place}, bank of {suite.drawn_as}"):
            self.ids, self.dims = columns["tables"], columns["dims"]
            self.doublings = columns.get("doublings", np.zeros_like(self.ids))
            self.memory = columns.get("memory", np.tile(np.array(suite.memory_gb) * GB, (len(self.ids), 1)))
            self._check()
        self._made: dict[int, Task] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...

    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        """A task, or some of them as a tuple."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        i = range(len(self))[index]
        if i not in self._made:
            with guarded(f"{self.suite._place}, task {self.suite.key}/{self.split}/{i}"):
                self._made[i] = self._make(i)
        return self._made[i]

    @property
    def most_tables(self) -> int:
        """Tables of the task that has the most of them."""
        return int((self.ids != PADDING).sum(axis=1).max())

    def _check(self) -> None:
        """Refuse columns of other shapes, or of what is no number."""
        columns = {"tables": self.ids, "dims": self.dims, "doublings": self.doublings}
        for name, column in columns.items():
            if column.ndim != 2 or column.shape != self.ids.shape or column.dtype.kind not in "iu":
                raise ValueError(f"{name} of shape {column.shape} and type {column.dtype}, not a row of ints a task")
        if len(self.memory) != len(self.ids):
            raise ValueError(f"{len(self.ids)} tasks, memory of {len(self.memory)}")
        if self.doublings.size and not 0 <= self.doublings.min() <= self.doublings.max() <= MOST_DOUBLINGS:
            raise ValueError(f"rows are doubled 0 to {MOST_DOUBLINGS} times")

    def _make(self, i: int) -> Task:
        suite = self.suite
        per_device = np.broadcast_to(self.memory[i], suite.num_devices).astype(np.int64)
        return Task(
            self._tables(i),
            memory=tuple(per_device.tolist()),
            objective=suite.objective,
            batch=suite.batch,
            speed=suite.speed,
            links=suite.links,
            optimizer=suite.optimizer,
            accounting=suite.accounting,
            splits_allowed=suite.splits_allowed,
            name=f"{suite.key}/{self.split}/{i}",
            kinds=suite.kinds,
            residences=suite.residences,
            host_memory=int(suite.host_memory_gb * GB),
        )

    def _tables(self, i: int) -> TablePool:
        pool, used = self.pool(), self.ids[i] != PADDING
        columns = {"dim": self.dims[i][used], "dtype": (self.suite.dtype,) * int(used.sum())}
        tables, times = pool.take(self.ids[i][used]).with_(**columns), self.doublings[i][used]
        return with_doubled_rows(tables, times) if times.any() else tables


@cache
def _tasks(suite: Suite, split: str) -> SuiteTasks:
    bank = _archive(suite.folder, "banks.npz")
    of = {name: f"{suite.drawn_as}/{split}/{name}" for name in ("tables", "dims", "doublings")}
    of["memory"] = f"{suite.frozen_as}/{split}/memory"
    columns = {name: bank[key] for name, key in of.items() if key in bank}
    return SuiteTasks(suite, split, partial(load_metasyn, *suite.pools[SPLITS.index(split)]), columns)


def with_doubled_rows(tables: TablePool, times: np.ndarray) -> TablePool:
    """Tables with rows doubled so many times, (N,), up to `MOST_ROWS`; what is looked up stays."""
    return tables.with_(rows=np.minimum(tables.rows << times.astype(np.int64), MOST_ROWS))
