"""Bytes that TorchRec's accounting leaves out, as FBGEMM holds them; and tasks that are counted either way."""

from dataclasses import replace

import numpy as np
import pytest

import shard_gym_agents as agents
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import InvalidTask
from shard_gym.memory.shards import Feature, Setup, Table, shards
from shard_gym.memory.storage import storage
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.simulators import make as simulator
from shard_gym.tables.configs import Lookup
from shard_gym.tables.pool import EXACT
from shard_gym.task.task import Task
from shard_gym.torchrec.modules import task_of_module
from tests.pool_helpers import fp16_pool as make_pool
from tests.storage_helpers import collection, constraint, enumerated, of_whole

# TorchRec and FBGEMM tell those who write them what is deprecated
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("element", [2, 4])
@pytest.mark.parametrize(
    ("optimizer", "name"),
    [("sgd", "EXACT_SGD"), ("rowwise_adagrad", "EXACT_ROWWISE_ADAGRAD"), ("adagrad", "EXACT_ADAGRAD")],
)
def test_states_are_those_of_fbgemm_whatever_the_weights(optimizer, name, element):
    operator = fbgemm_operator(optimizer=name, weights_precision={2: "FP16", 4: "FP32"}[element])
    held = operator.momentum1_host.numel() * operator.momentum1_host.element_size() if optimizer != "sgd" else 0
    assert of_whole(element_bytes=element, optimizer=optimizer).hbm.optimizer[0] == held
    counted = {"sgd": 0, "rowwise_adagrad": 1000 * element, "adagrad": 16_000 * element}
    assert of_whole("torchrec", element_bytes=element, optimizer=optimizer).hbm.optimizer[0] == counted[optimizer]


def fbgemm_operator(rows=1000, dim=16, **settings):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    settings["optimizer"] = EmbOptimType[settings.get("optimizer", "EXACT_SGD")]
    settings["weights_precision"] = SparseType[settings.get("weights_precision", "FP16")]
    table = (rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
    return SplitTableBatchedEmbeddingBagsCodegen([table], stochastic_rounding=False, **settings)


def test_states_of_tables_in_host_memory_are_where_fbgemm_puts_them():
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        construct_split_state,
    )

    for kernel, place in (("fused", "DEVICE"), ("fused_uvm", "MANAGED"), ("fused_uvm_caching", "MANAGED_CACHING")):
        spec = [(1000, 16, EmbeddingLocation[place], ComputeDevice.CUDA)]
        for optimizer, rowwise in (("rowwise_adagrad", True), ("adagrad", False)):
            state = construct_split_state(spec, rowwise, cacheable=False)
            found = of_whole(kernel=kernel, optimizer=optimizer)
            assert (found.hbm.optimizer[0], found.ddr.optimizer[0]) == (4 * state.dev_size, 4 * state.uvm_size)


def test_column_shards_keep_a_state_for_each_row():
    found, theirs = (of_whole(said, kind="cw", optimizer="rowwise_adagrad").hbm for said in ("true", "torchrec"))
    assert found.optimizer.tolist() == [4000, 4000]
    assert theirs.optimizer.tolist() == [2000, 2000]


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ("adam", 32),
        ("lamb", 32),
        ("lars_sgd", 16),
        ("partial_rowwise_adam", 17),
        ("partial_rowwise_lamb", 17),
        ("none", 0),
    ],
)
def test_states_of_other_optimizers(optimizer, numbers):
    assert of_whole(element_bytes=2, optimizer=optimizer).hbm.optimizer[0] == 4 * numbers * 1000


def test_int8_rows_carry_scale_and_bias():
    held = fbgemm_operator(weights_precision="INT8").weights_host
    assert of_whole(element_bytes=1).hbm.tensor[0] == held.numel() * held.element_size() == 1000 * (16 + 8)
    assert of_whole("torchrec", element_bytes=1).hbm.tensor[0] == 16_000
    assert of_whole(element_bytes=1, kernel="quant").hbm.tensor[0] == 16_000  # its 16 bytes a row hold all
    assert of_whole("torchrec", element_bytes=1, kernel="quant").hbm.tensor[0] == 20_000


