"""Our plans, trained by TorchRec for real: two processes, gloo, CPU."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import active_children
from pathlib import Path

import pytest

from shard_gym import Plan
from shard_gym.bridge.launch import launch
from shard_gym.errors import RankFailed

pytestmark = pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec")  # ranks import this module
ROOT = Path(__file__).parents[1]
BY_HAND = Plan((0, 1, 1, 0, 1, 0, 1, 0))
# Halves of tables 2 and 4 go to the end, so does the second half of table 4's second half.
SPLIT = Plan((0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 1), splits=(2, 4, 9))


def example():
    """The example, imported where torch is wanted: in the processes that train."""
    from examples import torchrec_dlrm

    return torchrec_dlrm


def train_each(task):
    """Losses and shards: by hand and by TorchRec's planner with the task's optimizer, then the same two and splits."""
    found = {}
    for optimizer, plans in (("rowwise_adagrad", {"by hand": BY_HAND}), ("sgd", {"by hand": BY_HAND, "split": SPLIT})):
        told = replace(task, optimizer=optimizer, splits_allowed=True)
        for name, plan in plans.items():
            found[optimizer, name] = example().train(plan, told)
        model = example().make_model(optimizer)
        found[optimizer, "torchrec"] = example().run_steps(example().shard(model, torchrecs_own(model)))
    return found


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
    module.train(BY_HAND, module.make_task(module.make_model()))
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
def trained():
    """What both ranks say of each training."""
    ours = example()
    ranks = launch(train_each, 2, ours.make_task(ours.make_model()))
    assert not active_children()
    return ranks


@pytest.mark.parametrize(("optimizer", "name"), [("rowwise_adagrad", "by hand"), ("sgd", "by hand"), ("sgd", "split")])
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


def test_each_rank_holds_what_the_plan_says(trained):
    rows = example().ROWS
    _, shards = trained[0]["sgd", "by hand"]
    assert shards == [
        {f"table_{t}": [(0, rows[t], 0, 32)] for t, device in enumerate(BY_HAND.device) if device == rank}
        for rank in (0, 1)
    ]


def test_each_rank_holds_the_columns_that_the_plan_says(trained):
    rows = example().ROWS
    first, second = trained[0]["sgd", "split"][1]
    assert first["table_2"] == [(0, rows[2], 16, 16)] and second["table_2"] == [(0, rows[2], 0, 16)]
    assert first["table_4"] == [(0, rows[4], 16, 8)]
    assert sorted(second["table_4"]) == [(0, rows[4], 0, 16), (0, rows[4], 24, 8)]
    assert set(first) | set(second) == {f"table_{t}" for t in range(8)}
    assert set(first) & set(second) == {"table_2", "table_4"}


def test_a_failing_rank_ends_the_run_with_its_reason(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "from shard_gym.bridge.launch import launch\nfrom tests.test_torchrec_training import fail_at_step_3\n"
        "if __name__ == '__main__':\n    launch(fail_at_step_3, 2)\n"
    )
    begin = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and time.monotonic() - begin < 30
    assert "rank 1 failed, all 2 were ended: ValueError: no batch for step 3" in run.stderr


def test_a_rank_that_dies_ends_the_run():
    with pytest.raises(RankFailed, match=r"rank 1 failed.*died without a word"):
        launch(die, 2)
    assert not active_children()


def test_a_rank_that_hangs_ends_the_run():
    with pytest.raises(RankFailed, match=r"rank 0 failed.*[Tt]imed out"):
        launch(hang, 2, patience=1.0)
    assert not active_children()
