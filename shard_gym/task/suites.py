"""The suites: named, frozen banks of tasks. One table of settings feeds ids, command lines and leaderboards.

The banks are data (`data/banks.npz`: which tables, which dims, how much memory), so a suite is the same on every
machine. `python -m benchmarks.freeze` made them. A published suite is never edited; a changed one gets a new name.
docs/extending.md says how to add one, `register` adds one from outside the package.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym.task.task import Task

SPLITS = ("train", "val", "test")
PADDING = np.iinfo(np.uint16).max  # fills the rows of a bank whose tasks differ in length
MEAN_LOAD = -1.0  # memory_gb of suites whose capacity is a multiple of each task's own mean load

RTX2080TI, A100, H100 = (f"roofline:{name}-v1" for name in ("rtx2080ti-x4", "a100-x32-roce", "h100"))
CPU, CPU_JUDGE = "learned:cpu-v1", "learned:cpu-judge-v1"


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
    def env_id(self) -> str:
        """The Gymnasium id."""
        return f"ShardGym-{self.name}"

    @property
    def most_steps(self) -> int:
        """No episode of it takes more steps: each table may be halved three times, and each piece is a step."""
        return self.num_tables * (15 if self.split_action else 1)

    @property
    def reward(self) -> str:
        """The default reward: balance for kernel suites, latency for iteration suites."""
        return "balance" if self.objective == "kernel" else "latency"

    def tasks(self, split: str = "train") -> tuple[Task, ...]:
        """The tasks of "train", "val" or "test"."""
        return _tasks(self, _known(split))

    def num_tasks(self, split: str = "train") -> int:
        """Number of tasks of a split."""
        return len(self._data("banks.npz")[f"{self.frozen_as}/{_known(split)}/tables"])

    def bound_share(self) -> float:
        """Share of test tasks bound by one table: alone it takes 95 % of cost-greedy's makespan; by the planner."""
        return float(self._data("references.npz")[f"{self.frozen_as}/bound/{self.planner}"])

    def random_makespans(self, split: str = "test", simulator_id: str | None = None) -> np.ndarray:
        """Mean makespan of 1,000 random feasible plans of each task, frozen; by the judge unless another is named.

        Plans have no splits, those of a -Split suite neither. A task that no known plan solves without them takes
        uniform plans, full devices or not.
        """
        key = f"{self.frozen_as}/{_known(split)}/{simulator_id or self.judge}"
        frozen = self._data("references.npz")
        if key not in frozen:
            known = [k.rsplit("/", 1)[1] for k in frozen if k.startswith(f"{self.frozen_as}/{split}/")]
            raise UnknownName(f"simulator with a random reference on {self.key}", simulator_id or self.judge, known)
        return frozen[key]

    def feature_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (21,) of the training tables' features; deviations of zero are given as 1."""
        mean, deviation = self._data("banks.npz")[f"{self.frozen_as}/scaling"]
        return mean, deviation

    def _data(self, name: str) -> Mapping[str, np.ndarray]:
        return _archive(self.folder, name)


def get(key: str) -> Suite:
    """The suite of that key, `metasyn-80x8`; the name and the environments' ids are accepted too."""
    found = SUITES.get(key.lower().removeprefix("shardgym-").removesuffix("-flat"))
    if found is None:
        raise UnknownName("suite", key, SUITES)
    return found


def _known(split: str) -> str:
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    return split


def register(suite: Suite) -> None:
    """Add a suite, and its environments where Gymnasium is installed; a key that another suite has is refused."""
    if SUITES.setdefault(suite.key, suite) != suite:
        raise InvalidTask(f"there is a suite {suite.key}, and suites are never edited: give this one a name of its own")
    if find_spec("gymnasium"):  # a bare host that only measures has none
        import gymnasium

        scalar, vector = "shard_gym.envs.env:ShardingEnv", "shard_gym.envs.vector_env:make_vector_env"
        for env_id, shown in ((suite.env_id, {}), (f"{suite.env_id}-Flat", {"observation": "flat"})):
            if env_id not in gymnasium.registry:
                gymnasium.register(
                    env_id,
                    scalar,
                    vector_entry_point=vector,
                    reward_threshold=thresholds().get(suite.key),
                    max_episode_steps=suite.most_steps + 1,  # one more: episodes end, they are not cut short
                    kwargs={"tasks": suite.key, **shown},
                )


@cache
def thresholds() -> dict[str, float]:
    """Mean return of a baseline on training tasks, by suite or bank; `python -m benchmarks.thresholds` made them."""
    told: dict[str, float] = json.loads((files("shard_gym") / "data" / "thresholds.json").read_text())
    return told


