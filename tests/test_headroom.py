"""Best known plans and headroom cards: what is stored is true, searches go on where they stopped, solvers see none."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.headroom import Tries, check_rows
from benchmarks.headroom_attempts import Attempt, try_on
from benchmarks.headroom_cards import (
    CERTAIN,
    EVERY_PLAN,
    NEAR,
    Tried,
    gaps,
    load_cards,
    make_card,
    page,
    resource,
    save_check,
    tier_of,
)
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import headroom, headroom_cards, headroom_places
from shard_gym import simulators
from shard_gym.bounds import Bound, certificate
from shard_gym.errors import CorruptFile
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Latency
from shard_gym.task.suite import FROZEN_PLAN
from shard_gym.task.suites import SUITES, get
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.arena.host import Nursery, Worker
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import Rules
from shard_gym_agents.leaderboard.references import keep_best, load_best, packed, unpacked

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (ROOT / "shard_gym", ROOT / "agents" / "shard_gym_agents")
ROOFLINE = "roofline:rtx2080ti-x4-v1"
NOT_SOLVED = ("infeasible", "unsolved")
CARDED = [key for key in SUITES if (RESULTS / "headroom" / f"{key}.json").exists()]


def test_suites_without_cards_are_those_whose_judge_nobody_may_search():
    assert SUITES.keys() - CARDED == {suite.key for suite in SUITES.values() if suite.gap_to == FROZEN_PLAN}


@pytest.mark.parametrize("key", CARDED)
def test_what_is_stored_of_a_suite_is_true(key):
    suite = SUITES[key]
    tasks, judge = suite.tasks("test"), suite.judge
    known = load_best(RESULTS / "best_known" / f"{key}.json", judge, tasks)  # scores every plan again
    cards = load_cards(RESULTS / "headroom" / f"{key}.json", judge)
    assert cards.keys() == {task.hash for task in tasks}
    assert known.keys() == {task for task, card in cards.items() if card["tier"] not in NOT_SOLVED}
    for index, task in enumerate(tasks):
        card = cards[task.hash]
        assert card["index"] == index
        if task.hash in known:
            assert card["bound"] <= known[task.hash]["makespan"] <= card["best"]
            assert card["tier"] == tier_of(card)
            assert card["effort"]
            told = {name: card[f"{name}_gap"] for name in ("greedy", "local")}
            assert told == {name: gaps(card["best"], {name: card[name]})[f"{name}_gap"] for name in told}


def test_suites_without_room_are_for_scaling():
    paths = {key: RESULTS / "headroom" / f"{key}.json" for key in CARDED}
    tiers = {key: {c["tier"] for c in load_cards(path, get(key).judge).values()} for key, path in paths.items()}
    easy = {key for key, found in tiers.items() if found == {"easy"}}
    assert easy == {suite.key for suite in SUITES.values() if suite.group == "scaling"}


@pytest.mark.parametrize("key", ["dlrm-10x2", "dlrm-10x4"])
def test_small_tasks_are_solved(key):
    cards = load_cards(RESULTS / "headroom" / f"{key}.json", get(key).judge).values()
    assert all(card["proved"] for card in cards) and {card["bound_by"] for card in cards} == {EVERY_PLAN}


@pytest.mark.parametrize("key", ["dlrm-10x4", "metasyn-80x8", "prod-1000x128-split", "tightmix-80x8"])
def test_bounds_of_cards_are_not_below_what_can_be_proved_now(key):
    suite = get(key)
    task = suite.tasks("test")[0]
    card = load_cards(RESULTS / "headroom" / f"{key}.json", suite.judge)[task.hash]
    ours = certificate(task, simulators.make(suite.judge), budget=0.0)
    assert card["bound"] >= ours.makespan * 0.999


@pytest.mark.parametrize(
    ("greedy", "local", "best", "expected"),
    [
        (NEAR, 0.0, 100.0, "easy"),  # 100 is far from the bound of 50, which does not matter then
        (NEAR * 1.01, NEAR, 100.0, "medium"),
        (None, NEAR, 100.0, "medium"),
        (None, None, 50 * (1 + CERTAIN), "hard"),
        (0.1, NEAR * 1.01, 50 * (1 + CERTAIN), "hard"),
        (0.1, NEAR * 1.01, 50 * (1 + CERTAIN) + 0.01, "open"),
    ],
)
def test_tiers(greedy, local, best, expected):
    assert tier_of({"greedy_gap": greedy, "local_gap": local, "best": best, "bound": 50.0}) == expected


def test_gaps_are_over_the_best_known_plan():
    assert gaps(2.0, {"greedy": 2.5, "local": 2.0, "planned": None}) == {
        "greedy_gap": 0.25,
        "local_gap": 0.0,
        "planned_gap": None,
    }


class Fixed(simulators.FastSimulator):
    """Two devices: 3 ms of computation on the first and `comm` ms of each all-to-all on both, whatever lies where."""

    id = "fixed"

    def __init__(self, comm):
        self.comm = np.full(2, comm)

    def latency(self, task, placements):
        return Latency(np.array([1.0, 0.0]), self.comm, self.comm, np.array([2.0, 0.0]))


@pytest.mark.parametrize(
    ("comm", "bound", "unlimited", "expected"),
    [
        (1.4, Bound(5.0, "compute", ""), None, "compute"),  # 2.8 of 5.8 ms
        (1.6, Bound(5.0, "compute", ""), 6.2, "comm"),  # 3.2 of 6.2 ms
        (1.6, Bound(5.9, "one table", "", 0), 6.19, "one table"),  # 95.2 %
        (1.6, Bound(5.8, "one table", "", 0), 6.19, "comm"),  # 93.5 %
        (1.6, Bound(5.9, "one table", "", 0), 6.13, "memory"),  # 1.1 % better without limits
    ],
)
def test_what_binds(comm, bound, unlimited, expected):
    task = get("dlrm-10x2").tasks("test")[0]
    plan = Plan((0,) * 10).to_dict()
    entry = {"makespan": 3 + 2 * comm, "plan": plan}
    assert resource(task, Fixed(comm), entry, bound, unlimited) == expected


@given(st.lists(st.integers(0, 4_095), max_size=20), st.lists(st.integers(0, 9), max_size=3))
def test_packed_plans_come_back(device, splits):
    plan = Plan(tuple(device), tuple(splits))
    assert unpacked(json.loads(json.dumps(packed(plan)))) == plan


def test_devices_take_one_digit_each_up_to_36():
    assert packed(Plan((0, 9, 10, 35))) == {"device": "1:09az"}
    assert packed(Plan((0, 36), (0,))) == {"device": "2:0010", "splits": [0]}


def test_plans_of_all_kinds_are_packed_piece_by_piece(tmp_path):
    told = {"pieces": ["rw 0-3 cached 0.1", "tw 2", "cw 3,1", "twrw 2-3", "tw 0 uvm 0.0", "grid 0-3"], "splits": [5]}
    told["pieces"].append("grid 2-3,0-1")
    plan = unpacked(told)
    assert plan.kind[:4] == ("rw", "tw", "cw", "twrw") and plan.devices[5:] == ((0, 1, 2, 3), (2, 3, 0, 1))
    assert plan.residence[::4] == ("cached", "uvm") and plan.share == (0.1, 1, 1, 1, 0, 1, 1)
    assert packed(plan) == told
    kept = entry(2.0) | {"plan": plan.to_dict()}
    keep_best(tmp_path / "some.json", ROOFLINE, [("a", kept)])
    assert load_best(tmp_path / "some.json", ROOFLINE, ()) == {"a": kept}


def entry(makespan, device=0):
    return {"makespan": makespan, "plan": Plan((device,)).to_dict(), "solver": "me", "seed": 0, "date": "2026-01-01"}


def test_the_registry_only_improves_and_refuses_what_it_cannot_read(tmp_path):
    path = tmp_path / "some.json"
    assert keep_best(path, ROOFLINE, [("a", entry(2.0)), ("b", entry(3.0)), ("a", entry(1.5, 1))]) == 2
    before = path.read_bytes()
    assert keep_best(path, ROOFLINE, [("a", entry(1.5)), ("b", entry(3.1))]) == 0
    assert path.read_bytes() == before
    assert load_best(path, ROOFLINE, ()) == {"a": entry(1.5, 1), "b": entry(3.0)}
    path.write_text(path.read_text().replace('"1:1"', '"1:?"'))
    with pytest.raises(CorruptFile, match="an entry that is none"):
        load_best(path, ROOFLINE, ())


SMALL = ("--suite", "dlrm-10x4,dlrm-20x2", "--tasks", "2", "--methods", "local-search,beam", "--seeds", "2")


def search(folder, *arguments, calls=300):
    options = ("--results", str(folder / "results"), "--runs", str(folder / "runs"), "--calls", str(calls))
    return headroom.main([*SMALL, *options, *arguments])


def written(folder):
    """All that a campaign leaves, but for times."""
    found = {path.name: path.read_text() for path in (folder / "results").rglob("*.*") if path.suffix != ".md"}
    found |= {f"{p.parent.name}/{p.name}": p.read_text() for p in (folder / "results").rglob("*.json")}
    cards = {n: json.loads(text)["cards"] for n, text in found.items() if n.startswith("headroom/")}
    for by_judge in cards.values():
        for card in by_judge[ROOFLINE].values():
            assert card.pop("seconds") >= 0
    return cards, {n: text for n, text in found.items() if n.startswith("best_known/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert search(folder, "--update-best") == 0
    return folder


def test_a_campaign_writes_plans_cards_and_the_page(whole):
    cards, best = written(whole)
    assert cards.keys() == {"headroom/dlrm-10x4.json", "headroom/dlrm-20x2.json"}
    assert best.keys() == {"best_known/dlrm-10x4.json", "best_known/dlrm-20x2.json"}
    for card in cards["headroom/dlrm-10x4.json"][ROOFLINE].values():
        assert card["effort"]["local-search 10000 calls"] == [0]
        searches = {label: seeds for label, seeds in card["effort"].items() if label.endswith(" 300 calls")}
        assert card["proved"] or searches == {"beam 300 calls": [1000, 1001], "local-search 300 calls": [0, 1]}
    page = (whole / "results" / "headroom.md").read_text()
    assert "| dlrm-10x4 | 2 of 50 |" in page
    assert "No cards yet: metasyn-80x8" in page


def killed(folder):
    """A kill leaves five lines of the runs, and half of the sixth."""
    for path in (folder / "runs").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:5]) + lines[5][:40])


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_campaign_that_broke_off_goes_on_where_it_stopped(how, whole, tmp_path, monkeypatch):
    made = []

    def once(task, attempt, judge):
        if how == "interrupted" and len(made) == 6:
            made.append(None)
            raise KeyboardInterrupt
        made.append((task.hash, attempt))
        return try_on(task, attempt, judge)

    monkeypatch.setattr(headroom_places, "try_on", once)
    assert search(tmp_path, "--update-best") == (130 if how == "interrupted" else 0)
    if how == "killed":
        killed(tmp_path)
        for path in (tmp_path / "results").rglob("*.json"):
            path.unlink()
        made.clear()
    assert search(tmp_path, "--update-best") == 0
    assert written(tmp_path) == written(whole)
    assert len(made) == len(set(made))  # nothing was run twice
    runs = [line for path in (whole / "runs").glob("*.jsonl") for line in path.read_text().splitlines()]
    kept = 10 if how == "killed" else -1  # the interrupt is no run
    assert len(made) + kept == len(runs)


def test_best_known_plans_are_kept_on_demand_only(whole, tmp_path):
    assert search(tmp_path) == 0
    assert not (tmp_path / "results" / "best_known").exists()
    cards = json.loads((tmp_path / "results" / "headroom" / "dlrm-10x4.json").read_text())["cards"][ROOFLINE]
    assert {card["tier"] for card in cards.values()} == {"unsolved"}


def test_suites_of_the_same_tables_share_plans(tmp_path):
    few = ("--suite", "mixed-10to59x4,mixed-10to59x4-split", "--tasks", "1", "--seeds", "1", "--update-best")
    assert search(tmp_path, *few) == 0
    path = tmp_path / "results" / "best_known" / "mixed-10to59x4.json"
    (found,) = load_best(path, ROOFLINE, ()).values()
    again = load_best(path.with_name("mixed-10to59x4-split.json"), ROOFLINE, get("mixed-10to59x4-split").tasks("test"))
    assert list(again.values()) == [found]
    path.unlink()
    for runs in (tmp_path / "runs").iterdir():
        runs.unlink()
    assert search(tmp_path, *few, "--suite", "mixed-10to59x4", "--page") == 0
    assert list(load_best(path, ROOFLINE, ()).values()) == [found]


def test_workers_find_what_one_process_finds(whole, tmp_path):
    assert search(tmp_path, "--update-best", "--workers", "2") == 0
    cards, best = written(tmp_path)
    for name, text in written(whole)[1].items():
        mine, theirs = (json.loads(one)["best"][ROOFLINE] for one in (best[name], text))
        assert {task: e["makespan"] for task, e in mine.items()} == {task: e["makespan"] for task, e in theirs.items()}
    assert cards.keys() == written(whole)[0].keys()


def test_the_page_alone_runs_nothing(whole, monkeypatch):
    before = written(whole)
    monkeypatch.setattr(headroom_places, "try_on", None)
    assert search(whole, "--page", "--update-best") == 0
    assert written(whole) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--suite", "nope"), "unknown suite 'nope'"), (("--methods", "nope"), "unknown agent 'nope'")],
)
def test_unknown_names_are_told(arguments, told, tmp_path, capsys):
    assert search(tmp_path, *arguments) == 2
    assert told in capsys.readouterr().err


def test_a_task_that_nobody_solved_or_can_solve(monkeypatch):
    task = get("dlrm-10x4").tasks("test")[0]
    tried = Tried({"greedy": None, "local": None, "unlimited": None}, 0.0, {}, 1.0)
    judge = simulators.make(ROOFLINE)
    full = Task(task.tables, (1,) * 4, "iteration")
    card = make_card(0, full, judge, None, tried)
    assert (card["tier"], "fits on no device" in card["reason"]) == ("infeasible", True)
    monkeypatch.setattr(headroom_cards, "decide", lambda *_: SimpleNamespace(feasible=None, reason="time"))
    assert make_card(0, task, judge, None, tried)["tier"] == "unsolved"
    assert make_card(0, task, judge, None, Tried({"greedy": None}, 0.0, {}, 0.0)) is None  # not gauged yet


def test_what_longer_runs_gain(tmp_path):
    task = get("dlrm-10x4").tasks("test")[0]
    tries = Tries(tmp_path / "runs.jsonl")
    for budget, seed, makespan in ((1.0, 0, 4.0), (1.0, 1, 6.0), (60.0, 0, 3.0), (60.0, 1, None)):
        line = try_on(task, Attempt("random", ROOFLINE, seed=seed), ROOFLINE)
        tries.add(line | {"agent": "local-search", "budget": budget, "makespan": makespan, "cpu": budget / 2})
    rows = list(check_rows(get("dlrm-10x4"), [task], Tries(tries.path), 1.0, 60.0))
    assert rows[0]["runs"] == {
        "1s": {"runs": 2, "best": 4.0, "mean": 5.0, "by": "local-search", "seconds": 0.5},
        "60s": {"runs": 1, "best": 3.0, "mean": 3.0, "by": "local-search", "seconds": 30.0},
    }
    save_check(tmp_path, rows)
    told = page(tmp_path)
    assert "the best of the longer runs is 25.000% better than the best of the short ones, and 40.000% better" in told


def test_no_solver_mentions_the_registry_or_who_reads_it():
    reads = PACKAGES[1] / "leaderboard"
    for folder in PACKAGES:
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert not [path for path in files if "best_known" in path.as_posix() or "headroom" in path.name]
        sources = [path for path in files if path.suffix in {".py", ".json"} and reads not in path.parents]
        assert not [path for path in sources if "best_known" in path.read_text() or "best-known/" in path.read_text()]
        may = {PACKAGES[1] / "cli", PACKAGES[1] / "template"}  # commands, and a user's test
        others = [path for path in sources if not may & {path, *path.parents}]
        assert not [path for path in others if "shard_gym_agents.leaderboard" in path.read_text()]
    with np.load(PACKAGES[0] / "data" / "references.npz") as frozen:
        assert not [name for name in frozen.files if "best" in name]


GUARDED = """
import json, os, sys
from shard_gym_agents.leaderboard.arena.job import Job, build
from shard_gym import simulators, suites
from shard_gym.errors import MissingDependency
from shard_gym.results.evaluate import run

