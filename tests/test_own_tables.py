"""Tasks from a user's own tables: files, pools, TorchRec configs; and environments that draw from them."""

import gzip
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from shard_gym import Constraints, make_pool, make_task
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.own import own_bank
from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.memory.usage import table_bytes
from shard_gym.tables.files import save_pool
from shard_gym.tables.pool import GB, TablePool
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from tests.env_helpers import play_where_it_fits


class DataType(Enum):
    """TorchRec's, in part."""

    FP32 = "FP32"
    INT8 = "INT8"
    INT4 = "INT4"


class PoolingType(Enum):
    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


@dataclass
class EmbeddingConfig:
    """The attributes of TorchRec 1.8's, with its defaults."""

    num_embeddings: int
    embedding_dim: int
    name: str = "t"
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=lambda: ["f"])
    weight_init_max: float | None = None
    init_fn: object = print
    num_embeddings_post_pruning: int | None = None
    need_pos: bool = False
    use_virtual_table: bool = False


@dataclass
class EmbeddingBagConfig:
    num_embeddings: int
    embedding_dim: int
    name: str = "t"
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=lambda: ["f"])
    num_embeddings_post_pruning: int | None = None
    need_pos: bool = False
    pooling: PoolingType = PoolingType.SUM


def bag(**settings):
    return EmbeddingBagConfig(**{"num_embeddings": 1000, "embedding_dim": 8, **settings})


