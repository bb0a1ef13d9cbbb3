"""TorchRec's estimate of shards of all kinds, by us, beside the library's own."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Plan, Task, make_pool
from shard_gym.errors import InvalidTask
from shard_gym.memory.shards import Feature, Setup, Table, shards
from shard_gym.simulators.base import plan_latency
from shard_gym.simulators.torchrec import CRITICAL_PATH, PHASES, TorchRecPerf, estimate
from shard_gym.tables.pool import GB
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.torchrec.stats import plan_stats
from tests.storage_helpers import TYPES, collection, constraint, drawn_table

planner = pytest.importorskip("torchrec.distributed.planner")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OF_PERF = (*PHASES, "prefetch_compute")
PREFETCH = "train_prefetch_sparse_dist"
SETUPS = [
    Setup(8, 512, 8),
    Setup(8, 100, 8, inference=True),
    Setup(12, 1000, 4, pipeline=PREFETCH),
    Setup(16, 333, 8, pipeline=PREFETCH, inference=True),
    Setup(16, 2560, 4),
    Setup(6, 77, 3, pipeline=PREFETCH),
    Setup(1, 77, 1),
    Setup(4, 777, 2, device="cpu"),
]
TABLES = 40  # drawn for each setup, with pooled rows and without


def phases(perf):
    return [getattr(perf, phase) for phase in OF_PERF]


def enumerated(module, sharder, constraints, setup):
    """The library's options, estimated, and its topology."""
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

    topology = planner.Topology(setup.world_size, setup.device, local_world_size=setup.local_world_size)
    estimator = EmbeddingPerfEstimator(topology, constraints, setup.inference)
    options = EmbeddingEnumerator(topology, setup.batch, constraints, estimator).enumerate(module, [sharder])
    return options, topology


def estimated(module, sharder, constraints, setup):
    """The library's phases of each shard of each option, by table and by kind and kernel."""
    options, _ = enumerated(module, sharder, constraints, setup)
    kinds = {theirs: kind for kind, theirs in TYPES.items()}
    return {(o.name, kinds[o.sharding_type], o.compute_kernel): [phases(s.perf) for s in o.shards] for o in options}


def statistics(table):
    """Statistics of a cache, by which the library expects the table's misses."""
    from torchrec.distributed.types import CacheStatistics

    class Told(CacheStatistics):
        expected_lookups = 2 * table.fetched
        cacheability = 0.5

        def expected_miss_rate(self, clf):
            return 0.5

    return Told()


@pytest.mark.parametrize("pooled", [True, False])
def test_every_shard_is_estimated_as_torchrec_does(pooled):
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    compared, drawn = 0, set()
    for number, setup in enumerate(SETUPS):
        rng = np.random.default_rng([17, number, pooled])
        sharder = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
        kinds, tables = zip(*[drawn_table(rng, pooled, sharder, setup.device) for _ in range(TABLES)], strict=True)
        weighted = pooled and bool(number % 2)
        tables = [replace(t, weighted=weighted, fetched=float(rng.choice([0, rng.uniform(0, 1e6)]))) for t in tables]
        if not pooled:  # an EmbeddingCollection has tables of one width
            tables = [replace(table, dim=tables[0].dim) for table in tables]
        least = [int(rng.choice([8, 32, 100])) if rng.random() < 0.5 else None for _ in tables]
        module, _ = collection(tables, [None] * TABLES)
        told = zip(tables, kinds, least, strict=True)
        told = {f"t{i}": constraint(*of, setup, statistics(of[0])) for i, of in enumerate(told)}
        theirs = estimated(module, sharder, told, setup)
        ours = estimate(shards(tables, kinds, setup, least), setup).phases
        named = enumerate(zip(kinds, tables, strict=True))
        expected = np.concatenate([theirs[f"t{i}", kind, table.kernel] for i, (kind, table) in named])
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
        compared += len(expected)
        drawn |= {(kind, table.kernel) for kind, table in zip(kinds, tables, strict=True)}
    assert compared >= 1000  # twice, so 2,000 in all
    assert {kind for kind, _ in drawn} == (set(TYPES) if pooled else {"tw", "cw", "rw", "dp"})
    assert {kernel for _, kernel in drawn} == {"fused", "dense", "fused_uvm", "fused_uvm_caching"}


