"""A task's devices as TorchRec's `Topology`, and the memory that its storage reservations leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.shards import Setup
from shard_gym.task.task import Task

if TYPE_CHECKING:
    from torch import nn


def topology(task: Task) -> Any:
    """The task's devices, hosts and memory, at the bandwidths that TorchRec assumes."""
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
            ddr_cap_bytes=task.host_memory,
            additional_params=each,
        )
    )


def reserved(reservation: Any, task: Task, module: nn.Module, constraints: Mapping[str, Any]) -> Task:
    """The task with the memory that a storage reservation of TorchRec's leaves of its devices' for tables.

    It is asked as TorchRec's planner asks it; tables without constraints have the ids that the task says.
    """
    from torchrec.distributed.planner import ParameterConstraints
    from torchrec.distributed.planner.storage_reservations import InferenceStorageReservation
    from torchrec.distributed.planner.types import PlannerError, StorageReservation
    from torchrec.distributed.sharding_plan import get_default_sharders

    name = type(reservation).__name__
    if not isinstance(reservation, StorageReservation):
        raise InvalidTask(f"storage_reservation is one of TorchRec's storage reservations, got {reservation!r:.80}")
    if isinstance(reservation, InferenceStorageReservation):
        raise InvalidTask(f"{name} is of models that do not train: take a heuristical or a fixed one")
    ids = zip(task.tables.name, task.tables.pooling.tolist(), strict=True)
    told = {table: ParameterConstraints(pooling_factors=[pooling]) for table, pooling in ids} | dict(constraints)
    try:
        left = reservation.reserve(topology(task), Setup.of(task).batch, module, get_default_sharders(), told)
    except PlannerError as error:
        raise InfeasibleTask(f"{name} leaves nothing for tables: {str(error).strip().splitlines()[0]}") from error
    memory = tuple(device.storage.hbm for device in left.devices)
    if min(memory) <= 0:
        raise InfeasibleTask(f"{name} leaves {min(memory):,} bytes of a device's {min(task.memory):,} for tables")
    return replace(task, memory=memory)
