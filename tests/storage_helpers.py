"""Drawn tables, and what TorchRec's own planner says of them."""

from dataclasses import replace

from shard_gym.memory.shards import Feature, Setup, Table, shards
from shard_gym.memory.storage import storage

TYPES = {
    "tw": "table_wise",
    "cw": "column_wise",
    "rw": "row_wise",
    "twrw": "table_row_wise",
    "dp": "data_parallel",
    "twcw": "table_column_wise",
    "grid": "grid_shard",
}
CLASSES = (
    None,
    "SGD",
    "RowWiseAdagrad",
    "Adagrad",
    "Adam",
    "LAMB",
    "LarsSGD",
    "PartialRowWiseAdam",
    "PartialRowWiseLAMB",
)
CLASSES += ("torch.SGD", "torch.Adam", "torch.Adagrad", "torch.AdamW", "torch.RMSprop")


def drawn_table(rng, pooled, sharder, device):
    """A table and how it is sharded, anything that the library takes."""
    possible = sharder.sharding_types(device)
    kind = str(rng.choice([kind for kind in TYPES if TYPES[kind] in possible]))
    kernels = ["fused", "fused_uvm", "fused_uvm_caching"] if device == "cuda" else ["fused"]
    pooling = [
        float(rng.choice([rng.random(), rng.uniform(1, 90), rng.integers(30)])) for _ in range(rng.integers(1, 5))
    ]
    features = tuple(Feature(ids, float(rng.choice([1, 2, 0.5]))) for ids in pooling)
    if rng.random() < 0.3:
        features = tuple(replace(f, batch=int(rng.integers(1, 3000))) for f in features)
    return kind, Table(
        rows=int(10 ** rng.uniform(0, 9.5)),
        dim=int(rng.choice([4, 12, 64, 100, 128, 192, 256, 384, 520, 768])),
        element_bytes=int(rng.choice([2, 4])),
        features=features,
        pooled=pooled,
        weighted=pooled and device == "cuda",
        kernel="dense" if kind == "dp" else str(rng.choice(kernels)),
        cache_load_factor=float(rng.choice([0.2, rng.uniform(0.01, 1)])),
        prefetch_passes=int(rng.choice([1, 1, 2, 5, 12])),
        output_bytes=rng.choice([None, None, 2.0, 4.0, 1.0]),
    )


def constraint(table, kind, min_partition, setup, fetched=None):
    """The library's constraints of a table; `fetched` is a `CacheStatistics`."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import MultiPassPrefetchConfig
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import CacheParams
    from torchrec.types import DataType

    output = {None: None, 1.0: DataType.INT8, 2.0: DataType.FP16, 4.0: DataType.FP32}[table.output_bytes]
    passes = MultiPassPrefetchConfig(num_passes=table.prefetch_passes) if table.prefetch_passes > 1 else None
    return ParameterConstraints(
        sharding_types=[TYPES[kind]],
        compute_kernels=[table.kernel],
        min_partition=min_partition,
        pooling_factors=[f.pooling for f in table.features],
        num_poolings=[f.poolings for f in table.features],
        batch_sizes=[f.batch or setup.batch for f in table.features] if table.features[0].batch else None,
        cache_params=CacheParams(
            load_factor=table.cache_load_factor,
            multipass_prefetch_config=passes,
            prefetch_pipeline=setup.pipeline == "train_prefetch_sparse_dist",
            stats=fetched,
        ),
        output_dtype=output,
    )


def optimizer_class(name):
    import torch
    from torchrec import optim

    return getattr(torch.optim, name[6:]) if name.startswith("torch.") else getattr(optim, name)


def collection(tables, optimizers):
    """An embedding collection of these tables, on no device."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
    from torchrec.optim import apply_optimizer_in_backward
    from torchrec.types import DataType

    config, module = (EmbeddingBagConfig, EmbeddingBagCollection)
    if not tables[0].pooled:
        config, module = EmbeddingConfig, EmbeddingCollection
    configs = [
        config(
            name=f"t{i}",
            num_embeddings=t.rows,
            embedding_dim=t.dim,
            feature_names=[f"f{i}_{j}" for j in range(len(t.features))],
            data_type={2: DataType.FP16, 4: DataType.FP32}[t.element_bytes],
        )
        for i, t in enumerate(tables)
    ]
    weighted = {"is_weighted": tables[0].weighted} if tables[0].pooled else {}
    made = module(tables=configs, device=torch.device("meta"), **weighted)
    weights = [parts.weight for parts in (made.embedding_bags if tables[0].pooled else made.embeddings).values()]
    for weight, name in zip(weights, optimizers, strict=True):
        if name is not None:
            apply_optimizer_in_backward(optimizer_class(name), [weight], {"lr": 0.01})
    return made, weights


def enumerated(module, sharder, constraints, setup):
    """The library's shards of each table: sizes, HBM and DDR."""
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
    from torchrec.distributed.planner.types import Topology
    from torchrec.distributed.types import PipelineType

    topology = Topology(setup.world_size, setup.device, local_world_size=setup.local_world_size)
    estimator = EmbeddingStorageEstimator(
        topology, constraints, PipelineType(setup.pipeline), setup.output_at_peak, setup.inference
    )
    options = EmbeddingEnumerator(topology, setup.batch, constraints, estimator).enumerate(module, [sharder])
    return {o.name: [(*s.size, s.storage.hbm, s.storage.ddr) for s in o.shards] for o in options}


def of_whole(accounting="true", setup=None, kind="tw", **table):
    setup = setup or Setup(2, batch=10)
    return storage(shards([Table(**{"rows": 1000, "dim": 16} | table)], [kind], setup, [8]), setup, accounting)
