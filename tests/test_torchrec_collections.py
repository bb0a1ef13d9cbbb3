"""Sequences, weighted ids, feature processors and constraints: what TorchRec counts, and plans of whole models."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Constraints, make_pool, simulators
from shard_gym.errors import InfeasibleTask, InvalidPool, InvalidTask, UnknownName
from shard_gym.memory.shards import Setup
from shard_gym.memory.usage import bytes_used, shard_bytes
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.simulators.torchrec import PHASES, estimate
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from shard_gym.torchrec.launch import launch
from shard_gym.torchrec.modules import task_of_module
from shard_gym.torchrec.plans import from_torchrec

torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")
planner = pytest.importorskip("torchrec.distributed.planner")
models = pytest.importorskip("shard_gym_agents.models")
words = pytest.importorskip("shard_gym_agents.solvers.torchrec_words")

META = torch.device("meta")
GB = 2**30
KINDS = ("tw", "cw", "rw", "twrw", "grid", "dp")
HOSTS = Links(port=1e8, group=2, uplink=1e7)
SEED = 20


def drawn(seed):
    """Four tables: a sequence, a weighted one, others; four ranks on two hosts, all kinds and residences."""
    rng = np.random.default_rng(seed)
    tables = make_pool(
        rng.integers(10, 10**6, 4),
        rng.choice([4, 32, 64, 128, 256], 4),
        np.round(rng.uniform(0.1, 60, 4), 3),
        pooled=[False, True, True, True],
        weighted=[False, True, False, False],
        dtype=rng.choice(["fp32", "fp16"], 4).tolist(),
    )
    told = {"links": HOSTS, "kinds": KINDS, "residences": ("hbm", "uvm", "cached"), "host_memory": 2**40}
    return Task(tables, (16 * GB,) * 4, "iteration", int(rng.integers(1, 5000)), accounting="torchrec", **told)


def options_of(task):
    """Every way that TorchRec's enumerator sees to shard the tables, with its estimates."""
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.sharding_plan import get_default_sharders

    from shard_gym.torchrec.topology import topology

    told, samples = words.constraints(task), Setup.of(task).batch
    enumerator = EmbeddingEnumerator(topology(task), samples, told)
    return enumerator.enumerate(words.model(task), get_default_sharders())


@pytest.mark.parametrize("seed", range(SEED))
def test_times_and_bytes_of_every_option_are_those_of_torchrec(seed):
    task = drawn(seed)
    options = options_of(task)
    mine = words.TaskStorage(task)._shards(options)
    theirs = [shard for option in options for shard in option.shards]
    phases = estimate(mine, Setup.of(task)).phases
    perf = np.array([[getattr(shard.perf, phase) for phase in PHASES] for shard in theirs])
    assert np.allclose(phases[:, : len(PHASES)], perf, rtol=1e-9, atol=0)
    hbm, ddr = shard_bytes(task, mine)
    assert [(s.storage.hbm, s.storage.ddr) for s in theirs] == list(zip(hbm.tolist(), ddr.tolist(), strict=True))
    assert {o.sharding_type for o in options if o.name == "table_0"} >= {"row_wise", "table_wise", "data_parallel"}


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam", "adagrad", "partial_rowwise_lamb"])
def test_true_bytes_are_no_less_than_torchrecs_of_tables_in_device_memory(optimizer):
    for seed in range(5):
        task = replace(drawn(seed), residences=("hbm",))
        task = replace(task, tables=task.tables.with_(optimizer=[optimizer] * 4))
        mine = words.TaskStorage(task)._shards(options_of(task))
        theirs, true = (shard_bytes(replace(task, accounting=name), mine)[0] for name in ("torchrec", "true"))
        assert (theirs <= true).all()


