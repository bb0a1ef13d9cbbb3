"""Plans of every kind, trained by TorchRec for real: five models beside themselves unsharded, on gloo, CPU."""

from importlib.util import find_spec

import pytest

from shard_gym.torchrec.launch import launch

pytestmark = [  # ranks import this module
    pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec"),
    pytest.mark.usefixtures("warm_ranks"),
]
FAST = (
    ("DLRM", "dp", "rowwise_adagrad"),
    ("DLRM", "grid", "sgd"),
    ("DLRM", "plan_model", "rowwise_adagrad"),
    ("two towers", "cw", "sgd"),
    ("two towers", "twrw", "rowwise_adagrad"),
    ("sequence", "rw", "rowwise_adagrad"),
    ("mixed", "ours", "sgd"),
    ("feature-processed", "rw", "sgd"),
    ("feature-processed", "cached", "sgd"),
    ("feature-processed", "TorchRec's", "sgd"),
)
ADAGRAD_BY_COLUMNS = ("two towers", "cw", "rowwise_adagrad")
FORGOTTEN = ("two towers", "dp", "sgd")
EVERY = (0, 1)
REFUSED = (("sequence", "twrw", "sgd"), ("sequence", "grid", "sgd"))


def runs():
    """The benchmark, imported where torch is wanted: in the processes that train."""
    from benchmarks import executed_runs

    return executed_runs


def compared(cases, per_host):
    """Losses of each case, sharded and not; and the reason where it does not train."""
    of = runs()
    alone = {each: of.unsharded(*each).losses for each in {(model, optimizer) for model, _, optimizer in cases}}
    found = of.run([of.Case(*case) for case in cases], per_host)
    return {
        case: (each.losses, alone[case[0], case[2]], each.refused, each.kinds)
        for case, each in zip(cases, found, strict=True)
    }


def of_two():
    """Trainings of two processes, and names of pooled features in the order of a plan's output."""
    from examples import torchrec_dlrm

    found = compared((*FAST, ADAGRAD_BY_COLUMNS, *REFUSED), 2)
    whole, torchrec_dlrm.optimizers_of = torchrec_dlrm.optimizers_of, lambda *told: whole(*told)[:1]
    try:
        forgotten = runs().run([runs().Case(*FORGOTTEN)], 2)[0].losses
    finally:
        torchrec_dlrm.optimizers_of = whole
    return found, (forgotten, runs().unsharded("two towers", "sgd").losses), orders()


def orders():
    """Names of features as `KeyedTensor` has them, by the devices of three tables."""
    import torch
    from torch import distributed
    from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    from shard_gym import Plan
    from shard_gym.torchrec.modules import task_of_module
    from shard_gym.torchrec.plans import to_torchrec

    found = {}
    for devices in ((0, 0, 0), (1, 0, 1), (0, EVERY, 0)):
        configs = [
            EmbeddingBagConfig(name=name, num_embeddings=8, embedding_dim=4, feature_names=[name]) for name in "abc"
        ]
        model = EmbeddingBagCollection(configs, device=torch.device("meta"))
        task = task_of_module(model, 2, 1, objective="iteration", kinds=("tw", "rw"))
        of_tables = tuple(each if each == EVERY else (each,) for each in devices)
        kinds = tuple("rw" if each == EVERY else "tw" for each in devices)
        plan = Plan(tuple(each[0] for each in of_tables), kind=kinds, devices=of_tables)
        parallel = DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(distributed.group.WORLD),
            device=torch.device("cpu"),
            plan=to_torchrec(plan, task, model, device="cpu"),
        )
        ids = KeyedJaggedTensor(["a", "b", "c"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 1, 1]))
        found[devices] = "".join(parallel(ids).keys())
    return found


@pytest.fixture(scope="module")
def two():
    return launch(of_two, 2)[0]


@pytest.mark.parametrize("case", FAST, ids=", ".join)
def test_losses_are_those_of_the_unsharded_model(two, case):
    losses, alone, refused, _ = two[0][case]
    assert not refused
    assert len(losses) == 20 and losses == pytest.approx(alone, rel=0, abs=1e-5)


def test_plan_model_copies_tables_where_that_pays(two):
    """Defaults, told a large batch, make copies; the test above trains them."""
    assert "data_parallel" in two[0]["DLRM", "plan_model", "rowwise_adagrad"][3]


def test_row_wise_adagrad_of_split_columns_is_another_optimizer(two):
    """The comparison above can fail."""
    losses, alone, *_ = two[0][ADAGRAD_BY_COLUMNS]
    assert losses != pytest.approx(alone, rel=0, abs=1e-5)


def test_copies_are_not_trained_in_the_backward_pass(two):
    """Copies have dense kernels: whoever gives their parameters no optimizer does not train them."""
    losses, alone = two[1]
    assert losses != pytest.approx(alone, rel=0, abs=1e-2)


def test_sequence_tables_have_no_kinds_by_host_in_torchrec(two):
    assert [two[0][case][2] for case in REFUSED] == [
        "ValueError: Sharding not supported table_row_wise",
        "ValueError: Sharding not supported grid_shard",
    ]


def test_the_order_of_pooled_values_follows_the_plan(two):
    """Tables come kind by kind and rank by rank, so `KeyedTensor.values()` is read by names."""
    assert two[2] == {(0, 0, 0): "abc", (1, 0, 1): "bac", (0, EVERY, 0): "acb"}


@pytest.mark.slow
def test_four_processes_on_two_hosts_train_every_kind():
    of = runs()
    ways = [("mixed", way, "rowwise_adagrad") for way in of.WAYS if way not in ("cw", "grid", of.PLANNED, of.DEFAULT)]
    cases = [(model, way, "sgd") for model in ("two towers", "DLRM", "feature-processed") for way in of.WAYS]
    for losses, alone, refused, _ in launch(compared, 4, (*cases, *ways), 2, per_host=2)[0].values():
        assert not refused and losses == pytest.approx(alone, rel=0, abs=1e-5)