def test_output_is_fp32_and_has_a_row_for_empty_bags():
    import torch

    out = fbgemm_operator()(torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1, *[1] * 9]))  # 10 samples, 1 id
    setup = Setup(1, batch=10)
    told = {"features": (Feature(pooling=0.1),), "element_bytes": 2}
    assert of_whole(setup=setup, **told).output[0] == out.numel() * out.element_size() == 10 * 16 * 4
    assert of_whole("torchrec", setup, **told).output[0] == 1 * 16 * 2
    assert of_whole(setup=setup, **told, output_bytes=2).output[0] == 10 * 16 * 2


def test_input_has_offsets_and_weights():
    features = (Feature(pooling=3.0), Feature(pooling=2.0))
    assert of_whole("torchrec", features=features).input[0] == 2 * 10 * 5 * 8
    assert of_whole(features=features).input[0] == 2 * 10 * (5 * 8 + 2 * 8)
    assert of_whole(features=features, weighted=True).input[0] == 2 * 10 * (5 * (8 + 4) + 2 * 8)


@pytest.mark.parametrize("pipeline", ["train_sparse_dist", "train_prefetch_sparse_dist"])
def test_output_counts_under_a_pipeline_too(pipeline):
    setup = Setup(2, 10, pipeline=pipeline)
    theirs, found = of_whole("torchrec", setup), of_whole(setup=setup)
    held = {"train_sparse_dist": 2, "train_prefetch_sparse_dist": 3}[pipeline]
    assert theirs.hbm.buffers[0] == held * theirs.input[0]
    assert found.hbm.buffers[0] == held * found.input[0] + found.output[0]


@pytest.mark.filterwarnings("ignore:.*autograd kernel:UserWarning")
def test_copies_have_a_gradient():
    import torch
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

    operator = DenseTableBatchedEmbeddingBagsCodegen([(1000, 16)], use_cpu=True)
    operator(torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])).sum().backward()
    held = operator.weights.grad
    found = of_whole(kind="dp", kernel="dense")
    assert found.hbm.gradient.tolist() == [held.numel() * held.element_size()] * 2
    assert not of_whole("torchrec", kind="dp", kernel="dense").hbm.gradient.any()


def test_inference_keeps_no_state_but_looks_up():
    setup = Setup(2, 10, inference=True)
    found = of_whole(setup=setup, optimizer="adam", kernel="fused_uvm_caching")
    assert not found.hbm.optimizer.any() and not found.hbm.cache.any()
    assert found.hbm.buffers[0] == found.input[0] + found.output[0] > 0
    assert not of_whole("torchrec", setup, optimizer="adam").hbm.buffers.any()


