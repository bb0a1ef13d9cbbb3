"""Inference and quantised sharding, key-value and virtual tables: refused by name at every door, by real TorchRec."""

import json

import pytest

from shard_gym import Task, make_pool, make_task
from shard_gym.errors import CorruptFile, InvalidPlan, InvalidPool, InvalidTask, UnknownName
from shard_gym.tables.files import load_pool
from shard_gym.torchrec.layouts import NOT_PLANNED, RESIDENCE_OF
from shard_gym_agents.cli.main import main

torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")
types = pytest.importorskip("torchrec.distributed.types")
planner = pytest.importorskip("torchrec.distributed.planner")
embedding_types = pytest.importorskip("torchrec.distributed.embedding_types")
models = pytest.importorskip("shard_gym_agents.models")
moves = pytest.importorskip("shard_gym.torchrec.moves")
words = pytest.importorskip("shard_gym.torchrec.constraints")
plans = pytest.importorskip("shard_gym.torchrec.plans")
stored = pytest.importorskip("shard_gym.torchrec.stored")

META = torch.device("meta")
KERNELS = [kernel.value for kernel in embedding_types.EmbeddingComputeKernel]
OTHERS = ("customized_kernel", "fused_triton")  # of somebody's own, and experimental: refused without a word of why
ODD = [kernel for kernel in KERNELS if kernel not in RESIDENCE_OF]
DOORS = {  # what reads a sharding plan
    "from_torchrec": lambda found, model: plans.from_torchrec(found, model),
    "constraints_of": lambda found, model: words.constraints_of(found),
    "plan_loader": lambda found, model: stored._chosen(found, ()),
}


def table(**settings):
    return torchrec.EmbeddingBagConfig(num_embeddings=64, embedding_dim=8, name="a", feature_names=["f"], **settings)


def bags(**settings):
    return torchrec.EmbeddingBagCollection([table(**settings)], device=META)


def key_value():
    return types.KeyValueParams(ssd_storage_directory="disk")


def sharded(kernel, **settings):
    """A sharding plan of TorchRec's for the table on one of two ranks."""
    shard = types.ShardMetadata([0, 0], [64, 8], "rank:0/cuda:0")
    spec = types.EnumerableShardingSpec([shard])
    sharding = types.ParameterSharding("table_wise", kernel, [0], spec, **settings)
    return types.ShardingPlan({"": types.EmbeddingModuleShardingPlan({"a": sharding})})


def test_every_kernel_of_torchrec_is_planned_or_has_a_reason():
    assert set(KERNELS) == {*RESIDENCE_OF, *NOT_PLANNED, *OTHERS}


