"""Words that are misspelt, options that would say nothing, and hints on what is missing."""

import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from shard_gym import Plan
from shard_gym.records import installing
from shard_gym.records.installing import install
from shard_gym_agents.cli.main import main
from tests.test_cli import TASK

ROOT = Path(__file__).parents[1]
CORE = "--suite core-80x8"


def refused(capsys, line):
    """The one line on stderr of a command that is refused."""
    try:
        code = main(line.split())
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    out = told.out.splitlines()
    assert code == 2 and told.err.count("\n") == 1, line
    assert not out or (len(out) == 1 and out[0].startswith("assumes ")), line
    return told.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("slove --suite core-80x8", "solve"),
        ("rond new", "round"),
        ("round clos november", "round close"),
        (f"solve {CORE} --agnet auto", "--agent"),
        (f"solve {CORE} --agent auto --budgte 5", "--budget"),
        ("solve --sute core-80x8 --agent auto", "--suite"),
        (f"solve {CORE} --agent auto --optimizer adm", "adam"),
        ("solve --suite cor-80x8 --agent auto", "core-80x8"),
        (f"solve {CORE} --agent cost-gredy", "cost-greedy"),
        (f"solve {CORE} --agent auto --simulator roofline:h10-v1", "roofline:h100-v1"),
        (f"solve {CORE} --split tset --agent auto", "test"),
        (f"solve {CORE} --kinds gird --agent auto", "grid"),
        ("sweep --tables x.csv --hardware dgx-h10", "dgx-h100"),
        ("flex --network a100-4x9", "a100-4x8"),
        ("flex --method flex", "flex3"),
        ("train autoshrd --suite dlrm-10x2 --out x", "autoshard"),
        ("leaderboard --suite core-80x9", "core-80x8"),
        ("leaderboard --agents cost-gredy", "cost-greedy"),
        ("round new november --suite core-80x9", "core-80x8"),
        ("completion bsh", "bash"),
    ],
)
def test_what_was_meant_is_told(capsys, tmp_path, monkeypatch, line, meant):
    monkeypatch.chdir(tmp_path)
    assert f"did you mean {meant}?" in refused(capsys, line)
    assert not list(tmp_path.glob("*.csv"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"solve {CORE} --agent auto --devices 4", "--devices is for --tables"),
        (f"solve {CORE} --agent auto --memory-gb 0", "--memory-gb is for --tables"),
        (f"solve {CORE} --agent auto --host-memory-gb 4", "--host-memory-gb needs rows in host memory"),
        (f"solve {CORE} --agent auto --budget 1s --calls 100", "not allowed with argument"),
        (f"solve {CORE} --agent auto --base plan.json", "--base alone changes nothing here"),
        (f"score {CORE} --plan plan.json --base plan.json", "--base alone changes nothing here"),
        ("solve --task task.json --agent auto --index 3", "--index is for --suite"),
        ("solve --task task.json --agent auto --split val", "--split is for --suite"),
        ("solve --task task.json --agent auto --bud 3", "unrecognized arguments: --bud"),
        ("bound --task task.json --index 0", "--index is for --suite"),
        ("stats plan.json --task task.json --json --top 3", "--top shortens the report"),
        ("stats --why --task task.json --top 3", "--top shortens the report"),
        ("stats --why --task task.json --table a", "--table explains a number of a plan"),
        ("flex --plan tiers.json --method flex3", "--method makes a plan"),
        ("profile log.parquet --columns a --batch 4 --out p.json --no-header", "--no-header is for CSV"),
        ("profile log.parquet --columns a --batch 4 --out p.json --delimiter ;", "--delimiter is for CSV"),
        ("measure --shard-file s.npz --out c --shards 3", "--shards is of shards that are drawn"),
        ("measure --shard-file s.npz --out c --round 0", "--round is of shards that are drawn"),
        ("measure --out c --repeats 3", "--repeats needs --shard-file"),
        ("measure --out c --noise 0.1", "--noise is of nodes"),
        ("fit --data . --trend learned:cpu-v1 --out w.safetensors", "--trend needs --pace"),
    ],
)
def test_options_that_would_say_nothing_are_refused(capsys, tmp_path, monkeypatch, line, told):
    monkeypatch.chdir(tmp_path)
    tables = TASK.tables.take([0] * 80).with_(name=tuple(f"t{i}" for i in range(80)))
    (tmp_path / "task.json").write_text(replace(TASK, tables=tables).to_json())
    Plan((0,) * 80).save(tmp_path / "plan.json")
    if "--trend" in line:
        pytest.importorskip("torch")
        line = line.replace("--data .", f"--data {ROOT / 'tests' / 'no-such-file.npz'}")
        told = "No such file"
    if "--json" in line:
        assert main(line.split()) == 2
        assert told in capsys.readouterr().err
    else:
        assert told in refused(capsys, line)


def test_a_missing_package_is_told_with_a_command_that_works_from_a_checkout(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert install("parquet") == f'pip install -e "{ROOT}[parquet]"'
    monkeypatch.chdir(ROOT)
    assert install("parquet") == 'pip install -e ".[parquet]"'
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "log.csv").write_text("a\n1\n")
    told = refused(capsys, f"profile {tmp_path}/log.csv --columns a --batch 1 --out {tmp_path}/p.json")
    assert told == 'shard-gym profile: logs need pyarrow: pip install -e ".[parquet]"\n'


def test_a_missing_package_is_told_with_its_own_name_where_a_wheel_is_installed(monkeypatch, tmp_path):
    needs = ['torch<3,>=2.13; extra == "torch"', 'pyarrow; extra == "parquet"', "numpy>=2", 'a[b]; extra == "x"']
    needs += ['stable-baselines3<2.10,>=2.9; extra == "sb3"', "sb3-contrib; extra == 'sb3'"]
    monkeypatch.setattr(installing.metadata, "requires", lambda name: needs)
    assert install("parquet", tmp_path) == "pip install pyarrow"
    assert install("sb3", tmp_path) == 'pip install "stable-baselines3<2.10,>=2.9" sb3-contrib'
    assert install("x", tmp_path) == 'pip install "a[b]"'

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installing.metadata, "requires", absent)
    assert install("plots", tmp_path) == 'pip install "shard-gym[plots]"'


@pytest.mark.parametrize("extra", ["torch", "sb3", "parquet", "exact", "plots", "render"])
def test_every_extra_that_hints_name_is_there(extra):
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
