"""Plans for TorchRec models, in one call.

    from shard_gym_agents.models import plan_model

    task, plan, sharding_plan = plan_model(model, devices=8, memory_gb=40, pooling={"clicks": 12.5}, batch=8 * 4096)
    model = DistributedModelParallel(model, plan=sharding_plan)

In a process group every rank calls it: rank 0 plans, and all of them get its plan. It is the same as `task_of_model`,
a solver and `to_torchrec` one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import shard_gym_agents
from shard_gym import simulators
from shard_gym.errors import InvalidTask
from shard_gym.plan.plan import Plan
from shard_gym.task.task import Task
from shard_gym.torchrec.constraints import carry, parameter_constraints
from shard_gym.torchrec.modules import require_torchrec
from shard_gym.torchrec.plans import check_device, to_torchrec
from shard_gym_agents.model_tasks import ModelSettings, of_first_rank, task_of_model, world_size
from shard_gym_agents.tiered import TieredModel, TierSettings, plan_tiers

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

__all__ = ["PlannedModel", "TieredModel", "plan_model", "task_of_model"]


class PlannedModel(NamedTuple):
    """A planned task, the plan, and the same plan as TorchRec takes it."""

    task: Task
    plan: Plan
    sharding_plan: ShardingPlan


@overload
def plan_model(
    model: nn.Module,
    devices: int,
    memory_gb: float | Sequence[float],
    *,
    agent: str | shard_gym_agents.Solver = "auto",
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    tiers: Literal[False] = False,
    **settings: Unpack[ModelSettings],
) -> PlannedModel: ...


@overload
def plan_model(
    model: nn.Module,
    devices: int,
    memory_gb: float,
    *,
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    tiers: Literal[True],
    **settings: Unpack[TierSettings],
) -> TieredModel: ...


def plan_model(
    model: nn.Module,
    devices: int,
    memory_gb: Any,
    *,
    agent: str | shard_gym_agents.Solver = "auto",
    simulator: str | simulators.Simulator = simulators.DEFAULT,
    device: Literal["cuda", "cpu"] = "cuda",
    tiers: bool = False,
    **settings: Any,
) -> PlannedModel | TieredModel:
    """Plan an unsharded model for so many devices, each with so much memory left for tables.

    `simulator` is what the plan is made for: the hardware that comes closest to yours, or "torchrec:cuda-v1" for the
    estimate that TorchRec's own planner goes by. `settings` are those of `task_of_module`. Unless told, memory is
    counted by "true", and tables may be of all kinds that the simulator costs and that TorchRec runs for them.

    With `tiers` rows of sequence tables go to FlexShard's: that takes `counts` of their lookups and the `network`, and
    gives a TieredModel, see `shard_gym_agents.tiered`.
    """
    require_torchrec()
    check_device(device)
    if tiers:
        if agent != "auto":
            raise InvalidTask(f"beside tiers tables are planned by auto, got {agent!r:.40}")
        return plan_tiers(model, devices, memory_gb, simulator=simulator, device=device, **settings)
    solver = shard_gym_agents.make(agent) if isinstance(agent, str) else agent
    planner = simulators.make(simulator) if isinstance(simulator, str) else simulator

    def planned() -> tuple[Task, Plan]:
        task = task_of_model(model, devices, memory_gb, simulator=planner, device=device, **settings)
        return task, solver(task, planner)

    (task, plan), world = of_first_rank(planned), world_size()
    told = os.environ.get("LOCAL_WORLD_SIZE") if world else None  # by torchrun
    local = int(told) if told else task.devices_per_host
    sharding_plan = to_torchrec(plan, task, model, world_size=world, local_world_size=local, device=device)
    return PlannedModel(task, plan, carry(sharding_plan, parameter_constraints(settings)))