@cache
def _archive(folder: str, name: str) -> Mapping[str, np.ndarray]:
    """An archive of arrays; each is unpacked when asked for."""
    content = ((Path(folder) if folder else files("shard_gym") / "data") / name).read_bytes()
    return np.load(io.BytesIO(content), allow_pickle=False)


@cache
def _tasks(suite: Suite, split: str) -> tuple[Task, ...]:
    bank = _archive(suite.folder, "banks.npz")
    ids, dims = (bank[f"{suite.frozen_as}/{split}/{column}"] for column in ("tables", "dims"))
    per_task_bytes = bank.get(f"{suite.frozen_as}/{split}/memory")
    pool = load_metasyn(*suite.pools[SPLITS.index(split)])
    memory = np.array(suite.memory_gb) * GB
    tasks = []
    for i, (picked, dim) in enumerate(zip(ids, dims, strict=True)):
        used = picked != PADDING
        tables = pool.take(picked[used]).with_(dim=dim[used], dtype=(suite.dtype,) * int(used.sum()))
        per_device = memory if per_task_bytes is None else per_task_bytes[i]
        tasks.append(
            Task(
                tables,
                memory=tuple(np.broadcast_to(per_device, suite.num_devices).astype(np.int64).tolist()),
                objective=suite.objective,
                speed=suite.speed,
                links=suite.links,
                optimizer=suite.optimizer,
                accounting=suite.accounting,
                splits_allowed=suite.splits_allowed,
                name=f"{suite.key}/{split}/{i}",
            )
        )
    return tuple(tasks)


def _parity_suites() -> list[Suite]:
    """AutoShard's, DreamShard's and NeuroShard's tasks, as their papers drew them."""
    autoshard = Suite("MetaSyn-80x8", 80, 8, "kernel", CPU, CPU_JUDGE, memory_gb=(7,), family="metasyn-80x8")
    dlrm = Suite("DLRM-50x4", 50, 4, "iteration", RTX2080TI, RTX2080TI, memory_gb=(5,), family="dlrm-50x4")
    mixed = replace(dlrm, name="Mixed-10to59x4", num_tables=59, memory_gb=(4,), dtype="fp32", family="core-60x4")
    mixed = replace(mixed, splits_allowed=True)
    return [
        *(replace(autoshard, name=f"MetaSyn-{10 * k}x{k}", num_tables=10 * k, num_devices=k) for k in range(8, 81, 8)),
        *(replace(autoshard, name=f"MetaSyn-80x8-Unseen{percent}") for percent in range(0, 101, 20)),
        *(replace(dlrm, name=f"DLRM-{n}x4", num_tables=n) for n in range(10, 101, 10)),
        *(replace(dlrm, name=f"DLRM-{n}x2", num_tables=n, num_devices=2) for n in range(10, 51, 10)),
        mixed,
        replace(mixed, name="Mixed-20to119x8", num_tables=119, num_devices=8),
    ]


def _core_suites() -> list[Suite]:
    """Ours: train, validation and test tables come from pools of different seeds."""
    core = Suite(
        "Core-80x8",
        80,
        8,
        "iteration",
        H100,
        H100,
        memory_gb=(12,),
        pools=((1, 856), (2, 856), (3, 856)),
        dtype="fp32",
        optimizer="rowwise_adagrad",
        accounting="training",
        family="core-60x4",
    )
    tight = replace(core, name="Tight-80x8", memory_gb=(MEAN_LOAD,), order="size", family="tightmix-80x8")
    return [
        replace(core, name="Core-60x4", num_tables=60, num_devices=4, memory_gb=(24,)),
        core,
        tight,
        replace(tight, name="TightMix-80x8"),
        replace(core, name="Hetero-80x8", memory_gb=(8,) * 4 + (16,) * 4, speed=(1.0,) * 4 + (0.6,) * 4),
        replace(
            core,
            name="Prod-1000x128",
            num_tables=1000,
            num_devices=128,
            planner=A100,
            judge=A100,
            memory_gb=(32,),
            dtype="fp16",
            pools=((4, 1000), (5, 1000), (6, 1000)),
        ),
    ]


def _split_suites(bases: dict[str, Suite]) -> list[Suite]:
    """Tasks of other suites, with an action that halves the next table's columns."""
    return [
        replace(bases[key], name=f"{bases[key].name}-Split", bank=key, splits_allowed=True, split_action=True)
        for key in ("mixed-10to59x4", "mixed-20to119x8", "tightmix-80x8", "prod-1000x128")
    ]


SUITES: dict[str, Suite] = {suite.key: suite for suite in (*_parity_suites(), *_core_suites())}
SUITES |= {suite.key: suite for suite in _split_suites(SUITES)}