def drawn_task(accounting, optimizer="rowwise_adagrad", **settings):
    rng = np.random.default_rng(5)
    tables = make_pool(rng.integers(10, 10**5, 12), rng.choice([8, 16, 64], 12), rng.uniform(0.1, 20, 12))
    return Task(tables, (2**40,) * 4, batch=4096, optimizer=optimizer, accounting=accounting, **settings)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_a_tasks_bytes_are_those_of_torchrecs_planner(optimizer):
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    task, setup = drawn_task("torchrec", optimizer), Setup(4, 1024)
    columns = zip(task.tables.rows.tolist(), task.tables.dim.tolist(), task.tables.pooling.tolist(), strict=True)
    tables = [Table(rows, dim, 2, (Feature(ids),)) for rows, dim, ids in columns]
    name = {"sgd": "SGD", "rowwise_adagrad": "RowWiseAdagrad", "adam": "Adam"}[optimizer]
    module, _ = collection(tables, [name] * len(tables))
    told = {f"t{i}": constraint(table, "tw", None, setup) for i, table in enumerate(tables)}
    theirs = enumerated(module, EmbeddingBagCollectionSharder(), told, setup)
    assert table_bytes(task).tolist() == [theirs[f"t{i}"][0][2] for i in range(len(tables))]
    tables = [replace(table, optimizer=optimizer) for table in tables]
    in_truth = storage(shards(tables, ["tw"] * len(tables), setup), setup, "true")
    assert table_bytes(drawn_task("true", optimizer)).tolist() == in_truth.hbm.bytes.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_several_features_are_those_of_torchrecs_planner(seed):
    """A model's tables with features that all have an id a bag or more, each with bags and a batch of its own."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    rng, setup = np.random.default_rng(seed), Setup(4, 1024)
    tables = [
        Table(
            int(rng.integers(10, 10**5)),
            int(rng.choice([8, 16, 64])),
            2,
            tuple(
                Feature(float(rng.integers(1, 20)), float(rng.integers(1, 4)), int(rng.choice([256, 512, 1024])))
                for _ in range(rng.integers(1, 5))
            ),
        )
        for _ in range(12)
    ]
    module, _ = collection(tables, ["SGD"] * len(tables))
    told = {f"t{i}": constraint(table, "tw", None, setup) for i, table in enumerate(tables)}
    theirs = enumerated(module, EmbeddingBagCollectionSharder(), told, setup)
    pooling = {
        f"f{i}_{j}": Lookup(feature.pooling, feature.poolings, 4 * feature.batch)
        for i, table in enumerate(tables)
        for j, feature in enumerate(table.features)
    }
    task = task_of_module(module, 4, 1, pooling=pooling, batch=4096, accounting="torchrec")
    assert (task.tables.bags > 1).any()
    assert table_bytes(task).tolist() == [theirs[f"t{i}"][0][2] for i in range(len(tables))]
    in_truth = storage(
        shards([replace(t, optimizer="sgd") for t in tables], ["tw"] * len(tables), setup), setup, "true"
    )
    assert table_bytes(replace(task, accounting="true")).tolist() == in_truth.hbm.bytes.tolist()


@pytest.mark.parametrize("accounting", ["torchrec", "true"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_splitting_a_table_saves_no_bytes(accounting, optimizer):
    task = drawn_task(accounting, optimizer, splits_allowed=True)
    halved = table_bytes(task.split(range(task.num_tables)))
    assert (halved[:12] + halved[12:] >= table_bytes(task)).all()


def tight_task(accounting):
    roomy = drawn_task(accounting)
    return replace(roomy, memory=(int(1.3 * table_bytes(roomy).sum() / 4),) * 4)


@pytest.mark.parametrize("accounting", ["torchrec", "true"])
def test_environment_masks_by_its_tasks_accounting(accounting):
    task = tight_task(accounting)
    env = ShardingEnv([task], simulator=simulator("roofline:rtx2080ti-x4-v1"), order="given")
    _, info = env.reset(seed=0)
    used, masked = np.zeros(4, np.int64), 0
    for size in table_bytes(task):
        fits = used + size <= task.capacity
        assert env.action_masks().tolist() == (fits if fits.any() else np.ones(4, bool)).tolist()
        masked += int((~fits).sum())
        device = int(fits.argmax())
        used[device] += size
        *_, info = env.step(device)
    assert masked and info["feasible"] == bool((used <= task.capacity).all())


@pytest.mark.parametrize("solver", ["lookup-greedy", "cost-greedy", "local-search"])
@pytest.mark.parametrize("accounting", ["torchrec", "true"])
def test_solvers_keep_to_either_accounting(accounting, solver):
    task = tight_task(accounting)
    plan = agents.make(solver)(task, simulator("roofline:rtx2080ti-x4-v1"))
    assert (device_bytes(task, np.array(plan.device)) <= task.capacity).all()


def test_tasks_tell_accountings_apart_and_keep_them():
    tasks = [drawn_task(accounting) for accounting in ("weights", "training", "torchrec", "true")]
    assert len({task.hash for task in tasks}) == 4
    assert all(Task.from_json(task.to_json()) == task for task in tasks)


def test_buffers_too_large_for_exact_sums_are_refused():
    many = Task(make_pool(10, 16, 2.0**20, bags=2.0**20), (1,), batch=2**27)
    with pytest.raises(InvalidTask, match="buffers"):
        replace(many, accounting="true")
    tables = make_pool(10, 16, 2.0**20)
    Task(tables, (1,), batch=2**31)
    with pytest.raises(InvalidTask, match="buffers"):
        Task(tables, (1,), batch=2**31, accounting="true")
    fits = Task(tables, (1,), batch=2**27, accounting="true")
    assert table_bytes(fits)[0] < EXACT