def test_rows_of_a_sequence_are_sent_by_the_rank_that_has_them():
    """Two ranks, 10 ids a sample of 4 columns, 8 samples: by rows each sends half of 8 x 10 x 4 numbers."""
    tables = make_pool([100], 4, 10, pooled=False, reference_batch=8)
    free = {"links": Links(port=1e3), "kinds": ("tw", "rw")}
    task = Task(tables, (GB,) * 2, "iteration", 8, **free)
    roofline = simulators.make("roofline:h100-v2")
    rows = shards(task, Plan((0,), (), ("rw",), ((0, 1),)))
    sent = roofline.embed_shards(task, rows)[:, 5]
    assert sent.tolist() == [20, 20]  # columns a sample
    pooled = Task(tables.with_(pooled=[True]), (GB,) * 2, "iteration", 8, **free)
    assert roofline.embed_shards(pooled, rows)[:, 5].tolist() == [0, 0]  # partial sums go by another way


def test_weights_of_ids_take_time():
    """The backward pass of TorchRec takes 3.1 times as long as forward, not 2, and forward reads 20 x 8 bytes more."""
    task = Task(tables_of_ids := make_pool([10_000] * 2, 64, 20, weighted=[False, True]), (GB,), "kernel", 65_536)
    assert tables_of_ids.weighted.tolist() == [False, True]
    plain, weighted = simulators.single_costs(simulators.make("torchrec:cuda-v1"), task)
    read, ids = 20 * 64 * 4 + 64 * 4, 20 * 8
    assert weighted / plain == pytest.approx((read + 2 * ids) * 4.1 / ((read + ids) * 3), rel=1e-4)
    plain, weighted = simulators.single_costs(simulators.make("roofline:h100-v2"), task)
    assert 1 < weighted / plain < 2


def bags(*names, rows=10_000, dim=16, device=META, **settings):
    config = torchrec.EmbeddingBagConfig
    tables = [config(num_embeddings=rows, embedding_dim=dim, name=n, feature_names=[f"{n}_f"]) for n in names]
    return torchrec.EmbeddingBagCollection(tables, device=device, **settings)


def sequences(*names, rows=10_000, dim=16, device=META):
    config = torchrec.EmbeddingConfig
    tables = [config(num_embeddings=rows, embedding_dim=dim, name=n, feature_names=[f"{n}_f"]) for n in names]
    return torchrec.EmbeddingCollection(tables, device=device)


def processed(*names, device=META):
    from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    positions = PositionWeightedModuleCollection({f"{name}_f": 30 for name in names}, device=device)
    return FeatureProcessedEmbeddingBagCollection(bags(*names, is_weighted=True, device=device), positions)


def mixed():
    parts = {"pooled": bags("a", "b"), "weighted": bags("w", is_weighted=True), "rows": sequences("s", "t")}
    return torch.nn.ModuleDict({**parts, "processed": processed("p"), "over": torch.nn.Linear(16, 1)})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_model_of_every_collection_is_planned_by_default(device):
    told = {"pooling": {"s_f": 50.0, "p_f": 25.0}, "batch": 4096, "links": HOSTS}
    task, plan, sharding_plan = models.plan_model(mixed(), 4, 1, agent="cost-greedy", device=device, **told)
    assert (task.accounting, task.kinds_allowed) == ("true", KINDS)
    assert task.tables.name == ("a", "b", "w", "s", "t", "p")
    assert task.tables.pooled.tolist() == [True, True, True, False, False, True]
    assert task.tables.weighted.tolist() == [False, False, True, False, False, True]
    assert task.kinds_of(3) == ("tw", "cw", "rw", *(() if device == "cpu" else ("dp",)))
    assert task.kinds_of(5) == KINDS
    assert violations(task, plan) == []
    assert {path: set(tables) for path, tables in sharding_plan.plan.items()} == {
        "pooled": {"a", "b"},
        "weighted": {"w"},
        "rows": {"s", "t"},
        "processed": {"p"},
    }
    assert violations(task, from_torchrec(sharding_plan, task)) == []


