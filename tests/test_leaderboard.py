"""The whole leaderboard, with agents that go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import RESULTS, leaderboard
from shard_gym.records import progress
from shard_gym.records.commands import seconds
from shard_gym.results import read_results
from shard_gym.results.replay import replay
from shard_gym.task import suites
from shard_gym_agents.leaderboard import command as command_module
from shard_gym_agents.leaderboard import jobs, machine, references, retraining
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.forecast import seconds_of
from shard_gym_agents.leaderboard.runs import TIMED
from shard_gym_agents.learners import trained

ROOT = Path(__file__).parents[1]
JSON_KEYS = (
    "schema suite agent track planner judge seeds rank feasible latency_ms gap gap_interval iqm p speedup balance "
    "plan_seconds cpu_seconds gap_at build_seconds isolation error note"
)


def test_progress_tells_rate_and_time_left():
    bar = progress.ProgressBar(total=40, stream=sys.stderr)
    bar.done, bar.fresh = 20, 10  # ten were taken over from a run that broke off
    assert bar.text("me", seconds=5.0).endswith("20/40 runs, 2.0/s, 0:10 left  me")
    assert progress.clock(3_725) == "1:02:05"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--suite", "nope"], "unknown suite 'nope'; choose one of: core-60x4, core-80x8"),
        (["--agents", "nope"], "unknown agent 'nope'; choose one of: auto, autoshard, beam"),
        (["--simulator", "nope"], "unknown simulator 'nope'; choose one of: FILE.safetensors, fbgemm:cpu"),
        (["--split", "nope"], "unknown split 'nope'; choose one of: test, train, val"),
    ],
)
def test_an_unknown_name_ends_it_with_the_valid_ones(arguments, told, capsys):
    assert leaderboard.main(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--budget=3", "--budget=0s", "--agent=file.py", "--seeds=0", "--suite=,"])
def test_a_malformed_option_is_explained(option, capsys):
    with pytest.raises(SystemExit) as end:
        leaderboard.main([option])
    assert end.value.code == 2
    assert ": argument --" in capsys.readouterr().err


def test_durations():
    assert [seconds(text) for text in ("100ms", "1s", "1.5s", "2m")] == [0.1, 1, 1.5, 120]


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ([], 60),
        (["--budget", "1s"], 60),
        (["--budget", "60s"], 120),
        (["--budget", "60s", "--time-limit", "5s"], 5),
    ],
)
def test_the_time_limit_leaves_room_for_the_budget(arguments, seconds):
    options = command_module._parser("leaderboard", Path("best")).parse_args(
        ["--suite", "core-80x8", "--agents", "local-search", *arguments]
    )
    assert {job.time_limit for job in jobs.jobs_of(options)} == {seconds}


def words(out, *arguments):
    return ["--suite", "core-80x8", "--workers", "2", "--out", str(out), "--best-known", str(out / "best"), *arguments]


def command(out, *arguments):
    return [sys.executable, "-m", "benchmarks.leaderboard", *words(out, *arguments)]


def odd(*names):
    return [argument for name in names for argument in ("--agent", f"tests.odd_agents:{name}")]


@pytest.fixture
def lead(capsys):
    """The command in this process: what it prints, and what it says on the way."""

    def call(out, *arguments):
        code = leaderboard.main(words(out, *arguments))
        told = capsys.readouterr()
        assert code == 0, told.err
        return told

    return call


def test_agents_that_go_wrong_fail_their_own_rows_only(tmp_path, lead):
    wrong = {
        "Raises": "ValueError: no idea (8 of 8 runs)",
        "Nonsense": "InvalidPlan: a solver returns a shard_gym.Plan, got list (8 of 8 runs)",
        "Short": "InvalidPlan: 80 tables need a device each, the plan has 1 (8 of 8 runs)",
        "OffDevice": "InvalidPlan: table 0 is on device 99; devices are 0..7 (8 of 8 runs)",
        "Heap": "infeasible: device 0 needs",
        "Exits": "died: exit code 3",
        "Sleeps": "late: no plan within 1 s, killed",
        "Unbuilt": "RuntimeError: no checkpoint (4 of 4 runs)",
        "Peeks": "SimulatorError: a solver of track 'blind'",
    }
    options = (
        "--agents",
        "size-greedy,random",
        "--tasks",
        "4",
        "--seeds",
        "2",
        "--time-limit",
        "1s",
        "--json",
    )
    output = lead(tmp_path, *options, *odd(*wrong)).out
    rows = {row["agent"]: row for row in map(json.loads, output.splitlines())}
    assert all(list(row) == JSON_KEYS.split() for row in rows.values())
    for name, error in wrong.items():
        row = rows[f"tests.odd_agents:{name}"]
        assert row["error"].startswith(error)
        assert (row["feasible"], row["speedup"], row["balance"]) == (0, 1, None)
    assert [(rows[a]["feasible"], rows[a]["error"]) for a in ("random", "size-greedy")] == [(1, None)] * 2
    assert (rows["random"]["seeds"], rows["size-greedy"]["seeds"]) == (2, 1)  # deterministic ones count once
    stored = [result for result, _ in replay(tmp_path / "core-80x8.jsonl")]
    assert len(stored) == 4 * sum(row["seeds"] for row in rows.values())
    random = [(r.seed, r.config["seed"], r.index) for r in stored if r.agent == "random"]
    assert random == [(seed, seed, index) for seed in (0, 1) for index in range(4)]
    assert not list((tmp_path / "partial").iterdir())


def test_the_table_and_its_page(tmp_path):
    arguments = command(tmp_path, "--agents", "random,cost-greedy", "--tasks", "3", "--seeds", "2")
    table = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "3 test tasks of 80 tables on 8 devices (the first of 100)" in table
    page = (tmp_path / "core-80x8.md").read_text()
    assert "| 1 | cost-greedy | 100.0% |" in page
    assert "--agents random,cost-greedy --tasks 3 --seeds 2`" in page


def test_best_known_plans_are_kept_only_on_demand(tmp_path, lead, capsys):
    """Another judge than the suite's: the makespans that are shipped know nothing of it."""
    other = ("--simulator", "roofline:h200-v1")
    options = ("--agents", "random", "--tasks", "3", "--seeds", "2", "--json", *other)
    lead(tmp_path, *options)
    best = tmp_path / "best" / "core-80x8.json"
    assert not best.exists()
    assert "No best known plans yet" in (tmp_path / "core-80x8.md").read_text()
    lead(tmp_path, *options, "--seeds", "1", "--update-best")
    again = json.loads(lead(tmp_path, *options, "--seeds", "1").out)
    assert again["gap"] == 0
    judge, known = next(iter(json.loads(best.read_text())["best"].items()))
    assert judge == again["judge"]
    assert {entry["solver"] for entry in known.values()} == {"random"}
    kept = {"makespan", "device", "solver", "options", "seed", "planner", "date"}
    assert all(entry.keys() == kept for entry in known.values())
    table = lead(tmp_path, "--agents", "cost-greedy", "--tasks", "3", *other).out
    assert "Some plans beat the best known ones" in table

    makespan = str(next(iter(known.values()))["makespan"])
    best.write_text(best.read_text().replace(makespan, "0.5"))
    assert leaderboard.main(words(tmp_path, *options)) == 2
    assert "says 0.5 ms, its plan is worth" in capsys.readouterr().err


