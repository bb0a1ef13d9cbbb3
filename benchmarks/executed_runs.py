"""Training of recommenders by plans of every kind, on processes of this host and unsharded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    data_parallel,
    get_default_sharders,
    grid_shard,
    table_row_wise,
)
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim import RowWiseAdagrad

from benchmarks import recommenders
from examples import torchrec_dlrm
from shard_gym import simulators
from shard_gym.errors import InvalidPlan
from shard_gym.plan.plan import Plan
from shard_gym.task.constraints import Constraints
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym.torchrec.modules import collections_of, task_of_module
from shard_gym.torchrec.plans import to_torchrec
from shard_gym_agents import make
from shard_gym_agents.model_tasks import of_first_rank
from shard_gym_agents.models import plan_model

STEPS = 20
OPTIMIZERS: dict[str, Any] = {
    "sgd": (torch.optim.SGD, {"lr": 50.0}),
    "rowwise_adagrad": (RowWiseAdagrad, {"lr": 0.05, "eps": 1e-8}),
}
KINDS = ("tw", "cw", "rw", "twrw", "grid", "dp")
RESIDENCES = ("uvm", "cached")  # of tables that are table-wise
PLANNED, DEFAULT, THEIRS = "ours", "plan_model", "TorchRec's"
WAYS = (*KINDS, *RESIDENCES, PLANNED, DEFAULT, THEIRS)
LARGE = 2**18  # samples of the step that `plan_model` plans for: copies pay then
WIRES = {"port": 6e8, "uplink": 1e8}


@dataclass(frozen=True)
class Case:
    """A training: of which model, sharded in which way, and the optimizer of its tables."""

    model: str
    way: str
    optimizer: str = "sgd"


@dataclass(frozen=True)
class Trained:
    """Losses of all steps; milliseconds of a step by the clock and of this process's CPU, medians. Or what refuses."""

    losses: tuple[float, ...] = ()
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    kinds: str = ""  # how many tables are of each, by TorchRec's names
    refused: str = ""


def plan_of(way: str, task: Task) -> Plan:
    """All tables in one way, spread over devices or hosts in turn; or the plan of `auto`."""
    if way == PLANNED:
        return make("auto", budget=0.2)(task, simulators.make("torchrec:cuda-v1"))
    n, world, host = task.num_tables, task.num_devices, task.devices_per_host
    if way in RESIDENCES:
        return Plan(tuple(t % world for t in range(n)), residence=(way,) * n)
    hosts = [tuple(range(first, first + host)) for first in range(0, world, host)]
    every = tuple(range(world))
    devices = {
        "tw": lambda t: (t % world,),
        "cw": lambda t: (t % world, (t + 1) % world),
        "rw": lambda t: every,
        "twrw": lambda t: hosts[t % len(hosts)],
        "grid": lambda t: hosts[t % len(hosts)] + hosts[(t + 1) % len(hosts)],
        "dp": lambda t: every,
    }[way]
    sequences = {t for t, _ in task.constraints.kinds}
    own = [t for t in range(n) if way in ("tw", "cw", "rw") or t not in sequences] or range(n)
    kinds = tuple(way if t in own else "tw" for t in range(n))
    of_tables = [devices(t) if t in own else (t % world,) for t in range(n)]
    return Plan(tuple(each[0] for each in of_tables), kind=kinds, devices=tuple(of_tables))


def task_of(model: nn.Module, world: int, per_host: int, optimizer: str) -> Task:
    """The task of a model's tables; sequence tables have the kinds that TorchRec runs for them on a CPU."""
    kinds = tuple((t, ("tw", "cw", "rw")) for t, pooled in enumerate(_pooled(model)) if not pooled)
    return task_of_module(
        model,
        world,
        1,
        batch=recommenders.SAMPLES,
        optimizer=optimizer,
        objective="iteration",
        links=Links(group=per_host, **WIRES),
        kinds=KINDS,
        residences=("hbm", *RESIDENCES),
        host_memory=2**30,
        constraints=Constraints(kinds=kinds),
    )


