"""Every command with --json: one JSON object a line with its schema, nothing else; errors as JSON on stderr."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym import Plan, Task, simulators, suites
from shard_gym.results import write_results
from shard_gym.results.evaluate import evaluate
from shard_gym_agents import make
from shard_gym_agents.cli.index import COMMANDS
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.entries.card import Card
from tests.pool_helpers import fp16_pool as make_pool

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
TASK = "--task task.json"
CARD = Card(
    agent="dim-greedy",
    authors=("A. Stranger",),
    command="shard-gym leaderboard --suite dlrm-10x4 --agents dim-greedy",
    version="1.0",
    licence="Apache-2.0",
    link="https://example.org/agent",
    track="blind",
    suites=("dlrm-10x4",),
    seeds=(0,),
    hardware="two cores",
    training="none",
    checkpoints=(),
)
# Words of a command, and the schema of its answer, in an order in which each finds what it needs.
CASES = {
    "suites": ("", "suites/1"),
    "agents": ("", "agents/1"),
    "solve": (f"{TASK} --agent cost-greedy --out made.json", "solved/1"),
    "reshard": (f"{TASK} --base plan.json --calls 200", "resharded/1"),
    "score": (f"{TASK} --plan plan.json", "scored/1"),
    "diff": (f"plan.json other.json {TASK}", "diff/1"),
    "show": (f"plan.json {TASK}", "shown/1"),
    "stats": (f"plan.json {TASK}", "stats/1"),
    "sweep": ("--tables tables.csv --hardware dgx-h100,dgx-h200 --agent cost-greedy", "swept/1"),
    "export": (f"plan.json {TASK}", "exported/1"),
    "bound": (f"{TASK} --out bound.json", "certificate/1"),
    "verify": (f"bound.json {TASK}", "verified/1"),
    "flex": ("--table name=h,rows=1e4,length=30 --out tiers.json", "tiers/1"),
    "flex curve": ("log.csv --column item --out item.safetensors", "curve/1"),
    "profile": ("log.csv --columns user,item --batch 4 --out pool.json", "profiled/1"),
    "replay": ("results.jsonl", "replayed/1"),
    "page": ("results.jsonl --out page.html", "page/1"),
    "submit": ("results.jsonl --card card.toml --out entry", "entry-packed/1"),
    "validate": ("entry", "entry-checked/1"),
    "round new": ("november --suite dlrm-10x2 --tasks 2 --seeds 1 --reference-budget 20ms", "round-new/1"),
    "completion": ("bash", "completion/1"),
}
SLOW = {
    "round open": ("november --agents cost-greedy --isolation auto", "round-open/1"),
    "round close": ("november", "round-closed/1"),
    "round check": ("november", "round-checked/1"),
    "new-agent": ("deals", "new-agent/1"),
    "leaderboard": ("--suite dlrm-10x2 --agents random --seeds 1 --tasks 2 --out run", "leaderboard-row/1"),
    "train": ("cloning --suite dlrm-10x2 --iterations 1 --plans 1 --calls 20 --out trained", "trained/1"),
    "measure": (
        "--shards 42 --warm --warmups 0 --runs 1 --drop 0 --batch 32 --kinds single --min-pooling 0 --arena-gb 1 "
        "--workers 2 --out campaign",
        "measured/1",
    ),
    "merge": ("campaign --out whole", "merged/1"),
    "fit": ("--data campaign --epochs 1 --out w.safetensors", "fitted/1"),
    "measure comm": ("--world 2 --batch 64 --out comm.json", "links/1"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that the commands read."""
    made = tmp_path_factory.mktemp("answers")
    task = Task(make_pool([1000, 2000, 3000], dim=16, name=("a", "b", "c")), (2**20,) * 2, "iteration", 512)
    (made / "task.json").write_text(task.to_json())
    Plan((0, 1, 1)).save(made / "plan.json")
    Plan((1, 0, 1)).save(made / "other.json")
    (made / "tables.csv").write_text("name,rows,dim,pooling\nuser,50000,64,1\nclicks,8000,32,24.5\n")
    (made / "log.csv").write_text("user,item\n" + "".join(f"{i % 3},{i % 5}\n" for i in range(16)))
    suite = suites.get("dlrm-10x4")
    judge = simulators.make(suite.judge)
    found = evaluate(make("dim-greedy"), suite.tasks("test")[:3], judge, judge, suite=suite.key, name="dim-greedy")
    write_results(made / "results.jsonl", [replace(result, seed=0, commit="0" * 40) for result in found])
    (made / "card.toml").write_text(CARD.to_toml())
    return made


