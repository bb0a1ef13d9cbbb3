"""`shard-gym stats`: what it prints, and what it refuses in one line."""

import json

import pytest

from shard_gym import Plan, Task
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym_agents.cli.stats import main
from tests.pool_helpers import fp16_pool as make_pool


@pytest.fixture
def stored(tmp_path):
    """A task of four tables on two ranks, and a plan for it, as files."""
    tables = make_pool(
        rows=[1_000, 2_000, 3_000, 4_000], dim=16, pooling=[1, 2, 3, 4], name=("user", "item", "shop", "city")
    )
    task = Task(tables, (GB, GB), "iteration", 4_096, optimizer="rowwise_adagrad", links=Links(port=1e9))
    (tmp_path / "task.json").write_text(task.to_json())
    Plan((0, 1, 1, 0)).save(tmp_path / "plan.json")
    return [str(tmp_path / "plan.json"), "--task", str(tmp_path / "task.json")]


def test_the_report(stored, capsys):
    assert main([*stored, "--accounting", "torchrec", "--hbm-gb", "2", "--dense-gb", "0.5", "--ddr-gb", "8"]) == 0
    out = capsys.readouterr().out
    assert "2.000 GiB - 0.300 fragmentation reserve (15%) - 0.500 dense - 0.003 KJT = 1.197 GiB" in out
    said = ("tw:2", "max/mean", "compute kernel", "peak HBM #1", "critical path by TorchRec", "2,048 a rank", "city")
    assert [words for words in said if words not in out] == []


def test_the_report_as_json(stored, capsys):
    assert main([*stored, "--json", "--hbm-gb", "2", "--reserve", "0.2", "--kjt-gb", "0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "shard-gym/stats/1"
    assert told["ranks"][0]["hbm_capacity"] == int(0.8 * 2 * GB)
    assert told["accounting"] == "weights" and told["feasible"]


def test_one_table_is_explained(stored, capsys):
    assert main([*stored, "--table", "shop", "--accounting", "true", "--pipeline", "train_sparse_dist"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("shop: tw, 1 shard") and "3,000 x 4" in out and "TorchRec's perf" in out
    assert main([*stored, "--table", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["table"] == "shop" and told["steps"][-1]["name"].startswith("by roofline:")


def test_the_worked_example(tmp_path, capsys):
    """96 ranks with 833,333 rows each, as TorchRec's guide prints it."""
    tables = make_pool(rows=96 * 833_333, dim=128, pooling=6_066, dtype="fp16", name=("big",))
    task = Task(tables, (80 * GB,) * 96, batch=96 * 2_560, optimizer="rowwise_adagrad", accounting="torchrec")
    (tmp_path / "task.json").write_text(task.to_json())
    Plan((0,), (), ("rw",), (tuple(range(96)),)).save(tmp_path / "plan.json")
    given = [str(tmp_path / "plan.json"), "--task", str(tmp_path / "task.json"), "--sequence"]
    assert main([*given, "--table", "big"]) == 0
    out = capsys.readouterr().out
    for number in ("213,333,248", "1,666,666", "124,231,680", "3,975,413,760", "4,099,645,440", "4,314,645,354"):
        assert f"= {number} bytes" in out
    assert main([*given, "--json"]) == 0
    assert {rank["hbm_bytes"] for rank in json.loads(capsys.readouterr().out)["ranks"]} == {4_314_645_354}


def test_top_and_what_is_assumed(stored, capsys):
    assumed = (
        "assumes fp16; rowwise_adagrad; batch 4,096; 'weights' bytes; 1 host of 2; 1000 GB/s, 0 us; roofline:h100-v2"
    )
    for asked in (stored, [*stored, "--table", "shop"], ["--why", *stored[1:]]):
        assert main(asked) == 0
        assert assumed in " ".join(capsys.readouterr().out.split()), asked
    assert main([*stored, "--top", "1"]) == 0
    assert "... and 3 more tables" in capsys.readouterr().out
    assert main([*stored, "--top", "0"]) == 0
    assert " more tables" not in capsys.readouterr().out


def test_why_takes_no_plan(stored, capsys):
    assert main([*stored, "--why"]) == 2
    assert "--why is about the task, whatever the plan: leave out PLAN" in capsys.readouterr().err


def test_why_tells_what_helps(stored, capsys):
    small = ["--why", *stored[1:], "--hbm-gb", "0.0001", "--reserve", "0", "--kjt-gb", "0"]
    assert main(small) == 0
    told = capsys.readouterr().out
    assert "what helps: memory: 0.00 GiB (160,000 bytes) a device are enough" in told  # of the 320,000 in all
    assert "what helps: splits: there is a plan with" not in told
    assert main([*small, "--json"]) == 0
    assert any("(160,000 bytes)" in said for said in json.loads(capsys.readouterr().out)["proposals"])


@pytest.mark.parametrize("asked", [["--why"], ["-"], []])
def test_why_there_is_no_plan(stored, capsys, asked):
    assert main([*asked, *stored[1:], "--hbm-gb", "0.0001", "--reserve", "0", "--kjt-gb", "0"]) == 0
    out = capsys.readouterr().out
    assert "NO PLAN: table 2 ('shop', 96,000 bytes) fits" not in out  # it does: 107,374 bytes
    assert "NO PLAN: table 3 ('city', 128,000 bytes) fits on no device" in out and "20,626 too few" in out


def test_why_as_json_with_constraints(stored, capsys):
    assert main(["--why", *stored[1:], "--json", "--hbm-gb", "1", "--pin", "city=1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["feasible"], told["constraints"]) == ("shard-gym/room/2", None, ["pin"])
    assert told["missing_bytes"]["largest table"] < 0 < told["budget"]["kjt_bytes"]


def test_tables_need_no_memory_beside_hbm(tmp_path, capsys):
    (tmp_path / "tables.csv").write_text("rows,dim,pooling\n1000,16,2\n2000,16,3\n")
    assert main(["--why", "--tables", str(tmp_path / "tables.csv"), "--devices", "2", "--hbm-gb", "4"]) == 0
    assert capsys.readouterr().out.startswith("there is a plan")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--table", "shpo"], "shop"),
        (["--why", "--table", "shop"], "--table"),
        (["--reserve", "0.1"], "--hbm-gb"),
        (["--top", "-1"], "--top is a number from 0"),
        (["--hbm-gb", "nan"], "gigabytes"),
        (["--hbm-gb", "1", "--reserve", "2"], "from 0 to 1"),
        (["--hbm-gb", "1", "--dense-gb", "3"], "reserves leave nothing"),
        (["--kernel", "quant"], "torchrec or true"),
        (["--simulator", "crystal-ball"], "crystal-ball"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(stored, capsys, more, said):
    assert main([*stored, *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("shard-gym stats: ") and said in err and err.count("\n") == 1


def test_a_plan_for_another_task_is_refused(stored, capsys, tmp_path):
    Plan((0, 1, 1)).save(tmp_path / "other.json")
    assert main([str(tmp_path / "other.json"), *stored[1:]]) == 2
    assert "4 tables need a device each, the plan has 3" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json"), *stored[1:]]) == 2