def sharding_plan_of(model: nn.Module, case: Case, per_host: int) -> ShardingPlan:
    """The case's plan as TorchRec takes it."""
    world = distributed.get_world_size()
    if case.way == THEIRS:
        topology = Topology(world, "cpu", local_world_size=per_host)
        planner = EmbeddingShardingPlanner(topology, batch_size=recommenders.SAMPLES // world, stats=[])
        return planner.collective_plan(model, get_default_sharders(), distributed.group.WORLD)
    if case.way == DEFAULT:
        ids = {name: float(n) for table in recommenders.MODELS[case.model][1] for name, n in table.ids.items()}
        links = Links(group=per_host, **WIRES) if per_host < world else None
        return plan_model(model, world, 1, device="cpu", batch=LARGE, pooling=ids, links=links).sharding_plan
    task = task_of(model, world, per_host, case.optimizer)
    plan = of_first_rank(lambda: plan_of(case.way, task))
    try:
        return to_torchrec(plan, task, model, local_world_size=per_host, device="cpu")
    except InvalidPlan:
        return of_torchrec(model, case.way, per_host)  # whose own words are of interest


def of_torchrec(model: nn.Module, way: str, per_host: int) -> ShardingPlan:
    """A plan for sequence tables as TorchRec's own functions make it."""
    maker = {"twrw": lambda: table_row_wise(0), "grid": lambda: grid_shard([0]), "dp": data_parallel}[way]
    (collection,) = collections_of(model)
    makers = {config.name: maker() for config in collection.configs}
    return ShardingPlan(
        {collection.path: construct_module_sharding_plan(collection.module, makers, None, per_host, None, "cpu")}
    )


def train(model: nn.Module, case: Case, rank: int = 0, world: int = 1, frozen: bool = False) -> Trained:
    """Train a model, sharded or not; losses are means over all ranks. `frozen`: tables of an unsharded one stay."""
    torchrec_dlrm.initialise(model)
    optimizers = torchrec_dlrm.optimizers_of(model, OPTIMIZERS[case.optimizer])[: 1 if frozen else None]
    losses, wall, cpu = [], [], []
    for batch in recommenders.batches(case.model, STEPS, rank, world):
        begin = time.perf_counter(), time.process_time()
        losses.append(torchrec_dlrm.step(model, optimizers, batch))
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    return Trained(tuple(losses), 1e3 * median(wall), 1e3 * median(cpu))


def unsharded(model: str, optimizer: str, frozen: bool = False) -> Trained:
    """Train the model as it is, on one process."""
    made = recommenders.make_model(model)
    for part in made.modules():
        if isinstance(part, EmbeddingBagCollection | EmbeddingCollection):
            part.to_empty(device="cpu")
    return train(made, Case(model, "", optimizer), frozen=frozen)


def sharded(case: Case, per_host: int) -> Trained:
    """Train on the ranks of the process group; what refuses it is told."""
    model = recommenders.make_model(case.model)
    kind, settings = OPTIMIZERS[case.optimizer]
    tables = [parameter for name, parameter in model.named_parameters() if torchrec_dlrm.of_table(name)]
    apply_optimizer_in_backward(kind, tables, dict(settings))  # TorchRec writes into it
    try:
        plan = sharding_plan_of(model, case, per_host)
        env = ShardingEnv.from_process_group(distributed.group.WORLD)
        parallel = DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=plan)
        found = train(parallel, case, distributed.get_rank(), distributed.get_world_size())
    except Exception as error:
        return Trained(refused=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    kinds = Counter(sharding.sharding_type for part in plan.plan.values() for sharding in part.values())
    return replace(found, kinds=", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))


def run(cases: Sequence[Case], per_host: int) -> list[Trained]:
    """Train all cases, one after the other: what each rank runs."""
    return [sharded(case, per_host) for case in cases]


def _pooled(model: nn.Module) -> list[bool]:
    return [collection.pooled for collection in collections_of(model) for _ in collection.configs]
