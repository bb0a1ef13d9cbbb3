"""Forged files of results: each claims what no run of it gave, with checksums that fit, and is refused or told."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shard_gym import suites
from shard_gym.errors import CorruptFile, InvalidResult
from shard_gym.plan.plan import Plan
from shard_gym.records.files import json_sha256
from shard_gym.results import Result, read_results, results_in, write_results
from shard_gym.results.evaluate import evaluate
from shard_gym.results.replay import Replay, replay
from shard_gym.simulators import make
from tests.test_evaluate import TASK

SUITE = suites.get("core-80x8")
TASKS, SEEDS = 3, 2


@dataclass(frozen=True)
class Draws:
    """A random plan."""

    seed: int = 0
    budget: float = 0.1

    def __call__(self, task, planner):
        return Plan(tuple(np.random.default_rng(self.seed).integers(task.num_devices, size=task.num_tables).tolist()))


class Blind(Draws):
    track = "blind"


@pytest.fixture(scope="module")
def honest():
    """Lines of two agents, the first with two seeds, on three tasks each: 0-2, 3-5 and 6-8."""
    judge = make(SUITE.judge)
    tasks = SUITE.tasks("test")[:TASKS]
    solvers = [("draws", Draws(seed)) for seed in range(SEEDS)] + [("cost-greedy", Draws())]
    return [r for name, s in solvers for r in evaluate(s, tasks, judge, judge, suite=SUITE.key, name=name)]


def of_split(split, index):
    judge, task = make(SUITE.judge), SUITE.tasks(split)[index]
    return replace(evaluate(Draws(), [task], judge, judge, suite=SUITE.key, name="draws")[0], index=index)


def other_plan(result, **changes):
    return replace(result, plan=replace(result.plan, **changes))


def one(line, **changes):
    """A forgery of one line."""
    return lambda lines: [replace(r, **changes) if i == line else r for i, r in enumerate(lines)]


def each(agent, **changes):
    """A forgery of all lines of an agent."""
    return lambda lines: [replace(r, **changes) if r.agent == agent else r for r in lines]


def planned(line, change):
    return lambda lines: [change(r) if i == line else r for i, r in enumerate(lines)]


FORGERIES = {
    "a better makespan": (one(1, makespan=1.0), "line 2: says 1.0 ms, but its plan takes"),
    "the last digit": (planned(1, lambda r: replace(r, makespan=np.nextafter(r.makespan, 0).item())), "line 2: says"),
    "another's plan": (planned(0, lambda r: other_plan(r, device=r.plan.device[::-1], devices=())), "line 1: says"),
    "a plan of fewer tables": (planned(0, lambda r: replace(r, plan=Plan(r.plan.device[:-1]))), "80 tables need"),
    "a plan of no devices": (planned(0, lambda r: replace(r, plan=Plan((-1,) * 80))), "table 0 is not placed"),
    "a device too many": (planned(0, lambda r: replace(r, plan=Plan((8,) * 80))), "table 0 is on device 8"),
    "splits that are not allowed": (planned(0, lambda r: other_plan(r, splits=(0,))), "does not allow splits"),
    "rows on all devices": (
        planned(0, lambda r: replace(r, plan=Plan((0,) * 80, kind=("rw",) * 80, devices=(tuple(range(8)),) * 80))),
        "line 1: ",
    ),
    "a copy on a device": (planned(0, lambda r: replace(r, plan=Plan((0,) * 80, kind=("dp",) * 80))), "line 1: "),
    "rows in host memory": (
        planned(0, lambda r: replace(r, plan=Plan((0,) * 80, residence=("uvm",) * 80))),
        "line 1: ",
    ),
    "another task's makespan": (lambda rs: [replace(rs[0], makespan=rs[1].makespan), *rs[1:]], "line 1: says"),
    "an unknown task": (one(2, task="0" * 16), "line 3: no task 0000"),
    "an unknown suite": (one(2, suite="core-1x1"), "line 3: unknown suite"),
    "another suite": (one(2, suite="dlrm-50x4"), "line 3: no task"),
    "no suite": (one(2, suite=""), "line 3: no task"),
    "another version": (one(2, benchmark_version="3"), "line 3: of benchmark version 3"),
    "an unknown judge": (one(2, judge="my:judge"), "line 3: unknown simulator"),
    "a judge of one's own": (one(2, judge="judge.safetensors"), "judge.safetensors"),
    "an easier judge for a line": (one(2, judge="roofline:h200-v1"), "line 3: says"),
    "a train task": (lambda rs: [of_split("train", 0), *rs[1:]], "test task of core-80x8 among train tasks"),
    "a validation task": (lambda rs: [*rs[:2], of_split("val", 2), *rs[3:]], "line 3: a val task .* among test tasks"),
    "an easy task in a hard one's place": (
        lambda rs: [*rs[:2], replace(rs[0], index=2), *rs[3:]],
        "line 6: task number 2 is",
    ),
    "a task twice": (lambda rs: [*rs, rs[0]], "line 10: task number 0 comes twice with draws, seed 0"),
    "a task twice by another number": (lambda rs: [replace(r, index=3 * i) for i, r in enumerate(rs)], "line"),
    "a number below 0": (one(0, index=-1), "line 1: task number -1"),
    "a number beyond": (one(0, index=10**6), "line 1: task number 1000000"),
    "a task left out": (lambda rs: rs[:1] + rs[2:], "draws, seed 0, has no line of task number 1: 2 of 3"),
    "the last task left out": (lambda rs: rs[:5] + rs[6:], "draws, seed 1, has no line of task number 2"),
    "a failure left out": (lambda rs: rs[1:], "draws, seed 0, has no line of task number 0"),
    "one seed's best runs": (lambda rs: [*rs[:2], replace(rs[5], seed=0), *rs[3:]], "line 3: seed 0, but 1 in its"),
    "a seed for another": (one(3, seed=0, config={}), "line 4: draws has another track or configuration"),
    "a run copied to a new seed": (
        lambda rs: [*rs, *(replace(r, seed=2) for r in rs[:3])],
        "line 10: seed 2, but 0 in its configuration",
    ),
    "a larger budget for a line": (
        lambda rs: [*rs[:2], replace(rs[2], config=rs[2].config | {"budget": 10.0}), *rs[3:]],
        "draws, seed 0, has no line of task number 2: 2 of 3",
    ),
    "a larger budget for a seed": (
        lambda rs: [replace(r, config=r.config | {"budget": 10.0}) if r.seed else r for r in rs],
        "draws has not the same seeds with each budget",
    ),
    "a search told as blind": (
        each("cost-greedy", track="blind", simulator_calls=0),
        "cost-greedy is of track 'search'",
    ),
    "a blind line in a search": (one(1, track="blind", simulator_calls=0), "line 2: draws has another track"),
}


def track_of(agent):
    return "search" if agent == "cost-greedy" else None


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused(honest, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    forge, message = FORGERIES[name]
    write_results("r.jsonl", forge(honest))
    with pytest.raises((CorruptFile, FileNotFoundError), match=message):
        list(Replay("r.jsonl", track_of=track_of))


FIELDS = {
    "a score without a plan": {"plan": None, "error": "late"},
    "no score with a plan": {"makespan": None},
    "a plan and an error": {"error": "late"},
    "nothing at all": {"plan": None, "makespan": None},
    "a makespan that is none": {"makespan": "1.0"},
    "a makespan below 0": {"makespan": -1.0},
    "a makespan that is True": {"makespan": True},
    "seconds below 0": {"wall_seconds": -0.1},
    "seconds as text": {"wall_seconds": "0.1"},
    "seconds of CPU below 0": {"cpu_seconds": -0.1},
    "endless seconds of CPU": {"cpu_seconds": 1e999},
    "alone as a number": {"alone": 1},
    "calls below 0": {"simulator_calls": -1},
    "half a call": {"simulator_calls": 0.5},
    "a seed as text": {"seed": "0"},
    "a seed below 0": {"seed": -1},
    "a track of one's own": {"track": "oracle"},
    "a list of tracks": {"track": ["search"]},
    "a blind agent that asks": {"track": "blind", "simulator_calls": 3},
    "an agent without a name": {"agent": None},
    "a configuration that is a list": {"config": []},
    "versions that are numbers": {"versions": {"numpy": 2}},
    "a plan that is text": {"plan": "all on 0"},
    "a plan of another schema": {"plan": {"schema": "shard-gym/plan/9", "device": [0]}},
    "a claim of a plan": {"plan": {"schema": "shard-gym/plan/1", "device": [0] * 80, "makespan": 0.1}},
    "a field of one's own": {"gap": 0.0},
    "feasible": {"feasible": True},
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_line_that_no_run_gives_is_refused_though_its_checksum_fits(honest, tmp_path, name):
    data = json.loads(honest[0].to_json()) | FIELDS[name]
    del data["sha256"]
    with pytest.raises(CorruptFile):
        Result.from_json(json.dumps(data | {"sha256": json_sha256(data)}))


def test_an_honest_file_is_told_in_words(honest, tmp_path):
    write_results(tmp_path / "r.jsonl", honest)
    replayed = Replay(tmp_path / "r.jsonl", track_of=track_of)
    assert [result for result, _ in replayed] == honest
    assert (replayed.lines, replayed.plans) == (9, 9)
    first, last = replayed.notes()[0], replayed.notes()[-1]
    assert first == f"3 of the {SUITE.num_tasks('test')} test tasks of core-80x8: 2 agents, 3 runs"
    assert last.startswith("not checked: seconds, calls, versions")


def test_an_agent_has_the_same_seeds_with_each_of_its_budgets(honest, tmp_path):
    more = [replace(r, config=r.config | {"budget": 1.0}) for r in honest if r.agent == "draws"]
    write_results(tmp_path / "r.jsonl", [*honest, *more])
    replayed = Replay(tmp_path / "r.jsonl", track_of=track_of)
    assert len(list(replayed)) == 15
    assert "2 agents, 5 runs" in replayed.notes()[0]


def as_written_before(result):
    """The line of a result as schema /1 has it."""
    data = json.loads(result.to_json()) | {"schema": "shard-gym/result/1", "benchmark_version": "1"}
    for name in ("sha256", "cpu_seconds", "alone"):
        del data[name]
    return data


def test_results_of_the_first_schema_are_read_for_ever(honest):
    data = as_written_before(honest[0])
    line = json.dumps(data | {"sha256": json_sha256(data)})
    read = Result.from_json(line)
    assert read == replace(honest[0], cpu_seconds=None, alone=False, benchmark_version="1")
    assert Result.from_json(read.to_json()) == read
    for odd in (data | {"alone": True}, {k: v for k, v in data.items() if k != "track"}):
        with pytest.raises(CorruptFile, match="other fields"):
            Result.from_json(json.dumps(odd | {"sha256": json_sha256(odd)}))


def test_other_simulators_than_the_suites_are_told(honest, tmp_path):
    other = make("roofline:h200-v1")
    lines = evaluate(Draws(), SUITE.tasks("test")[:2], other, other, suite=SUITE.key)
    write_results(tmp_path / "r.jsonl", lines)
    replayed = Replay(tmp_path / "r.jsonl")
    assert len(list(replayed)) == 2
    assert "planner roofline:h200-v1, judge roofline:h200-v1: not those of core-80x8" in replayed.notes()


def test_train_tasks_alone_are_told(tmp_path):
    write_results(tmp_path / "r.jsonl", [of_split("train", 0)])
    replayed = Replay(tmp_path / "r.jsonl")
    assert len(list(replayed)) == 1
    assert "train tasks of core-80x8" in replayed.notes()[0]


def test_results_are_read_one_by_one(honest, tmp_path):
    write_results(tmp_path / "r.jsonl", honest)
    (tmp_path / "r.jsonl").write_bytes((tmp_path / "r.jsonl").read_bytes()[:-30])
    lines = results_in(tmp_path / "r.jsonl")
    assert [next(lines) for _ in honest] == honest
    with pytest.raises(CorruptFile, match="line 10: the line breaks off"):
        next(lines)
    with pytest.raises(CorruptFile, match="line 10"):
        read_results(tmp_path / "r.jsonl")


@pytest.mark.parametrize("odd", [{"seed": "x"}, {"track": 3}, {"makespan": 1.0}, {"wall_seconds": float("nan")}])
def test_no_result_is_made_of_what_no_run_gives(odd):
    with pytest.raises(InvalidResult):
        Result(
            **{"suite": "", "agent": "a", "config": {}, "seed": 0, "track": "search", "planner": "p", "judge": "j"}
            | odd
        )


class Odd(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("value", [float("inf"), {(1, 2): 3}, 10**40, object(), ["\ud800"], [[[[]]]] * 3])
def test_whatever_an_agent_is_made_of_is_told_in_json(tmp_path, value):
    class Told(Draws):
        pass

    solver = Told()
    object.__setattr__(solver, "budget", value)
    judge = make("roofline:h100-v1")
    results = evaluate(solver, [TASK], judge, judge)
    write_results(tmp_path / "r.jsonl", results)
    assert [r for r, _ in replay(tmp_path / "r.jsonl", [TASK])] == results


def test_an_error_that_fails_to_say_what_it_is():
    def broken(task, planner):
        raise Odd

    judge = make("roofline:h100-v1")
    assert evaluate(broken, [TASK], judge, judge)[0].error == "Odd"
