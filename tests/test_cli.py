"""The `shard-gym` command, run in this process."""

import json
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from shard_gym import simulators, suites
from shard_gym.plan.plan import Plan
from shard_gym.results import write_results
from shard_gym.results.evaluate import evaluate
from shard_gym.task.task import Task
from shard_gym_agents import make, names
from shard_gym_agents.cli.main import main
from shard_gym_agents.learners import trained
from tests.pool_helpers import fp16_pool as make_pool

TASK = Task(make_pool([1000, 2000, 3000], dim=16, name=("a", "b", "c")), memory=(2**20, 2**20))


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "task.json"
    path.write_text(TASK.to_json())
    return str(path)


def test_suites_are_listed_with_their_sizes(capsys):
    assert main(["suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines[1:] if line and not line.split()[0].endswith(":")]
    assert sorted(listed) == sorted(suites.SUITES)
    assert next(line for line in lines if line.startswith("metasyn-80x8 ")).endswith("true room about 2 %")
    core = next(line for line in lines if line.startswith("core-80x8"))
    bound = f"{suites.get('core-80x8').bound_share():.0%}"
    assert core.split()[1:6] == ["80", "8", "100/20/100", bound, "iteration"]


def test_agents_are_listed_with_their_tracks(capsys):
    assert main(["agents"]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert tuple(found) == names()
    assert (found["random"], found["cost-greedy"]) == ("blind", "search")


def test_agents_without_weights_are_listed_with_what_trains_them(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(trained, "WEIGHTS", tmp_path)
    helpers = import_module("tests.trained_helpers")
    helpers.ship_policy("core-60x4")
    assert main(["agents"]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["rnn"] == "blind, trained on core-60x4"
    assert "shard-gym train ppo --suite core-60x4 --seed 0 --out runs/trained/ppo/core-60x4" in found["ppo"]
    assert main(["solve", "--suite", "dlrm-50x4", "--agent", "rnn"]) == 2
    assert "no weights of rnn are shipped for dlrm-50x4" in capsys.readouterr().err


def test_a_trained_policy_of_ones_own(tmp_path, capsys):
    pytest.importorskip("torch")
    helpers = import_module("tests.trained_helpers")
    path = helpers.save_policy(tmp_path / "best.safetensors")
    for given in (tmp_path, path):
        assert main(["solve", "--suite", "dlrm-50x4", "--agent", "rnn", "--checkpoint", str(given)]) == 0
        assert capsys.readouterr().out.splitlines()[1].startswith("makespan ")
    assert main(["solve", "--suite", "dlrm-50x4", "--agent", "random", "--checkpoint", str(path)]) == 2
    assert "random has no option checkpoint" in capsys.readouterr().err


def test_a_plan_that_solve_writes_scores_the_same(tmp_path, capsys):
    which = ["--suite", "core-80x8", "--index", "3"]
    plan = str(tmp_path / "plan.json")
    assert main(["solve", *which, "--agent", "cost-greedy", "--out", plan]) == 0
    solved = capsys.readouterr().out
    assert main(["score", *which, "--plan", plan]) == 0
    assert capsys.readouterr().out == solved
    lines = solved.splitlines()
    assert lines[0].startswith("assumes fp32; rowwise_adagrad; batch 65,536; ") and lines[1].startswith("makespan ")
    assert len(lines) == 3 + 8


def test_a_task_from_a_file(task_file, capsys):
    command = [
        "solve",
        "--task",
        task_file,
        "--agent",
        "random",
        "--seed",
        "1",
        "--simulator",
        "roofline:h100-v1",
    ]
    assert main(command) == 0
    assert "by roofline:h100-v1" in capsys.readouterr().out


def test_a_plan_that_does_not_fit_says_why(tmp_path, capsys):
    small = replace(TASK, memory=(100_000, 2**20))
    (tmp_path / "small.json").write_text(small.to_json())
    Plan((0, 0, 0)).save(tmp_path / "plan.json")
    assert main(["score", "--task", str(tmp_path / "small.json"), "--plan", str(tmp_path / "plan.json")]) == 0
    assert "INFEASIBLE: device 0 needs 192,000 bytes of 100,000 (92,000 too many)" in capsys.readouterr().out


def test_results_are_replayed(tmp_path, capsys):
    suite = suites.get("core-80x8")
    simulator = simulators.make(suite.judge)
    results = evaluate(make("size-greedy"), suite.tasks("test")[:2], simulator, simulator, suite=suite.key)
    write_results(tmp_path / "r.jsonl", results)
    assert main(["replay", str(tmp_path / "r.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("2 results, 2 plans scored again")
    write_results(tmp_path / "r.jsonl", [results[0], replace(results[1], makespan=1.0)])
    assert main(["replay", str(tmp_path / "r.jsonl")]) == 2
    assert "r.jsonl, line 2: says 1.0 ms" in capsys.readouterr().err


def test_what_the_user_can_put_right_is_told_in_a_line(tmp_path, task_file, capsys):
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"schema": "shard-gym/plan/1", "device": [0]}))
    broken = tmp_path / "broken.json"
    broken.write_text(TASK.to_json().replace("1000", "1001", 1))
    random = ["--agent", "random"]
    commands = {
        "unknown suite 'nope'": ["solve", "--suite", "nope", *random],
        "core-80x8 has test tasks 0..99, not 100": [
            "solve",
            "--suite",
            "core-80x8",
            "--index",
            "100",
            *random,
        ],
        "unknown split 'nope'": ["solve", "--suite", "core-80x8", "--split", "nope", *random],
        "unknown agent 'nope'": ["solve", "--task", task_file, "--agent", "nope"],
        "unknown simulator 'nope'": ["solve", "--task", task_file, *random, "--simulator", "nope"],
        "cost-greedy has no option seed": [
            "solve",
            "--task",
            task_file,
            "--agent",
            "cost-greedy",
            "--seed",
            "1",
        ],
        "No such file": ["solve", "--task", str(tmp_path / "nothing"), *random],
        "broken.json: task says it is": ["solve", "--task", str(broken), *random],
        "3 tables need a device each": ["score", "--task", task_file, "--plan", str(wrong)],
    }
    for told, command in commands.items():
        assert main(command) == 2, told
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_an_agents_own_failure_is_told_in_a_line(task_file, capsys):
    command = ["solve", "--task", task_file, "--agent"]
    for agent, told in {
        "tests.odd_agents:Raises": "ValueError: no idea",
        "tests.odd_agents:Unbuilt": "RuntimeError: no checkpoint",
    }.items():
        assert main([*command, agent]) == 2
        assert capsys.readouterr().err == f"shard-gym solve: {agent} failed: {told}\n"
    assert main([*command, "tests.odd_agents:Raises", "--verbose"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_agent_may_be_a_module_of_the_current_folder(tmp_path, task_file, monkeypatch, capsys):
    lines = ["from shard_gym import Plan", "class Deal:", "    def __call__(self, task, planner):"]
    lines += ["        return Plan(tuple(i % task.num_devices for i in range(task.num_tables)))"]
    (tmp_path / "my_own_solver.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["solve", "--task", task_file, "--agent", "my_own_solver:Deal"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("makespan ")


def test_tables_of_ones_own(tmp_path, capsys):
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling\nuser,50000,64,1\nclicks,8000,32,24.5\nads,900,16,3\n")
    which = ["--tables", str(tmp_path / "tables.csv"), "--devices", "2", "--memory-gb", "0.5", "--optimizer", "adam"]
    plan = str(tmp_path / "plan.json")
    assert main(["solve", *which, "--agent", "cost-greedy", "--out", plan]) == 0
    solved = capsys.readouterr().out
    assert "(iteration)" in solved and len(solved.splitlines()) == 3 + 2
    assert main(["score", *which, "--plan", plan]) == 0
    assert capsys.readouterr().out == solved
    placed = Plan.load(plan).device
    used = (50_000 * 64 + 8_000 * 32 * (placed[1] == placed[0])) * (4 + 8) / 2**30
    used += 900 * 16 * (4 + 8) / 2**30 * (placed[2] == placed[0])
    line = solved.splitlines()[3 + placed[0]].split()
    assert line[2:4] == [f"{used:.2f}", "0.50"]


def test_tables_of_a_dlrm_datasets_file(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    indices, lengths = torch.tensor([3, 3, 1, 0]), torch.tensor([[2, 0], [1, 1]])
    torch.save((indices, torch.tensor([0, 2, 2, 3, 4]), lengths), tmp_path / "lookups.pt")
    which = ["--tables", str(tmp_path / "lookups.pt"), "--devices", "2", "--memory-gb", "1", "--objective", "kernel"]
    assert main(["solve", *which, "--agent", "size-greedy"]) == 0
    assert "(kernel)" in capsys.readouterr().out


def test_tables_of_a_file_may_be_split_if_told_so(tmp_path, capsys):
    """Two devices hold half of the table each."""
    (tmp_path / "wide.csv").write_text("rows,dim\n100000,64\n")
    which = ["--tables", str(tmp_path / "wide.csv"), "--devices", "2", "--memory-gb", "0.014", "--agent", "auto"]
    assert main(["solve", *which, "--calls", "100"]) == 2
    assert "too few" in capsys.readouterr().err
    assert main(["solve", *which, "--calls", "100", "--allow-splits", "--out", str(tmp_path / "plan.json")]) == 0
    assert Plan.load(tmp_path / "plan.json").splits == (0,)


def test_tables_need_devices(tmp_path, capsys):
    (tmp_path / "tables.csv").write_text("rows\n5\n")
    for given in ([], ["--devices", "2"], ["--memory-gb", "2"]):
        assert main(["solve", "--tables", str(tmp_path / "tables.csv"), *given, "--agent", "random"]) == 2
        assert "--devices K and --memory-gb G" in capsys.readouterr().err


def test_a_task_has_to_be_named(capsys):
    with pytest.raises(SystemExit) as end:
        main(["solve", "--agent", "random"])
    assert end.value.code == 2


@pytest.mark.parametrize("command", ["measure", "fit"])
def test_measuring_and_fitting_have_command_lines_of_their_own(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--out" in capsys.readouterr().out


def test_fitting_nothing_is_told_in_one_line(tmp_path, capsys):
    assert main(["fit", "--data", str(tmp_path), "--out", str(tmp_path / "w.safetensors")]) == 2
    assert "no measurements" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
