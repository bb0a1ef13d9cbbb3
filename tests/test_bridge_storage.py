"""Bytes of shards are TorchRec's own, in every configuration that the library takes."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.memory.shards import Feature, Setup, Table, shards, shards_of
from shard_gym.memory.storage import storage
from shard_gym.torchrec.modules import optimizer_of
from shard_gym.torchrec.values import Reserve, dense_bytes, kjt_bytes
from tests.storage_helpers import CLASSES, TYPES, collection, constraint, drawn_table, enumerated, of_whole

# TorchRec and FBGEMM tell those who write them what is deprecated
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SETUPS = [
    Setup(world, batch, local, device, pipeline, at_peak, inference)
    for (world, batch, local, device), (pipeline, at_peak), inference in [
        ((8, 512, 8, "cuda"), ("none", False), False),
        ((16, 1000, 8, "cuda"), ("train_sparse_dist", False), False),
        ((6, 333, 3, "cuda"), ("train_sparse_dist", True), False),
        ((16, 2560, 4, "cuda"), ("train_prefetch_sparse_dist", False), False),
        ((7, 65_536, 7, "cuda"), ("train_prefetch_sparse_dist", True), False),
        ((128, 4096, 8, "cuda"), ("train_base", False), False),
        ((8, 512, 4, "cuda"), ("train_sparse_dist", True), True),
        ((4, 777, 2, "cpu"), ("none", False), False),
        ((2, 64, 2, "cpu"), ("train_sparse_dist", False), False),
        ((3, 64, 3, "cpu"), ("none", False), True),
    ]
]
TABLES = 60  # drawn of each kind of collection for each setup


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("number", range(len(SETUPS)))
def test_every_shard_is_torchrecs_to_the_byte(number, pooled):
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    setup, rng = SETUPS[number], np.random.default_rng([7, number, pooled])
    sharder = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
    kinds, tables = zip(*[drawn_table(rng, pooled, sharder, setup.device) for _ in range(TABLES)], strict=True)
    if not pooled:  # an EmbeddingCollection has tables of one width
        tables = [replace(table, dim=tables[0].dim) for table in tables]
    optimizers = [rng.choice(np.array(CLASSES, object)) for _ in tables]
    module, weights = collection(tables, optimizers)
    tables = [replace(t, optimizer=optimizer_of(w)) for t, w in zip(tables, weights, strict=True)]
    least = [int(rng.choice([8, 32, 100])) if rng.random() < 0.5 else None for _ in tables]
    told = {f"t{i}": constraint(*of, setup) for i, of in enumerate(zip(tables, kinds, least, strict=True))}
    theirs = enumerated(module, sharder, told, setup)
    ours = shards(tables, kinds, setup, least)
    found = storage(ours, setup)
    columns = zip(ours.table, ours.rows, ours.dim, found.hbm.bytes, found.ddr.bytes, strict=True)
    by_table = {f"t{i}": [] for i in range(TABLES)}
    for table, *shard in columns:
        by_table[f"t{table}"].append(tuple(map(int, shard)))
    assert by_table == theirs


@pytest.mark.parametrize("inference", [True, False])
def test_quantised_tables_are_torchrecs_to_the_byte(inference):
    import torch
    from torchrec import EmbeddingBagConfig
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
    from torchrec.quant.embedding_modules import EmbeddingBagCollection
    from torchrec.types import DataType

    given = [(1001, 64, DataType.INT8), (5, 512, DataType.INT8), (77, 96, DataType.FP16)]
    given += [(33, 192, DataType.INT4), (123_457, 64, DataType.INT4), (9, 256, DataType.INT2)]
    packed = {DataType.INT4: 0.5, DataType.INT2: 0.25}
    configs = [EmbeddingBagConfig(r, d, f"t{r}", kind, [f"f{r}"]) for r, d, kind in given]
    module, setup = EmbeddingBagCollection(configs, False, torch.device("meta")), Setup(8, inference=inference)
    widths = [parts.weight.shape[1] for parts in module.embedding_bags.values()]
    for kind in ("tw", "cw", "rw"):
        for kernel in ("quant", "quant_uvm", "quant_uvm_caching"):
            told = {c.name: ParameterConstraints([TYPES[kind]], [kernel]) for c in configs}
            tables = [
                Table(c.num_embeddings, w, packed.get(c.data_type, 1), kernel=kernel)
                for c, w in zip(configs, widths, strict=True)
            ]
            ours = shards(tables, [kind] * len(tables), setup)
            found = storage(ours, setup)
            theirs = enumerated(module, QuantEmbeddingBagCollectionSharder(), told, setup)
            expected = [(hbm, ddr) for name in theirs for *_, hbm, ddr in theirs[name]]
            assert list(zip(found.hbm.bytes.tolist(), found.ddr.bytes.tolist(), strict=True)) == expected


def worked_example():
    """The example of TorchRec's guide to its statistics: 80 M rows over 96 ranks, a sequence of 6,066 ids."""
    features = tuple(Feature(pooling) for pooling in (66.0, 1000.0, 2000.0, 3000.0))
    table = Table(80_000_000, 128, 2, features, pooled=False, optimizer="rowwise_adagrad")
    return table, Setup(world_size=96, batch=2560)


