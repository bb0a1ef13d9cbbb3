"""Tasks from TorchRec models: the collections of a module, wherever they hang in it."""

import numpy as np
import pytest

from shard_gym.errors import InvalidPool, InvalidTask, MissingDependency, UnknownName
from shard_gym.measuring import operator
from shard_gym.memory.usage import table_bytes
from shard_gym.tables.configs import Lookup
from shard_gym.task.own import make_task
from shard_gym.task.task import Task
from shard_gym.torchrec import modules
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.modules import collections_of, configs_of, task_of_module

torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")
META = torch.device("meta")


def bags(*names, rows=10, dim=8, features=1, device=META, **settings):
    configs = [
        torchrec.EmbeddingBagConfig(
            num_embeddings=rows, embedding_dim=dim, name=name, feature_names=[f"{name}_{i}" for i in range(features)]
        )
        for name in names
    ]
    return torchrec.EmbeddingBagCollection(tables=configs, device=device, **settings)


def rows_of(*names):
    configs = [
        torchrec.EmbeddingConfig(num_embeddings=20, embedding_dim=4, name=name, feature_names=[name]) for name in names
    ]
    return torchrec.EmbeddingCollection(tables=configs, device=META)


class Model(torch.nn.Module):
    """Parts beside a dense layer, and one of them deeper."""

    def __init__(self, deep, **parts):
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)
        self.inner = torch.nn.Sequential(torch.nn.ReLU(), deep)
        for name, part in parts.items():
            setattr(self, name, part)


def test_collections_are_found_wherever_they_hang():
    found = collections_of(Model(bags("a", "b", is_weighted=True), rows=rows_of("c")))
    assert [(c.path, c.pooled, c.weighted, [x.name for x in c.configs]) for c in found] == [
        ("inner.1", True, True, ["a", "b"]),
        ("rows", False, False, ["c"]),
    ]
    assert found[0].weight("b").shape == (10, 8)
    assert found[1].weight("c").shape == (20, 4)
    assert collections_of(bags("a"))[0].path == ""


def test_a_task_is_that_of_the_configs():
    module = Model(bags("a"), rows=rows_of("c"))
    told = {"optimizer": "rowwise_adagrad", "batch": 4096, "splits_allowed": True}
    task = task_of_module(module, 4, [1, 2, 1, 2], pooling={"a_0": 12.5}, **told)
    assert task == make_task(configs_of(module), 4, [1, 2, 1, 2], pooling={"a_0": 12.5}, **told)
    assert (task.tables.name, task.tables.rows.tolist()) == (("a", "c"), [10, 20])
    assert (task.tables.pooled.tolist(), task.tables.weighted.tolist()) == ([True, False], [False, False])


def test_a_profile_is_taken_for_pooling():
    module = Model(bags("a", features=2), rows=rows_of("c"))
    profiler = Profiler.of_configs(configs_of(module))
    ones = np.ones(3, int)
    profiler.add({"a_0": ([1, 1, 2], ones), "a_1": ([2, 2, 2], ones), "c": ([5, 6, 7], ones)})
    task = task_of_module(module, 2, 1, profile=profiler, batch=6)
    assert task.tables.bags.tolist() == [2, 1]
    assert (task.batch, task.tables.reference_batch) == (6, 3)
    assert task.tables.pooling.tolist() == [2, 1]
    assert task.tables.distinct.tolist() == [2, 3]
    assert task.tables == profiler.pool(configs_of(module))
    assert task.tables.pooled.tolist() == [True, False]
    with pytest.raises(InvalidPool, match="not both"):
        task_of_module(module, 2, 1, profile=profiler, pooling={"a_0": 1})
    with pytest.raises(UnknownName, match="setting 'gpus'"):
        task_of_module(module, 2, 1, profile=profiler, gpus=2)


