"""TorchRec's own EmbeddingShardingPlanner as a solver, to be measured beside ours.

It plans by its own estimate of what a shard takes and asks our planner nothing. It is told what the task says: tables,
ids a sample, a rank's share of the batch, ranks per host, the kinds and residences that tables may have, and the bytes
each device has left for tables, which shards fill as the task accounts for them. It cannot be told that devices differ
in speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

from shard_gym.errors import InfeasibleTask, InvalidTask, UnknownName
from shard_gym.memory.shards import CACHE_LOAD_FACTOR, Setup
from shard_gym.plan.feasibility import disproof
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym.torchrec.modules import require_torchrec
from shard_gym.torchrec.plans import from_torchrec
from shard_gym.torchrec.topology import topology as topology_of
from shard_gym_agents.solvers import torchrec_words as words
from shard_gym_agents.solvers.solver import refuse_constraints
from shard_gym_agents.solvers.timed import within

TYPES = ("allowed", "all")
PROPOSERS = ("default", "greedy", "greedy-total", "uniform", "grid", "dynamic-programming")
PARTITIONERS = ("greedy", "greedy-perf", "memory-balanced")
REST = 0.9  # of the time limit, after which nothing more is proposed


@dataclass(frozen=True)
class TorchRecPlanner:
    """The best plan that TorchRec's planner finds in `timeout` seconds of CPU time; TimedOut if it has none by then.

    types="allowed": the kinds and residences that the task allows. "all": whatever kind TorchRec offers; such plans
    train, but can be judged only where the task allows what they are of.
    """

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    types: str = "allowed"
    proposers: str = "default"  # what decides how tables are sharded; no choice where all are table-wise
    partitioner: str = "greedy"  # what decides where shards go: costliest in memory, or in time, first
    timeout: float = 60.0
    share: float = CACHE_LOAD_FACTOR  # of the rows of cached tables, in the device's memory
    columns: int | None = None  # that a column shard has at least; None: TorchRec's 128, halves of tasks with splits

    def __post_init__(self) -> None:
        for option, valid in (("types", TYPES), ("proposers", PROPOSERS), ("partitioner", PARTITIONERS)):
            if getattr(self, option) not in valid:
                raise UnknownName(option, getattr(self, option), valid)
        if not 0 < self.timeout < math.inf:
            raise InvalidTask(f"timeout is seconds above 0, got {self.timeout}")
        if not 0 < self.share <= 1:
            raise InvalidTask(f"share is above 0 and at most 1, got {self.share}")
        if self.columns is not None and self.columns < 1:
            raise InvalidTask(f"columns is a whole number from 1, or None, got {self.columns}")
        _import()

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        refuse_constraints(replace(task, constraints=task.constraints.beside_forms))
        if self.types == "allowed" and (why := disproof(task)):
            raise InfeasibleTask(why)
        numbered = tuple(f"table_{i}" for i in range(task.num_tables))  # TorchRec tells tables by name
        task = replace(task, tables=task.tables.with_(name=numbered))
        sharding_plan = within(self.timeout, lambda: self._sharding_plan(task), "TorchRec's planner")
        return from_torchrec(sharding_plan, task)

    def _sharding_plan(self, task: Task) -> Any:
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError

        topology, samples = topology_of(task), Setup.of(task).batch
        told = words.constraints(task, self.types == "allowed", self.share, self.columns)
        estimators = [EmbeddingPerfEstimator(topology, told), words.TaskStorage(task)]
        sharding_planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=samples,
            enumerator=EmbeddingEnumerator(topology, samples, told, estimators),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            proposer=[words.Until(p, REST * self.timeout) for p in words.proposers(self.proposers)],
            partitioner=words.partitioner(self.partitioner),
            constraints=told,
            stats=[],
            debug=False,
        )
        sharders: list[Any] = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
        try:
            return sharding_planner.plan(words.model(task), sharders)
        except PlannerError as error:
            raise InfeasibleTask(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Reason why TorchRec has no plan, in its own words; it has none where a proposer proposes nothing."""
    words = str(error).strip().splitlines()[-1].strip()
    if words == "None":
        return "TorchRec's planner finds no plan: its proposer makes no proposal, as grid where there are too many"
    return f"TorchRec's planner finds no plan, where it has put other tables the bytes left are too few: {words}"


def _import() -> None:
    """Load what planning needs, which takes seconds, or say how to install it."""
    require_torchrec()
    import_module("torchrec.distributed.planner")