def test_the_worked_example_is_exact_as_printed():
    table, setup = worked_example()
    found = storage(shards_of([table], ["rw"], [[(833_333, 128)]], setup), setup)
    parts = (found.hbm.tensor, found.hbm.optimizer, found.input, found.output, found.hbm.bytes)
    assert [int(part[0]) for part in parts] == [213_333_248, 1_666_666, 124_231_680, 3_975_413_760, 4_314_645_354]


def test_the_worked_example_as_the_library_cuts_it():
    table, setup = worked_example()
    found = storage(shards([table], ["rw"], setup), setup).hbm.bytes
    assert found[:95].tolist() == [4_314_645_612] * 95
    assert shards([table], ["rw"], setup).rows[95] == 80_000_000 - 95 * 833_334


def test_shards_without_rows_take_nothing():
    setup = Setup(4)
    for accounting in ("torchrec", "true"):
        found = storage(shards([Table(5, 8, optimizer="adam")], ["rw"], setup), setup, accounting)  # 2, 2, 1, 0 rows
        assert found.hbm.bytes[3] == 0 < found.hbm.bytes[2]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_reserves_are_torchrecs_to_the_byte(device):
    import torch
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import storage_reservations as theirs
    from torchrec.distributed.planner.types import Topology

    rng = np.random.default_rng(3)
    sharder = EmbeddingBagCollectionSharder()
    drawn = [replace(drawn_table(rng, True, sharder, "cpu")[1], kernel="fused") for _ in range(20)]
    module, _ = collection(drawn, [None] * 20)
    dense = torch.nn.Sequential(torch.nn.Linear(77, 13, device="meta"), torch.nn.BatchNorm1d(13, device="meta"))
    model, topology = torch.nn.ModuleList([module, dense]), Topology(4, device, hbm_cap=2**37 + 5, ddr_cap=2**40 + 3)
    told = {f"t{i}": constraint(table, "tw", None, Setup(4, 100)) for i, table in enumerate(drawn)}
    for share in (0.0, 0.15, 0.33):
        reserves = {
            theirs.FixedPercentageStorageReservation(share): Reserve(share),
            theirs.FixedAbsoluteStorageReservation(10**9): Reserve(fixed_bytes=10**9),
            theirs.HeuristicalStorageReservation(share): Reserve(
                share, dense_bytes(model, [module]), kjt_bytes(drawn, 100)
            ),
            theirs.InferenceStorageReservation(share): Reserve(
                share, dense_bytes(model, [module], inference=True), kjt_bytes(drawn, 100, inference=True)
            ),
        }
        for reservation, reserve in reserves.items():
            left = reservation.reserve(topology, 100, model, [sharder], told).devices[0].storage
            given, expected = (2**37 + 5, left.hbm) if device == "cuda" else (2**40 + 3, left.ddr)
            assert reserve.left(given, device) == expected


def test_what_is_not_modelled_is_refused():
    for wrong in ({"kernel": "key_value"}, {"optimizer": "lion"}):
        with pytest.raises(UnknownName):
            Table(10, 16, **wrong)
    with pytest.raises(InvalidPool):
        Table(10, 0)
    with pytest.raises(InvalidPool, match="quantised"):
        Table(10, 16, 0.5)
    for wrong in ({"device": "mtia"}, {"pipeline": "semi_sync"}):
        with pytest.raises(UnknownName):
            Setup(2, **wrong)
    with pytest.raises(InvalidTask):
        Setup(6, local_world_size=4)
    with pytest.raises(UnknownName, match="accounting"):
        of_whole("guess")
    with pytest.raises(UnknownName, match="kind"):
        of_whole(kind="hybrid")
    with pytest.raises(InvalidTask):
        Reserve(1.5)