def test_the_optimizer_is_that_of_the_model():
    from torchrec.optim import Adam, RowWiseAdagrad

    both = [bags("a"), bags("b")]
    for part in both:
        trained_by(RowWiseAdagrad, part)
    module = Model(both[0], more=both[1])
    assert task_of_module(module, 2, 1).optimizer == "rowwise_adagrad"
    assert task_of_module(module, 2, 1, optimizer="adam").optimizer == "adam"
    trained_by(Adam, both[1])
    task = task_of_module(module, 2, 1, accounting="training")
    assert task.tables.optimizer == ("rowwise_adagrad", "adam")
    assert table_bytes(task).tolist() == [10 * (8 * 4 + 4), 10 * 8 * (4 + 8)]
    assert Task.from_json(task.to_json()) == task
    other = bags("a")
    trained_by(torch.optim.Adagrad, other)
    assert task_of_module(other, 2, 1).optimizers.tolist() == ["adagrad"]
    assert task_of_module(other, 2, 1, optimizer="adam").optimizers.tolist() == ["adam"]
    trained_by(torch.optim.Adadelta, other)
    with pytest.raises(UnknownName, match="optimizer 'Adadelta'"):
        task_of_module(other, 2, 1)


def trained_by(optimizer, module):
    for weight in module.parameters():
        weight._optimizer_classes = [optimizer]  # as apply_optimizer_in_backward notes it


@pytest.mark.parametrize("accounting", ["torchrec", "true"])
def test_bytes_of_a_batch_are_counted_or_refused(accounting):
    told = {"objective": "kernel", "accounting": accounting, "batch": 64}
    for module, pooling in (
        (bags("a", features=2), {}),
        (bags("a"), {"a_0": Lookup(num_poolings=2)}),
        (bags("a"), {"a_0": Lookup(batch=128)}),
    ):
        task = task_of_module(module, 2, 1, pooling=pooling, **told)
        weights_and_ids = 10 * 8 * 4 + 2 * 64 * 8  # 2 ids a sample
        offsets, output = (8, 4) if accounting == "true" else (0, 4)
        assert table_bytes(task).tolist() == [weights_and_ids + 2 * 64 * (offsets + 8 * output)]  # and 2 bags
    task = task_of_module(rows_of("a"), 2, 1, pooling={"a": 5}, **told)  # 20 rows of 4 columns, one bag of 5 ids
    assert table_bytes(task).tolist() == [20 * 4 * 4 + 5 * 64 * 8 + 64 * offsets + 5 * 64 * 4 * 4]


def test_a_profile_tells_empty_bags_too():
    module, ids = bags("a", features=2), {"a_0": ([1], [1, 0]), "a_1": ([2, 3, 4, 5], [2, 2])}
    profiler = Profiler.of_configs(configs_of(module))
    profiler.add({feature: (np.array(values), np.array(lengths)) for feature, (values, lengths) in ids.items()})
    with pytest.raises(InvalidTask, match="features of 'a' have less and more than 1 id a bag"):
        task_of_module(module, 2, 1, profile=profiler, accounting="torchrec")
    assert task_of_module(module, 2, 1, profile=profiler, accounting="true").tables.bags.tolist() == [2]


def test_weights_of_ids_are_those_of_the_collection():
    """8 columns of 4 bytes, a bag of one id: its weight takes 4 bytes more, by "true"; TorchRec does not count it."""
    told = {"objective": "kernel", "batch": 64}
    for accounting, more in (("torchrec", 0), ("true", 4 * 64)):
        plain, weighted = (
            table_bytes(task_of_module(bags("a", is_weighted=is_weighted), 2, 1, accounting=accounting, **told))
            for is_weighted in (False, True)
        )
        assert weighted.tolist() == [plain[0] + more]


def test_parameters_are_not_copied(monkeypatch):
    module = bags("a", rows=1000, device=torch.device("cpu"))

    def refused(*args, **kwargs):
        raise AssertionError("a parameter was copied")

    for name in ("clone", "to", "detach", "cpu", "numpy", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refused)
    assert task_of_module(module, 2, 1).tables.rows.tolist() == [1000]
    huge = bags("h", rows=2**40, dim=128)  # 2**49 bytes, were it not on meta
    assert task_of_module(huge, 2, 1).tables.weight_bytes.tolist() == [2**49]


def test_models_that_are_refused():
    shared = bags("a", "b")
    shared.embedding_bags["b"].weight = shared.embedding_bags["a"].weight
    twice = bags("a")
    for module, message in (
        (torch.nn.Linear(2, 2), "Linear has no EmbeddingBagCollection"),
        (Model(bags("a"), more=bags("a")), r"inner.1.a and more.a have one name"),
        (Model(shared), r"inner.1.a and inner.1.b share one parameter"),
        (Model(twice, more=twice), "'inner.1' and 'more' are one collection"),
    ):
        with pytest.raises(InvalidPool, match=message):
            collections_of(module)
    tied = Model(bags("a"), more=bags("b"))
    tied.more.embedding_bags["b"].weight = tied.inner[1].embedding_bags["a"].weight
    with pytest.raises(InvalidPool, match=r"inner.1.a and more.b share one parameter"):
        configs_of(tied)


