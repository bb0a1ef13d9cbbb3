"""The `shard-gym` command, run in this process."""

import json
from dataclasses import replace

import pytest

from shard_gym import simulators, suites
from shard_gym.evaluate import evaluate
from shard_gym.plan import Plan
from shard_gym.results import write_results
from shard_gym.tables import make_pool
from shard_gym.tasks import Task
from shard_gym_agents import make, names
from shard_gym_agents.cli import main

TASK = Task(make_pool([1000, 2000, 3000], dim=16, name=("a", "b", "c")), memory=(2**20, 2**20))


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "task.json"
    path.write_text(TASK.to_json())
    return str(path)


def test_suites_are_listed_with_their_sizes(capsys):
    assert main(["suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(suites.SUITES)
    core = next(line for line in lines if line.startswith("core-80x8"))
    assert core.split()[1:6] == ["80", "8", "100/20/100", "33%", "iteration"]


def test_agents_are_listed_with_their_tracks(capsys):
    assert main(["agents"]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert tuple(found) == names()
    assert (found["random"], found["cost-greedy"]) == ("blind", "search")


def test_a_plan_that_solve_writes_scores_the_same(tmp_path, capsys):
    which = ["--suite", "core-80x8", "--index", "3"]
    plan = str(tmp_path / "plan.json")
    assert main(["solve", *which, "--agent", "cost-greedy", "--out", plan]) == 0
    solved = capsys.readouterr().out
    assert main(["score", *which, "--plan", plan]) == 0
    assert capsys.readouterr().out == solved
    assert solved.startswith("makespan ")
    assert len(solved.splitlines()) == 2 + 8


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


def test_a_task_has_to_be_named(capsys):
    with pytest.raises(SystemExit) as end:
        main(["solve", "--agent", "random"])
    assert end.value.code == 2
