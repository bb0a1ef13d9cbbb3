"""Plans for TorchRec models, in one call.

    from shard_gym_agents.models import plan_model

    task, plan, sharding_plan = plan_model(model, devices=8, memory_gb=40, pooling={"clicks": 12.5}, batch=8 * 4096)
    model = DistributedModelParallel(model, plan=sharding_plan)

In a process group every rank calls it: rank 0 plans, and all of them get its plan. It is the same as `task_of_module`,
a solver and `to_torchrec` one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Unpack

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import RankFailed
from shard_gym.plan.plan import Plan
from shard_gym.tables.configs import Pooling
from shard_gym.task.constraints import BY_HOST, KINDS, OF_ONE
from shard_gym.task.own import TaskSettings
from shard_gym.task.task import Task
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.constraints import carry, parameter_constraints
from shard_gym.torchrec.modules import collections_of, require_torchrec, task_of_module
from shard_gym.torchrec.plans import kinds_run, to_torchrec

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

Found = TypeVar("Found")


class ModelSettings(TaskSettings, total=False):
    """Options of `task_of_module` beside the model and its devices."""

    pooling: Pooling | None
    profile: Profiler | None
    storage_reservation: Any


class PlannedModel(NamedTuple):
    """A planned task, the plan, and the same plan as TorchRec takes it."""

    task: Task
    plan: Plan
    sharding_plan: ShardingPlan


def plan_model(
    model: nn.Module,
    devices: int,
    memory_gb: float | Sequence[float],
    *,
    agent: str | shard_gym_agents.Solver = "auto",
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    **settings: Unpack[ModelSettings],
) -> PlannedModel:
    """Plan an unsharded model for so many devices, each with so much memory left for tables.

    `simulator` is what the plan is made for: the hardware that comes closest to yours, or "torchrec:cuda-v1" for the
    estimate that TorchRec's own planner goes by. `settings` are those of `task_of_module`. Unless told, memory is
    counted by "true", and tables may be of all kinds that the simulator costs and that TorchRec runs for them.
    """
    require_torchrec()
    solver = shard_gym_agents.make(agent) if isinstance(agent, str) else agent
    planner = simulators.make(simulator) if isinstance(simulator, str) else simulator

    def planned() -> tuple[Task, Plan]:
        task = task_of_model(model, devices, memory_gb, simulator=planner, device=device, **settings)
        return task, solver(task, planner)

    (task, plan), world = of_first_rank(planned), _world_size()
    told = os.environ.get("LOCAL_WORLD_SIZE") if world else None  # by torchrun
    local = int(told) if told else task.devices_per_host
    sharding_plan = to_torchrec(plan, task, model, world_size=world, local_world_size=local, device=device)
    return PlannedModel(task, plan, carry(sharding_plan, parameter_constraints(settings)))


def task_of_model(
    model: nn.Module,
    devices: int,
    memory_gb: float | Sequence[float],
    *,
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    **settings: Unpack[ModelSettings],
) -> Task:
    """The task that `plan_model` solves: any plan of the model can be scored on it."""
    planner = simulators.make(simulator) if isinstance(simulator, str) else simulator
    settings.setdefault("accounting", "true")
    if not {"kinds", "splits_allowed"} & settings.keys():
        settings["kinds"] = _kinds(planner, devices, settings)
    return _runs(task_of_module(model, devices, memory_gb, **settings), model, device)


def _kinds(planner: simulators.Simulator, devices: int, settings: ModelSettings) -> tuple[str, ...]:
    """Kinds that the simulator costs under the objective, with these links."""
    if settings.get("objective") == "kernel" or not isinstance(planner, simulators.FastSimulator):
        return OF_ONE
    group = getattr(settings.get("links"), "group", 0)
    hosts = 0 < group < devices and devices % group == 0
    return tuple(kind for kind in planner.kinds if hosts or kind not in BY_HOST)


def _runs(task: Task, model: nn.Module, device: str) -> Task:
    """The task with the kinds of each table that TorchRec runs for its collection."""
    told = dict(task.constraints.kinds)
    runs = [kinds_run(collection, device) for collection in collections_of(model) for _ in collection.configs]
    kinds = {t: tuple(k for k in told.get(t, KINDS) if k in known) for t, known in enumerate(runs)}
    if set(task.kinds_allowed) <= {"tw"}:
        return task
    limited = tuple((t, left) for t, left in kinds.items() if not set(task.kinds_allowed) <= set(left))
    return replace(task, constraints=replace(task.constraints, kinds=limited))


def _world_size() -> int | None:
    """Ranks of the process group, if there is one."""
    from torch import distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else None


def of_first_rank(plan: Callable[[], Found]) -> Found:
    """Plan on rank 0 for every rank: searches that end by the clock would not agree. Its failure ends all ranks."""
    from torch import distributed

    if _world_size() is None:
        return plan()
    told: list[Any] = [None, ""]
    try:
        if distributed.get_rank() == 0:
            told[0] = plan()
    except Exception as error:
        told[1] = f"{type(error).__name__}: {error}"
        raise
    finally:
        distributed.broadcast_object_list(told)
    if told[0] is None:
        raise RankFailed(f"rank 0 has no plan: {told[1]}")
    found: Found = told[0]
    return found
