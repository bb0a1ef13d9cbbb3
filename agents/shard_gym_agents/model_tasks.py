"""Tasks of TorchRec models, of all kinds of sharding that TorchRec runs for their collections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from shard_gym import simulators
from shard_gym.errors import RankFailed
from shard_gym.tables.configs import Pooling
from shard_gym.task.constraints import BY_HOST, KINDS, OF_ONE
from shard_gym.task.own import TaskSettings
from shard_gym.task.task import Task
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.modules import collections_of, task_of_module
from shard_gym.torchrec.plans import kinds_run

if TYPE_CHECKING:
    from torch import nn

Found = TypeVar("Found")


class ModelSettings(TaskSettings, total=False):
    """Options of `task_of_module` beside the model and its devices."""

    pooling: Pooling | None
    profile: Profiler | None
    storage_reservation: Any


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
    """The task with the kinds of each table that TorchRec runs for its collection.

    It wants column shards of a collection of sequences equally wide: they are halves where it has several tables.
    """
    if set(task.kinds_allowed) <= {"tw"}:
        return task
    told, least, kinds = dict(task.constraints.kinds), dict(task.constraints.least_columns), {}
    tables = [(collection, config) for collection in collections_of(model) for config in collection.configs]
    for t, (collection, config) in enumerate(tables):
        kinds[t] = tuple(kind for kind in told.get(t, KINDS) if kind in kinds_run(collection, device))
        if "cw" in kinds[t] and "cw" in task.kinds_allowed and not collection.pooled and len(collection.configs) > 1:
            least[t] = max(least.get(t, 0), config.embedding_dim // 2)
    limited = tuple((t, left) for t, left in kinds.items() if not set(task.kinds_allowed) <= set(left))
    return replace(task, constraints=replace(task.constraints, kinds=limited, least_columns=tuple(least.items())))


def world_size() -> int | None:
    """Ranks of the process group, if there is one."""
    from torch import distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else None


def of_first_rank(plan: Callable[[], Found]) -> Found:
    """Plan on rank 0 for every rank: searches that end by the clock would not agree. Its failure ends all ranks."""
    from torch import distributed

    if world_size() is None:
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
