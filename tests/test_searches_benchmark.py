import json

import pytest
from benchmarks.searches import gap, grouped
from benchmarks.searches import page as markdown

from benchmarks import scaling, searches


def test_a_quick_run_measures_and_goes_on_where_it_broke_off(tmp_path, monkeypatch):
    pytest.importorskip("highspy")
    arguments = ["--quick", "--out", str(tmp_path), "--section", "random_search,feasibility"]
    assert searches.main(arguments) == 0
    kept = json.loads((tmp_path / "searches.json").read_text())
    assert set(kept["sections"]) == {"random_search", "feasibility"}
    assert all(row["seconds"] > 0 for row in kept["sections"]["random_search"]["rows"])
    assert kept["sections"]["feasibility"]["rows"][0]["verdict"] is True
    page = (tmp_path / "searches.md").read_text()
    assert "a plan exists: 1 of 1 tasks" in page and "TightMix-80x8 | 1 |" in page

    broken = searches.SECTIONS["random_search"]._replace(jobs=lambda effort: 1 / 0)
    monkeypatch.setitem(searches.SECTIONS, "random_search", broken)
    assert searches.main(arguments) == 0  # what is kept is not measured again
    with pytest.raises(ZeroDivisionError):
        searches.main([*arguments, "--again"])


def test_auto_is_timed_until_its_plan_is_as_good():
    row = searches._race("mixed-10to59x4", 0, 1)
    assert row["auto_seconds"] is None or row["auto_seconds"] > 0
    assert row["makespan"] > 0 and row["neuroshard_seconds"] > 0


def test_unknown_sections_are_told(capsys):
    with pytest.raises(SystemExit):
        searches.main(["--section", "gap"])
    assert "no section gap; there are gaps, neuroshard" in capsys.readouterr().err


ROW = {"suite": "core-80x8", "budget": 1.0, "sure": 1.0, "reference": "kept", "seconds": 1.0, "cpu": 0.9}


def test_gaps_are_to_the_best_known_and_count_plans_that_are_missing():
    rows = [ROW | {"makespan": m, "best": 10.0} for m in (10.1, 10.3, None)]
    assert gap(rows) == pytest.approx([0.01, 0.03])
    kept = {"command": "x", "sections": {"gaps": {"commit": "c", "rows": rows}}}
    assert "| Core-80x8 | 1 s | 1.000 s | 90% | 3 | 2.000% | 0.2% | 3.00% | 67% |" in markdown(kept)
    assert [key for key, _ in grouped([{"a": 2}, {"a": 1}, {"a": 2}], "a")] == [(2,), (1,)]


def test_gains_of_splits_are_over_whole_tables():
    row = {"suite": "mixed-10to59x4-split", "task": 3, "binds": True, "bound": 10.0, "unsplit": 10.0, "split": 8.0}
    row["split_bound"] = 7.0
    rows = [row, {"suite": row["suite"], "task": 4, "binds": False}]
    page = markdown({"command": "x", "sections": {"splits": {"commit": "c", "rows": rows}}})
    assert "| Mixed-10to59x4-Split | 2 | 1 | 20.0% | 30.0% | 20.0% | 1 of 1 |" in page
    assert "| mixed-10to59x4-split/test/3 | 10.000 | 10.000 | 8.000 | 7.000 | 20.0% | 30.0% |" in page


def test_scaling_writes_a_row_a_size_and_tells_what_failed(tmp_path, capfd):
    assert scaling.main(["--sizes", "20x2,40x4,0x2", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "scaling.md").read_text()
    assert "| 20x2 |" in page and "| 40x4 |" in page and "seconds: tables to the power of" in page
    assert "0x2: " in capfd.readouterr().err
    assert scaling.exponent([10, 100], [2, 200]) == pytest.approx(2)