def test_other_modules_with_tables_are_refused():
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    table = torchrec.EmbeddingBagConfig(num_embeddings=10, embedding_dim=8, name="a", feature_names=["f"])
    fused = FusedEmbeddingBagCollection(
        tables=[table], optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.1}, device=META
    )
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
    from torchrec.modules.mc_modules import (
        DistanceLFU_EvictionPolicy,
        ManagedCollisionCollection,
        MCHManagedCollisionModule,
    )
    from torchrec.quant import EmbeddingBagCollection as Quantised

    policy = DistanceLFU_EvictionPolicy(decay_exponent=1)
    collisions = MCHManagedCollisionModule(
        zch_size=10, device=torch.device("cpu"), eviction_policy=policy, eviction_interval=2, input_hash_size=100
    )
    remapped = bags("a", device=torch.device("cpu"))
    managed = ManagedCollisionEmbeddingBagCollection(
        remapped, ManagedCollisionCollection({"a": collisions}, remapped.embedding_bag_configs())
    )
    for module in (fused, managed, Quantised([table], is_weighted=False, device=META)):
        with pytest.raises(
            InvalidPool, match=rf"inner.1 is a torchrec\S+\.{type(module).__name__}\b.*: tables of .*, no others"
        ):
            collections_of(Model(module))


def test_processed_collections_are_planned_at_the_path_that_torchrec_shards():
    from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    positions = PositionWeightedModuleCollection({"a_0": 3}, device=META)
    processed = FeatureProcessedEmbeddingBagCollection(bags("a", is_weighted=True), positions)
    (found,) = collections_of(Model(processed))
    assert (found.path, found.module, found.pooled, found.weighted) == ("inner.1", processed, True, True)
    assert found.weight("a").shape == (10, 8)


def test_a_sharded_model_is_refused():
    class Sharded(torchrec.distributed.types.ShardedModule):
        def __init__(self):
            torch.nn.Module.__init__(self)

        create_context = input_dist = compute = output_dist = unsharded_module_type = None

    with pytest.raises(InvalidPool, match=r"inner.1 is a Sharded: plans are made for a model before it is sharded"):
        collections_of(Model(Sharded()))


def test_a_setting_that_is_not_modelled_is_refused():
    module = bags("a")
    module.embedding_bag_configs()[0].use_virtual_table = True
    with pytest.raises(InvalidPool, match="use_virtual_table = True changes what a table costs"):
        task_of_module(module, 2, 1)


def installed(monkeypatch, **versions):
    """Make the packages look installed in these versions, and no other FBGEMM."""
    told = {name.replace("_", "-"): version for name, version in versions.items()}

    def distributions(name):
        return [type("Distribution", (), {"version": told[name]})] if name in told else []

    monkeypatch.setattr(modules.metadata, "distributions", distributions)
    operator._fbgemm.cache_clear()


def test_missing_and_wrong_builds(monkeypatch):
    try:
        installed(monkeypatch, fbgemm_gpu="1.8.0", fbgemm_gpu_cpu="1.8.0", torchrec="1.8.0")
        with pytest.raises(MissingDependency, match="both installed and overwrite each other; run pip uninstall -y"):
            modules.require_torchrec()
        installed(monkeypatch, fbgemm_gpu_cpu="1.8.0", torchrec="1.2.0")
        with pytest.raises(
            MissingDependency, match=r"torchrec 1.2.0 does not go with FBGEMM 1.8.0; run pip install --no"
        ):
            modules.require_torchrec()
        installed(monkeypatch, fbgemm_gpu_cpu="1.8.0")
        monkeypatch.setitem(__import__("sys").modules, "torchrec", None)
        with pytest.raises(MissingDependency, match=r"run pip install --no-deps torchrec==1.8.\*"):
            modules.require_torchrec()
    finally:
        operator._fbgemm.cache_clear()