def refuse(event, arguments):
    path = arguments[0] if arguments and event in ("open", "os.listdir", "os.scandir") else ""
    if isinstance(path, (str, bytes, os.PathLike)) and "best_known" in os.fsdecode(path):
        raise PermissionError("the registry was opened")

sys.addaudithook(refuse)
suite = suites.get("dlrm-10x4")
task, planner = suite.tasks("test")[0], simulators.make(suite.planner)
for name in sys.argv[1:]:
    try:
        solver = build(Job(suite.key, name, 0, suite.planner, suite.judge, budget=0.02))
    except MissingDependency as error:
        print(json.dumps([name, str(error), False]))
        continue
    done = run(solver, planner, task)
    print(json.dumps([name, done.error, done.plan is not None]))
"""


CORE_AGENTS = {"random", "random-search", "lookup-greedy", "cost-greedy", "local-search", "beam", "neuroshard", "auto"}


class Cheat:
    """Reads the plan of a task where the best known ones are kept."""

    def __call__(self, task, planner):
        known = load_best(RESULTS / "best_known" / "dlrm-10x4.json", planner.id, ())
        return Plan.from_dict(known[task.hash]["plan"])


def test_no_agent_opens_the_registry():
    from shard_gym_agents import AGENTS
    from shard_gym_agents.learners import LEARNERS

    agents = [name for name in AGENTS if name not in LEARNERS]
    command = [sys.executable, "-c", GUARDED, *agents, "tests.test_headroom:Cheat"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *honest, cheat = map(json.loads, done.stdout.splitlines())
    assert [name for name, *_ in honest] == agents
    assert all(solved or "registry" not in error for _, error, solved in honest)
    assert {name for name, _, solved in honest if solved} >= CORE_AGENTS
    assert cheat == ["tests.test_headroom:Cheat", "PermissionError: the registry was opened", False]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
def test_workers_give_solvers_a_task_and_a_planner_and_nothing_else():
    nursery = Nursery(Rules())
    worker = Worker(Job("dlrm-10x4", "tests.odd_agents:Nosy", 0, ROOFLINE, ROOFLINE), nursery)
    try:
        worker.about()
        error = worker.solve(0).run.error
    finally:
        worker.kill()
        nursery.close()
    assert json.loads(error.removeprefix("RuntimeError: ")) == [["Task", "Counted"], [], False]