@pytest.mark.parametrize(("tables", "least"), [("stu", 32), ("s", 16)])
def test_column_shards_of_a_collection_of_sequences_are_equally_wide(tables, least):
    """Constraints allow 16 columns: TorchRec wants all of a collection alike, so halves are planned."""
    told = {table: CONSTRAINTS(sharding_types=["column_wise"], min_partition=16) for table in tables}
    rows = torch.nn.ModuleDict({"rows": sequences(*tables, rows=2**20, dim=64), "pooled": bags("a", dim=64)})
    settings = {"constraints": told, "batch": 8, "simulator": "torchrec:cuda-v1", "agent": "auto"}
    task, plan, sharding_plan = models.plan_model(rows, 8, 1, **settings)
    assert dict(task.constraints.least_columns) == {t: least for t in range(len(tables))}
    shards = [of.sharding_spec.shards for of in sharding_plan.plan["rows"].values()]
    assert {shard.shard_sizes[1] for of_table in shards for shard in of_table} == {least}
    assert violations(task, plan) == []


def test_what_a_batch_takes_is_counted_before_a_plan_is_accepted():
    """A sequence of 2,000 ids of 128 columns on each of 1,024 samples takes 1 GB a rank beside weights of 0.05 GB."""
    model, told = sequences("s", rows=100_000, dim=128), {"pooling": {"s_f": 2000}, "batch": 2048, "agent": "auto"}
    with pytest.raises(InfeasibleTask):
        models.plan_model(model, 2, 0.9, **told)
    task, plan, _ = models.plan_model(model, 2, 2.2, **told)
    theirs = Task(task.tables, task.memory, "iteration", task.batch, accounting="torchrec", kinds=task.kinds)
    used, _ = bytes_used(theirs, shards(theirs, plan))
    assert (used <= task.capacity).all()
    assert used.max() > 0.9 * GB