def test_what_is_shipped_are_the_makespans_of_the_best_known_plans():
    told = "run python -m benchmarks.makespans"
    shipped = references._shipped()
    known = {
        f"{path.stem}/{judge}": {task: entry["makespan"] for task, entry in of.items()}
        for path in (RESULTS / "best_known").glob("*.json")
        for judge, of in json.loads(path.read_text())["best"].items()
    }
    assert {name: sorted(of.values()) for name, of in known.items()} == {n: sorted(of) for n, of in shipped.items()}, (
        told
    )
    of = known["dlrm-10x2/roofline:rtx2080ti-x4-v1"]
    first = [of[task.hash] for task in suites.get("dlrm-10x2").tasks("test")[:5]]
    found = references.shipped_makespans("dlrm-10x2", "test", "roofline:rtx2080ti-x4-v1", 5)
    assert found.tolist() == first
    assert np.isnan(references.shipped_makespans("dlrm-10x2", "val", "roofline:rtx2080ti-x4-v1", 5)).all()


def test_budgets_are_columns_of_an_agent_and_all_its_runs_are_kept(tmp_path, lead):
    agents = ("--agents", "random-search,cost-greedy", "--tasks", "12", "--seeds", "2")
    done = lead(tmp_path, *agents, "--budgets", "5ms,20ms", "--page", "--json")
    rows = {row["agent"]: row for row in map(json.loads, done.out.splitlines())}
    assert rows["cost-greedy"]["gap_at"] is None
    gap_at = rows["random-search"]["gap_at"]
    assert list(gap_at) == ["0.005s", "0.02s"] and gap_at["0.02s"] == rows["random-search"]["gap"]
    low, high = rows["random-search"]["gap_interval"]
    assert low < rows["random-search"]["gap"] < high
    header = next(line for line in (tmp_path / "core-80x8.md").read_text().splitlines() if "rank" in line)
    assert "| gap at 5.0 ms | gap at 20 ms |" in header and len(header) < 120

    results = [result for result, _ in replay(tmp_path / "core-80x8.jsonl")]
    assert {(r.agent, r.config.get("budget"), r.seed) for r in results} == {
        *(("random-search", budget, seed) for budget in (0.005, 0.02) for seed in (0, 1)),
        ("cost-greedy", None, 0),
    }
    assert len(results) == 5 * 12
    assert all(r.cpu_seconds is not None and r.cpu_seconds < 60 for r in results)
    assert {r.index for r in results if r.alone} == set(range(TIMED))  # the first seed's first tasks
    assert {r.seed for r in results if r.alone} == {0}

    said = done.err.splitlines()
    assert any(line.startswith("60 plans to make: about ") for line in said)
    assert said[-2:] == [
        f"written to {tmp_path}: core-80x8.md, core-80x8.jsonl, leaderboard.html",
        f"look: python -m webbrowser -t {tmp_path}/leaderboard.html",
    ]


