"""Constraints, searches and changes of plans on the command line, run in this process."""

import json
import re
import signal

import numpy as np
import pytest

from shard_gym import Constraints, Plan, Task, suites
from shard_gym.memory.usage import device_bytes
from shard_gym_agents.cli.main import main
from shard_gym_agents.search import local_search
from tests.pool_helpers import fp16_pool as make_pool

NAMES = ("a", "b", "c", "2")
TABLES = make_pool(rows=[1000, 2000, 3000, 4000], dim=16, name=NAMES)
TASK = Task(TABLES, memory=(2**20, 2**20), splits_allowed=True)
CORE = ["--suite", "core-80x8"]


@pytest.fixture
def given(tmp_path):
    """Writes tasks, plans and constraints; gives their paths."""

    def write(what):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        if isinstance(what, Plan):
            what.save(path)
        else:
            path.write_text(what.to_json() if isinstance(what, Task) else json.dumps(what))
        return str(path)

    return write


def broken(capsys, *command):
    """Rules that a plan breaks, as `score` prints them."""
    assert main(["score", *command]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix("INFEASIBLE: ") for line in lines if line.startswith("INFEASIBLE")]


def test_constraints_are_told_by_name_or_index(given, capsys):
    which = ["--task", given(TASK), "--plan", given(Plan((0, 0, 1, 1)))]
    assert broken(capsys, *which) == []
    assert broken(capsys, *which, "--pin", "a=1", "--pin", "3=1") == ["table 0 is pinned to device 1"]
    assert broken(capsys, *which, "--together", "a,c") == ["tables (0, 2) must be together"]
    assert broken(capsys, *which, "--apart", "a,b") == ["tables (0, 1) must be apart"]
    assert broken(capsys, *which, "--apart", "2,0", "--pin", "2=0") == ["table 3 is pinned to device 0"]  # a name wins
    moved = ["--base", given(Plan((1, 1, 1, 1))), "--max-moves", "1"]
    assert broken(capsys, *which, *moved) == ["2 tables move, at most 1 may"]


def test_no_split_is_told(given, capsys):
    which = ["--task", given(TASK), "--plan", given(Plan((0, 0, 1, 1, 1), (1,)))]
    assert broken(capsys, *which, "--no-split", "a") == []
    assert main(["score", *which, "--no-split", "b"]) == 2
    assert "table 1 must not be split" in capsys.readouterr().err


def test_constraints_of_a_file_and_of_flags_add_up(given, capsys):
    told = {"pin": [["a", 1]], "together": [["b", "c"]], "base": [1, 1, 1, 1], "max_moves": 0, "apart": []}
    which = ["--task", given(TASK), "--plan", given(Plan((0, 0, 1, 1)))]
    found = broken(capsys, *which, "--constraints", given(told), "--pin", "c=0", "--max-moves", "1")
    wanted = ["table 0 is pinned to device 1", "table 2 is pinned to device 0"]
    assert found == [*wanted, "tables (1, 2) must be together", "2 tables move, at most 1 may"]
    assert broken(capsys, *which, "--constraints", given({"pin": {"a": 1}})) == wanted[:1]


def test_constraints_of_the_task_stay(given, capsys):
    task = Task(TABLES, memory=(2**20,) * 2, constraints=Constraints(pin=((0, 1),)))
    which = ["--task", given(task), "--plan", given(Plan((0, 0, 1, 1)))]
    assert broken(capsys, *which, "--pin", "b=1") == ["table 0 is pinned to device 1", "table 1 is pinned to device 1"]


