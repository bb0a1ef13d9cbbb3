"""The measured simulator: the operator computes what it should, and is timed as it should be."""

import sys
from importlib import metadata, util
from itertools import islice, pairwise

import numpy as np
import pytest

from shard_gym import Task, make_pool
from shard_gym.errors import InvalidPlan, MissingDependency, SimulatorError, UnknownName
from shard_gym.measuring import operator
from shard_gym.measuring.fbgemm import Bench, Fbgemm, Settings, simulator_id
from shard_gym.measuring.host import LONGEST_HOLD_MS, TRIAL_CYCLES, Hold, hardware, pinned, versions
from shard_gym.measuring.shards import draws
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import GB
from shard_gym.tables.traces import scatter, trace
from shard_gym.task.links import Links

needs_fbgemm = pytest.mark.skipif(util.find_spec("fbgemm_gpu") is None, reason="needs the extra [cpu] or [cuda]")
SMALL = {"arena_gb": 0.01, "batch": 64}


@pytest.fixture
def tables():
    return make_pool(rows=[50, 700, 3_000], dim=[4, 8, 16], pooling=[3, 2, 1], reference_batch=1_024)


def naive(rng, rows, dims, batch):
    """(indices, offsets) of a batch in FBGEMM's order, and who looks up what: (table, sample, id) triples."""
    lookups = [
        (t, s, int(i)) for t in range(len(rows)) for s in range(batch) for i in rng.integers(rows[t], size=s % 4)
    ]
    lengths = np.array([s % 4 for _ in rows for s in range(batch)])
    return np.array([i for *_, i in lookups]), np.concatenate([[0], np.cumsum(lengths)]), lookups


@needs_fbgemm
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_the_operator_pools_rows_and_updates_them(optimizer, tables, rng):
    import torch

    batch = 8
    bench = Bench(Settings(optimizer=optimizer, dtype="fp32", batch=batch, arena_gb=0.01))
    op = bench.operator(tables)
    bench.state.buffer.zero_()
    before = [rng.standard_normal((r, d)).astype(np.float32) for r, d in zip(tables.rows, tables.dim, strict=True)]
    for held, values in zip(op.split_embedding_weights(), before, strict=True):
        held.copy_(torch.tensor(values))
    indices, offsets, lookups = naive(rng, tables.rows, tables.dim, batch)
    pooled = [np.zeros((batch, d), np.float32) for d in tables.dim]
    for t, s, i in lookups:
        pooled[t][s] += before[t][i]

    output = op(torch.tensor(indices), torch.tensor(offsets))
    np.testing.assert_allclose(output.detach().numpy(), np.concatenate(pooled, axis=1), rtol=1e-5, atol=1e-5)

    gradient = rng.standard_normal((batch, int(tables.dim.sum()))).astype(np.float32)
    output.backward(torch.tensor(gradient))
    per_table = np.split(gradient, np.cumsum(tables.dim)[:-1], axis=1)
    summed = [np.zeros_like(w) for w in before]
    for t, s, i in lookups:
        summed[t][i] += per_table[t][s]
    for held, values, g in zip(op.split_embedding_weights(), before, summed, strict=True):
        scale = np.sqrt((g**2).mean(axis=1, keepdims=True)) + 1e-8 if optimizer == "rowwise_adagrad" else 1.0
        np.testing.assert_allclose(held.numpy(), values - 0.01 * g / scale, rtol=1e-4, atol=1e-5)


@needs_fbgemm
def test_operators_share_one_arena_and_wrap_around_its_end(tables):
    bench = Bench(Settings(**SMALL))
    first, second = bench.operator(tables), bench.operator(tables.take([2, 0]))
    assert first.weights_host.data_ptr() == second.weights_host.data_ptr() == bench.weights.buffer.data_ptr()
    assert first.weights_offsets.tolist() == [0, 256, 256 + 5_632]  # elements; each on a line of 64 fp16
    large = make_pool(rows=200_000, dim=[16] * 3, pooling=2).take([0, 0, 0])  # 19 MB in an arena of 9
    timing = bench.measure(large)
    assert bench.operator(large).weights_offsets.tolist() == [0, 0, 0]
    assert timing.forward_ms > 0 and timing.backward_ms > 0


