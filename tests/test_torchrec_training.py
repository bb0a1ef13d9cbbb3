"""Our plans, trained by TorchRec for real: two processes, gloo, CPU."""

import gc
import os
import signal
import time
import weakref
from importlib.util import find_spec
from multiprocessing import active_children

import pytest

from shard_gym import Plan
from shard_gym.errors import RankFailed, ShardGymError
from shard_gym.torchrec.launch import _free_port, launch

pytestmark = [  # ranks import this module
    pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec"),
    pytest.mark.usefixtures("warm_ranks"),
]
BY_HAND = Plan((0, 1, 1, 0, 1, 0, 1, 0))
# Halves of tables 2 and 4 go to the end, so does the second half of table 4's second half.
SPLIT = Plan((0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 1), splits=(2, 4, 9))


def example():
    """The example, imported where torch is wanted: in the processes that train."""
    from examples import torchrec_dlrm

    return torchrec_dlrm


def train_each():
    """Losses and shards: by a plan of `plan_model`, by hand, with splits, and by TorchRec's planner."""
    found = {}
    for optimizer, plans in (("rowwise_adagrad", {"by hand": BY_HAND}), ("sgd", {"by hand": BY_HAND, "split": SPLIT})):
        for name, plan in plans.items():
            found[optimizer, name] = train_by(plan, optimizer)
        model = example().make_model(optimizer)
        found[optimizer, "torchrec"] = example().run_steps(example().shard(model, torchrecs_own(model)), optimizer)
    model = example().make_model()
    planned = example().planned(model)
    found["rowwise_adagrad", "planned"] = example().run_steps(example().shard(model, planned.sharding_plan))
    return found, (planned.task, planned.plan), refusals(), example().ROWS


def refusals():
    """Reasons why this rank has no plan: tables that fit nowhere, and more devices than there are ranks."""
    from shard_gym_agents.models import plan_model

    found = []
    for devices, memory_gb in ((2, 1e-6), (3, 1.0)):
        try:
            plan_model(example().make_model(), devices, memory_gb, device="cpu", agent="size-greedy")
        except ShardGymError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def train_by(plan, optimizer="rowwise_adagrad"):
    from shard_gym.torchrec.modules import task_of_module
    from shard_gym.torchrec.plans import to_torchrec

    model = example().make_model(optimizer)
    task = task_of_module(model, 2, 1, splits_allowed=True)
    sharding_plan = to_torchrec(plan, task, model, device="cpu")
    return example().run_steps(example().shard(model, sharding_plan), optimizer)


def torchrecs_own(model):
    from torch import distributed
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

    planner = EmbeddingShardingPlanner(Topology(2, "cpu", local_world_size=2), batch_size=64, stats=[])
    return planner.collective_plan(model, [EmbeddingBagCollectionSharder()], distributed.group.WORLD)


def fail_at_step_3():
    """Rank 1 runs out of data."""
    from torch import distributed

    module = example()

    def broken(rank):
        for step, batch in enumerate(whole(rank), start=1):
            if rank == 1 and step == 3:
                raise ValueError("no batch for step 3")
            yield batch

    whole, module.batches = module.batches, broken
    train_by(BY_HAND)
    distributed.barrier()


def die():
    """Rank 1 is killed, as the kernel does for want of memory; rank 0 waits for it."""
    from torch import distributed

    if distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()


def hang():
    """Rank 1 never comes to where rank 0 waits."""
    from torch import distributed

    if distributed.get_rank() == 1:
        time.sleep(600)
    distributed.barrier()


@pytest.fixture(scope="module")
def answers():
    """Answers of both ranks on each training."""
    ranks = launch(train_each, 2)
    assert not active_children()
    return tuple(zip(*ranks, strict=True))


@pytest.fixture(scope="module")
def trained(answers):
    return answers[0]


@pytest.fixture(scope="module")
def rows(answers):
    """Rows of the example's tables, which this process does not import: that takes seconds."""
    return answers[3][0]


CASES = [("rowwise_adagrad", "by hand"), ("rowwise_adagrad", "planned"), ("sgd", "by hand"), ("sgd", "split")]