@pytest.fixture
def pool():
    rng = np.random.default_rng(0)
    return make_pool(rng.integers(100, 5_000, 50), rng.choice([4, 8, 16], 50), rng.uniform(0.5, 20, 50).round(2))


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_a_task_from_a_file(pool, tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"tables{suffix}"
    save_pool(pool, path)
    for given_path in (path, str(path)):
        task = make_task(given_path, devices=4, memory_gb=16)
        assert task.tables == pool
        assert (task.memory, task.name) == ((16 * GB,) * 4, path.name)
        assert (task.objective, task.accounting, task.optimizer) == ("iteration", "training", "sgd")
        assert task.batch == pool.reference_batch


def test_tables_are_of_the_bytes_of_configs_where_no_dtype_is_told(tmp_path):
    (tmp_path / "t.csv").write_text("rows,dim\n1000,8\n")
    for given in (make_pool(1000, 8), tmp_path / "t.csv", [bag()]):
        assert table_bytes(make_task(given, 1, 1)).tolist() == [1000 * 8 * 4]


@pytest.mark.parametrize("suffix", [".pt", ".pt.gz"])
def test_a_task_from_the_real_format(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    path = tmp_path / f"lookups{suffix}"
    with (gzip.open if suffix == ".pt.gz" else open)(path, "wb") as file:  # two tables, two samples
        torch.save((torch.tensor([7, 7, 200]), torch.tensor([0, 1, 2, 2, 3]), torch.tensor([[1, 1], [0, 1]])), file)
    task = make_task(path, devices=2, memory_gb=1)
    assert (task.tables.rows.tolist(), task.tables.pooling.tolist(), task.batch) == ([100, 201], [1, 0.5], 2)


def test_every_setting_reaches_the_task(pool):
    links, pinned = Links(port=1e6), Constraints(pin=((0, 1),))
    told = {"objective": "kernel", "batch": 512, "optimizer": "adam", "accounting": "weights", "splits_allowed": True}
    task = make_task(pool, 2, [1, 0.5], speed=[1, 0.5], links=links, constraints=pinned, name="mine", **told)
    expected = Task(pool, (GB, GB // 2), speed=(1, 0.5), links=links, constraints=pinned, name="mine", **told)
    assert task == expected


def test_torchrec_configs_by_hand():
    configs = [
        bag(name="user", feature_names=["user"], data_type=DataType.INT8),
        EmbeddingBagConfig(500, 16, "shared", feature_names=["clicks", "views"], pooling=PoolingType.MEAN),
        SimpleNamespace(name="plain", num_embeddings=9, embedding_dim=4, data_type="FP16", feature_names=("p",)),
        EmbeddingBagConfig(7, 4, "whole", feature_names=["a", "b"]),
    ]
    pooling = {"clicks": 12.5, "views": np.float32(2), "whole": 6}
    task = make_task(configs, 2, 1, pooling=pooling, objective="kernel")
    tables = task.tables
    assert tables.name == ("user", "shared", "plain", "whole")
    assert tables.rows.tolist() == [1000, 500, 9, 7]
    assert tables.dim.tolist() == [8, 16, 4, 4]
    assert tables.dtype == ("int8", "fp32", "fp16", "fp32")
    assert tables.pooling.tolist() == [1, 14.5, 1, 6]  # a feature that is not named has one id


def test_a_name_of_both_a_table_and_a_feature_is_the_feature():
    task = make_task(
        [bag(name="user", feature_names=["user", "friend"])], 1, 1, pooling={"user": 3}, objective="kernel"
    )
    assert task.tables.pooling.tolist() == [4]


def test_real_torchrec_configs():
    modules = pytest.importorskip("torchrec.modules.embedding_configs")
    configs = [
        modules.EmbeddingBagConfig(
            num_embeddings=10, embedding_dim=4, name="b", feature_names=["x"], data_type=modules.DataType.FP16
        ),
        modules.EmbeddingConfig(num_embeddings=20, embedding_dim=8, name="e", feature_names=["y"]),
    ]
    task = make_task(configs, 2, 1, pooling={"x": 3})
    told = {"dtype": ["fp16", "fp32"], "name": ("b", "e"), "pooled": [True, False]}
    assert task.tables == make_pool([10, 20], [4, 8], [3, 1], **told)
    configs[0].use_virtual_table = True
    with pytest.raises(InvalidPool, match="use_virtual_table = True changes"):
        make_task(configs, 2, 1)


@pytest.mark.parametrize("config", [EmbeddingConfig(10, 4), bag(pooling=PoolingType.NONE)])
def test_rows_that_are_not_pooled_travel_one_by_one(config):
    task = make_task([config], 2, 1, pooling={"f": 5})
    assert (task.tables.pooled.tolist(), task.tables.bags.tolist(), task.tables.rows_sent.tolist()) == (
        [False],
        [1],
        [5],
    )
    assert task.tables.columns_sent.tolist() == [5 * config.embedding_dim]


def test_every_feature_sends_a_row_of_its_own():
    configs = [bag(), bag(name="u", feature_names=["g", "h"])]
    tables = make_task(configs, 2, 1).tables
    assert (tables.pooling.tolist(), tables.bags.tolist()) == ([1, 2], [1, 2])
    several = [bag(name="w", pooling=PoolingType.NONE, feature_names=["g", "h"])]
    assert make_task(several, 2, 1).tables.rows_sent.tolist() == [2]  # one id each
    assert make_task(several, 2, 1, pooling={"g": 5}).tables.rows_sent.tolist() == [6]


def test_empty_bags_that_torchrec_guesses_otherwise_are_refused():
    """0.5 and 3 ids: TorchRec counts 0.5 + 1 bags that are not empty, of 3.5 ids in two bags ours would be 2."""
    configs, told = [bag(feature_names=["f", "g"])], {"pooling": {"f": 0.5, "g": 3}}
    with pytest.raises(InvalidTask, match=r"features of 't' have less and more .* 1.5 rows a sample, a task 2\."):
        make_task(configs, 2, 1, accounting="torchrec", **told)
    assert make_task(configs, 2, 1, accounting="true", **told).tables.bags.tolist() == [2]
    for even in ({"f": 0.5, "g": 0.2}, {"f": 1, "g": 3}, {"t": 0.5}):
        assert make_task(configs, 2, 1, accounting="torchrec", pooling=even).tables.bags.tolist() == [2]
    with pytest.raises(InvalidTask, match="less and more"):
        own_bank(configs, devices=1, memory_gb=1, tables_per_task=1, accounting="torchrec", **told)


@pytest.mark.parametrize(
    ("configs", "pooling", "message"),
    [
        ([bag(), bag()], None, "'t' is the name of several"),
        ([bag(data_type=DataType.INT4)], None, "one of FP32, FP16, BF16, INT8, not INT4"),
        ([bag(feature_names=[])], None, "at least one name"),
        ([bag(feature_names="f")], None, "list of at least one name, got 'f'"),
        ([bag(name="")], None, "needs a name"),
        ([bag(need_pos=True)], None, "need_pos = True changes what a table costs"),
        ([bag(num_embeddings_post_pruning=10)], None, "num_embeddings_post_pruning = 10"),
        ([bag(num_embeddings=0)], None, "rows must be at least 1"),
        ([bag(num_embeddings="10")], None, "num_embeddings is a whole number, got '10'"),
        ([bag(embedding_dim=8.5)], None, "embedding_dim is a whole number"),
        ([bag()], {"g": 1}, "unknown feature or table in pooling 'g'; choose one of: f, t"),
        ([bag()], {"f": "1"}, "pooling of 'f' is a number from 0"),
        ([bag()], {"f": float("nan")}, "pooling of 'f' is a number from 0"),
        ([bag()], [1], "mean ids a sample by name"),
        ([bag()], {"t": 1, "f": 2}, "names table 't' and its feature 'f'"),
        ([3], None, "number 0, 3, has no name"),
        (None, None, "a path, a shard_gym.TablePool or a list"),
    ],
)
def test_configs_that_are_refused(configs, pooling, message):
    with pytest.raises((InvalidPool, UnknownName), match=message):
        make_task(configs, 2, 1, pooling=pooling)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"devices": 0}, "at least one device"),
        ({"devices": 2.0}, "devices is a whole number"),
        ({"memory_gb": [1, 2, 3]}, "one number, or 2, one for each device"),
        ({"memory_gb": "16"}, "memory_gb is one number"),
        ({"memory_gb": [1, -1]}, "more than 0"),
        ({"memory_gb": float("nan")}, "more than 0"),
        ({"memory_gb": float("inf")}, "one finite number a device"),
        ({"pooling": {"table_0": 3}}, "pooling is for TorchRec configs"),
        ({"links": "fast"}, "links are of type"),
        ({"constraints": {"pin": ()}}, "constraints are of type"),
        ({"objective": "money"}, "choose one of: iteration, kernel"),
        ({"gpus": 3}, "unknown setting 'gpus'; choose one of: accounting, batch"),
        (
            {"tables": "tables.xls"},
            r"unknown kind of file 'tables.xls'; choose one of: .csv, .json, .parquet, .pt, .pt.gz; give CSV: ",
        ),
        ({"tables": []}, "at least one table"),
    ],
)
def test_settings_that_are_refused(pool, told, message):
    with pytest.raises((InvalidPool, InvalidTask, UnknownName), match=message):
        make_task(**{"tables": pool, "devices": 2, "memory_gb": 1, **told})


def test_configs_make_an_environment():
    configs = [bag(name=f"t{i}", feature_names=[f"f{i}"], num_embeddings=100 + i) for i in range(30)]
    env = gym.make("ShardGym-Own", tables=configs, pooling={"f3": 9}, devices=2, memory_gb=1, tables_per_task=4)
    _, info = play_where_it_fits(env.unwrapped, seed=0)
    assert info["feasible"]


def test_a_replayed_task_of_ones_own(pool):
    task = make_task(pool, devices=2, memory_gb=1)
    env = ShardingEnv([task], info="full")
    _, info = play_where_it_fits(env, options={"task": make_task(pool.take(range(7)), devices=2, memory_gb=1)})
    assert (len(info["plan"].device), info["feasible"]) == (7, True)
    assert isinstance(task.tables, TablePool)