@needs_fbgemm
def test_too_little_memory_is_an_error_and_leaves_the_bench_usable(tables):
    bench = Bench(Settings(**SMALL))
    with pytest.raises(SimulatorError, match=r"256000000000000 bytes asked, \d+ free on cpu"):
        bench.measure(make_pool(rows=10**12, dim=128, pooling=1))
    assert bench.measure(tables).forward_ms > 0


@needs_fbgemm
def test_dims_that_fbgemm_cannot_hold_are_refused():
    with pytest.raises(SimulatorError, match=r"multiples of 4, got \[6\]"):
        Bench(Settings(**SMALL)).operator(make_pool(rows=[10, 10], dim=[6, 8]))


@needs_fbgemm
@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([0, 5, 2], [0, 1, 2, 2, 3], "table 0 has 5 rows, but its trace looks up row 5"),
        ([0, 4, 9], [0, 1, 2, 2, 3], "table 1 has 9 rows, but its trace looks up row 9"),
        ([0, -1, 2], [0, 1, 2, 2, 3], "looks up row -1"),
        ([0, 1, 2], [0, 1, 2, 2, 9], "offsets must rise from 0 to 3"),
        ([0, 1, 2], [0, 2, 1, 2, 3], "offsets must rise from 0 to 3"),
        ([0, 1, 2], [0, 1, 3], "need 5 offsets"),
    ],
)
def test_a_trace_outside_its_table_never_reaches_fbgemm(indices, offsets, message):
    import torch

    bench = Bench(Settings(batch=2, arena_gb=0.01))
    op = bench.operator(make_pool(rows=[5, 9], dim=8))
    sets = iter([(torch.tensor(indices), torch.tensor(offsets))])
    with pytest.raises(SimulatorError, match=message):
        bench.time(op, torch.tensor([5, 9]), sets)


@needs_fbgemm
@pytest.mark.slow
def test_cold_runs_cost_visibly_more_than_warm_ones():
    """30,000 rows of 32 bytes fit the caches once they have been there: a run then takes less than a third."""
    table = make_pool(rows=4_000_000, dim=16, pooling=15)
    settings = {"statistic": "median", "clock": "thread", "arena_gb": 0.2}

    def ratio() -> float:
        with pinned("cpu"):
            cold, warm = (Bench(Settings(cold=cold, **settings)).measure(table) for cold in (True, False))
        return (cold.forward_ms + cold.backward_ms) / (warm.forward_ms + warm.backward_ms)

    assert any(ratio() > 1.5 for _ in range(4))  # other processes may clear the caches meanwhile


@needs_fbgemm
def test_every_run_looks_up_fresh_ids_with_the_statistics_of_the_table():
    pool = load_metasyn().take([4]).with_(dim=[8])
    bench = Bench(Settings(batch=2_048, arena_gb=0.01))
    sets = [(i.numpy(), o.numpy()) for i, o in islice(bench.ids.sets(pool, np.random.default_rng(0)), 6)]
    expected = trace(pool, 0, 2_048)[0]
    for indices, offsets in sets:
        assert len(offsets) == 2_049 and offsets[-1] == len(indices)
        assert indices.min() >= 0 and indices.max() < pool.rows[0]
        assert len(indices) == pytest.approx(len(expected), rel=0.03)
        assert len(np.unique(indices)) == pytest.approx(len(np.unique(expected)), rel=0.03)
    for (one, _), (other, _) in pairwise(sets):
        assert len(np.intersect1d(one, other)) < 0.2 * len(np.unique(one))


@needs_fbgemm
def test_latency_measures_shards_and_leaves_empty_devices_at_zero(tiny_task):
    simulator = Fbgemm(Settings(**SMALL))
    latency = simulator.latency(tiny_task, np.array([[0, 0, 1, -1, -1, 1], [0, 0, 1, 1, 1, 1]]))
    assert latency.compute.shape == (2, 3) and (latency.compute[:, :2] > 0).all()
    assert (latency.compute[:, 2] == 0).all() and (latency.forward_comm == 0).all()
    assert latency.compute[0, 0] == latency.compute[1, 0]  # one shard, measured once
    assert latency.spread is not None and (latency.spread[:, :2] > 0).all() and (latency.spread[:, 2] == 0).all()


