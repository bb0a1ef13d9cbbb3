"""Bytes of plans are TorchRec's own, of tasks with every kind and residence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Plan
from shard_gym.memory.shards import Feature, Setup, Table
from shard_gym.memory.usage import bytes_used, shard_storage
from shard_gym.plan.shards import shards
from shard_gym.tables.configs import Lookup
from shard_gym.task.links import Links
from shard_gym.task.own import make_task
from shard_gym.torchrec.layouts import layouts_of
from shard_gym.torchrec.plans import from_torchrec, to_torchrec
from tests.storage_helpers import collection, constraint, enumerated

# TorchRec and FBGEMM tell those who write them what is deprecated
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OPTIMIZERS = {"sgd": "SGD", "rowwise_adagrad": "RowWiseAdagrad", "adam": "Adam"}
KERNELS = {"hbm": "fused", "uvm": "fused_uvm", "cached": "fused_uvm_caching"}
KINDS = ("tw", "cw", "rw", "twrw", "grid", "dp")


def drawn(rng, tables, devices, host):
    """A task made of configs, and a plan of all kinds and residences for it."""
    many = []
    for _ in range(tables):
        features = tuple(Feature(float(rng.uniform(0, 40))) for _ in range(rng.choice([1, 1, 1, 3])))
        if len(features) > 1:  # all bags alike: filled, or not; else TorchRec's guess is not a task's
            features = tuple(replace(f, pooling=1 + f.pooling) for f in features)
        dim = int(rng.choice([8, 24, 64, 128, 192, 512]))
        many.append(Table(int(10 ** rng.uniform(0, 9)), dim, int(rng.choice([2, 4])), features))
    optimizer = str(rng.choice(list(OPTIMIZERS)))
    module, _ = collection([replace(t, weighted=False) for t in many], [OPTIMIZERS[optimizer]] * tables)
    configs = module.embedding_bag_configs()
    task = make_task(
        configs,
        devices,
        1.0,
        batch=int(rng.integers(1, 99_999)),
        pooling={f"f{i}_{j}": Lookup(f.pooling) for i, t in enumerate(many) for j, f in enumerate(t.features)},
        optimizer=optimizer,
        accounting="torchrec",
        links=Links(1e8, group=host, uplink=1e7),
        kinds=KINDS,
        residences=tuple(KERNELS),
        host_memory=2**30,
    )
    return module, many, task, plan_of(rng, task, host)


def plan_of(rng, task, host):
    n, k = task.num_tables, task.num_devices
    kind, residence = rng.choice(KINDS, n), rng.choice(list(KERNELS), n)
    share = np.select(
        [residence == "hbm", residence == "uvm"], [1.0, 0.0], rng.choice([0.1, 0.2, 0.4, rng.random()], n)
    )
    residence[kind == "dp"], share[kind == "dp"] = "hbm", 1.0
    splits, source = [], list(range(n))
    for t in np.flatnonzero(np.isin(kind, ("cw", "grid"))).tolist():
        pieces = [t]
        for level in range(rng.integers(1, 4)):
            if task.tables.dim[t] % (8 << level):
                break
            splits += pieces
            pieces += [len(source) + i for i in range(len(pieces))]
            source += [t] * (len(pieces) // 2)
    devices = []
    for t in source:
        first = int(rng.integers(k // host)) * host
        shared = {
            "rw": range(k),
            "dp": range(k),
            "twrw": range(first, first + host),
            "grid": range(first, first + host),
        }
        devices.append(tuple(shared.get(kind[t], (int(rng.integers(k)),))))
    told = (column[source].tolist() for column in (kind, residence, share))
    kinds, residences, shares = told
    return Plan([d[0] for d in devices], splits, kinds, devices, residences, shares)


@pytest.mark.parametrize(("devices", "host"), [(8, 8), (16, 8), (6, 2), (1, 1)])
def test_every_shard_of_a_plan_is_torchrecs_to_the_byte(devices, host):
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    rng = np.random.default_rng([17, devices, host])
    module, many, task, plan = drawn(rng, 200, devices, host)
    ours = shards(task, plan)
    found = shard_storage(task, ours)
    setup = Setup.of(task)
    told = {}
    for t in range(task.num_tables):
        own = np.flatnonzero(ours.table == t)[0]
        kernel, load = str(ours.of.kernel[own]), float(ours.of.cache_load_factor[own])
        table = replace(many[t], kernel=kernel, cache_load_factor=load)
        told[f"t{t}"] = constraint(table, str(ours.kind[own]), int(ours.dim[own]), setup)
    theirs = enumerated(module, EmbeddingBagCollectionSharder(), told, setup)
    columns = zip(ours.table, ours.rows, ours.dim, found.hbm.bytes, found.ddr.bytes, strict=True)
    by_table = {f"t{i}": [] for i in range(task.num_tables)}
    for table, *shard in columns:
        by_table[f"t{table}"].append(tuple(map(int, shard)))
    assert by_table == theirs
    hbm, ddr = bytes_used(task, ours)
    assert hbm.sum() == found.hbm.bytes.sum() and ddr[0] == found.ddr.bytes[ours.device == 0].sum()


def test_plans_of_every_kind_and_residence_come_back_from_torchrec():
    rng = np.random.default_rng(3)
    for devices, host in ((8, 4), (6, 2), (4, 4)):
        module, _, task, plan = drawn(rng, 60, devices, host)
        theirs = to_torchrec(plan, task, module)
        back = from_torchrec(theirs, task)
        assert layouts_of(back, task) == layouts_of(plan, task)
        assert to_torchrec(back, task, module) == theirs
        assert Plan.from_dict(json.loads(json.dumps(back.to_dict()))) == back
