from dataclasses import replace

import numpy as np
import pytest

from benchmarks import sim_to_real
from benchmarks.measured import Hardware
from shard_gym import simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, SimulatorError
from shard_gym.measuring import chosen
from shard_gym.measuring.chosen import Outcome, Pick, figures, order, section
from shard_gym.measuring.measurements import Measurements
from shard_gym.plan.plan import Plan
from shard_gym_agents import make


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
    assert "| clever | 6.50 | 6.50 | +0.0%" in "\n".join(section(found))


def test_regret_and_order_when_the_planner_is_wrong():
    found = two_runs()
    wrong = Outcome(found.planner, found.solvers, found.predicted[:, ::-1], found.judged, found.expected, found.devices)
    assert figures(wrong)["regret"] == pytest.approx((10 / 8 - 1 + 10 / 5 - 1) / 2)
    assert figures(wrong)["order"]["all"] == 0


def test_pairs_believed_close_are_told_apart():
    told = order(np.array([[1.0, 1.01, 2.0]]), np.array([[2.0, 1.0, 3.0]]))
    assert told.pop("apart") == pytest.approx([1 - 1 / 1.01, 0.495, 0.5])
    assert told == {"all": pytest.approx(2 / 3), "far": 1, "close": 0, "share_close": pytest.approx(1 / 3)}


@pytest.fixture
def measured(tmp_path):
    """Plans of two tasks, and their shards as a run that takes 1, 2, 3, ... ms each way."""
    planner = simulators.make("roofline:h100-v1")
    solvers = {name: make(name) for name in ("random", "lookup-greedy", "cost-greedy")}
    plans, shards = chosen.choose(planner, solvers, [Pick(chosen.SUITE, 0, 2)])
    assert len(shards) <= 2 * 3 * 8 and np.isnan(shards.total_ms).all()
    ms = np.arange(1, len(shards) + 1, dtype=float)
    times = dict.fromkeys(("forward_ms", "backward_ms", "forward_spread", "backward_spread"), ms)
    chosen.save(tmp_path / "here-plans.json", plans)
    replace(shards, **times).save(tmp_path / "here-plans.npz")
    return planner, Hardware("here", tmp_path)


def test_chosen_plans_find_their_measured_shards(measured):
    planner, hardware = measured
    (run,) = hardware.runs()
    found = chosen.outcome(chosen.load(hardware.plans), [run] * 2, planner)
    assert found.predicted.shape == (2, 3) and (found.predicted[:, 2] < found.predicted[:, 0]).all()
    assert found.runs[0, 0, 0] == 2 * 8  # the first task's random plan holds the first eight shards of the list
    assert found.devices.max() == 2 * len(run) and np.isnan(found.judged).all()
    assert "|  |" in "\n".join(section(figures(found)))  # no judge
    judged = chosen.outcome(chosen.load(hardware.plans), [run] * 2, planner, planner)
    assert judged.judged == pytest.approx(judged.predicted)


def test_tasks_that_were_not_measured_to_the_end_are_left_out(measured):
    planner, hardware = measured
    (run,) = hardware.runs()
    plans = chosen.load(hardware.plans)
    found = chosen.outcome(plans, [run, run.take(np.arange(len(run) - 1))], planner)
    assert found.predicted.shape == (1, 3)
    with pytest.raises(SimulatorError, match="no task has all its shards measured"):
        chosen.outcome(plans, [run.take([0])], planner)
    with pytest.raises(SimulatorError, match="chosen with roofline:h100-v1, not with roofline:h200-v1"):
        chosen.outcome(plans, [run], simulators.make("roofline:h200-v1"))


def test_passes_over_a_list_are_told_apart(measured):
    _, hardware = measured
    (run,) = hardware.runs()
    both = Measurements.concat([run, run])
    assert [len(part) for part in chosen.passes(both)] == [len(run)] * 2


