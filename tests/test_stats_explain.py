"""The explanation of one table: every step is what its numbers make, the guide's example as printed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task, make_pool
from shard_gym.memory.shards import KERNELS, PIPELINES, STATES, Feature, Setup, Table
from shard_gym.simulators.torchrec import whole_tables
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym.torchrec.stats import alone, explain, tables_of


def worked_example():
    """The example of TorchRec's guide to its statistics: 80 M rows over 96 ranks, a sequence of 6,066 ids."""
    features = tuple(Feature(pooling) for pooling in (66.0, 1000.0, 2000.0, 3000.0))
    return Table(80_000_000, 128, 2, features, pooled=False, optimizer="rowwise_adagrad"), Setup(96, batch=2560)


def test_the_worked_example_is_explained_as_printed():
    told = explain(*(worked_example()[0], "rw", worked_example()[1]), sizes=[(833_333, 128)] * 96, name="big")
    values = {step.name: step.value for step in told.steps}
    assert list(values)[8:] == [
        *("sent", "read and written", "rate", "forward compute", "forward comm", "backward compute", "backward comm"),
        "TorchRec's perf",
    ]
    assert dict(list(values.items())[:8]) == {
        "weights of the table": 20_480_000_000,
        "tensor in HBM": 213_333_248,
        "optimizer in HBM": 1_666_666,
        "input": 124_231_680,
        "output": 3_975_413_760,
        "buffers": 4_099_645_440,
        "HBM of the shard": 4_314_645_354,
        "HBM of all shards": 96 * 4_314_645_354,
    }
    text = told.text()
    assert "ceil(20,480,000,000 x 833,333 x 128 / (80,000,000 x 128))" in text
    assert "= 4,314,645,354 bytes" in text and "124,231,680 + 3,975,413,760" in text


def test_the_worked_example_as_the_library_cuts_it():
    table, setup = worked_example()
    told = explain(table, "rw", setup)
    assert (told.shards, told.rows) == (96, 833_334)
    assert next(s.value for s in told.steps if s.name == "HBM of the shard") == 4_314_645_612
    assert next(s.numbers for s in told.steps if s.name == "HBM of all shards").startswith("95 x 4,314,645,612 + ")


def evaluated(numbers):
    """An expression as it is printed, computed by Python."""
    known = {"ceil": math.ceil, "round": round, "trunc": math.trunc, "min": min}
    commas = numbers.replace("min(1, ", "min(1; ").replace(",", "").replace("min(1; ", "min(1, ")
    return eval(commas.replace(" x ", " * "), {"__builtins__": {}}, known)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_step_is_what_its_numbers_make(data):
    draw = data.draw
    kind = draw(st.sampled_from(["tw", "cw", "rw", "twrw", "dp"]))
    feature = st.builds(
        Feature, st.floats(0, 90), st.sampled_from([1.0, 2.0, 0.5]), st.one_of(st.none(), st.integers(1, 999))
    )
    table = Table(
        rows=draw(st.integers(1, 10**9)),
        dim=draw(st.sampled_from([4, 8, 64, 256])),
        element_bytes=draw(st.sampled_from([1, 2, 4])),
        features=tuple(draw(st.lists(feature, min_size=1, max_size=3))),
        pooled=draw(st.booleans()),
        weighted=draw(st.booleans()),
        optimizer=draw(st.sampled_from(list(STATES))),
        kernel="dense" if kind == "dp" else draw(st.sampled_from([k for k in KERNELS if k != "dense"])),
        cache_load_factor=draw(st.floats(0.01, 1)),
        prefetch_passes=draw(st.integers(1, 5)),
        output_bytes=draw(st.sampled_from([None, 2.0])),
    )
    pipeline, peak, inference = draw(st.sampled_from(PIPELINES)), draw(st.booleans()), draw(st.booleans())
    setup = Setup(8, draw(st.integers(1, 5000)), 4, "cuda", pipeline, peak, inference)
    accountings = ["torchrec", "true"] + (["weights", "training"] if table.kernel in ("fused", "dense") else [])
    told = explain(table, kind, setup, accounting=draw(st.sampled_from(accountings)))
    for step in told.steps:
        assert evaluated(step.numbers) == pytest.approx(step.value, rel=1e-12), step
        assert step.unit != "bytes" or evaluated(step.numbers) == step.value, step
    names = ("tensor in ", "optimizer in ", "cache", "gradient", "buffers")
    parts = sum(step.value for step in told.steps if step.name.startswith(names))
    assert parts == sum(step.value for step in told.steps if step.name.endswith("of the shard"))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 50), st.sampled_from([4, 32, 64, 128]), st.sampled_from(["fp32", "fp16"]), st.booleans())
def test_explained_time_is_torchrecs(pooling, dim, dtype, hosts):
    links = Links(port=1e9, group=2) if hosts else None
    task = Task(make_pool(1000, dim, pooling, dtype=dtype), (GB,) * 4, "iteration", 4_000, links=links)
    steps = explain(tables_of(task)[0], "tw", Setup.of(task)).steps
    assert steps[-1].name == "TorchRec's perf"
    assert steps[-1].value == pytest.approx(whole_tables(task).phases[:, :4].sum(), rel=1e-12)


def test_time_alone_is_the_simulators(roofline):
    task = Task(make_pool([1_000, 400], [16, 64], [3, 1]), (GB,) * 4, "iteration", 4_000)
    step = alone(task, 1, 64, roofline)
    latency = roofline.latency(task, np.array([-1, 0]))
    phases = (latency.forward_compute, latency.forward_comm, latency.backward_comm, latency.backward_compute)
    assert step.value == pytest.approx(sum(float(phase[0]) for phase in phases))