@needs_fbgemm
def test_iteration_tasks_take_their_links_at_the_simulators_batch(tiny_task):
    simulator = Fbgemm(Settings(**SMALL))
    links = Links(port=1e6)
    iteration = Task(tiny_task.tables, tiny_task.memory, objective="iteration", links=links)
    plan = np.array([0, 0, 1, 1, 2, 2])
    expected = links.all_to_all_ms(np.array([24.0, 40.0, 48.0]), 64)
    np.testing.assert_allclose(simulator.latency(iteration, plan).backward_comm, expected)
    with pytest.raises(SimulatorError, match="give the task links"):
        simulator.latency(Task(tiny_task.tables, (GB,) * 3, objective="iteration"), plan)


class Card:
    """Properties of a GPU, by the names that torch has for them."""

    name, major, minor, multi_processor_count = "Fake", 9, 0, 132
    total_memory, L2_cache_size, shared_memory_per_multiprocessor = 150 * GB, 60 * 2**20, 228 * 2**10


class Event:
    """A mark in the queue of a GPU that needs 2 ms for everything; `passed` says where the GPU is."""

    passed = False

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 2.0

    def query(self):
        return self.passed


@pytest.fixture
def fake_gpu(monkeypatch):
    """One GPU as far as fake tensors go: nothing runs, but every tensor has its size, type and device."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    asleep = []
    answers = {"is_available": True, "device_count": 1, "current_device": 0, "synchronize": None}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (140 * GB, 150 * GB))
    monkeypatch.setattr(torch._C, "_cuda_setDevice", lambda index: None, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", asleep.append, raising=False)
    installed, made = operator._fbgemm(str(torch.__version__), "cpu"), torch.tensor
    monkeypatch.setattr(operator, "_fbgemm", lambda version, device: installed)

    def tensor(data, dtype=None, device=None):  # fake tensors cannot copy values to a device that is not there
        if device is None or torch.device(device).type == "cpu":
            return made(data, dtype=dtype)
        return torch.empty(np.shape(data), dtype=dtype or torch.float32, device=device)

    monkeypatch.setattr(torch, "tensor", tensor)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield asleep


@needs_fbgemm
def test_a_gpus_operator_is_built_on_it_as_far_as_fake_tensors_go(fake_gpu, tables):
    assert Bench(Settings(device="cuda")).device.index is None  # whichever is current
    bench = Bench(Settings(device="cuda:0"))
    assert bench.settings.batch == 65_536
    assert bench.weights.bytes + bench.state.bytes == 104 * GB  # seven tenths of 150 GB, in steps of 8
    assert bench._dirt.nbytes == 2 * Card.L2_cache_size and bench._dirt.device.type == "cuda"
    op = bench.operator(tables)
    assert {op.weights_dev.device.type, op.momentum1_dev.device.type, op.weights_offsets.device.type} == {"cuda"}
    assert op.weights_dev.numel() == bench.weights.bytes // 2 and op.weights_host.numel() == 0
    assert op.current_device.type == "cuda" and not op.use_cpu
    with pytest.raises(SimulatorError, match=r"bytes asked, \d+ free on cuda:0: lower --arena-gb"):
        Bench(Settings(device="cuda:0", arena_gb=600.0)).take_memory()
    assert hardware("cuda:0")["l2_bytes"] == 132 * 228 * 2**10 and hardware("cuda:0")["capability"] == "9.0"


@needs_fbgemm
def test_a_gpus_queue_is_held_for_three_times_what_the_host_took(fake_gpu, monkeypatch):
    now, start = [0.0], Event(enable_timing=True)
    monkeypatch.setattr("shard_gym.measuring.host.time.perf_counter", lambda: now[0])
    hold = Hold("cuda:0")
    assert fake_gpu == [TRIAL_CYCLES] * 2  # the second took 2 ms, the first loads the kernel
    hold.begin()
    assert fake_gpu[-1] == TRIAL_CYCLES / 2 * hold.ms
    now[0] += 9.0  # as a first run does, which loads kernels
    assert not hold.late(start) and hold.ms == LONGEST_HOLD_MS
    hold.begin()
    now[0] += 4e-3
    assert not hold.late(start) and hold.ms == pytest.approx(12.0)  # not for ever as long as after the first
    start.passed = True  # whatever the host's clock says
    assert hold.late(start)


def test_ids_name_what_differs_from_the_defaults():
    assert simulator_id(Settings()) == "fbgemm:cpu"
    assert simulator_id(Settings(device="cuda:1")) == "fbgemm:cuda"
    changed = Settings(batch=4_096, optimizer="sgd", dtype="fp32", cold=False)
    assert simulator_id(changed) == "fbgemm:cpu-b4096-sgd-fp32-warm"


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"optimizer": "adam"}, {"dtype": "int8"}, {"clock": "sun"}])
def test_settings_refuse_what_is_not_there(wrong):
    with pytest.raises(UnknownName, match=next(iter(wrong.values()))):
        Settings(**wrong)


def test_settings_refuse_to_drop_every_run():
    with pytest.raises(SimulatorError, match="runs exceed 2 x drop"):
        Settings(runs=4, drop=2)


@pytest.fixture
def fresh_lookup():
    operator._fbgemm.cache_clear()
    yield
    operator._fbgemm.cache_clear()


def installed(monkeypatch, versions):
    class Distribution:
        def __init__(self, version):
            self.version = version

    monkeypatch.setattr(
        metadata, "distributions", lambda name: [Distribution(versions[name])] if name in versions else []
    )


def test_missing_fbgemm_names_the_command(monkeypatch, fresh_lookup):
    def refuse(name):
        raise OSError("Could not load this library") from OSError("libtorch_cuda.so: cannot open shared object file")

    installed(monkeypatch, {})
    monkeypatch.setattr(operator.importlib, "import_module", refuse)
    with pytest.raises(MissingDependency, match=r"libtorch_cuda.so.*pip install fbgemm-gpu-cpu==1\.8\.\*"):
        operator._fbgemm("2.13.0", "cpu")
    with pytest.raises(MissingDependency, match=r"pip install torch"):
        operator.require("cpu")


@pytest.mark.parametrize(
    ("found", "torch", "message"),
    [
        ({"fbgemm-gpu-cpu": "1.7.0"}, "2.13.0+cpu", r"1\.7\.0 was not built for torch 2\.13.*fbgemm-gpu-cpu==1\.8\.\*"),
        ({"fbgemm-gpu": "1.8.0"}, "2.11.0+cu128", r"not built for torch 2\.11.*==1\.6\.\*"),
        ({"fbgemm-gpu": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}, "2.13.0", r"both installed.*pip uninstall -y fbgemm-gpu "),
    ],
)
def test_a_build_for_another_torch_is_refused_before_it_loads(monkeypatch, fresh_lookup, found, torch, message):
    installed(monkeypatch, found)
    with pytest.raises(MissingDependency, match=message):
        operator._fbgemm(torch, "cpu")


def test_an_fbgemm_that_was_only_unpacked_says_what_it_is(monkeypatch, fresh_lookup):
    class Unpacked:
        __version__, __variant__ = "1.8.0", "cpu"

    installed(monkeypatch, {})
    monkeypatch.setattr(operator, "imported", lambda name, command: Unpacked)
    with pytest.raises(MissingDependency, match=r"FBGEMM 1\.8\.0 was not built for torch 2\.11\.0"):
        operator._fbgemm("2.11.0+cu130", "cuda")
    with pytest.raises(MissingDependency, match="runs on CPUs only"):
        operator._fbgemm("2.13.0+cu130", "cuda")
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", Unpacked)
    assert versions()["fbgemm-gpu"] == "1.8.0"


@needs_fbgemm
def test_a_device_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingDependency, match="sees no CUDA device"):
        Bench(Settings(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MissingDependency, match="there is no cuda:2"):
        Bench(Settings(device="cuda:2"))


@needs_fbgemm
def test_draws_of_a_whole_reference_batch_have_exactly_the_tables_counts():
    pool = load_metasyn().take([3])
    ((ranks, offsets),) = draws(pool, pool.reference_batch, 1, seed=0)
    expected = np.unique(trace(pool, 0)[0], return_counts=True)[1]
    assert offsets[-1] == len(ranks) == pool.lookups[0]
    np.testing.assert_array_equal(np.sort(np.bincount(ranks)), np.sort(expected))


@needs_fbgemm
def test_draws_share_no_sample_and_scatter_keeps_ids_apart(rng):
    pool = load_metasyn().take([7])
    parts = draws(pool, 2_048, 4, seed=3)
    assert [len(o) for _, o in parts] == [2_049] * 4 and all(o[0] == 0 and o[-1] == len(r) for r, o in parts)
    together = np.bincount(np.concatenate([r for r, _ in parts]), minlength=int(pool.distinct[0]))
    full = np.bincount(draws(pool, pool.reference_batch, 1, seed=3)[0][0])
    assert len(together) == len(full) and (together <= full).all()
    share = 4 * 2_048 / pool.reference_batch
    assert together.sum() == pytest.approx(share * full.sum(), rel=0.03)
    assert all((a[0] == b[0]).all() for a, b in zip(parts, draws(pool, 2_048, 4, seed=3), strict=True))
    for rows in (1, 2, 12, 1_000):
        step, shift = scatter(rng, rows)
        assert len(set((shift + step * np.arange(rows)) % rows)) == rows


@needs_fbgemm
def test_ids_of_many_tables_are_those_of_each(monkeypatch):
    import torch

    ids, pool = Bench(Settings(batch=64, arena_gb=0.01)).ids, load_metasyn().take([1, 2, 5])
    drawn = [ids._drawn_of(pool, t) for t in range(3)]
    one, other = np.random.default_rng(7), np.random.default_rng(7)
    turn = int(other.integers(len(drawn[0])))
    for indices, offsets in islice(ids.sets(pool, one), 5):
        parts = [d[turn % len(d)] for d in drawn]
        spread = [(scatter(other, int(rows)), int(rows)) for rows in pool.rows]
        expected = [(r.long() * a + b) % rows for (r, _), ((a, b), rows) in zip(parts, spread, strict=True)]
        assert torch.equal(indices, torch.cat(expected))
        lengths = torch.cat([o.diff() for _, o in parts])
        assert torch.equal(offsets.diff(), lengths) and offsets[0] == 0
        turn += 1


@needs_fbgemm
def test_few_of_many_lookups_are_drawn_as_often_as_a_permutation_draws_them():
    pool = load_metasyn().take([7])
    full = np.bincount(draws(pool, pool.reference_batch, 1, seed=3)[0][0])
    few = np.concatenate([draws(pool, 64, 4, seed=seed)[i][0] for seed in range(200) for i in range(4)])
    drawn = np.bincount(few, minlength=len(full))
    assert len(drawn) == len(full)
    share = 200 * 256 / pool.reference_batch
    assert drawn.sum() == pytest.approx(share * full.sum(), rel=0.02)
    often = full > np.quantile(full, 0.99)
    assert drawn[often].sum() == pytest.approx(share * full[often].sum(), rel=0.05)


@needs_fbgemm
def test_draws_are_kept_up_to_the_memory_for_them():
    pool = load_metasyn()
    ids = Bench(Settings(batch=64, arena_gb=0.01)).ids
    sizes = [sum(part.nbytes for draw in ids._drawn_of(pool, t) for part in draw) for t in range(3)]
    assert ids._held == sum(sizes) and len(ids._draws) == 3
    ids.cache_bytes = sizes[2] + 1
    ids._drawn_of(pool, 3)
    assert len(ids._draws) == 1  # the last one always


@needs_fbgemm
def test_runs_that_the_host_was_late_for_are_done_again(tables):
    bench, answers = Bench(Settings(**SMALL)), iter([True] * 6 + [False, True, False, False] + [False] * 30)
    bench.hold.late = lambda start: next(answers)  # 5 warm-ups and a first run late, then another
    assert bench.measure(tables).repeated == 2
    bench.hold.late = lambda start: True
    with pytest.raises(SimulatorError, match="fills the queue of cpu too slowly"):
        bench.measure(tables)


@needs_fbgemm
def test_production_settings_round_and_check_as_the_library_does(tables):
    bench = Bench(Settings(production=True, **SMALL))
    op = bench.operator(tables)
    assert op.stochastic_rounding and op.bounds_check_mode_int == 1  # WARNING
    assert not Bench(Settings(**SMALL)).operator(tables).stochastic_rounding
    assert bench.measure(tables).forward_ms > 0
    assert simulator_id(bench.settings) == "fbgemm:cpu-b64-production"


@needs_fbgemm
@pytest.mark.parametrize("placement", [[0, 1, 2, 3, 0, 1], [0, 1], [0.5] * 6])
def test_placements_off_the_devices_are_refused_not_dropped(tiny_task, placement):
    with pytest.raises(InvalidPlan):
        Fbgemm(Settings(arena_gb=0.01)).latency(tiny_task, placement)