@pytest.mark.parametrize("kernel", ODD)
def test_kernels_in_constraints(kernel):
    told = {"a": planner.ParameterConstraints(compute_kernels=["fused", kernel])}
    with pytest.raises(UnknownName, match=f"in the constraints of 'a' '{kernel}'") as refused:
        models.plan_model(bags(), 2, 1, constraints=told)
    assert NOT_PLANNED.get(kernel, "") in str(refused.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kernel", ODD)
def test_kernels_in_sharding_plans(kernel, door):
    with pytest.raises(InvalidPlan, match=f"table 'a' has the kernel {kernel}") as refused:
        DOORS[door](sharded(kernel), bags())
    assert NOT_PLANNED.get(kernel, "") in str(refused.value)


@pytest.mark.parametrize("door", DOORS)
def test_key_value_parameters_in_sharding_plans(door):
    with pytest.raises(InvalidPlan, match="'a' has key_value_params, of tables in a key-value store"):
        DOORS[door](sharded("fused", key_value_params=key_value()), bags())


def test_settings_in_constraints():
    for told, message in (
        ({"use_virtual_table": True}, "use_virtual_table = True is not modelled"),
        ({"key_value_params": key_value()}, r"key_value_params = KeyValueParams\(.* is not modelled"),
    ):
        with pytest.raises(InvalidTask, match=f"constraints of 'a': {message}"):
            models.plan_model(bags(), 2, 1, constraints={"a": planner.ParameterConstraints(**told)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_virtual_table": True}, "use_virtual_table = True"),
        ({"total_num_buckets": 4}, "total_num_buckets = 4"),
        ({"num_embeddings_post_pruning": 8}, "num_embeddings_post_pruning = 8"),
        ({"data_type": torchrec.types.DataType.INT4}, "data_type is one of .*, not INT4"),
        ({"data_type": torchrec.types.DataType.INT2}, "data_type is one of .*, not INT2"),
        ({"data_type": torchrec.types.DataType.UINT8}, "data_type is one of .*, not UINT8"),
    ],
)
def test_configs_of_tables(settings, message):
    with pytest.raises(InvalidPool, match=rf"table 0 \('a'\): {message}"):
        make_task([table(**settings)], 2, 1)
    model = bags()
    for name, value in settings.items():
        setattr(model.embedding_bag_configs()[0], name, value)
    with pytest.raises(InvalidPool, match=message):
        models.plan_model(model, 2, 1)


def quantised():
    """A model that TorchRec's own call made fit for inference."""
    from torchrec.inference.modules import quantize_inference_model

    model = torch.nn.Sequential(torchrec.EmbeddingBagCollection([table()], device=torch.device("cpu")))
    return quantize_inference_model(model)


def test_models_for_inference():
    with pytest.raises(
        InvalidPool, match=r"0 is a torchrec\.quant\S+\.EmbeddingBagCollection, quantised for inference"
    ):
        models.plan_model(quantised(), 2, 1)


def test_reservations_for_inference_and_what_is_made_of_them():
    from torchrec.distributed.planner.storage_reservations import InferenceStorageReservation

    class Mine(InferenceStorageReservation):
        """A kind of it."""

    for reservation in (InferenceStorageReservation(0.1), Mine(0.1)):
        with pytest.raises(InvalidTask, match=rf"{type(reservation).__name__} is of models that do not train"):
            models.plan_model(bags(), 2, 1, storage_reservation=reservation)


def test_other_devices():
    with pytest.raises(InvalidPlan, match="device is cuda or cpu, got 'mtia'"):
        models.plan_model(bags(), 2, 1, device="mtia")


def test_moves_of_odd_tables():
    def found(rank, kernel):
        plan = sharded(kernel)
        plan.plan[""]["a"].ranks = [rank]
        return plan

    part = type("Part", (), {"plan": found(0, "key_value"), "_dmp_wrapped_module": None})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "_check_collection", lambda *given: None)
        with pytest.raises(InvalidPlan, match="kernel key_value"):
            moves.deltas(part, found(1, "key_value"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows,dtype\n9,int4\n", "dtype must be one of fp32, .* found 'int4'"),
        ("rows,use_virtual_table\n9,true\n", r"unknown columns \['use_virtual_table'\]"),
        ("rows,compute_kernel\n9,key_value\n", r"unknown columns \['compute_kernel'\]"),
    ],
)
def test_files_of_tables(tmp_path, text, message):
    (tmp_path / "tables.csv").write_text(text)
    with pytest.raises(CorruptFile, match=message):
        load_pool(tmp_path / "tables.csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"residences": ["hbm", "ssd"]}, "residence 'ssd'"), ({"kinds": ["tw", "kv"]}, "kind of sharding 'kv'")],
)
def test_tasks_as_json(changes, message):
    pool = make_pool([64, 64], 8)
    task = Task(pool, (2**20,) * 2, "iteration", kinds=("tw", "rw"), residences=("hbm", "uvm"), host_memory=2**20)
    with pytest.raises((UnknownName, CorruptFile), match=message):
        Task.from_json(json.dumps(json.loads(task.to_json()) | changes))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("solve", "--agent", "cost-greedy", "--residences", "ssd"), "unknown residence 'ssd'"),
        (("solve", "--agent", "cost-greedy", "--kinds", "kv"), "unknown kind of sharding 'kv'"),
        (("solve", "--agent", "cost-greedy", "--dtype", "int4"), "'int4'"),
        (("stats", "--why", "--kernel", "key_value"), "'key_value'"),
        (("stats", "--why", "--kernel", "dram_virtual_table"), "'dram_virtual_table'"),
    ],
)
def test_the_command_line(given, message, tmp_path, capsys):
    (tmp_path / "tables.csv").write_text("rows\n64\n64\n")
    words = [*given, "--tables", str(tmp_path / "tables.csv"), "--devices", "2", "--memory-gb", "1"]
    try:
        code = main(words)
    except SystemExit as ended:  # as argparse ends
        code = ended.code
    assert code == 2 and message in capsys.readouterr().err
