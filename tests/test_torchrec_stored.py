"""Plans of TorchRec's planner read, judged and given back; plans by name, and for its loader."""

from collections import Counter

import numpy as np
import pytest

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InvalidPlan
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import plan_latency
from shard_gym.task.links import Links
from shard_gym.torchrec.constraints import carry, constraints_of
from shard_gym.torchrec.plans import from_torchrec, to_torchrec

torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")
planner = pytest.importorskip("torchrec.distributed.planner")
models = pytest.importorskip("shard_gym_agents.models")
stored = pytest.importorskip("shard_gym.torchrec.stored")
reservations = pytest.importorskip("torchrec.distributed.planner.storage_reservations")
default_sharders = pytest.importorskip("torchrec.distributed.sharding_plan").get_default_sharders
CacheParams = pytest.importorskip("torchrec.distributed.types").CacheParams

TYPES = ("table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel")
META = torch.device("meta")


def bags(rows, dims):
    config = torchrec.EmbeddingBagConfig
    tables = [
        config(num_embeddings=r, embedding_dim=d, name=f"t{i}", feature_names=[f"f{i}"])
        for i, (r, d) in enumerate(zip(rows, dims, strict=True))
    ]
    return torch.nn.ModuleDict({"tables": torchrec.EmbeddingBagCollection(tables, device=META)})


def planner_of(world, local, told, batch=64, **settings):
    topology = planner.Topology(world_size=world, local_world_size=local, compute_device="cuda")
    reserve = reservations.FixedPercentageStorageReservation(0.1)
    settings = {"storage_reservation": reserve, "constraints": told, "debug": False, "stats": [], **settings}
    return planner.EmbeddingShardingPlanner(topology=topology, batch_size=batch, **settings)


def drawn(seed):
    """A model, and a plan of TorchRec's planner for it: all types of sharding, caches, column shards of all widths."""
    rng = np.random.default_rng(seed)
    n, (world, local) = int(rng.integers(4, 8)), [(4, 2), (8, 4), (8, 8), (2, 2)][seed % 4]
    model = bags(rng.integers(100, 10**6, n).tolist(), rng.choice([16, 64, 192, 256, 384, 640], n).tolist())
    told = {}
    for t in range(n):
        types = [*map(str, rng.choice(TYPES, 2, replace=False))]
        chosen = [None, types, ["grid_shard"], ["table_column_wise"]][rng.integers(4)]
        cached = chosen is None and seed % 3 == 0
        told[f"t{t}"] = planner.ParameterConstraints(
            sharding_types=chosen,
            compute_kernels=["fused_uvm_caching"] if cached else None,
            cache_params=CacheParams(load_factor=0.15) if cached and rng.random() < 0.5 else None,
            min_partition=[None, 32, 64, 100][rng.integers(4)],
            pooling_factors=[float(rng.uniform(1, 30))],
        )
    greedy = planner.proposers.GreedyProposer(use_depth=False)
    return model, world, local, told, planner_of(world, local, told, proposer=greedy).plan(model, default_sharders())


def task_of(model, world, local, told):
    kinds = {"kinds": ("tw", "cw", "rw", "twrw", "grid", "dp"), "residences": ("hbm", "cached"), "host_memory": 2**40}
    lookups = {f"f{name[1:]}": mine.pooling_factors[0] for name, mine in told.items()}
    links = Links(1e8, group=local, uplink=1e7)
    return models.task_of_model(model, world, 30, pooling=lookups, batch=64 * world, links=links, **kinds)


SEEDS = [seed if seed < 5 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_of_torchrecs_planner_are_read_judged_and_given_back(seed):
    model, world, local, told, theirs = drawn(seed)
    task = task_of(model, world, local, told)
    plan = from_torchrec(theirs, task)
    assert violations(task, plan) == []
    for name in ("torchrec:cuda-v1", "roofline:h100-v2"):
        assert np.isfinite(plan_latency(simulators.make(name), task, plan).makespan("iteration"))
    ours = to_torchrec(plan, task, model, local_world_size=local)
    assert carry(ours, constraints_of(theirs)) == theirs


CRITEO = [
    40_000_000,
    39060,
    17295,
    7424,
    20265,
    3,
    7122,
    1543,
    63,
    40_000_000,
    3067956,
    405282,
    10,
    2209,
    11938,
    155,
    4,
]
CRITEO += [976, 14, 40_000_000, 40_000_000, 40_000_000, 590152, 12973, 108, 36]


def test_criteos_default_plan_is_scored():
    """26 tables of 16 columns on 4 ranks: TorchRec's planner copies the tiny ones."""
    model = bags(CRITEO, [16] * 26)
    theirs = planner_of(4, 4, None, batch=512).plan(model, default_sharders())
    types = Counter(s.sharding_type for s in theirs.plan["tables"].values())
    assert types["data_parallel"] > 0 and sum(types.values()) == 26
    judge = simulators.make("torchrec:cuda-v1")
    task, ours, _ = models.plan_model(model, 4, 32, batch=4 * 512, agent="cost-greedy", simulator=judge)
    plan = from_torchrec(theirs, task)
    assert Counter(plan.kind)["dp"] == types["data_parallel"]
    assert carry(to_torchrec(plan, task, model), constraints_of(theirs)) == theirs
    assert score(task, ours, judge).makespan <= score(task, plan, judge).makespan


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_plans_by_name_come_back(seed):
    *_, theirs = drawn(seed)
    text = stored.to_named_json(theirs)
    back = stored.from_named_json(text)
    assert stored.to_named_json(back) == text
    assert carry(back, constraints_of(theirs)) == theirs
    assert back._serialize() == theirs._serialize()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"plan": {"a": {"t": {"ranks": [0]}}}}'])
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(CorruptFile, match="not a sharding plan by name"):
        stored.from_named_json(text)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_torchrecs_planner_loads_our_plan(seed):
    """The planner plans what is loaded, and refuses it for another batch."""
    model, world, local, told, _ = drawn(seed)
    task = task_of(model, world, local, told)
    plan = models.shard_gym_agents.make("cost-greedy")(task, simulators.make("roofline:h100-v2"))
    ours = to_torchrec(plan, task, model, local_world_size=local)
    left = constraints_of(ours, told)
    loading = planner_of(world, local, left)
    loading.plan_loader = stored.plan_loader(ours, loading, model, default_sharders())
    loaded = loading.plan(model, default_sharders())
    assert stored.to_named_json(loaded) == stored.to_named_json(carry(ours, left))
    other = planner_of(world, local, left, batch=65, plan_loader=loading.plan_loader)
    with pytest.raises(planner.types.PlannerError, match="context mismatch"):
        other.plan(model, default_sharders())


def test_a_plan_that_the_planner_does_not_look_at_is_not_loaded():
    model = bags([1000], [64])
    _, _, ours = models.plan_model(model, 2, 1, agent=lambda task, _: models.Plan((0, 1), (0,)))
    blind = planner_of(2, 2, {"t0": planner.ParameterConstraints(sharding_types=["row_wise"])})
    with pytest.raises(InvalidPlan, match=r"'t0' is column_wise of fused.*constraints_of"):
        stored.plan_loader(ours, blind, model, default_sharders())
