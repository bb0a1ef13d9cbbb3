"""Tiered plans in use: the command, the report, TorchRec, and pooled tables on the same devices."""

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from shard_gym import Task, make_pool, simulators
from shard_gym.errors import InfeasibleTask, InvalidPlan, InvalidTask, UnknownName
from shard_gym.flexshard.curves import power_law
from shard_gym.flexshard.network import Network, network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, divided, report, text, uniform_plan, worth
from shard_gym.plan.violations import plan_bytes, violations
from shard_gym.results.evaluate import score
from shard_gym.torchrec.launch import launch
from shard_gym_agents.cli.flex import main
from shard_gym_agents.solvers.flexshard import METHODS, solve
from shard_gym_agents.together import plan_together

TABLE = "name=h,rows=100000,length=50,exponent=1.0,dim=64"
ON = Network(1, 4, a2a_global=1e6, a2a_intra=2e6, ar_global=3e6, ar_cross=1e6)


def row_task(**settings):
    return RowTask((SequenceTable("h", power_law(100_000, 50.0, 1.0), 64),), network("a100-4x8"), 4096, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_the_command_plans_reports_and_keeps(method, tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["--table", TABLE, "--method", method, "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["memory_bytes"] <= told["budget_bytes"] * (1 + 1e-9)
    assert told["comm_ms"] <= told["rw_comm_ms"]
    assert TieredPlan.load(out, row_task()) == solve(row_task(), method)
    assert main(["--table", TABLE, "--plan", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("assumes 32 bits a number; batch 4,096 a GPU; 4 nodes of 8 GPUs, wires of a100-4x8; ")
    assert "all RW takes" in text


def test_the_command_tells_what_other_work_hides(capsys):
    assert main(["--table", TABLE, "--overlap", "paper"]) == 0
    told = capsys.readouterr().out
    assert "a2a_intra and ar_cross hidden by other work" in told and "Flex 64.6%" in told


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--table", "rows=5"], "length"),
        (["--table", "rows=x,length=1"], "for example"),
        (["--table", f"{TABLE},colour=red"], "colour"),
        (["--table", TABLE, "--extra-gb", "-100"], "at the least"),
        (["--network", "token-ring"], "token-ring"),
        (["--plan", "nowhere.json"], "nowhere.json"),
        (["--nodes", "0"], "got 0 x 8"),
        (["--copies", "0.5"], "copies=0.5"),
        (["--extra-gb", "inf"], "extra_bytes"),
        (["--table", "rows=1e400,length=1"], "for example"),
        (["--table", TABLE, "--method", "flex3-paper", "--extra-gb", "-100"], "flex3-paper needs"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, word, capsys):
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


def test_the_report_adds_up():
    task = row_task()
    plan = solve(task)
    told, found = report(task, plan), worth(task, plan)
    assert sum(p["rows"] for p in told["parts"]) == 100_000
    assert sum(p["memory_bytes"] for p in told["parts"]) == pytest.approx(found.memory_bytes)
    assert sum(p["comm_ms"] for p in told["parts"]) + sum(told["latency_ms"].values()) == pytest.approx(found.comm_ms)
    assert sum(told["covered"].values()) == pytest.approx(1)
    assert "h " in text(task, plan)


def test_tiers_of_one_kind_are_torchrecs_and_others_are_divided():
    task = row_task()
    for tier in ("dp", "rw"):
        plan = uniform_plan(task, TieredPlan.uniform(task, tier))
        assert plan.kind == (tier,) and plan.devices == (tuple(range(32)),)
    plan = TieredPlan((10,), (90,))
    with pytest.raises(InvalidPlan, match="divide"):
        uniform_plan(task, plan)
    parts = divided(task, plan)
    assert parts == [("h/dp", "dp", 0, 10), ("h/flex", "flex", 10, 90), ("h/rw", "rw", 100, 99_900)]


def embedding_collection(names, rows, device="cpu"):
    import torch
    import torchrec

    configs = [
        torchrec.EmbeddingConfig(num_embeddings=r, embedding_dim=8, name=name, feature_names=[name])
        for name, r in zip(names, rows, strict=True)
    ]
    return torchrec.EmbeddingCollection(tables=configs, device=torch.device(device))


def task_of_devices(names, rows, devices=2):
    """The same tables as a task of devices, which is what the bridge to TorchRec takes."""
    pool = make_pool(rows=rows, dim=[8] * len(rows), pooling=[1.0] * len(rows), name=names, dtype="fp32")
    return Task(pool, (10**9,) * devices)


def sequences(rows):
    """A curve for each of these tables, on a node of two GPUs."""
    tables = (SequenceTable(f"t{n}", power_law(r, 3.0, 1.0), 8) for n, r in enumerate(rows))
    return RowTask(tuple(tables), Network(1, 2, 1e6, 2e6, 3e6, 1e6), 4)


def looked_up_by_torchrec(names, rows, plan):
    """Compare, on each rank, rows that an EmbeddingCollection sharded by the plan finds with those of an unsharded one,
    and tell what it holds; a backward pass follows.
    """
    import torch
    from torch import distributed
    from torchrec import KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel, ShardingEnv
    from torchrec.distributed.embedding import EmbeddingCollectionSharder

    from shard_gym.torchrec.plans import to_torchrec

    torch.manual_seed(0)
    whole, rank = embedding_collection(names, rows), distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedModelParallel(
        embedding_collection(names, rows),
        env=ShardingEnv.from_process_group(distributed.group.WORLD),
        device=torch.device("cpu"),
        plan=to_torchrec(plan, task_of_devices(names, rows), embedding_collection(names, rows), device="cpu"),
        sharders=[EmbeddingCollectionSharder()],
    )
    weights = model.state_dict()
    for name, weight in whole.state_dict().items():  # the same rows on either side
        for shard in weights[name].local_shards():
            first = shard.metadata.shard_offsets[0]
            shard.tensor.copy_(weight[first : first + len(shard.tensor)])
    lengths = torch.tensor([2, 0, 3, 1] * len(names))
    ids = torch.cat([torch.randint(0, r, (6,), generator=torch.Generator().manual_seed(rank)) for r in rows])
    batch = KeyedJaggedTensor(list(names), ids, lengths=lengths)
    found, expected = model(batch), whole(batch)
    sum(found[name].values().sum() for name in names).backward()
    held = {name: [s.metadata.shard_sizes[0] for s in w.local_shards()] for name, w in weights.items()}
    return all(torch.equal(found[name].values(), expected[name].values()) for name in names), held


@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec")
def test_torchrec_runs_sequence_tables_that_are_rw():
    rows = (101, 40)
    task = sequences(rows)
    plan = uniform_plan(task, TieredPlan.uniform(task, "rw"))
    ranks = launch(looked_up_by_torchrec, 2, ("t0", "t1"), rows, plan)
    assert [same for same, _ in ranks] == [True, True]
    held = [{name.split(".")[1]: sizes for name, sizes in shards.items()} for _, shards in ranks]
    assert held == [{"t0": [51], "t1": [20]}, {"t0": [50], "t1": [20]}]


@pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec")
def test_torchrec_has_a_divided_table_as_one_of_dp_and_one_of_rw():
    """A plan for GPUs: TorchRec's data-parallel tables of sequences do not run on CPUs, which `to_torchrec` says."""
    from shard_gym.torchrec.plans import to_torchrec

    task = sequences((101,))
    names, tiers, first, rows = zip(*divided(task, TieredPlan((30,), (0,))), strict=True)
    assert (names, tiers, first, rows) == (("t0/dp", "t0/rw"), ("dp", "rw"), (0, 30), (30, 71))
    tables = (SequenceTable(n, power_law(r, 1.0, 1.0), 8) for n, r in zip(names, rows, strict=True))
    apart = RowTask(tuple(tables), task.network, 4)
    plan = uniform_plan(apart, TieredPlan((30, 0), (0, 0)))
    module = embedding_collection(names, rows, "meta")
    found = to_torchrec(plan, task_of_devices(names, rows), module).plan[""]
    assert [found[n].sharding_type for n in names] == ["data_parallel", "row_wise"]
    assert [shard.shard_sizes for shard in found["t0/rw"].sharding_spec.shards] == [[36, 8], [35, 8]]
    with pytest.raises(InvalidPlan, match="t0/dp"):
        to_torchrec(plan, task_of_devices(names, rows), module, device="cpu")


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownName):
        solve(row_task(), "flex4")


def test_both_kinds_of_tables_share_the_memory():
    rng = np.random.default_rng(0)
    pool = make_pool(rows=rng.integers(1_000, 100_000, 12), dim=[16] * 12, pooling=rng.exponential(20, 12))
    rows = RowTask((SequenceTable("h", power_law(100_000, 50.0, 1.0), 16),), ON, 1024)
    tiers = worth(rows, TieredPlan.uniform(rows, "rw")).memory_bytes
    each = int(tiers + pool.weight_bytes.sum() / 4 * 1.2)
    task = Task(pool, (each,) * 4, objective="iteration")
    planner = simulators.make("roofline:rtx2080ti-x4-v1")
    found = plan_together(task, rows, planner, budget=0.3)
    assert not violations(task, found.plan)
    used = max(np.bincount(found.plan.device, pool.weight_bytes, minlength=4)) + found.tiers_bytes
    assert used <= each
    assert worth(rows, found.tiers).memory_bytes == found.tiers_bytes
    roomy = plan_together(Task(pool, (2 * each,) * 4, objective="iteration"), rows, planner, budget=0.3)
    assert roomy.comm_ms < found.comm_ms
    mixed = replace(task, kinds=("tw", "rw", "dp"))
    shared = plan_together(mixed, rows, planner, budget=0.3)
    assert plan_bytes(mixed, shared.plan)[0].max() + shared.tiers_bytes <= each
    assert shared.makespan_ms == score(mixed, shared.plan, planner).makespan
    with pytest.raises(InfeasibleTask):
        plan_together(Task(pool, (each // 3,) * 4, objective="iteration"), rows, planner, budget=0.3)
    with pytest.raises(InvalidTask, match="4 GPUs"):
        plan_together(Task(pool, (each,) * 8), rows, planner)