def test_how_long_it_will_take_by_hand():
    job = Job("core-80x8", "auto", 0, "", "", budget=0.1)
    told = {"config": {"budget": 0.1}, "build_seconds": 1.0}
    assert seconds_of({job: told}, tasks=12, workers=2) == pytest.approx(12 * 0.1 + 2)  # built to be timed, and again
    jobs = {replace(job, seed=seed): told for seed in range(3)}
    alone = 10 * 0.1 + 1
    assert seconds_of(jobs, tasks=12, workers=2) == pytest.approx(alone + (2 * 0.1 + 2 * 12 * 0.1 + 3) / 2)
    assert seconds_of({replace(job, agent="cost-greedy"): told | {"config": {}}}, 12, 1) < 12 * 0.1 + 2


def test_what_cannot_run_is_said_before_the_run(tmp_path, lead):
    odd_one = ("--agent", "tests.odd_agents:Raisess")
    said = lead(tmp_path, "--agents", "size-greedy", "--tasks", "1", *odd_one).err.splitlines()
    why = next(i for i, line in enumerate(said) if line.startswith("cannot run: tests.odd_agents:Raisess: "))
    assert why < next(i for i, line in enumerate(said) if "plans to make" in line)


def test_a_misspelt_agent_is_refused_with_what_was_meant(capsys):
    assert leaderboard.main(["--agents", "cost-gredy"]) == 2
    assert capsys.readouterr().err.endswith("did you mean cost-greedy?\n")


def test_a_busy_machine_is_told(monkeypatch):
    clock, worked = iter([0.0, 10.0, 10.0, 20.0]), iter([100.0, 101.0, 101.0, 119.0])
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(machine.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(worked))
    assert machine.Load(nursery=-1).words() == ""  # a tenth of a core
    assert "other work took 1.8 of" in machine.Load(nursery=-1).words()


def test_an_agent_that_cannot_be_found_ends_it(tmp_path, capsys):
    assert leaderboard.main(words(tmp_path, "--agents", "random", "--tasks", "1", "--agent", "nowhere:Agent")) == 2
    assert "unknown agent (No module named 'nowhere')" in capsys.readouterr().err


def test_a_learner_without_weights_for_these_settings_is_told_and_not_ranked(tmp_path, lead):
    pytest.importorskip("torch")
    settings = ("--agents", "random,rnn", "--tasks", "1", "--seeds", "1", "--simulator", "roofline:h200-v1")
    rows = {row["agent"]: row for row in map(json.loads, lead(tmp_path, *settings, "--json").out.splitlines())}
    assert (rows["random"]["feasible"], rows["random"]["error"]) == (1, None)
    assert (rows["rnn"]["feasible"], rows["rnn"]["seeds"]) == (None, 0)
    assert "weights" in rows["rnn"]["error"]


def quick(learner, suite):
    """A command that trains in a second, or fails."""
    iterations = {"rnn": 1, "dreamshard": 0}[learner]
    out = trained.RETRAINED / learner / suite
    return f"shard-gym train {learner} --suite {suite} --iterations {iterations} --out {out}"


