import json

import numpy as np
import pytest

from benchmarks import sim_to_real
from benchmarks.sim_to_real import Outcome, figures, markdown, order, outcome
from shard_gym import simulators
from shard_gym.errors import CorruptFile
from shard_gym.measurements import Measurements


def two_runs() -> Outcome:
    """Two tasks, two solvers, two devices, by hand."""
    predicted = np.array([[10.0, 8.0], [10.0, 5.0]])
    first = [[[10, 8], [8, 6]], [[12, 2], [6, 4]]]
    second = [[[10, 12], [8, 10]], [[8, 2], [4, 6]]]
    return Outcome(
        "planner",
        ("random", "clever"),
        predicted,
        predicted / 2,
        np.full((2, 2, 2), 5.0),
        np.array([first, second], float),
    )


def test_makespans_by_hand():
    found = two_runs()
    assert found.runs.tolist() == [[[10, 8], [12, 6]], [[12, 10], [8, 6]]]
    assert found.measured.tolist() == [[10, 8], [10, 5]]  # the median of the runs first, then the slowest device
    # slowest by the second run: devices 1, 1, 0, 1, in the first run 8, 6, 12, 4; and the other way round
    assert found.crossed.tolist() == [[(8 + 10) / 2, (6 + 8) / 2], [(12 + 8) / 2, (4 + 4) / 2]]


def test_figures_by_hand():
    found = figures(two_runs())
    random, clever = found["rows"]
    assert random["optimism"] == clever["optimism"] == 0
    assert clever["optimism_by_run"] == pytest.approx([(0 + 0.2) / 2, (0.25 + 0.2) / 2])
    assert clever["predicted_speedup"] == clever["measured_speedup"] == (1.25 + 2) / 2
    assert clever["judge_optimism"] == 1 and clever["judged_speedup"] == (1.25 + 2) / 2
    assert found["shard_bias"] == pytest.approx((10 + 10 + 8 + 8 + 10 + 2 + 5 + 5) / 8 / 5 - 1)
    assert found["regret"] == 0 and found["order"]["all"] == 1
    assert "| clever | 6.50 | 6.50 | +0.0%" in "\n".join(markdown(found))


def test_regret_and_order_when_the_planner_is_wrong():
    found = two_runs()
    wrong = Outcome(found.planner, found.solvers, found.predicted[:, ::-1], found.judged, found.expected, found.devices)
    assert figures(wrong)["regret"] == pytest.approx((10 / 8 - 1 + 10 / 5 - 1) / 2)
    assert figures(wrong)["order"]["all"] == 0


def test_pairs_believed_close_are_told_apart():
    told = order(np.array([[1.0, 1.01, 2.0]]), np.array([[2.0, 1.0, 3.0]]))
    assert told == {"all": pytest.approx(2 / 3), "far": 1, "close": 0, "share_close": pytest.approx(1 / 3)}


def test_chosen_plans_find_their_measured_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(sim_to_real, "TASKS", 2)
    monkeypatch.setitem(sim_to_real.SOLVERS, "local-search, 1 s", ("local-search", {"budget": 0.01}))
    planner = simulators.make("roofline:h100-v1")
    chosen, shards = sim_to_real.choose(planner)
    (tmp_path / "plans.json").write_text(json.dumps(chosen))
    assert len(shards) <= 2 * 4 * 8 and np.isnan(shards.total_ms).all()
    columns = {c: getattr(shards, c) for c in ("offsets", "table", "dim", "pool", "kind", "round", "pools")}
    ms = np.arange(1, len(shards) + 1, dtype=float)
    measured = Measurements(
        **columns, **dict.fromkeys(("forward_ms", "backward_ms"), ms), forward_spread=ms, backward_spread=ms
    )
    measured.save(tmp_path / "run.npz")
    found = outcome(tmp_path / "plans.json", [tmp_path / "run.npz"] * 2, reference=tmp_path / "run.npz")
    assert found.predicted.shape == (2, 4) and (found.predicted[:, 2] < found.predicted[:, 0]).all()
    assert found.runs[0, 0, 0] == 2 * 8  # the first task's random plan holds the first eight shards of the list
    assert found.devices.max() == 2 * len(shards)


def test_another_file_is_no_file_of_plans(tmp_path):
    (tmp_path / "plans.json").write_text("{}")
    with pytest.raises(CorruptFile, match="chosen-plans"):
        outcome(tmp_path / "plans.json", [])