def test_constraints_that_make_no_sense_are_told_in_a_line(given, capsys):
    which = ["solve", "--task", given(TASK), "--agent", "random"]
    split = given(Plan((0, 0, 1, 1, 1), (1,)))
    twice = given(Task(make_pool(rows=[1, 2], name=("x", "x")), memory=(9999,)))
    commands = {
        "no table is called 'nope'": [*which, "--pin", "nope=1"],
        "--pin takes TABLE=DEVICE": [*which, "--pin", "a"],
        "constraints name devices [7]": [*which, "--pin", "a=7"],
        "constraints name tables [9]": [*which, "--apart", "a,9"],
        "max_moves needs base": [*which, "--max-moves", "1"],
        "splits tables": [*which, "--base", split],
        "4 tables need a device each": [*which, "--base", given(Plan((0, 0)))],
        "got ['pins']": [*which, "--constraints", given({"pins": []})],
        "got list": [*which, "--constraints", given([])],
        "a group of tables is a list": [*which, "--constraints", given({"together": ["a", "b"]})],
        "expected a whole number": [*which, "--constraints", given({"no_split": [True]})],
        "2 tables are called 'x': give an index, one of [0, 1]": [
            *["solve", "--task", twice, "--agent", "random", "--pin", "x=0"]
        ],
        "cost-greedy has no option calls": ["solve", *CORE, "--agent", "cost-greedy", "--calls", "3"],
        "random has no option headroom": ["solve", *CORE, "--agent", "random", "--headroom", "0.1"],
        "reshard starts from the plan in use": ["reshard", *CORE],
    }
    for told, command in commands.items():
        assert main(command) == 2, told
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_searches_take_calls_and_headroom(tmp_path, capsys):
    out = tmp_path / "plan.json"
    solve = ["solve", *CORE, "--agent", "auto", "--calls", "500", "--headroom", "0.3", "--out", str(out)]
    assert main(solve) == 0
    first, task = capsys.readouterr().out, suites.get("core-80x8").tasks("test")[0]
    assert (device_bytes(task, np.array(Plan.load(out).device)) <= 0.7 * task.capacity).all()
    assert main(solve) == 0
    assert capsys.readouterr().out == first