@pytest.mark.parametrize(("optimizer", "name"), CASES)
def test_losses_are_those_of_torchrecs_own_plan(trained, optimizer, name):
    """Row-wise Adagrad keeps one state for the columns of a shard, so splits change it: those are compared with SGD."""
    for rank in trained:
        losses, own = rank[optimizer, name][0], rank[optimizer, "torchrec"][0]
        assert len(losses) == 20 and losses == pytest.approx(own, rel=1e-5)
        assert losses[-1] < losses[0]
    assert trained[0][optimizer, name][0] == trained[1][optimizer, name][0]


def test_splits_and_optimizers_matter_to_losses_or_not(trained):
    """The comparison above can fail: another optimizer gives other losses."""
    adagrad, sgd = (trained[0][optimizer, "by hand"][0] for optimizer in ("rowwise_adagrad", "sgd"))
    assert adagrad != pytest.approx(sgd, rel=1e-5)


def test_every_rank_has_rank_0s_plan_of_the_model(answers):
    (task, plan), other = answers[1]
    assert other == (task, plan)
    assert (task.num_tables, task.optimizer, task.batch) == (8, "rowwise_adagrad", 128)


def test_all_ranks_are_told_why_there_is_no_plan(answers):
    first, second = answers[2]
    assert first[0].startswith("InfeasibleTask: ") and second[0] == f"RankFailed: rank 0 has no plan: {first[0]}"
    assert first[1] == second[1] == "InvalidPlan: the task has 3 devices, the world 2 ranks: make a plan for these"


@pytest.mark.parametrize(("optimizer", "name"), [("sgd", "by hand"), ("rowwise_adagrad", "planned")])
def test_each_rank_holds_what_the_plan_says(answers, rows, optimizer, name):
    plan = BY_HAND if name == "by hand" else answers[1][0][1]
    _, shards = answers[0][0][optimizer, name]
    assert set(plan.kind) <= {"tw", "dp"}  # copies are no shards
    held = [(t, device) for t, (device, kind) in enumerate(zip(plan.device, plan.kind, strict=True)) if kind == "tw"]
    assert shards == [{f"table_{t}": [(0, rows[t], 0, 32)] for t, device in held if device == rank} for rank in (0, 1)]


def test_each_rank_holds_the_columns_that_the_plan_says(trained, rows):
    first, second = trained[0]["sgd", "split"][1]
    assert first["table_2"] == [(0, rows[2], 16, 16)] and second["table_2"] == [(0, rows[2], 0, 16)]
    assert first["table_4"] == [(0, rows[4], 16, 8)]
    assert sorted(second["table_4"]) == [(0, rows[4], 0, 16), (0, rows[4], 24, 8)]
    assert set(first) | set(second) == {f"table_{t}" for t in range(8)}
    assert set(first) & set(second) == {"table_2", "table_4"}


def test_a_failing_rank_ends_the_run_with_its_reason():
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 failed, all 2 were ended: ValueError: no batch for step 3"):
        launch(fail_at_step_3, 2)
    assert time.monotonic() - begin < 120
    assert not active_children()


def test_a_rank_that_dies_ends_the_run():
    with pytest.raises(RankFailed, match=r"rank 1 failed.*died without a word"):
        launch(die, 2)
    assert not active_children()


def test_a_rank_that_hangs_ends_the_run():
    with pytest.raises(RankFailed, match=r"rank 0 failed.*[Tt]imed out"):
        launch(hang, 2, patience=1.0)
    assert not active_children()


def test_under_torchrun_work_runs_here_and_leaves_nothing_of_the_group(monkeypatch):
    """A model in a cycle is collected before the group ends: its threads would abort the process later."""
    from torch import distributed

    class Model:
        def __init__(self):
            self.parts = [self]

    collected = []

    def work():
        weakref.finalize(Model(), lambda: collected.append(distributed.is_initialized()))
        return distributed.get_world_size()

    told = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    gc.disable()
    try:
        assert launch(work, 2) == [1]
    finally:
        gc.enable()
    assert collected == [True] and not distributed.is_initialized()
