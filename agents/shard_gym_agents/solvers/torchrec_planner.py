"""TorchRec's own EmbeddingShardingPlanner as a solver, to be measured beside ours.

It plans by its own estimate of what a shard takes and asks our planner nothing. It is told what the task says: tables,
ids a sample, a rank's share of the batch, ranks per host, and the bytes each device has left for tables, which shards
fill as the task accounts for them (TorchRec's own accounting adds buffers, which a task has taken off already). It
cannot be told that devices differ in speed.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask, TimedOut, UnknownName
from shard_gym.memory.shards import Setup
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym.torchrec.modules import require_torchrec
from shard_gym.torchrec.plans import from_torchrec
from shard_gym_agents.solvers.solver import refuse_constraints

Result = TypeVar("Result")
TYPES = ("allowed", "all")
PROPOSERS = ("default", "greedy", "uniform", "grid", "dynamic-programming")
PARTITIONERS = ("greedy", "greedy-perf", "memory-balanced")
PATIENCE = 0.5, 4  # seconds between attempts to stop what is late, and how many


@dataclass(frozen=True)
class TorchRecPlanner:
    """The plan of TorchRec's planner; TimedOut if it takes longer than `timeout` seconds, which its own may not honour.

    types="allowed": table-wise, or in two column shards where the task allows splits. "all": whatever TorchRec offers
    for tables in device memory; such plans train, but only table-wise ones and halvings can be judged.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    types: str = "allowed"
    proposers: str = "default"  # what decides how tables are sharded; no choice where all are table-wise
    partitioner: str = "greedy"  # what decides where shards go: costliest in memory, or in time, first
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for option, valid in (("types", TYPES), ("proposers", PROPOSERS), ("partitioner", PARTITIONERS)):
            if getattr(self, option) not in valid:
                raise UnknownName(option, getattr(self, option), valid)
        if not 0 < self.timeout < math.inf:
            raise InvalidTask(f"timeout is seconds above 0, got {self.timeout}")
        _import()

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        refuse_constraints(task)
        if self.types == "allowed" and (why := disproof(task)):
            raise InfeasibleTask(why)
        numbered = tuple(f"table_{i}" for i in range(task.num_tables))  # TorchRec tells tables by name
        task = replace(task, tables=task.tables.with_(name=numbered))
        sharding_plan = within(self.timeout, lambda: self._sharding_plan(task), "TorchRec's planner")
        return from_torchrec(sharding_plan, task)

    def _sharding_plan(self, task: Task) -> Any:
        from torchrec import EmbeddingBagCollection
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError

        topology, constraints, samples = _topology(task), self._constraints(task), Setup.of(task).batch
        estimators = [EmbeddingPerfEstimator(topology, constraints), TaskStorage(task)]
        sharding_planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=samples,
            enumerator=EmbeddingEnumerator(topology, samples, constraints, estimators),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            proposer=_proposers(self.proposers),
            partitioner=_partitioner(self.partitioner),
            constraints=constraints,
            stats=[],
            debug=False,
        )
        module = EmbeddingBagCollection(_configs(task), device="meta")
        try:
            return sharding_planner.plan(module, [EmbeddingBagCollectionSharder()])
        except PlannerError as error:
            raise InfeasibleTask(_words(error)) from error

    def _constraints(self, task: Task) -> dict[str, Any]:
        from torchrec.distributed.planner import ParameterConstraints

        kernels = ["fused", "dense"]  # others keep tables in host memory, of which a task has none
        constraints = {}
        tables = task.tables
        bags = tables.bags.astype(np.float64)
        pooling = tables.pooling / np.where(bags > 0, bags, 1.0)  # of one bag
        for name, dim, *told in zip(tables.name, tables.dim, pooling.tolist(), bags.tolist(), strict=True):
            ids = {"pooling_factors": told[:1], "num_poolings": told[1:], "compute_kernels": kernels}
            halves = task.splits_allowed and dim % 8 == 0
            if self.types == "all":
                constraints[name] = ParameterConstraints(**ids)
            elif halves:
                both = ["table_wise", "column_wise"]
                constraints[name] = ParameterConstraints(**ids, sharding_types=both, min_partition=int(dim) // 2)
            else:
                constraints[name] = ParameterConstraints(**ids, sharding_types=["table_wise"])
        return constraints


class TaskStorage:
    """An estimator of TorchRec's: each shard takes its part of the bytes that the task says its table takes."""

    def __init__(self, task: Task) -> None:
        self.size = dict(zip(task.tables.name, table_bytes(task).tolist(), strict=True))
        self.weights = dict(zip(task.tables.name, (task.tables.rows * task.tables.dim).tolist(), strict=True))

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:
        """Set the storage of every shard; a part of a byte counts as one."""
        from torchrec.distributed.planner.types import Storage

        for option in sharding_options:
            size, weights = self.size[option.name], self.weights[option.name]
            for shard in option.shards:
                rows, columns = shard.size
                shard.storage = Storage(hbm=-(-size * rows * columns // weights), ddr=0)


class Stopped(BaseException):
    """Raised in a thread that is late; no handler of what it runs catches it."""


def within(seconds: float, work: Callable[[], Result], what: str) -> Result:
    """Run `work` and return its value, if it ends in time.

    It runs in a thread of its own and is stopped there, at the next step of its Python code: no process to start, and
    callers need not be in the main thread, as they would for signals.
    """
    outcome: list[Result] = []
    failure: list[Exception] = []

    def call() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            failure.append(error)
        except Stopped:
            pass

    thread = threading.Thread(target=call, name=what, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        late = _stop(thread)
    if failure:
        raise failure[0]
    if late or not outcome:
        raise TimedOut(f"{what} did not end in {seconds:g} s: allow a longer timeout, or fewer choices")
    return outcome[0]


def _stop(thread: threading.Thread) -> bool:
    """Stop a thread; True if it was still running. One long C call is not stopped in its middle."""
    late = thread.is_alive()
    pause, attempts = PATIENCE
    for _ in range(attempts):
        if not thread.is_alive():
            break
        # an exception that arrives in a destructor is swallowed: hence again and again
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))
        thread.join(pause)
    return late


def _words(error: Exception) -> str:
    """Reason why TorchRec has no plan, in its own words; it has none where a proposer proposes nothing."""
    words = str(error).strip().splitlines()[-1].strip()
    if words == "None":
        return "TorchRec's planner finds no plan: its proposer makes no proposal, as grid where there are too many"
    return f"TorchRec's planner finds no plan, where it has put other tables the bytes left are too few: {words}"


def _import() -> None:
    """Load what planning needs, which takes seconds, or say how to install it."""
    require_torchrec()
    import_module("torchrec.distributed.planner")


def _configs(task: Task) -> list[Any]:
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig

    tables = task.tables
    return [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=int(rows),
            embedding_dim=int(dim),
            feature_names=[f"ids_of_{name}"],
            data_type=DataType[dtype.upper()],
        )
        for name, rows, dim, dtype in zip(tables.name, tables.rows, tables.dim, tables.dtype, strict=True)
    ]


def _topology(task: Task) -> Any:
    from torchrec.distributed.planner.types import CustomTopologyData, TopologyFactory, TrainerConfig

    memory = task.capacity.tolist()
    each = {}
    if np.ptp(task.capacity):
        each = {"custom_topology_data": CustomTopologyData({"hbm_cap": memory}, world_size=task.num_devices)}
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=task.num_devices,
            local_world_size=task.devices_per_host,
            hbm_cap_bytes=min(memory),
            additional_params=each,
        )
    )


def _proposers(name: str) -> Any:
    """None: all that TorchRec tries by itself."""
    from torchrec.distributed.planner import proposers

    if name == "default":
        return None
    if name == "greedy":
        return [proposers.GreedyProposer(), proposers.GreedyProposer(use_depth=False)]
    classes = {
        "uniform": proposers.UniformProposer,
        "grid": proposers.GridSearchProposer,
        "dynamic-programming": proposers.DynamicProgrammingProposer,
    }
    return classes[name]()


def _partitioner(name: str) -> Any:
    from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, MemoryBalancedPartitioner, SortBy

    if name == "memory-balanced":
        return MemoryBalancedPartitioner()
    return GreedyPerfPartitioner(sort_by=SortBy.PERF if name == "greedy-perf" else SortBy.STORAGE)