def test_hardware_reads_and_writes_its_own_files_only(measured, monkeypatch, tmp_path):
    _, hardware = measured
    assert hardware.files("plans") == [tmp_path / "here-plans.npz"] and hardware.files("planner") == []
    assert Hardware("h200").planner == "learned:h200-v1" and Hardware().result("fidelity").name == "fidelity"
    assert Hardware("h200").result("fidelity").name == "fidelity-h200"
    monkeypatch.setattr(Hardware, "fresh", property(lambda self: tmp_path / f"{self.name}-fresh.json"))
    monkeypatch.setattr(sim_to_real, "PICKS", (Pick(chosen.SUITE, 0, 1),))
    monkeypatch.setattr(sim_to_real, "solvers_of", lambda *_: {"random": make("random")})
    assert sim_to_real.main(["choose", "--hardware", "h200", "--planner", "roofline:h200-v1"]) == 0
    assert sim_to_real.main(["list", "--hardware", "h200", "--shards", str(tmp_path / "list.npz")]) == 0
    assert len(Measurements.load(tmp_path / "list.npz")) == 8  # devices of one random plan
    assert {path.name for path in tmp_path.iterdir()} == {
        "here-plans.json",
        "here-plans.npz",
        "h200-fresh.json",
        "list.npz",
    }


def test_another_file_is_no_file_of_plans(tmp_path):
    (tmp_path / "plans.json").write_text("{}")
    with pytest.raises(CorruptFile, match="chosen-plans"):
        chosen.load(tmp_path / "plans.json")


def infeasible(task, planner):
    """A solver that finds no plan."""
    raise InfeasibleTask("3 bytes too few")


def test_plans_that_split_tables_and_solvers_without_a_plan_are_kept(tmp_path, monkeypatch):
    """The pieces of a table are shards of their columns; who has no plan counts as infinite, and stops nobody."""
    task = replace(suites.get("mixed-10to59x4").tasks("test")[0], objective="kernel")
    task = replace(task, tables=task.tables.take([0, 1, 2]).with_(dim=[64, 4, 4]), memory=(2**50,) * 4)
    monkeypatch.setattr(chosen, "task_of", lambda suite, number: task)
    halved = Plan((0, 1, 2, 3), splits=(0,))
    planner, solvers = simulators.make("roofline:h100-v1"), {"halved": lambda *_: halved, "none": infeasible}
    plans, shards = chosen.choose(planner, solvers, [Pick("mixed-10to59x4", 0, 1)])
    chosen.save(tmp_path / "plans.json", plans)
    plans = chosen.load(tmp_path / "plans.json")
    assert plans["plans"][0]["splits"] == [0] and plans["plans"][1]["predicted"] is None
    assert sorted(shards.dim.tolist()) == [4, 4, 32]  # both halves are one shard: nobody measures it twice
    times = dict.fromkeys(("forward_ms", "backward_ms"), np.full(len(shards), 2.0))
    found = chosen.outcome(plans, [replace(shards, **times)] * 3, planner, planner, "mixed-10to59x4")
    assert chosen.again(plans, planner) == plans
    assert found.measured.tolist() == [[4.0, np.inf]] and found.judged[0, 0] == pytest.approx(found.predicted[0, 0])


def test_gains_over_ladder_by_hand():
    """Two tasks that both plan: 10 % less is measured where 20 % was predicted; the third one only it plans."""
    predicted = np.array([[10.0, 8.0], [20.0, 16.0], [np.inf, 5.0]])
    devices = np.stack([np.array([[10.0, 9.0], [20.0, 18.0], [np.inf, 5.0]])[..., None]] * 3)
    spread = np.zeros((3, 2, 1))
    found = Outcome("p", ("ladder", "search"), predicted, predicted, predicted[..., None], devices, spread)
    (gain,) = sim_to_real.gains(found)
    assert (gain.predicted, gain.measured) == (pytest.approx(0.2), pytest.approx(0.1)) and gain.planned == 3
    assert gain.low == gain.high == pytest.approx(0.1)
    assert gain.compared == 2 and gain.optimism == pytest.approx(9 / 8 - 1)
    page = sim_to_real.page("p", "j", {"s": found})
    assert "| search | 3 of 3 | 2 | +20.0% | +20.0% | +10.0% | +10.0% .. +10.0% |" in page
    assert "search, measured +10.0% (+10.0% .. +10.0%): better, by at least 3%." in page


def test_no_search_is_called_better_within_its_interval():
    """One task 10 % faster, one 10 % slower than ladder's."""
    predicted = np.array([[10.0, 8.0], [10.0, 8.0]])
    devices = np.stack([np.array([[10.0, 9.0], [10.0, 11.0]])[..., None]] * 3)
    found = Outcome("p", ("ladder", "s"), predicted, predicted, predicted[..., None], devices, np.zeros((2, 2, 1)))
    assert sim_to_real.verdict(found).startswith("No method is measured to beat ladder: s comes nearest, +0.5%")