def answers(capsys, name, words):
    """Objects that a command prints, each in a line."""
    assert main([*name.split(), *words.split(), "--json"]) == 0, capsys.readouterr().err
    return [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]


def refuse_other(found, schema):
    assert found and {one["schema"] for one in found} == {f"shard-gym/{schema}"}
    assert f"`shard-gym/{schema}`" in PAGE.read_text(), "docs/commands.md tells every schema"


def test_every_command_has_a_case():
    assert CASES.keys() | SLOW.keys() == COMMANDS.keys()


def test_answers_are_json_with_a_schema(folder, monkeypatch, capsys):
    """The commands run in one test, since some read what others wrote."""
    monkeypatch.chdir(folder)
    for name, (words, schema) in CASES.items():
        if name in ("flex curve", "profile"):
            pytest.importorskip("pyarrow")
        refuse_other(answers(capsys, name, words), schema)
    refuse_other(answers(capsys, "stats", f"plan.json {TASK} --table a"), "explanation/1")
    refuse_other(answers(capsys, "stats", f"--why {TASK}"), "room/2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a net of one epoch predicts anything
def test_answers_of_long_commands_are_json_with_a_schema(folder, monkeypatch, capsys):
    pytest.importorskip("fbgemm_gpu")
    monkeypatch.chdir(folder)
    if not (folder / "november").exists():
        answers(capsys, "round new", CASES["round new"][0])
    for name, (words, schema) in SLOW.items():
        refuse_other(answers(capsys, name, words), schema)


def test_the_numbers_are_those_of_the_words(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (told,) = answers(capsys, "score", f"{TASK} --plan plan.json")
    assert main(["score", *TASK.split(), "--plan", "plan.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"assumes {told['assumes']}"
    assert lines[1].startswith(f"makespan {told['makespan_ms']:.3f} ms (iteration), balance {told['balance']:.3f}")
    assert [device["shards"] for device in told["devices"]] == [1, 2]
    assert [device["used_bytes"] for device in told["devices"]] == [1000 * 16 * 2, 5000 * 16 * 2]
    assert Plan.from_dict(told["plan"]) == Plan((0, 1, 1))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_is_told_as_json(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--no-such-option", "--json"])
    told = capsys.readouterr()
    error = json.loads(told.err)
    assert (ended.value.code, told.out, error["exit_code"]) == (2, "", 2)
    assert (error["schema"], error["error"], error["command"]) == (
        "shard-gym/error/1",
        "WrongCommand",
        f"shard-gym {name}",
    )


def test_other_errors_are_told_as_json(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["solve", "--suite", "core-80x9", "--agent", "auto", "--json"]) == 2
    told = capsys.readouterr()
    error = json.loads(told.err)
    assert told.out == "" and error["error"] == "UnknownName" and "did you mean core-80x8?" in error["message"]
    assert main(["slove", "--json"]) == 2
    assert "did you mean solve?" in json.loads(capsys.readouterr().err)["message"]
    assert main(["replay", "nothing.jsonl", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "FileNotFoundError"


def test_the_version_is_told_without_imports(capsys):
    assert main(["--version", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "shard-gym/version/1" and re.match(r"\d+\.\d+", told["packages"]["numpy"])
    assert {"torch", "fbgemm_gpu", "torchrec", "highspy", "ray"} <= told["backends"].keys()


def test_the_page_tells_every_command():
    page = PAGE.read_text()
    assert [name for name in COMMANDS if f"`{name}`" not in page] == []
