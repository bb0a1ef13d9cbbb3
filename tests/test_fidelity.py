"""The fidelity report: its figures by hand, and what is kept of fits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fidelity import Fits, fits

from benchmarks import RESULTS, decisions, fidelity, pace
from benchmarks.measured import Hardware
from shard_gym import simulators, suites
from shard_gym.errors import ShardGymError
from shard_gym.measuring.measurements import MIN_SHARED, merged
from shard_gym.measuring.predictors import Predicted, Row, baselines, by_simulator, by_size, row, shards_of
from tests.cost_model_helpers import made_up


@pytest.fixture(scope="module")
def data():
    return made_up(80), made_up(60, seed=1, pool="metasyn_3_856")


@pytest.fixture
def kept(data, tmp_path):
    """Fits that predict a tenth too much, all of them."""
    train, unseen = data
    found = Fits(train, unseen, tmp_path / "fits.npz")
    ms = 1.1 * shards_of(unseen).times.sum(axis=1)
    found.known = {
        f"{name}/{kind}": ms if kind != "spread" else 0.1 * ms for name, _ in fits() for kind in ("ms", "spread")
    }
    found.known["ours-0/alone"] = 2 * ms
    found._save()
    return found


def test_the_report_by_hand(kept, data, tmp_path):
    found, shown, _ = fidelity.report(Fits(*data, kept.path), {"median_relative_difference": 0.05})
    rows = {r.name: r for r in found["rows"]}
    assert rows["ours"].figures["mape"] == pytest.approx(0.1) and rows["ours"].figures["bias"] == pytest.approx(0.1)
    assert rows["ours"].figures["spearman"] == 1 and rows["ours"].deviations["mape"] == 0
    assert rows["sum of single-table costs (ours)"].figures["bias"] == pytest.approx(1.2)
    assert baselines(*map(shards_of, data)).keys() < rows.keys() == shown.keys()
    assert [r.name for r in found["ablation"]][:2] == ["all features", "without dim"]
    assert json.dumps(found, default=vars)


def test_fits_of_other_data_are_not_used(kept, data):
    again = Fits(data[0].take(np.arange(70)), data[1], kept.path)
    with pytest.raises(ShardGymError, match=r"benchmarks\.fidelity --fit"):
        again.predicted("ours-0")


def test_errors_against_the_number_of_tables(data):
    shards = shards_of(data[1])
    tables = np.bincount(shards.shard)
    wrong = np.where(tables == 1, 1.5, 1.0) * shards.times.sum(axis=1)
    found = by_size({"wrong": Predicted(wrong)}, shards)["wrong"]
    assert found["1"]["mape"] == pytest.approx(0.5) and found["2-3"]["mape"] == 0
    assert sum(cell["shards"] for cell in found.values()) == len(shards)


def test_several_fits_make_one_row_with_deviations(data):
    shards = shards_of(data[1])
    ms = shards.times.sum(axis=1)
    told = row("net", [Predicted(ms), Predicted(1.2 * ms)], shards)
    assert told.figures["bias"] == pytest.approx(0.1) and told.deviations["bias"] == pytest.approx(0.1)
    assert told.cell("bias", "+.1%") == "+10.0% ± 10.0%" and Row("x", {}, {}).cell("coverage", ".1%") == ""


def test_decisions_are_looked_at_by_the_judge():
    tasks = suites.get("dlrm-10x4").tasks("test")[:3]
    planner, judge = (simulators.make(f"roofline:{name}-v1") for name in ("h100", "rtx2080ti-x4"))
    efforts = (("lookup-greedy", None), ("local-search", 0.02))
    greedy, search = decisions.decide(tasks, planner, judge, efforts, best_seconds=0.05)
    assert greedy.tasks == 3 and search.label == "local-search, 0.02 s"
    assert greedy.regret >= 0 and search.regret >= 0
    assert search.optimism > 1  # the judge's GPU is that much slower
    same = decisions.decide(tasks, judge, judge, efforts, best_seconds=0.05)
    assert [d.optimism for d in same] == [0, 0] and same[1].regret < 0.05


def test_the_committed_page_is_made_of_committed_data():
    """Every file has a pace, no test or judge table was seen by the planner, and the predictions belong to the data."""
    cpu = Hardware()
    roles = {role: cpu.load(role) for role in ("planner", "judge", "test")}
    pools = {role: set(m.pools) for role, m in roles.items()}
    assert not pools["planner"] & (pools["judge"] | pools["test"]) and not pools["judge"] & pools["test"]
    fits = Fits(roles["planner"], merged(roles["test"]), RESULTS / "fidelity.npz")
    shipped = by_simulator(simulators.make("learned:cpu-v1"))(shards_of(fits.unseen))
    assert fits.predicted("ours-0").ms == pytest.approx(shipped.ms, rel=1e-6)  # the planner is the first of our fits
    assert fidelity.main(["--json"]) == 0
    page = (RESULTS / "fidelity.md").read_text()
    assert page.startswith("# How true") and "From predicted to measured plans" in page


def test_some_shards_of_a_campaign_are_measured_again(data):
    picked = pace.some(data[0], MIN_SHARED)
    assert len(picked) == MIN_SHARED and np.isnan(picked.total_ms).all()
    assert {picked.key(i) for i in range(MIN_SHARED)} <= {data[0].key(i) for i in range(80)}


def test_growth_with_the_batch_by_hand(data):
    small, large = data[0], replace(data[0], forward_ms=1.5 * data[0].forward_ms, backward_ms=1.5 * data[0].backward_ms)
    (found,) = fidelity.growth({1024: small, 2048: large})
    assert (found["batch"], found["of"], found["shards"]) == (2048, 1024, 80)
    assert found["ratio"] == pytest.approx(1.5) and found["spearman"] == pytest.approx(1)
    assert "| 2,048 against 1,024 | 80 | 1.50 (1.50 .. 1.50) | 1.0000 |" in fidelity.batch_section([found])
