"""Checkpoints that are restored under another plan: weights, states of optimizers, losses. Gloo, CPU."""

import re
import tempfile
from importlib.util import find_spec

import pytest

from shard_gym import Plan
from shard_gym.errors import CorruptFile, InvalidPlan
from shard_gym.task.constraints import BY_HOST, KINDS, OF_COLUMNS
from shard_gym.task.links import Links
from shard_gym.torchrec.launch import launch

pytestmark = [  # ranks import this module
    pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec"),
    pytest.mark.usefixtures("warm_ranks"),
]
N, STEPS = 8, 3  # tables; steps before the move, and after it
FORMS = {  # kind and devices of a table, on two ranks
    2: [
        ("tw", (0,)),
        ("cw", (0, 1)),
        ("rw", (0, 1)),
        ("cw", (1, 0, 0, 1)),
        ("dp", (0, 1)),
        ("tw", (1,)),
        ("cw", (1, 1)),
        ("dp", (0, 1)),
    ],
    4: [
        ("twrw", (2, 3)),
        ("grid", (0, 1, 2, 3)),
        ("dp", (0, 1, 2, 3)),
        ("grid", (2, 3, 2, 3, 0, 1, 0, 1)),
        ("tw", (3,)),
        ("rw", (0, 1, 2, 3)),
        ("cw", (3, 0)),
        ("twrw", (0, 1)),
    ],
}
ON_ONE = tuple(kind for kind in KINDS if kind not in BY_HOST)


def adagrad():
    """Adagrad with a number for each weight, FBGEMM's eps."""
    import torch

    return torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-8}


