"""Plans written for TorchRec without it, `shard-gym export`: what TorchRec itself writes of them."""

import json

import pytest

from shard_gym import Plan, Task, make_pool
from shard_gym.errors import InvalidPlan
from shard_gym.task.links import Links
from shard_gym.torchrec.plans import named_json
from shard_gym_agents.cli.main import main

TABLES = make_pool([100, 60, 70, 8, 90, 40], [16, 32, 16, 8, 16, 16], name=tuple("abcdef"))
TASK = Task(
    TABLES,
    (2**20,) * 4,
    "iteration",
    links=Links(1e6, group=2, uplink=1e6),
    kinds=("tw", "cw", "rw", "twrw", "grid", "dp"),
    residences=("hbm", "uvm", "cached"),
    host_memory=2**20,
)
PLAN = Plan(  # a on rank 2; b in halves; c by rows; d copied; e by rows of the second host; f cached
    device=(2, 0, 0, 0, 2, 3, 1),
    splits=(1,),
    kind=("tw", "tw", "rw", "dp", "twrw", "tw", "tw"),
    devices=((2,), (0,), (0, 1, 2, 3), (0, 1, 2, 3), (2, 3), (3,), (1,)),
    residence=("hbm", "hbm", "hbm", "hbm", "hbm", "cached", "hbm"),
    share=(1.0, 1.0, 1.0, 1.0, 1.0, 0.25, 1.0),
)


def test_a_plan_by_hand():
    told = json.loads(named_json(PLAN, TASK, "sparse.tables"))["plan"]["sparse.tables"]
    assert list(told) == list("abcdef")
    assert told["a"] == {
        "sharding_type": "table_wise",
        "compute_kernel": "fused",
        "ranks": [2],
        "shards": [{"shard_offsets": [0, 0], "shard_sizes": [100, 16], "placement": "rank:2/cuda:0"}],
    }
    assert told["b"]["sharding_type"] == "column_wise" and told["b"]["ranks"] == [0, 1]
    assert [s["shard_offsets"] for s in told["b"]["shards"]] == [[0, 0], [0, 16]]
    assert [s["shard_sizes"][0] for s in told["c"]["shards"]] == [18, 18, 18, 16]
    assert told["d"] == {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1, 2, 3]}
    assert [s["placement"] for s in told["e"]["shards"]] == ["rank:2/cuda:0", "rank:3/cuda:1"]
    assert (told["f"]["compute_kernel"], told["f"]["cache_load_factor"]) == ("fused_uvm_caching", 0.25)
    on_cpu = json.loads(named_json(PLAN, TASK, device="cpu"))["plan"][""]
    assert on_cpu["e"]["shards"][1]["placement"] == "rank:3/cpu"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_it_is_what_torchrec_writes_and_reads(device):
    torch = pytest.importorskip("torch")
    torchrec = pytest.importorskip("torchrec")
    from shard_gym.torchrec.plans import to_torchrec
    from shard_gym.torchrec.stored import from_named_json, to_named_json

    columns = zip(TABLES.name, TABLES.rows.tolist(), TABLES.dim.tolist(), strict=True)
    configs = [
        torchrec.EmbeddingBagConfig(num_embeddings=rows, embedding_dim=dim, name=name, feature_names=[name])
        for name, rows, dim in columns
    ]
    model = torch.nn.ModuleDict({"tables": torchrec.EmbeddingBagCollection(configs, device=torch.device("meta"))})
    theirs = to_torchrec(PLAN, TASK, model, device=device)
    ours = named_json(PLAN, TASK, "tables", device=device)
    assert ours == to_named_json(theirs)
    assert from_named_json(ours) == theirs


def test_what_one_collection_cannot_have_is_refused():
    for column in ("pooled", "weighted"):
        tables = make_pool([10, 20], 8, **{column: [True, False]})
        with pytest.raises(InvalidPlan, match=r"is of another collection, a sequence or weighted: use to_torchrec"):
            named_json(Plan((0, 1)), Task(tables, (2**20,) * 2))
    twice = Task(make_pool([10, 20], 8, name=("a", "a")), (2**20,) * 2)
    with pytest.raises(InvalidPlan, match="'a' is the name of several tables"):
        named_json(Plan((0, 1)), twice)
    task = Task(make_pool([10, 20], 8), (2**20,) * 2)
    with pytest.raises(InvalidPlan, match="devices are"):
        named_json(Plan((0, 2)), task)
    with pytest.raises(InvalidPlan, match="cuda or cpu"):
        named_json(Plan((0, 1)), task, device="mtia")


def test_the_command(tmp_path, capsys):
    (tmp_path / "tables.csv").write_text("name,rows,dim\nuser,100,16\nitem,50,8\n")
    Plan((1, 0)).save(tmp_path / "plan.json")
    words = ["export", str(tmp_path / "plan.json"), "--tables", str(tmp_path / "tables.csv")]
    words += ["--devices", "2", "--memory-gb", "1", "--module", "arch.tables"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)["plan"]["arch.tables"]
    assert {name: table["ranks"] for name, table in told.items()} == {"user": [1], "item": [0]}
    assert main([*words, "--out", str(tmp_path / "sharding_plan.json")]) == 0
    assert "2 tables on 2 ranks" in capsys.readouterr().out
    assert json.loads((tmp_path / "sharding_plan.json").read_text())["plan"]["arch.tables"] == told
    Plan((1, 0, 0)).save(tmp_path / "plan.json")
    assert main(words) == 2
    assert "shard-gym export: " in capsys.readouterr().err