def test_all_ways_to_shard_the_table_of_the_librarys_own_test():
    """The 19 kinds and kernels of `test_1_table_perf`: 100 rows of 10 columns, two ranks, 512 samples each."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.types import ParameterConstraints

    setup, table = Setup(2, 512), Table(100, 10)
    module, _ = collection([table], [None])
    kernels = ["dense", "fused", "fused_uvm", "fused_uvm_caching"]
    told = {"t0": ParameterConstraints(list(TYPES.values()), kernels)}
    theirs = estimated(module, EmbeddingBagCollectionSharder(), told, setup)
    assert len(theirs) == 19
    for (_, kind, kernel), expected in theirs.items():
        ours = estimate(shards([replace(table, kernel=kernel)], [kind], setup), setup).phases
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_quantised_tables_are_estimated_as_torchrec_does():
    import torch
    from torchrec import EmbeddingBagConfig
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
    from torchrec.quant.embedding_modules import EmbeddingBagCollection
    from torchrec.types import DataType

    configs = [EmbeddingBagConfig(r, d, f"t{r}", DataType.INT8, [f"f{r}"]) for r, d in [(1001, 64), (5, 512)]]
    module, setup = EmbeddingBagCollection(configs, False, torch.device("meta")), Setup(8, inference=True)
    widths = [parts.weight.shape[1] for parts in module.embedding_bags.values()]
    for kind in ("tw", "cw", "rw"):
        for kernel in ("quant", "quant_uvm", "quant_uvm_caching"):
            told = {c.name: ParameterConstraints([TYPES[kind]], [kernel]) for c in configs}
            tables = [Table(c.num_embeddings, w, 1, kernel=kernel) for c, w in zip(configs, widths, strict=True)]
            theirs = estimated(module, QuantEmbeddingBagCollectionSharder(), told, setup)
            ours = estimate(shards(tables, [kind] * 2, setup), setup).phases
            expected = np.concatenate([theirs[c.name, kind, kernel] for c in configs])
            np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_copies_by_hand():
    """4 ranks of 2 hosts, 10 samples each with 3 ids: 10 x 3 lookups of 8 fp32 columns, 1,000 rows to add up."""
    setup = Setup(4, 10, 2)
    found = estimate(shards([Table(1000, 8, features=(Feature(3.0),), kernel="dense")], ["dp"], setup), setup).phases
    rate, size = 897 * 2**30 / 1e3 / 2, 1000 * 8 * 4
    forward = (30 * 8 + 30 * 8 * 4 + 10 * 8 * 4) / rate
    all_reduce = size * 3 / 2 / (12.5 * 2**30 / 1e3 * 2)
    assert found == pytest.approx(np.array([[forward, 0, 2 * forward, all_reduce + size * 9.22 / rate, 0]] * 4))


def test_a_cpu_has_no_kernels_for_host_memory():
    setup = Setup(2, device="cpu")
    with pytest.raises(InvalidTask, match="fused_uvm"):
        estimate(shards([Table(10, 4, kernel="fused_uvm")], ["tw"], setup), setup)


def drawn_plan(rng):
    """A task of all kinds on two hosts of four, and a plan of it; its tables as the library is told of them."""
    n, ends = 10, {"hbm": "fused", "uvm": "fused_uvm", "cached": "fused_uvm_caching"}
    tables = make_pool(
        rows=rng.integers(1, 10**6, n),
        dim=rng.choice([16, 64, 256], n),
        pooling=rng.integers(1, 40, n) / 4,
        dtype="fp32",
    )
    links, everywhere = Links(port=1e9, group=4), tuple(ends)
    task = Task(tables, (GB,) * 8, "iteration", 4_000, links=links, kinds=KINDS, residences=everywhere, host_memory=GB)
    kinds, hosts = rng.choice(KINDS, n), [(0, 1, 2, 3), (4, 5, 6, 7)]
    residence = [str(rng.choice(everywhere)) if kind != "dp" else "hbm" for kind in kinds]
    of_kind = {
        "tw": lambda: (int(rng.integers(8)),),
        "cw": lambda: tuple(rng.integers(8, size=2).tolist()),
        "twrw": lambda: hosts[rng.integers(2)],
        "grid": lambda: hosts[rng.integers(2)] + hosts[rng.integers(2)],
    }
    devices = [of_kind.get(kind, lambda: tuple(range(8)))() for kind in kinds]
    share = [{"hbm": 1.0, "uvm": 0.0, "cached": 0.4}[r] for r in residence]
    plan = Plan([d[0] for d in devices], (), kinds.tolist(), devices, residence, share)
    features = [(Feature(ids),) for ids in tables.pooling.tolist()]
    kernels = ["dense" if kind == "dp" else ends[r] for kind, r in zip(kinds, residence, strict=True)]
    columns = zip(tables.rows.tolist(), tables.dim.tolist(), features, kernels, strict=True)
    return task, plan, [Table(r, d, 4, f, kernel=k, cache_load_factor=0.4) for r, d, f, k in columns]


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_of_all_kinds_is_rated_as_torchrec_rates_it(seed):
    """The rating that its planner makes small, and the critical path that its statistics tell."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.perf_models import NoopPerfModel
    from torchrec.distributed.planner.stats import _calculate_critical_path

    task, plan, tables = drawn_plan(np.random.default_rng([18, seed]))
    in_two = [kind in ("cw", "grid") for kind in plan.kind]
    setup, halves = Setup.of(task), [t.dim // 2 if two else None for two, t in zip(in_two, tables, strict=True)]
    module, _ = collection(tables, [None] * len(tables))
    told = {f"t{i}": constraint(*of, setup) for i, of in enumerate(zip(tables, plan.kind, halves, strict=True))}
    options, topology = enumerated(module, EmbeddingBagCollectionSharder(), told, setup)
    for option in options:
        for shard, rank in zip(option.shards, plan.devices[int(option.name[1:])], strict=True):
            shard.rank = rank
    rating = plan_latency(TorchRecPerf(), task, plan).makespan("iteration")
    assert rating == pytest.approx(NoopPerfModel(topology).rate(options), rel=1e-6)
    theirs = _calculate_critical_path(options)
    path = plan_latency(TorchRecPerf(), replace(task, objective=CRITICAL_PATH), plan)
    assert path.makespan(CRITICAL_PATH) == pytest.approx(theirs.total(), rel=1e-6)
    of_phases = [slowest.ms for slowest in plan_stats(task, plan).critical_path("torchrec").values()]
    forward, there, back, backward = of_phases
    assert (there + back, forward + backward) == pytest.approx((theirs.comms_estimate, theirs.comp_estimate), rel=1e-12)
