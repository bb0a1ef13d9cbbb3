"""Plans of TorchRec's planner beside ours: runs that go on, what is kept, and the figures of the page by hand."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from benchmarks.torchrec_both import PERF, Both

from benchmarks import torchrec_plans, torchrec_runs
from benchmarks.drawn import drawn
from shard_gym import simulators
from shard_gym.errors import CorruptFile, ShardGymError
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import plan_latency
from shard_gym_agents import make
from tests.test_torchrec_planner_kinds import drawn_task

DEFAULT, COSTLIEST, TOTAL, DYNAMIC = torchrec_runs.WAYS
SIZE = torchrec_runs.Size(10, 4, 2, 0.05)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two tasks of ten tables in place of the forty, and folders of their own."""
    monkeypatch.setattr(torchrec_runs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(torchrec_runs, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(torchrec_runs, "SIZES", (SIZE,))
    monkeypatch.setattr(torchrec_plans, "SIZES", (SIZE,))
    monkeypatch.setattr(torchrec_runs, "tasks", lambda size: (drawn_task(0), drawn_task(1)))
    return tmp_path


def run(task, way, plan=None, why="", seconds=1.0):
    return torchrec_runs.Run(task.name, task.hash, way, seconds, None if plan is None else plan.to_dict(), why)


@pytest.mark.parametrize(("tables", "devices"), [(80, 8), (80, 16), (300, 16)])
def test_drawn_tasks_are_filled_and_have_tables_above_a_device(tables, devices):
    for seed in range(3):
        task = drawn(seed, tables, devices)
        size = table_bytes(task)
        large = np.sort(size)[::-1][: max(2, tables // 80)] / task.memory[0]
        assert 0.59 < size.sum() / task.capacity.sum() < 0.91
        assert (large > 1.19).all() and (large < 4.41).all()
        assert task.hash == drawn(seed, tables, devices).hash
        assert task.devices_per_host == 8 and ("twrw" in task.kinds) == (devices > 8)


def test_the_forty_tasks_are_fourteen_twelve_ten_and_four():
    names = [task.name for _, task in torchrec_runs.every()]
    assert len(set(names)) == 40
    counts = [
        sum(name.startswith(f"drawn-{size}-") for name in names) for size in ("80x8", "80x16", "300x16", "856x80")
    ]
    assert counts == [14, 12, 10, 4]


def test_runs_go_on_where_they_stopped(small, monkeypatch):
    first, second = torchrec_runs.tasks(SIZE)
    asked = []

    def theirs(task, way):
        asked.append((task.name, way))
        return run(task, way, why="InfeasibleTask: no room")

    monkeypatch.setattr(torchrec_runs, "theirs", theirs)
    torchrec_runs.ledger.append(small / "runs" / "theirs.jsonl", asdict(run(first, DEFAULT)))
    torchrec_runs.run_theirs()
    assert asked == [(first.name, way) for way in (COSTLIEST, TOTAL, DYNAMIC)] + [
        (second.name, way) for way in torchrec_runs.WAYS
    ]
    kept = torchrec_runs.kept("theirs")
    assert len(kept) == 8 and kept[first.name, DEFAULT].why == ""
    (small / "runs" / "theirs.jsonl").unlink()  # what is kept beside the page is not run again, either
    torchrec_runs.run_theirs()
    assert len(asked) == 7 and torchrec_runs.kept("theirs") == kept


def test_plans_for_other_tasks_are_refused(small):
    task = torchrec_runs.tasks(SIZE)[0]
    torchrec_runs.pack("ours", [replace(run(task, "estimate"), hash="0")])
    with pytest.raises(CorruptFile, match="drawn 0, of hash 0: were tasks drawn otherwise"):
        torchrec_runs.kept("ours")


def test_equal_runs_give_equal_files(small):
    task = torchrec_runs.tasks(SIZE)[0]
    files = []
    for _ in range(2):
        torchrec_runs.pack("ours", [run(task, "estimate")])
        files.append((small / "kept" / "ours.jsonl.gz").read_bytes())
    assert files[0] == files[1] and torchrec_runs.kept("ours")[task.name, "estimate"] == run(task, "estimate")


def test_both_is_a_roofline_and_a_share_of_the_estimate_and_its_bound_is_one():
    task, roofline = drawn_task(0), simulators.make("roofline:h100-v2")
    both = Both(roofline, 0.5)
    plan = make("cost-greedy")(task, both)
    parts = [plan_latency(one, task, plan).cost("iteration") for one in (roofline, PERF)]
    assert score(task, plan, both).makespan == pytest.approx((parts[0] + 0.5 * parts[1]).max(), rel=1e-9)
    assert torchrec_plans.lower_bound(task, both) <= score(task, plan, both).makespan


def judged(**ms):
    """Two tasks on two hosts, of bound 1 and 2 ms; by the other measures plans take twice and three times as long."""
    ways = [*torchrec_runs.WAYS, *torchrec_runs.AIMS]
    table = {way: np.outer(ms.get(way, ms["others"]), [1.0, 2.0, 3.0]) for way in ways}
    seconds = {way: np.array([1.0, 3.0]) for way in ways}
    return torchrec_plans.Judged(torchrec_runs.Size(10, 16, 2, 1.0), np.array([1.0, 2.0]), table, seconds)


def test_rows_by_hand():
    none = [np.nan, np.nan]
    found = judged(**{DEFAULT: [2.0, np.nan], COSTLIEST: [1.6, 4.0], TOTAL: none, DYNAMIC: none, "others": [1.2, 2.0]})
    rows = {row[0]: row[1:] for row in found.rows()}
    assert rows["TorchRec's default"] == ["1 of 2", "2.00", "100.00%", "100.00%", "0.0%", "-25.0%", "-25.0%"]
    assert rows["best of TorchRec's"] == ["2 of 2", "8.00", "80.00%", "100.00%", "20.0%", "0.0%", "0.0%"]
    assert rows["ours, by the estimate"] == ["2 of 2", "2.00", "10.00%", "20.00%", "40.0%", "37.5%", "25.0%"]
    by_measure = {row[0]: row[1:] for row in found.judged()}
    assert by_measure["ours, by the roofline"] == ["-37.5%"] * 4
    assert by_measure["best of TorchRec's"] == ["+0.0%"] * 4
    assert by_measure["TorchRec's default"] == ["+25.0%"] * 4


def test_targets_by_hand():
    worse = judged(**{DEFAULT: [1.0, 2.0], "others": [1.0, 2.0], "estimate": [1.1, 2.0]})
    assert [check.passed for check in torchrec_plans.checks([worse])][:4] == [True, True, False, True]
    assert torchrec_plans.checks([worse])[2].reached == "1 of 2, by 10.00% at most"
    assert torchrec_plans.checks([worse])[-1] == torchrec_plans.Check(
        "below TorchRec's best, 10x16 on two hosts, mean: 10 %", "-5.0%", False
    )
    lacking = judged(**{"others": [1.0, 2.0], "both": [1.0, np.nan]})
    assert [check.passed for check in torchrec_plans.checks([lacking])][:4] == [True, False, True, True]
    lacking.seconds[DYNAMIC][1] = np.nan
    assert torchrec_plans.checks([lacking])[0].reached == "1 of 2"


def test_plans_are_found_kept_judged_and_checked(small, capsys):
    """Ours for two small tasks, and TorchRec's, from the runs to the page."""
    pytest.importorskip("torchrec")
    out = ["--out", str(small)]
    assert torchrec_plans.main([*out, "--theirs", "--ours"]) == 0
    page = (small / "torchrec_plans.md").read_text()
    assert "## 10x4" in page and "| ours, by the estimate | 2 of 2 |" in page
    capsys.readouterr()
    torchrec_plans.main([*out, "--check"])
    told = capsys.readouterr().out
    assert "passed: plans that we lack: 0" in told and "passed: the page is as written" in told
    (small / "torchrec_plans.md").write_text(page.replace("estimate | 2 of 2 |", "estimate | 1 of 2 |"))
    assert torchrec_plans.main([*out, "--check"]) == 1
    assert "MISSED: the page does not say what the plans do" in capsys.readouterr().out


def test_a_plan_that_does_not_fit_is_refused(small):
    task = torchrec_runs.tasks(SIZE)[0]
    with pytest.raises(ShardGymError, match="the plan of estimate for drawn 0 does not fit"):
        torchrec_plans.judge(SIZE, {}, {(task.name, "estimate"): run(task, "estimate", Plan((0,) * 10))})


@pytest.mark.slow
def test_the_page_says_what_the_plans_do():
    found = torchrec_plans.page(torchrec_plans.replayed())
    assert found == (torchrec_plans.pages.RESULTS / "torchrec_plans.md").read_text()
    assert "nan" not in found