class Trained:
    """A DLRM of eight tables under a plan: table t has the form t + shift."""

    def __init__(self, optimizer, shift=0, forms=None):
        from torch import distributed

        from examples import torchrec_dlrm as example
        from shard_gym.torchrec.modules import task_of_module
        from shard_gym.torchrec.plans import to_torchrec

        self.example, world = example, distributed.get_world_size()
        example.OPTIMIZERS["adagrad"] = adagrad()
        forms = forms or FORMS[world]
        kinds, devices = zip(*(forms[(t + shift) % len(forms)] for t in range(N)), strict=True)
        self.blocks = [
            len(of) // (1 + (kind == "grid")) if kind in OF_COLUMNS else 1
            for kind, of in zip(kinds, devices, strict=True)
        ]
        model = example.make_model(optimizer)
        hosts = {"kinds": KINDS, "links": Links(port=6e8, group=2, uplink=1e8)} if world > 2 else {"kinds": ON_ONE}
        task = task_of_module(model, world, 1, objective="iteration", **hosts)
        plan = Plan(tuple(of[0] for of in devices), kind=kinds, devices=devices)
        self.model = example.shard(model, to_torchrec(plan, task, model, device="cpu"))
        self.optimizers = example.optimizers_of(self.model, example.OPTIMIZERS[optimizer])

    def train(self, first, last):
        """Losses of some steps; weights are the same whatever the plan."""
        from torch import distributed

        if first == 0:
            self.example.initialise(self.model)
        batches = list(self.example.batches(distributed.get_rank(), last))[first:]
        return [self.example.step(self.model, self.optimizers, batch) for batch in batches]

    def states(self):
        """Adagrad's state of each table as a number for each weight, and the weights; whole, on every rank."""
        import torch
        from torch import distributed
        from torch.distributed._shard.sharded_tensor import ShardedTensor

        found = {}
        for t in range(N):
            key = f"sparse_arch.embedding_bag_collection.embedding_bags.table_{t}.weight"
            sums = torch.zeros(2, self.example.ROWS[t], self.example.COLUMNS)
            weight, first = self.model.state_dict()[key], distributed.get_rank() == 0
            if isinstance(weight, ShardedTensor):
                kept = self.model.fused_optimizer.state_dict()["state"].get(key)
                states = kept[f"table_{t}.momentum1"].local_shards() if kept else []
                for shard, state in zip(weight.local_shards(), states, strict=True):
                    (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                    at = slice(row, row + rows), slice(column, column + columns)
                    sums[0][at], sums[1][at] = state.tensor.view(rows, -1), shard.tensor
            elif first:
                sums[0], sums[1] = self.optimizers[1].state_dict()["state"][key]["sum"], weight
            distributed.all_reduce(sums)
            found[t] = sums
        return found


def moved(folder, optimizer, shift):
    """Losses with a move and without; the largest differences of states and weights from what they should be."""
    from shard_gym.torchrec.checkpoints import restore, save

    stays, goes = Trained(optimizer), Trained(optimizer, shift)
    losses = stays.train(0, STEPS)
    save(folder, stays.model, *stays.optimizers)
    restore(folder, goes.model, *goes.optimizers)
    off = 0.0
    old, new = stays.states(), goes.states()
    for t, blocks in enumerate(goes.blocks):
        state, weight = old[t]
        if optimizer == "rowwise_adagrad":
            state = state.view(len(state), blocks, -1).mean(2, keepdim=True).expand(-1, -1, state.size(1) // blocks)
            state = state.reshape(weight.shape)
        assert state.abs().sum() > 0
        off = max(off, float(((state - new[t][0]).abs() / (state.abs() + 1e-12)).max()))
        assert weight.equal(new[t][1])
    return off, losses, *(each.train(STEPS, 2 * STEPS) for each in (stays, goes))


def merged(folder):
    """States after one step by columns that become one, and of one step by whole tables."""
    from shard_gym.torchrec.checkpoints import restore, save

    cut, whole, again = (Trained("rowwise_adagrad", forms=[form]) for form in (FORMS[2][3], FORMS[2][0], FORMS[2][5]))
    for each in (cut, whole):
        each.train(0, 1)
    save(folder, cut.model, *cut.optimizers)
    restore(folder, again.model, *again.optimizers)
    off = [(again.states()[t][0] - whole.states()[t][0]).abs().max() for t in range(N)]
    return float(max(off)), min(float(whole.states()[t][0].max()) for t in range(N))


def refusals(folder):
    """Reasons why a checkpoint is not read, by name, and whether weights are what they were."""
    import torch
    from torchrec.optim.keyed import KeyedOptimizerWrapper

    from shard_gym.torchrec.checkpoints import restore, save

    first, other = Trained("rowwise_adagrad"), Trained("rowwise_adagrad", 1)
    save(folder, first.model, *first.optimizers)
    sgd = Trained("sgd", 1)
    copies = other.optimizers[1].params
    adam = KeyedOptimizerWrapper(copies, lambda own: torch.optim.Adam(own))
    ready = KeyedOptimizerWrapper(copies, lambda own: torch.optim.Adam(own))
    ready.init_state()
    cases = {
        "nothing there": (f"{folder}/none", other.model, *other.optimizers),
        "an optimizer is missing": (folder, other.model, other.optimizers[0]),
        "other optimizers": (folder, sgd.model, *sgd.optimizers),
        "an optimizer without states": (folder, other.model, other.optimizers[0], adam),
        "an optimizer of other states": (folder, other.model, other.optimizers[0], ready),
        "another model": (folder, Wider().model),
    }
    other.example.initialise(other.model)
    before, told = other.states(), {}
    for name, case in cases.items():
        with pytest.raises((InvalidPlan, CorruptFile)) as caught:
            restore(*case)
        told[name] = f"{type(caught.value).__name__}: {caught.value}".replace(str(folder), "FOLDER")
    return told, all(other.states()[t].equal(before[t]) for t in range(N))


class Wider(Trained):
    """The same model with a table of fewer rows."""

    def __init__(self):
        from examples import torchrec_dlrm as example

        whole, example.ROWS = example.ROWS, (999, *example.ROWS[1:])
        try:
            super().__init__("rowwise_adagrad", 1)
        finally:
            example.ROWS = whole


def work(folder, cases):
    found = {case: moved(f"{folder}/{number}", *case) for number, case in enumerate(cases)}
    return found, merged(f"{folder}/merged"), refusals(f"{folder}/refused")


FAST = (("rowwise_adagrad", 1), ("rowwise_adagrad", 3), ("adagrad", 2))
NOBODY = r"InvalidPlan: optimizer\.\S+ is in the checkpoint, and nobody reads it"
REFUSED = {
    "nothing there": "CorruptFile: FOLDER/none has no checkpoint",
    "an optimizer is missing": NOBODY,
    "other optimizers": NOBODY,
    "an optimizer without states": NOBODY,
    "an optimizer of other states": "table_3.weight keeps exp_avg, that of the checkpoint momentum1",
    "another model": r"\S+table_0.weight is of \(1000, 32\) in the checkpoint, of \(999, 32\) in the model",
}


@pytest.fixture(scope="module")
def found():
    with tempfile.TemporaryDirectory() as folder:
        return launch(work, 2, folder, FAST)[0]


def check(off, before, stayed, went, optimizer):
    """States and weights are those of the checkpoint; so are losses where every weight has its own number."""
    assert off < 1e-6 and stayed[-1] != before[0]
    if optimizer == "adagrad":
        assert went == pytest.approx(stayed, rel=1e-5)
    else:
        assert went[0] == pytest.approx(stayed[0], rel=1e-6)


@pytest.mark.parametrize("case", FAST, ids=str)
def test_another_plan_finds_weights_and_states(found, case):
    check(*found[0][case], case[0])


def test_pieces_that_become_one_have_the_state_of_a_row_that_was_never_cut(found):
    off, least = found[1]
    assert off < 1e-6 * least


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_found_is_refused_before_anything_changes(found, name):
    told, same = found[2]
    assert re.search(REFUSED[name], told[name]) and same


def of_all(folder):
    cases = [("rowwise_adagrad", shift) for shift in range(1, N)]
    return {case: moved(f"{folder}/{case[1]}", *case) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "per_host"), [(2, 2), (4, 2)])
def test_every_form_becomes_every_other(ranks, per_host):
    with tempfile.TemporaryDirectory() as folder:
        for case, told in launch(of_all, ranks, folder, per_host=per_host)[0].items():
            check(*told, case[0])


def of_recommenders(folder):
    """Differences of losses after a move from whole tables, of models with more than pooled tables."""
    import torch
    from torch import distributed
    from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
    from torchrec.distributed import DistributedModelParallel

    from benchmarks import executed_runs, recommenders
    from examples import torchrec_dlrm as example
    from shard_gym.torchrec.checkpoints import restore, save

    def made(name, way):
        model = recommenders.make_model(name)
        tables = [of for path, of in model.named_parameters() if example.of_table(path)]
        kind, settings = executed_runs.OPTIMIZERS["rowwise_adagrad"]
        apply_optimizer_in_backward(kind, tables, dict(settings))
        plan = executed_runs.sharding_plan_of(model, executed_runs.Case(name, way, "rowwise_adagrad"), 2)
        parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan)
        return parallel, example.optimizers_of(parallel, (kind, settings))

    found = {}
    for name in ("mixed", "feature-processed", "two towers"):
        batches = list(recommenders.batches(name, 8, distributed.get_rank(), 2))
        first = made(name, "tw")
        example.initialise(first[0])
        for batch in batches[:4]:
            example.step(*first, batch)
        save(f"{folder}/{name}", first[0], *first[1])
        models = first, made(name, "rw"), made(name, "dp")
        for model, optimizers in models[1:]:
            restore(f"{folder}/{name}", model, *optimizers)
        losses = [[example.step(*each, batch) for batch in batches[4:]] for each in models]
        found[name] = max(abs(one - other) for each in losses[1:] for one, other in zip(each, losses[0], strict=True))
    return found


@pytest.mark.slow
def test_sequences_and_feature_processors_go_on_too():
    with tempfile.TemporaryDirectory() as folder:
        assert max(launch(of_recommenders, 2, folder, patience=60.0)[0].values()) < 1e-6