def test_progress_is_told_where_it_is_wanted(capsys):
    solve = ["solve", *CORE, "--agent", "local-search", "--calls", "3000"]
    assert main(solve) == 0
    assert capsys.readouterr().err == ""
    assert main([*solve, "--progress"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("local-search: ") and told.err.count("\n") == 1
    assert f", best {told.out.splitlines()[1].split()[1]} ms after " in told.err
    assert main([*solve[:-2], "--budget", "50ms", "--progress"]) == 0
    assert " of 0.05 s" in capsys.readouterr().err
    assert main(["solve", *CORE, "--agent", "cost-greedy", "--progress"]) == 0  # it tells no better plans
    assert re.fullmatch(r"cost-greedy: \d+\.\d s\n", capsys.readouterr().err)


@pytest.fixture
def interrupted_search(monkeypatch):
    """Makespans that a local search has when Ctrl-C comes."""
    improved, improve = [], local_search.improve

    def interrupted(state, rng):
        improved.append(state.makespan)
        if len(improved) == 20:
            signal.raise_signal(signal.SIGINT)
        return improve(state, rng)

    monkeypatch.setattr(local_search, "improve", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    yield improved
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_returns_the_best_plan_so_far(interrupted_search, tmp_path, capsys):
    out = tmp_path / "plan.json"
    solve = ["solve", *CORE, "--agent", "local-search", "--budget", "60", "--out", str(out)]
    assert main(solve) == 130
    told = capsys.readouterr()
    assert float(told.out.splitlines()[1].split()[1]) == pytest.approx(min(interrupted_search), abs=1e-3)
    assert told.err.startswith(f"shard-gym solve: stopped; the best plan so far is kept in {out}; `shard-gym reshard")
    assert len(Plan.load(out).device) == 80
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_told_as_json(interrupted_search, capsys):
    assert main(["solve", *CORE, "--agent", "local-search", "--budget", "60s", "--json"]) == 130
    told = capsys.readouterr()
    answer, error = json.loads(told.out), json.loads(told.err)
    assert (answer["schema"], answer["interrupted"], answer["feasible"]) == ("shard-gym/solved/1", True, True)
    assert (error["error"], error["exit_code"]) == ("Interrupted", 130)
    assert "kept in no file" in error["message"]


def test_ctrl_c_elsewhere_keeps_nothing_and_says_so(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("shard_gym_agents.solvers.greedy.CostGreedy.__call__", interrupted)
    assert main(["solve", *CORE, "--agent", "cost-greedy"]) == 130
    assert capsys.readouterr().err == "shard-gym solve: stopped; nothing is kept; the same command begins again\n"


def test_what_moves_between_two_plans(given, capsys):
    which = ["--task", given(TASK)]
    old, new = given(Plan((0, 0, 1, 1))), given(Plan((0, 0, 1, 1, 0), (2,)))
    assert main(["diff", old, new, *which]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("assumes fp16; sgd; ") and lines[0].endswith("; roofline:h100-v2")
    assert lines[1].startswith("makespan ") and lines[1].endswith(" ms (kernel)")
    assert lines[2] == "1 of 4 tables move, 0.00 GiB"
    assert lines[4].split() == ["c", "8-15", "0.000", "1", "0"]
    assert main(["diff", old, old, *which]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 4 tables move, 0.00 GiB"
    assert main(["diff", old, new, *which, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    move = {"table": 2, "name": "c", "columns": [8, 16], "bytes": 48_000, "source": 1, "target": 0}
    assert (told["moves"], told["bytes"], told["sent"], told["received"]) == ([move], 48_000, [0, 48_000], [48_000, 0])
    assert told["old"]["makespan"] > 0 and told["new"]["violations"] == []


def test_a_plan_in_use_is_changed(tmp_path, capsys):
    task = suites.get("core-80x8").tasks("test")[0]
    base = Plan(tuple(t % 8 for t in range(80)))
    base.save(tmp_path / "base.json")
    reshard = ["reshard", *CORE, "--base", str(tmp_path / "base.json"), "--calls", "2000", "--bandwidth-gb-s", "20"]
    assert main([*reshard, "--horizon", "1000", "--out", str(tmp_path / "new.json")]) == 0
    *_, last = told = capsys.readouterr().out.splitlines()
    assert last.startswith("moving takes ") and "at 20 GB/s a device, repaid after " in last
    assert main(["diff", str(tmp_path / "base.json"), str(tmp_path / "new.json"), *CORE]) == 0
    assert capsys.readouterr().out.splitlines() == [told[0], *told[3 + task.num_devices + 1 : -1]]
    assert main([*reshard, "--horizon", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "moving takes 0.0 ms at 20 GB/s a device"


def test_a_plan_in_use_may_be_of_any_kinds(given, tmp_path, capsys):
    """Table a by rows on both devices, 500 of 32 bytes each; then whole on the second one, which has half of it."""
    task = Task(TABLES, (2**20,) * 2, "iteration", 512, kinds=("tw", "cw", "rw"))
    base = Plan((0, 0, 1, 1), kind=("rw", "tw", "tw", "tw"), devices=((0, 1), (0,), (1,), (1,)))
    which, new = ["--task", given(task)], given(Plan((1, 0, 1, 1)))
    assert main(["diff", given(base), new, *which]) == 0
    *_, heads, move = capsys.readouterr().out.splitlines()
    assert heads.split() == ["table", "columns", "rows", "GiB", "from", "to"]
    assert move.split() == ["a", "0-15", "0-499", "0.000", "0", "1"]
    assert main(["diff", given(base), new, *which, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["moves"][0]["rows"], told["bytes"]) == ([0, 500], 16_000)
    reshard = ["reshard", *which, "--base", given(base), "--calls", "300", "--horizon", "0"]
    assert main([*reshard, "--out", str(tmp_path / "kept.json")]) == 0
    assert Plan.load(tmp_path / "kept.json") == base
    assert "0 of 4 tables move" in capsys.readouterr().out
    assert main(["solve", *which, "--agent", "auto", "--base", given(base)]) == 2
    assert "reshard` takes any" in capsys.readouterr().err
