"""TorchRec's estimate, computed by us, beside the library's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task, make_pool
from shard_gym.simulators.torchrec import PHASES, TorchRecPerf, whole_tables
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links

planner = pytest.importorskip("torchrec.distributed.planner")


def library_options(task, sharding_type, min_partition=None):
    """TorchRec's sharding options of a task's tables, estimated; every table sharded in this way.

    A table of several bags is given the first two of its bags, of a feature's, and the others as features of one bag.
    """
    import torch
    from torchrec import EmbeddingBagCollection
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig

    tables, names = task.tables, [f"t{i}" for i in range(task.num_tables)]
    local = task.devices_per_host
    topology = planner.Topology(task.num_devices, "cuda", local_world_size=local)
    poolings = [[min(2.0, bags), *[1.0] * int(bags - 2)] for bags in tables.bags.tolist()]  # bags of each feature
    constraints = {
        name: planner.ParameterConstraints(
            sharding_types=[sharding_type],
            compute_kernels=["fused"],
            pooling_factors=[float(ids) / sum(bags)] * len(bags),
            num_poolings=bags,
            min_partition=min_partition,
        )
        for name, ids, bags in zip(names, tables.pooling, poolings, strict=True)
    }
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=int(tables.rows[i]),
            embedding_dim=int(tables.dim[i]),
            feature_names=[f"f{i}_{j}" for j in range(len(poolings[i]))],
            data_type=DataType[tables.dtype[i].upper()],
        )
        for i, name in enumerate(names)
    ]
    module = EmbeddingBagCollection(configs, device=torch.device("meta"))
    enumerator = EmbeddingEnumerator(topology, -(-task.batch // task.num_devices), constraints)
    found = enumerator.enumerate(module, [EmbeddingBagCollectionSharder()])
    return sorted(found, key=lambda option: int(option.name[1:])), topology


def phases(shard):
    return [getattr(shard.perf, phase) for phase in PHASES]


def drawn_task(seed, dims, objective="iteration"):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 9)), int(rng.choice([1, 2, 3, 4, 8]))
    tables = make_pool(
        rows=rng.integers(1, 10**6, n),
        dim=rng.choice(dims, n),
        pooling=np.round(rng.exponential(5, n), 3) * rng.integers(0, 2, n) + rng.choice([0.0, 0.3, 1.0], n),
        dtype=tuple(rng.choice(["fp32", "fp16", "bf16"], n)),
        bags=rng.choice([0.5, 1, 1, 2, 3, 4], n),
    )
    links = None if rng.integers(2) else Links(port=1e8, group=int(rng.integers(1, 5)))
    return Task(tables, (GB,) * k, objective=objective, batch=int(rng.integers(1, 10**5)), links=links)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_whole_tables_are_estimated_as_torchrec_does(seed):
    task = drawn_task(seed, [4, 16, 32, 60, 64, 96, 128, 256])
    options, _ = library_options(task, "table_wise")
    assert whole_tables(task).phases[:, :4] == pytest.approx(
        np.array([phases(option.shards[0]) for option in options]), rel=1e-12
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([8, 64, 128, 256]))
def test_halves_are_estimated_as_torchrec_does(seed, dim):
    task = drawn_task(seed, [dim])
    options, _ = library_options(task, "column_wise", min_partition=dim // 2)
    halves = task.split(range(task.num_tables))
    assert [len(option.shards) for option in options] == [2] * task.num_tables
    theirs = [phases(option.shards[half]) for half in (0, 1) for option in options]
    assert whole_tables(halves).phases[:, :4] == pytest.approx(np.array(theirs), rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_the_makespan_is_what_torchrec_rates_a_plan_by(seed):
    from torchrec.distributed.planner.perf_models import NoopPerfModel

    task = drawn_task(seed, [4, 64, 128])
    options, topology = library_options(task, "table_wise")
    placement = np.random.default_rng(seed).integers(task.num_devices, size=task.num_tables)
    for option, device in zip(options, placement.tolist(), strict=True):
        option.shards[0].rank = device
    makespan = TorchRecPerf().latency(task, placement).makespan("iteration")
    assert makespan == pytest.approx(NoopPerfModel(topology).rate(options), rel=1e-9, abs=1e-6)


def test_an_estimate_by_hand():
    """One table of 64 fp32 columns, 2 ids a sample, 1,000 samples on one rank of two, both on one host."""
    task = Task(make_pool(rows=10, dim=64, pooling=2, dtype="fp32"), (GB,) * 2, objective="iteration", batch=2_000)
    read = 2 * 2_000 * 8 + 2 * 2_000 * 64 * 4 + 2_000 * 64 * 4  # ids, rows and output, bytes
    forward, comm = 1.15 * read / (897 * 2**30 / 1e3), 2_000 * 64 * 4 / (600 * 2**30 / 1e3)
    assert whole_tables(task).phases[:, :4][0] == pytest.approx([forward, comm, 2 * forward, comm])
    latency = TorchRecPerf().latency(task, np.array([1]))
    assert latency.cost("iteration") == pytest.approx([0, 3 * forward + 2 * comm], abs=1e-6)
    kernel = TorchRecPerf().latency(Task(task.tables, task.memory, batch=2_000), np.array([1]))
    assert kernel.makespan("kernel") == pytest.approx(3 * forward, abs=1e-6)


def test_a_slower_device_computes_longer():
    """Ours: TorchRec knows one speed. Communication is not slowed down."""
    tables = make_pool(rows=10, dim=64, pooling=2)
    even, uneven = (Task(tables, (GB,) * 2, "iteration", speed=speed) for speed in ((1.0, 1.0), (1.0, 0.5)))
    fast, slow = (TorchRecPerf().latency(task, np.array([1])) for task in (even, uneven))
    assert slow.backward_compute[1] == 2 * fast.backward_compute[1]
    assert slow.forward_comm[1] == fast.forward_comm[1] > 0


@pytest.mark.parametrize(("group", "ranks"), [(0, 8), (2, 2), (3, 8), (8, 8), (16, 8)])
def test_hosts_are_groups_that_are_all_alike(group, ranks):
    task = Task(make_pool(rows=10), (GB,) * 8, links=Links(port=1e8, group=group))
    assert task.devices_per_host == ranks