def run_on_a_rank(simulator):
    """Kinds of the plan, and the largest difference to the model that is not sharded, of all its outputs."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    from tests.test_bridge_plans import fill

    cpu = torch.device("cpu")
    torch.manual_seed(0)  # the same weights on every rank
    parts = {"pooled": bags("a", "b", device=cpu), "rows": sequences("s", "t", device=cpu)}
    whole = torch.nn.ModuleDict({**parts, "processed": processed("p", "q", device=cpu)})
    model = copy.deepcopy(whole)
    _, plan, sharding_plan = models.plan_model(
        model, 2, 0.01, agent="cost-greedy", simulator=simulator, device="cpu", batch=16
    )
    env = ShardingEnv.from_process_group(torch.distributed.group.WORLD)
    sharded = DistributedModelParallel(model, env=env, device=cpu, plan=sharding_plan)
    fill(sharded, whole)
    worst, rank = 0.0, torch.distributed.get_rank()
    for name, tables in (("pooled", "ab"), ("rows", "st"), ("processed", "pq")):
        lengths = torch.tensor([1, 0, 3, 2] * 2 * len(tables))
        ids = (torch.arange(int(lengths.sum())) * 331 + rank) % 10_000
        batch = torchrec.KeyedJaggedTensor([f"{table}_f" for table in tables], ids, lengths=lengths)
        expected, found = whole[name](batch), sharded.module[name](batch).wait()
        for table in tables:
            one, other = (out[f"{table}_f"] for out in (expected, found))
            one, other = (out.values() if name == "rows" else out for out in (one, other))
            worst = max(worst, float((one - other).abs().max()))
    return plan.kind, worst


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["torchrec:cuda-v1", "roofline:h100-v2"])
def test_a_model_of_every_collection_runs_as_unsharded(simulator):
    for kinds, worst in launch(run_on_a_rank, 2, simulator):
        assert len(kinds) >= 6 and worst < 1e-6


CONSTRAINTS = planner.ParameterConstraints
CACHE = pytest.importorskip("torchrec.distributed.types").CacheParams


def test_constraints_go_in_and_come_out():
    told = {
        "a": CONSTRAINTS(sharding_types=["row_wise", "column_wise"], pooling_factors=[7.0], num_poolings=[2.0]),
        "b": CONSTRAINTS(min_partition=64, batch_sizes=[512], pooling_factors=[3.0], is_weighted=True),
        "c": CONSTRAINTS(compute_kernels=["fused_uvm_caching"], cache_params=CACHE(load_factor=0.3, reserved_memory=2)),
        "d": CONSTRAINTS(compute_kernels=["dense"], stochastic_rounding=True),
    }
    model = bags("a", "b", "c", "d", "e", dim=128)
    settings = {"constraints": told, "batch": 2048, "host_memory": 2**34}
    task, plan, sharding_plan = models.plan_model(model, 2, 1, agent="cost-greedy", **settings)
    assert task.constraints == Constraints(
        kinds=[(0, ("cw", "rw")), (2, ("tw", "cw", "rw", "twrw", "grid")), (3, ("dp",))],
        residences=[(2, ("cached",))],
        shares=[(2, 0.3)],
        least_columns=[(1, 64)],
    )
    assert task.tables.pooling.tolist() == [14, 1.5, 1, 1, 1]  # b: 1,024 of 2,048 samples
    assert task.tables.bags.tolist() == [2, 0.5, 1, 1, 1]
    assert task.tables.weighted.tolist() == [False, True, False, False, False]
    assert violations(task, plan) == [] and Task.from_json(task.to_json()) == task
    tables = sharding_plan.plan[""]
    assert tables["a"].sharding_type in ("row_wise", "column_wise")
    assert (tables["c"].compute_kernel, tables["c"].cache_params.load_factor) == ("fused_uvm_caching", 0.3)
    assert tables["c"].cache_params.reserved_memory == 2
    assert (tables["d"].sharding_type, tables["d"].stochastic_rounding) == ("data_parallel", True)
    back = words.constraints(task)
    assert set(back["a"].sharding_types) == {"row_wise", "column_wise"}
    assert (back["b"].min_partition, back["b"].is_weighted, back["b"].num_poolings) == (64, True, [0.5])
    assert back["c"].cache_params.load_factor == 0.3 and "fused" not in back["c"].compute_kernels


@pytest.mark.parametrize("least", [64, 128, 256])
def test_shards_of_columns_are_as_wide_as_constraints_want(least):
    """A table of 1 GB and 256 columns on ranks of 0.6 GB each: 2 shards, or 4, or none."""
    told = {"a": CONSTRAINTS(sharding_types=["table_wise", "column_wise"], min_partition=least)}
    model, settings = bags("a", rows=2**20, dim=256), {"constraints": told, "batch": 4, "agent": "auto"}
    if least == 256:
        with pytest.raises(InfeasibleTask):
            models.plan_model(model, 4, 0.6, **settings)
        return
    _, _, sharding_plan = models.plan_model(model, 4, 0.6, **settings)
    assert min(s.shard_sizes[1] for s in sharding_plan.plan[""]["a"].sharding_spec.shards) >= least


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ({"z": CONSTRAINTS()}, UnknownName, "table in constraints 'z'"),
        ({"a": 3}, InvalidTask, "'a' are no ParameterConstraints"),
        ([1], InvalidTask, "by name of the table"),
        (
            {"a": CONSTRAINTS(compute_kernels=["quant"])},
            UnknownName,
            "compute kernel in the constraints of 'a'",
        ),
        ({"a": CONSTRAINTS(compute_kernels=["key_value"])}, UnknownName, "compute kernel in the constraints of 'a'"),
        ({"a": CONSTRAINTS(use_virtual_table=True)}, InvalidTask, "use_virtual_table = True is not modelled"),
        ({"a": CONSTRAINTS(enforce_hbm=True)}, InvalidTask, "enforce_hbm = True is not modelled"),
        ({"a": CONSTRAINTS(device_group="cpu")}, InvalidTask, "device_group 'cpu'"),
        ({"a": CONSTRAINTS(sharding_types=["odd"])}, UnknownName, "sharding type in the constraints of 'a' 'odd'"),
        ({"a": CONSTRAINTS(pooling_factors=[1.0, 2.0])}, InvalidPool, "one number for each of its 1 features"),
        ({"a": CONSTRAINTS(compute_kernels=["fused_uvm"])}, InvalidTask, "tell host_memory"),
    ],
)
def test_constraints_that_are_refused(told, error, message):
    with pytest.raises(error, match=message):
        models.plan_model(bags("a"), 2, 1, constraints=told)


def test_columns_kept_on_one_of_several_hosts_are_refused():
    told = {"a": CONSTRAINTS(sharding_types=["table_column_wise"])}
    assert task_of_module(bags("a"), 4, 1, constraints=told).kinds_of(0) == ("cw",)
    with pytest.raises(InvalidTask, match="name column_wise too"):
        task_of_module(bags("a"), 4, 1, constraints=told, links=HOSTS)
    with pytest.raises(InvalidPool, match="not both"):
        lookups = {"a": CONSTRAINTS(pooling_factors=[4.0])}
        task_of_module(bags("a"), 4, 1, constraints=lookups, pooling={"a_f": 2})


@pytest.mark.filterwarnings("ignore:Heuristical")
def test_reservations_are_taken_off_as_torchrec_takes_them():
    from torchrec.distributed.planner import storage_reservations as of

    model = torch.nn.ModuleDict({"tables": bags("a"), "over": torch.nn.Linear(1000, 1000)})
    told = {"batch": 2048, "pooling": {"a_f": 25}}
    dense, ids = 6 * 1001 * 1000 * 4, 20 * 25 * 1024 * 8
    for reservation, left in (
        (of.FixedPercentageStorageReservation(0.25), 0.75 * GB),
        (of.FixedAbsoluteStorageReservation(2**20), GB - 2**20),
        (of.HeuristicalStorageReservation(0.25), 0.75 * GB - dense - ids),
        (of.HeuristicalStorageReservation(0.25, dense_tensor_estimate=2**25), 0.75 * GB - 2**25 - ids),
    ):
        assert task_of_module(model, 2, 1, storage_reservation=reservation, **told).memory == (left,) * 2
    apart = task_of_module(model, 2, [1, 2], storage_reservation=of.FixedPercentageStorageReservation(0.25), **told)
    assert apart.memory == (0.75 * GB, 1.5 * GB)
    with pytest.raises(InvalidTask, match="InferenceStorageReservation is of models that do not train"):
        task_of_module(model, 2, 1, storage_reservation=of.InferenceStorageReservation(0.1), **told)
    with pytest.raises(InvalidTask, match=r"one of TorchRec's storage reservations, got 0\.15"):
        task_of_module(model, 2, 1, storage_reservation=0.15, **told)
    with pytest.raises(InfeasibleTask, match="leaves"):
        task_of_module(model, 2, 0.01, storage_reservation=of.HeuristicalStorageReservation(0.5), **told)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"residences": [(0, ("uvm",))]}, "leave table 0 .* none of the task's residences hbm"),
        ({"residences": [(0, ("disk",))]}, "residence of table 0 'disk'"),
        ({"shares": [(0, 1.5)]}, "above 0 and at most 1"),
        ({"least_columns": [(9, 64)]}, r"name tables \[9\]"),
        ({"shares": [(0, 0.1), (0, 0.2)]}, "the shares of table 0 are told twice"),
    ],
)
def test_rules_on_forms_that_are_refused(rules, message):
    with pytest.raises((InvalidTask, UnknownName), match=message):
        Task(make_pool([10], 8), (GB,), "iteration", kinds=("tw", "rw"), constraints=Constraints(**rules))
