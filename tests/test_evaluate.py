"""Scores and results, on a judge whose numbers can be told by hand."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shard_gym import simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidPlan, SimulatorError, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.records import ledger
from shard_gym.results import Result, read_results, write_results
from shard_gym.results.evaluate import Score, evaluate, judged, run, score, template
from shard_gym.results.replay import replay
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.task.task import Constraints, Task
from tests.pool_helpers import fp16_pool as make_pool


class Unit(FastSimulator):
    """A table takes 1 ms of forward computation; each pass of communication takes 10 ms."""

    id = "unit"

    def embed(self, task):
        return np.ones((task.num_tables, 1))

    def decode(self, task, sums):
        busy = sums[..., 0]
        return Latency(busy, np.full_like(busy, 10.0), np.full_like(busy, 10.0), np.zeros_like(busy))


class Measured:
    """The same, but slow: no running sums."""

    id = "measured"

    def latency(self, task, placements):
        return Unit().latency(task, placements)


@dataclass(frozen=True)
class Always:
    """The same plan whatever the task."""

    plan: Plan
    seed: int = 3

    def __call__(self, task, planner):
        planner.latency(task, np.array([self.plan.device] * 5))
        return self.plan


def task_of(n=3, devices=2, **settings):
    pool = make_pool([1000] * n, dim=16)  # 32,000 bytes each
    return Task(pool, memory=(64_000,) * devices, **settings)


TASK = task_of()


def test_a_plan_is_checked_and_split_once(monkeypatch):
    splits, pieces = [], Task.pieces
    monkeypatch.setattr(Task, "pieces", lambda task, at: splits.append(at) or pieces(task, at))
    assert score(task_of(splits_allowed=True), Plan((0, 0, 1, 1), splits=(2,)), Unit()).feasible
    assert splits == [(2,)]


def test_the_slowest_device_sets_the_pace():
    assert score(TASK, Plan((0, 0, 1)), Unit()) == Score(makespan=2.0, balance=0.5)


def test_an_iteration_counts_the_wait_and_both_passes_of_communication():
    assert score(task_of(objective="iteration"), Plan((0, 0, 1)), Unit()).makespan == 2 + 10 + 10


def test_a_device_over_its_memory_is_infeasible():
    found = score(TASK, Plan((0, 0, 0)), Unit())
    assert not found.feasible
    assert "device 0 needs 96,000 bytes" in found.violations[0]


def test_a_broken_constraint_is_infeasible():
    found = score(task_of(constraints=Constraints(pin=((0, 1),))), Plan((0, 0, 1)), Unit())
    assert found.violations == ("table 0 is pinned to device 1",)


def test_splits_are_judged_on_the_tables_they_leave():
    split = Plan((0, 0, 1, 1), splits=(2,))
    assert score(task_of(splits_allowed=True), split, Unit()).makespan == 2.0
    with pytest.raises(InvalidPlan, match="does not allow splits"):
        score(TASK, split, Unit())


@pytest.mark.parametrize(
    "plan",
    [Plan((0, 1)), Plan((0, 1, -1)), Plan((0, 1, 2)), [0, 1, 0], None, Plan((0, 0, 1), kind=("dp",) * 3)],
)
def test_what_places_the_tables_nowhere_has_no_score(plan):
    with pytest.raises(InvalidPlan):
        score(TASK, plan, Unit())


def test_a_judge_without_an_answer_is_told():
    class Lost(Unit):
        def decode(self, task, sums):
            nothing = np.full(sums.shape[:-1], np.nan)
            return Latency(nothing, nothing, nothing, nothing)

    with pytest.raises(SimulatorError, match="makespan of nan"):
        score(TASK, Plan((0, 0, 1)), Lost())


@pytest.mark.parametrize("planner", [Unit(), Measured()], ids=lambda planner: planner.id)
def test_evaluate_counts_calls_and_names_everything(planner):
    (result,) = evaluate(Always(Plan((0, 0, 1))), [TASK], planner, Unit(), suite="mine", name="fixed")
    assert (result.makespan, result.simulator_calls, result.error) == (2.0, 5, None)
    assert (result.suite, result.agent, result.seed, result.task) == ("mine", "fixed", 3, TASK.hash)
    assert (result.planner, result.judge, result.track) == (planner.id, "unit", "search")
    assert result.config["seed"] == 3
    assert result.wall_seconds > 0 and result.cpu_seconds >= 0
    assert {"python", "numpy", "gymnasium", "shard-gym"} == result.versions.keys()


def test_a_failing_solver_fails_its_own_row_only():
    def broken(task, planner):
        if task.num_tables == 3:
            raise InfeasibleTask("table 0 fits nowhere")
        return Plan((0,) * task.num_tables)

    first, second = evaluate(broken, [TASK, task_of(2)], Unit(), Unit())
    assert (first.plan, first.error) == (None, "InfeasibleTask: table 0 fits nowhere")
    assert (second.makespan, second.error) == (2.0, None)


@pytest.mark.parametrize("answer", [None, [0, 1, 0], Plan((0,)), Plan((0, 1, 7))])
def test_nonsense_is_an_error_not_a_plan(answer):
    (result,) = evaluate(lambda task, planner: answer, [TASK], Unit(), Unit())
    assert result.plan is None
    assert result.error.startswith("InvalidPlan: ")


def test_a_claim_is_not_read():
    class Boaster(Plan):
        makespan = 0.0

        def to_dict(self):
            return {"schema": "shard-gym/plan/1", "device": [1, 1, 0], "makespan": 0.0}

    (result,) = evaluate(lambda task, planner: Boaster((0, 0, 1)), [TASK], Unit(), Unit())
    assert type(result.plan) is Plan
    assert (result.plan.device, result.makespan) == ((0, 0, 1), 2.0)


def test_a_blind_solver_gets_no_answer():
    class Peeks(Always):
        track = "blind"

    assert "asks the planner nothing" in run(Peeks(Plan((0, 0, 1))), Unit(), TASK).error


def test_a_track_of_its_own_is_refused():
    solver = Always(Plan((0, 0, 1)))
    object.__setattr__(solver, "track", "oracle")
    with pytest.raises(UnknownName, match="blind, search"):
        evaluate(solver, [TASK], Unit(), Unit())


def test_map_is_injected():
    seen = []

    def backwards(function, tasks):
        seen.extend(tasks)
        return [function(task) for task in reversed(tasks)][::-1]

    results = evaluate(Always(Plan((0, 0, 1))), [TASK] * 2, Unit(), Unit(), map=backwards)
    assert seen == [TASK, TASK]
    assert [r.index for r in results] == [0, 1]


def some_results(count=3):
    """Results on tasks of a suite, by its own simulators: what `replay` can find again."""
    suite = suites.get("core-80x8")
    simulator = simulators.make(suite.judge)
    tasks = suite.tasks("test")[:count]
    blank = template(Always(Plan((0,))), simulator.id, simulator.id, suite=suite.key)
    rng = np.random.default_rng(0)
    plans = [Plan(tuple(rng.integers(task.num_devices, size=task.num_tables).tolist())) for task in tasks]
    solvers = [Always(plan) for plan in plans]
    return [
        judged(blank, i, t, run(s, simulator, t), simulator)[0]
        for i, (t, s) in enumerate(zip(tasks, solvers, strict=True))
    ]


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "results.jsonl"
    write_results(path, some_results())
    return path


def test_results_survive_the_file(stored):
    assert read_results(stored) == some_results_without_clock(stored)
    assert [score.makespan for _, score in replay(stored)] == [r.makespan for r in read_results(stored)]


def some_results_without_clock(path):
    """Freshly made results with the times of the stored ones, the only thing that differs."""
    stored = [json.loads(line) for line in path.read_text().splitlines()][:-1]
    clocks = [{name: line[name] for name in ("wall_seconds", "cpu_seconds")} for line in stored]
    return [replace(r, **times) for r, times in zip(some_results(), clocks, strict=True)]


def test_replay_of_a_run_without_a_plan(tmp_path):
    failed = replace(some_results(1)[0], plan=None, makespan=None, error="ValueError: no")
    write_results(tmp_path / "r.jsonl", [failed])
    assert replay(tmp_path / "r.jsonl") == [(failed, None)]


def test_any_changed_byte_of_a_line_is_refused_with_its_number(stored):
    content = stored.read_bytes()
    second = content.index(b"\n") + 1
    end = content.index(b"\n", second)
    for position in np.random.default_rng(0).integers(second, end, 40):
        changed = bytearray(content)
        changed[position] ^= 1
        stored.write_bytes(changed)
        with pytest.raises(CorruptFile, match="line 2"):
            read_results(stored)


@pytest.mark.parametrize(("keep", "line"), [(-1, 4), (-20, 4), (-600, 3)])
def test_a_file_that_breaks_off_is_refused(stored, keep, line):
    stored.write_bytes(stored.read_bytes()[:keep])
    with pytest.raises(CorruptFile, match=f"line {line}"):
        read_results(stored)


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_a_missing_line_is_refused(stored, dropped):
    lines = stored.read_bytes().splitlines(keepends=True)
    stored.write_bytes(b"".join(lines[:dropped] + lines[dropped + 1 :]))
    with pytest.raises(CorruptFile, match="line 3"):
        read_results(stored)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b"")
    with pytest.raises(CorruptFile, match="line 1"):
        read_results(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"makespan": 1.0}, "says 1.0 ms, but its plan takes"),
        ({"task": "0" * 16}, "no task 0000"),
        ({"benchmark_version": "0"}, "benchmark version 0"),
        ({"suite": ""}, "tasks="),
    ],
)
def test_replay_refuses_what_comes_out_otherwise(stored, lie, reason):
    results = read_results(stored)
    write_results(stored, [*results[:1], replace(results[1], **lie), *results[2:]])
    with pytest.raises(CorruptFile, match=f"line 2: .*{reason}"):
        replay(stored)


def test_another_schema_is_refused(stored):
    stored.write_text(stored.read_text().replace("shard-gym/result/2", "shard-gym/result/9", 1))
    with pytest.raises(CorruptFile, match="line 1: schema 'shard-gym/result/9'"):
        read_results(stored)


def test_replay_takes_tasks_of_no_suite(tmp_path):
    preset = simulators.make("roofline:h100-v1")
    write_results(tmp_path / "r.jsonl", evaluate(Always(Plan((0, 0, 1))), [TASK], preset, preset))
    ((result, found),) = replay(tmp_path / "r.jsonl", tasks=[TASK])
    assert found.makespan == result.makespan


def test_appended_results_outlive_a_line_that_broke_off(tmp_path):
    path = tmp_path / "partial" / "r.jsonl"
    results = some_results()
    for result in results:
        ledger.append(path, result.to_json())
    path.write_bytes(path.read_bytes()[:-10])
    assert ledger.read(path, Result.from_json) == results[:2]
    ledger.append(path, results[2].to_json())
    assert ledger.read(path, Result.from_json) == results
    assert ledger.read(tmp_path / "nothing.jsonl", Result.from_json) == []


def test_recovery_refuses_a_changed_line(tmp_path):
    for result in some_results(2):
        ledger.append(tmp_path / "r.jsonl", result.to_json())
    text = (tmp_path / "r.jsonl").read_text()
    (tmp_path / "r.jsonl").write_text(text.replace('"seed": 3', '"seed": 4', 1))
    with pytest.raises(CorruptFile, match="line 1"):
        ledger.read(tmp_path / "r.jsonl", Result.from_json)