def test_learners_are_trained_again_on_demand(tmp_path, monkeypatch, capfd):
    pytest.importorskip("torch")
    monkeypatch.setattr(trained, "RETRAINED", tmp_path / "trained")
    monkeypatch.setattr(retraining, "command_for", lambda job: quick(job.agent, job.suite))
    options = ["--retrain", "--suite", "dlrm-10x4", "--agents", "size-greedy,rnn,dreamshard", "--tasks", "2"]
    options += ["--seeds", "2", "--json", "--out", str(tmp_path), "--best-known", str(tmp_path / "best")]
    assert leaderboard.main(options) == 0
    told = capfd.readouterr()
    rows = {row["agent"]: row for row in map(json.loads, told.out.splitlines())}
    assert [rows[agent]["seeds"] for agent in ("size-greedy", "rnn", "dreamshard")] == [1, 1, 0]
    assert (rows["rnn"]["feasible"], rows["rnn"]["error"]) == (1, None)
    assert rows["dreamshard"]["error"].startswith("training failed: --seed is 0 or more; --threads")
    assert "iteration 1/1" in told.err and "x cost-greedy on validation tasks" in told.err
    run = tmp_path / "trained" / "rnn" / "dlrm-10x4"
    result = next(r for r in read_results(tmp_path / "dlrm-10x4.jsonl") if r.agent == "rnn")
    assert result.config["checkpoint"] == str(run)
    assert result.config["weights"] == trained.Trained("rnn", checkpoint=str(run)).weights


def test_learners_are_trained_on_the_suites_own_planner_only(capsys):
    assert leaderboard.main(["--retrain", "--simulator", "roofline:h200-v1"]) == 2
    assert "leave out --simulator" in capsys.readouterr().err


class Diary:
    """Lines that the agent of that name wrote: who called it, and on which task."""

    def __init__(self, folder):
        self.path = folder / "diary"
        self.environment = {**os.environ, "DIARY": str(self.path)}

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, calls):
        deadline = time.monotonic() + 120
        while len(self.lines()) < calls:
            assert time.monotonic() < deadline, "the agent was not called"
            time.sleep(0.02)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def interrupted(out, how, arguments):
    """The exit code, and the diary, of a leaderboard that got a signal after some runs."""
    diary = Diary(out)
    process = subprocess.Popen(
        command(out, *arguments),
        cwd=ROOT,
        env=diary.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    diary.wait_for(calls=4)
    process.send_signal(how)
    process.communicate()
    deadline = time.monotonic() + 60
    while any(alive(int(pid)) for pid, _ in diary.lines()):
        assert time.monotonic() < deadline, "a worker outlived the leaderboard"
        time.sleep(0.02)
    return process.returncode, diary


# At limits, with its variable kept: at full no agent writes a file that stays.
AT_LIMITS = ("--isolation", "limits", "--env", "DIARY")
DIARY_OPTIONS = ("--agents", "random", "--tasks", "12", "--seeds", "1", *AT_LIMITS, *odd("Diary"))


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_broke_off_goes_on_where_it_stopped(tmp_path, lead, monkeypatch, how, code):
    returned, diary = interrupted(tmp_path, how, DIARY_OPTIONS)
    assert returned == code
    assert not list(tmp_path.glob("*.jsonl"))
    kept = [line for path in (tmp_path / "partial").glob("*Diary*") for line in path.read_text().splitlines()]
    assert len(kept) >= 3
    monkeypatch.setenv("DIARY", str(diary.path))
    lead(tmp_path, *DIARY_OPTIONS)
    results = [r for r in read_results(tmp_path / "core-80x8.jsonl") if "Diary" in r.agent]
    assert [r.index for r in results] == list(range(12))
    calls = Counter(task for _, task in diary.lines())
    finished = {json.loads(line)["task"] for line in kept}
    assert all(calls[task] == 1 for task in finished)
    assert calls.keys() == {r.task for r in results}


def test_fresh_runs_all_of_it_again(tmp_path, lead, monkeypatch):
    _, diary = interrupted(tmp_path, signal.SIGKILL, DIARY_OPTIONS)
    before = len(diary.lines())
    monkeypatch.setenv("DIARY", str(diary.path))
    lead(tmp_path, *DIARY_OPTIONS, "--fresh")
    assert len(diary.lines()) == before + 12
