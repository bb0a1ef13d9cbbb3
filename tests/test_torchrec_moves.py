"""Tables that move between ranks while TorchRec trains them: two processes, gloo, CPU."""

import re
import tempfile
from dataclasses import replace
from importlib.util import find_spec

import pytest

from shard_gym import Plan
from shard_gym.errors import InvalidPlan
from shard_gym.torchrec.launch import launch

pytestmark = [  # ranks import this module
    pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec"),
    pytest.mark.usefixtures("warm_ranks"),
]
N, EVERY = 8, (0, 1)


def first_as(kind, *devices):
    """Table 0 of that kind on those devices, the others table-wise in turn."""
    others = tuple(t % 2 for t in range(1, N))
    of_tables = (devices, *((device,) for device in others))
    return Plan((devices[0], *others), kind=(kind, *["tw"] * (N - 1)), devices=of_tables)


WHOLE, HALVES = first_as("tw", 0), first_as("cw", 0, 1)
MOVES = {  # from a plan to another: which table's shards go where
    "whole": (WHOLE, Plan(tuple((t + 1) % 2 for t in range(N)))),
    "halves": (HALVES, first_as("cw", 1, 0)),
    "all to one": (WHOLE, Plan((1,) * N)),
}
REFUSED = {
    "kind": (WHOLE, first_as("rw", 0, 1), "is table_wise .*, in the new plan row_wise"),
    "to halves": (WHOLE, HALVES, "is table_wise .*, in the new plan column_wise"),
    "in part": (first_as("cw", 0, 1, 0, 1), first_as("cw", 1, 1, 0, 0), "rank 1 would send to itself"),
    "cut otherwise": (HALVES, first_as("cw", 1, 0, 1, 0), "is cut otherwise"),
    "two of one rank": (first_as("cw", 0, 0), first_as("cw", 1, 1), "has 2 shards on rank 0"),
    "beside copies": (
        first_as("dp", 0, 1),
        replace(first_as("dp", 0, 1), device=(0,) * N, devices=(EVERY, *[(0,)] * (N - 1))),
        "'table_0' is copied",
    ),
}


def work(folder):
    """Losses of the example; tables and losses of each move, and of its model that stayed; reasons for refusals."""
    from examples import torchrec_move as example

    found = example.train_each(folder)
    moves = {name: (trained(old, old)[0], *trained(old, new)) for name, (old, new) in MOVES.items()}
    return found, moves, {name: refusal(old, new) for name, (old, new, _) in REFUSED.items()}, alone(), other_hashes()


def sharded(plan):
    """The example's model, and a function that makes plans TorchRec's."""
    from examples.torchrec_dlrm import make_model, shard
    from shard_gym.torchrec.modules import task_of_module
    from shard_gym.torchrec.plans import to_torchrec

    model = make_model()
    task = task_of_module(model, 2, 1, objective="iteration", kinds=("tw", "cw", "rw", "dp"))

    def as_torchrecs(plan):
        return to_torchrec(plan, task, make_model(), device="cpu")

    return shard(model, as_torchrecs(plan)), as_torchrecs


def trained(old, new):
    """Losses of six steps, three before the move; the names of the tables that moved."""
    from torch import distributed

    from examples import torchrec_dlrm as example
    from shard_gym.torchrec.moves import reshard

    model, as_torchrecs = sharded(old)
    example.initialise(model)
    optimizers = example.optimizers_of(model, example.OPTIMIZERS["rowwise_adagrad"])
    losses, moved = [], {}
    for number, batch in enumerate(example.batches(distributed.get_rank(), 6)):
        if number == 3:
            moved = reshard(model, as_torchrecs(new))
        losses.append(example.step(model, optimizers, batch))
    return losses, moved


def refusal(old, new):
    from shard_gym.torchrec.moves import deltas

    model, as_torchrecs = sharded(old)
    with pytest.raises(InvalidPlan) as caught:
        deltas(model, as_torchrecs(new))
    return str(caught.value)


def alone():
    """The refusal of a model that is nothing but a collection."""
    import torch
    from torch import distributed
    from torchrec import EmbeddingBagCollection
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    from shard_gym.torchrec.modules import task_of_module
    from shard_gym.torchrec.moves import deltas
    from shard_gym.torchrec.plans import to_torchrec

    config = EmbeddingBagConfig(name="a", num_embeddings=8, embedding_dim=4, feature_names=["a"])
    model = EmbeddingBagCollection([config], device=torch.device("meta"))
    task = task_of_module(model, 2, 1)
    first, second = (to_torchrec(Plan((device,)), task, model, device="cpu") for device in (0, 1))
    env = ShardingEnv.from_process_group(distributed.group.WORLD)
    parallel = DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=first)
    with pytest.raises(InvalidPlan) as caught:
        deltas(parallel, second)
    return str(caught.value)


def other_hashes():
    """The refusal of ranks that hash words differently."""
    from torch import distributed

    from shard_gym.torchrec import moves

    model, as_torchrecs = sharded(WHOLE)
    moves.hash = lambda word: distributed.get_rank()
    with pytest.raises(InvalidPlan) as caught:
        moves.reshard(model, as_torchrecs(MOVES["whole"][1]))
    return str(caught.value)


@pytest.fixture(scope="module")
def found():
    with tempfile.TemporaryDirectory() as folder:
        return launch(work, 2, folder)[0]


def test_losses_of_the_example_are_those_without_a_move(found):
    (stayed, _), (moved, by_torchrec), (restored, by_checkpoint) = found[0]
    assert by_torchrec == "moved by TorchRec" and by_checkpoint.startswith("restored: table 'table_0' is table_wise")
    assert moved == stayed and restored == pytest.approx(stayed, rel=1e-6)
    assert stayed[-1] != stayed[0] and len(stayed) == 20


@pytest.mark.parametrize("name", MOVES)
def test_weights_and_states_of_optimizers_move(found, name):
    stayed, losses, moved = found[1][name]
    assert losses == pytest.approx(stayed, rel=1e-6)
    old, new = MOVES[name]
    wanted = tuple(f"table_{t}" for t in range(N) if old.devices[t] != new.devices[t])
    assert moved == {"sparse_arch.embedding_bag_collection": wanted}


@pytest.mark.parametrize("name", REFUSED)
def test_moves_that_torchrec_breaks_off_are_refused_before(found, name):
    assert re.search(REFUSED[name][2], found[2][name])
    assert found[2][name].endswith("save a checkpoint, and restore it under the new plan")


def test_ranks_that_hash_words_differently_do_not_wait_for_ever(found):
    assert found[4].endswith("set PYTHONHASHSEED=0 for all")


def test_a_model_without_a_dense_part_is_refused(found):
    assert found[3].startswith("no part of the model is data-parallel")
