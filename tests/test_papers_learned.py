import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch
from benchmarks.policies import MissingRun, Scored, Wanted, finished, scored, train_all

from benchmarks import controls, learners, papers, papers_autoshard, policies, published
from benchmarks.pages import spread
from shard_gym import simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask, UnknownName
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from shard_gym_agents.learners import dreamshard
from tests.learner_helpers import one_thread  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (("horizon", 2), ("cost_updates", 5), ("policy_updates", 2))
WANTED = Wanted("dreamshard", "dlrm-10x4", 0, 2, SMALL)


@pytest.fixture
def iterations(monkeypatch):
    """Number of iterations that DreamShard was asked for."""
    asked, iterate = [], dreamshard.Learner.iterate
    monkeypatch.setattr(dreamshard.Learner, "iterate", lambda self: asked.append(1) or iterate(self))
    return asked


def test_what_is_trained_is_not_trained_again(tmp_path, iterations):
    first = train_all([WANTED, WANTED], tmp_path)[WANTED]
    assert len(iterations) == first.spent["iteration"] == 2
    written = (first.folder / "checkpoint.safetensors").stat().st_mtime_ns
    assert train_all([WANTED], tmp_path)[WANTED].spent == first.spent and len(iterations) == 2
    assert (first.folder / "checkpoint.safetensors").stat().st_mtime_ns == written
    task = suites.get("dlrm-10x4").tasks("test")[0]
    assert score(task, first.policy()(task, None), simulators.make("roofline:rtx2080ti-x4-v1")).feasible


def test_a_training_that_broke_off_goes_on(tmp_path, monkeypatch, iterations):
    iterate = dreamshard.Learner.iterate
    with monkeypatch.context() as patch:
        patch.setattr(dreamshard.Learner, "iterate", lambda self: interrupt() if iterations else iterate(self))
        with pytest.raises(KeyboardInterrupt):
            train_all([WANTED], tmp_path)
    assert train_all([WANTED], tmp_path)[WANTED].spent["iteration"] == 2
    assert len(iterations) == 2


def interrupt():
    raise KeyboardInterrupt


def test_runs_of_other_settings_have_other_folders(tmp_path):
    seeds = [Wanted("autoshard", "metasyn-80x8", seed, 5) for seed in (0, 1)]
    others = [Wanted("autoshard", "metasyn-80x8", 0, n, options) for n, options in ((6, ()), (5, (("drop", "dim"),)))]
    assert len({one.folder(tmp_path) for one in (*seeds, *others)}) == 4


def test_unknown_learners_options_and_counts_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="learner"):
        train_all([Wanted("autoshrad", "dlrm-10x4", 0, 1)], tmp_path)
    with pytest.raises(UnknownName, match="option of dreamshard 'drpo'"):
        train_all([Wanted("dreamshard", "dlrm-10x4", 0, 1, (("drpo", "dim"),))], tmp_path)
    with pytest.raises(InvalidTask, match="1 or more"):
        train_all([Wanted("dreamshard", "dlrm-10x4", 0, 0)], tmp_path)
    with pytest.raises(MissingRun, match="shard-gym train autoshard --suite metasyn-80x8 --seed 3"):
        finished(tmp_path, "autoshard", "metasyn-80x8", 3)


def small_page(tmp_path, *arguments):
    given = [*arguments, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path), "--tasks", "2", "--iterations", "1"]
    return papers.main(given)


def test_a_section_is_measured_shown_and_shown_again(tmp_path, monkeypatch):
    monkeypatch.setattr(dreamshard.Config, "__init__", quick(dreamshard.Config.__init__))
    assert small_page(tmp_path, "table-7", "--sizes", "10") == 0
    assert small_page(tmp_path, "table-9", "--sizes", "10") == 0
    page, kept = (tmp_path / "papers_dreamshard.md").read_text(), (tmp_path / "papers_dreamshard.json").read_text()
    rows = json.loads(kept)["sections"]["table-7"]["found"]["rows"]
    suite = suites.get("dlrm-10x2")
    lookup = scored(make("lookup-greedy"), suite, limit=2)
    assert rows["dlrm-10x2 test"][3] == lookup.makespan.mean()
    assert rows["dlrm-10x2 test"][0] == suite.random_makespans("test")[:2].mean()
    assert "13.9 (+18.7%)" in page and f"{lookup.makespan.mean():.1f}" in page  # published, ours
    assert "roofline:rtx2080ti-x4-v1" in page and "Table 9" in page and "14.1" in page
    (tmp_path / "papers_dreamshard.md").unlink()
    monkeypatch.setattr(policies, "train_all", interrupt)
    assert papers.main(["--page", "table-7", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "papers_dreamshard.md").read_text() == page


def quick(init):
    return lambda self, **options: init(self, **{**dict(SMALL), **options})


def test_a_command_that_makes_no_sense_says_what_to_do(tmp_path, capsys):
    assert small_page(tmp_path, "figure-7") == 2
    assert "figure-8" in capsys.readouterr().err
    assert papers.main(["figure-8", "--runs", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert f"shard-gym train autoshard --suite metasyn-80x8 --seed 0 --out {tmp_path}" in capsys.readouterr().err
    (tmp_path / "papers_dreamshard.json").write_text('{"schema": "other"}')
    assert papers.main(["--page", "table-6", "--out", str(tmp_path)]) == 2
    assert "papers_dreamshard" in capsys.readouterr().err
    assert learners.main(["--page", "--out", str(tmp_path)]) == controls.main(["--page", "--out", str(tmp_path)]) == 2


def test_random_search_gets_better_by_its_own_measure(monkeypatch):
    simulator = simulators.make("learned:cpu-v1")
    monkeypatch.setattr(papers_autoshard.simulators, "make", lambda _: simulator)  # the planner judges
    monkeypatch.setattr(papers_autoshard, "COUNTS", (1, 10, 100))
    found = papers_autoshard._random_searches(policies.Lab(tasks=2), 0)
    assert found["balance"] == sorted(found["balance"]) and found["balance"][0] < found["balance"][-1] < 1
    assert found["seconds"] == sorted(found["seconds"])


def test_the_curve_counts_plans_and_calls(tmp_path):
    lines = [
        {"iteration": i, "simulator_calls": 10, **({"val/balance": b} if b else {})} for i, b in ((1, 0), (2, 0.7))
    ]
    lines += [{"iteration": 3, "simulator_calls": 10, "val/balance": 0.9}]
    (tmp_path / "scalars.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spent = {"iteration": 4, "seconds": 8.0}
    run = policies.TrainedRun("autoshard", tmp_path, {"config": {"num_envs": 64}}, spent)
    found = papers_autoshard.curve(run)
    assert found["plans"] == [128, 192] and found["simulator_calls"] == [20, 30] and found["seconds"] == [4.0, 6.0]
    assert papers_autoshard.first_good(found) == (192, 6.0)
    assert papers_autoshard.first_good({**found, "balance": [0.1, 0.8]}) is None


def test_the_autoshard_page_shows_and_draws_what_was_kept(tmp_path):
    pytest.importorskip("matplotlib")
    spent = {"seeds": 2, "iterations": 7, "training_minutes": 1.5, "command": "train me"}
    row = {"balance": [0.8, 0.9], "speedup": [1.5, 1.7], "ratio": [1.0, 1.1], "feasible": [1.0, 0.5]}
    greedy = {name: [1.25] for name in row}
    curve = {"balance": [0.7, 0.9], "plans": [64, 128], "simulator_calls": [9, 18], "seconds": [2.0, 4.0]}
    times = {name: {"metasyn-80x8": 0.005, "metasyn-160x16": 0.01} for name in ("autoshard", "cost-greedy")}
    rows = {"lookup-greedy": greedy, "cost-greedy": greedy, "autoshard": row}
    found = {
        "figure-8": {"rows": rows},
        "figure-9": {"samples": [1, 10], **{name: [[1.0, 2.0]] * 2 for name in (*row, "seconds")}, "rows": rows},
        "table-2": {"rows": rows},
        "figure-10": {"ratios": {"0": rows, "20": rows}},
        "figure-11": {"sizes": {"metasyn-80x8": rows}, "bound": {"metasyn-80x8": 0.25}},
        "figure-12": {"curves": [curve], "times": times},
    }
    about = {"command": "run me", "commit": None, "tasks": None, "minutes": 1.0}
    sections = {key: {**about, "found": {**one, "spent": spent}} for key, one in found.items()}
    kept = json.dumps({"schema": "shard-gym/papers/1", "sections": sections})
    (tmp_path / "papers_autoshard.json").write_text(kept)
    assert papers.main(["--page", "--out", str(tmp_path), "figure-8"]) == 0
    page = (tmp_path / "papers_autoshard.md").read_text()
    assert "| autoshard (25% infeasible) | 0.850 ± 0.071 | 1.600 ± 0.141 | 1.050 ± 0.071 | 0.886 ± 0.012 |" in page
    assert "learned:cpu-judge-v1" in page and "training seeds: 2, iterations: at most 7" in page and "`run me`" in page
    assert "`train me`" in page
    assert "after 128 plans and 4 s" in page and "| metasyn-80x8 | 5.0 | 5.0 | 91 |" in page
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == sorted(f"papers_autoshard_figure-{n}.png" for n in (8, 9, 10, 11, 12))


def test_published_tables_agree_where_they_say_the_same():
    tables_6_7, table_11 = published.DREAMSHARD_TABLES_6_7, published.DREAMSHARD_TABLE_11
    ours = {key: row[-1] for key, row in tables_6_7.items()}
    for (tables, devices, split), ms in ours.items():
        if devices == 4:
            assert table_11[tables, split][-1] == ms
    for name, targets in published.TARGETS.items():
        printed = published.DREAMSHARD_TRANSFER[name]
        assert all(len(row) == len(targets) for row in printed.values())
        for (tables, devices), ms in zip(targets, printed["own"], strict=True):
            assert ms == (table_11[tables, "test"][-1] if devices == 4 else ours[tables, devices, "test"])
    assert all(len(row) == len(published.STRATEGIES) and row[-1] < row[0] for row in tables_6_7.values())
    assert all(len(row) == len(published.ABLATED) for row in table_11.values())


SCORED = Scored(np.array([2.0, np.nan]), np.array([0.5, np.nan]), np.array([0.1, 0.3]), np.array([4.0, 6.0]))


def test_an_infeasible_task_counts_as_a_random_plan():
    assert SCORED.feasible == 0.5 and SCORED.mean_balance == 0.25 and SCORED.plan_seconds == 0.2
    assert SCORED.speedup == (2 + 1) / 2 and SCORED.gap(np.array([2.0, 3.0])) == (0 + 1) / 2
    whole = Scored(np.array([1.0, 3.0]), np.ones(2), np.ones(2), SCORED.random)
    assert SCORED.ratio(whole) == (2 + 2) / 2 and learners.both_feasible(SCORED, whole) == 2.0
    assert learners.both_feasible(SCORED, Scored(np.full(2, np.nan), *[np.ones(2)] * 3)) is None
    assert spread([1.0, 3.0], "+.1f") == "+2.0 ± 1.4" and spread([2.0], ".1f") == "2.0"


def test_a_learner_beats_cost_greedy_only_with_as_many_feasible_tasks():
    greedy = {"gap": [0.2], "feasible": [0.9]}
    assert learners.verdict({"gap": [0.1, 0.25], "feasible": [1.0, 0.8], "seeds": 2}, greedy) == "yes (1 of 2 seeds)"
    assert learners.verdict({"gap": [0.1], "feasible": [0.8], "seeds": 1}, greedy).startswith("no")
    assert learners.verdict({"gap": [0.2], "feasible": [0.9], "seeds": 1}, greedy) == "no, as good"
    assert learners.verdict({"gap": [0.3], "feasible": [1.0], "seeds": 1}, greedy).startswith("no")


def test_learners_and_controls_show_what_runs_there_are(tmp_path):
    folder = tmp_path / "dreamshard" / "dlrm-10x4-0"
    train_all([WANTED], tmp_path)
    WANTED.folder(tmp_path).rename(tmp_path / "run")
    folder.parent.mkdir()
    (tmp_path / "run").rename(folder)
    given = ["--runs", str(tmp_path), "--out", str(tmp_path), "--suite", "dlrm-10x4", "--tasks", "2"]
    assert learners.main(given) == controls.main([*given, "--budget", "0.01"]) == 0
    page = (tmp_path / "learners.md").read_text()
    assert "| dreamshard | blind | 1 |" in page and "No runs here: autoshard" in page
    row = json.loads((tmp_path / "learners.json").read_text())["suites"]["dlrm-10x4"]["dreamshard"]
    assert row["training"]["iteration"] == 2 and row["gap"][0] >= 0
    assert "| dreamshard | argmin of its costs |" in (tmp_path / "controls.md").read_text()


TASKS = suites.get("dlrm-20x4").tasks("test")


def test_the_argmin_in_order_of_cost_is_cost_greedy():
    planner = simulators.make("roofline:rtx2080ti-x4-v1")
    for task in TASKS[:5]:
        assert controls.Argmin((0.0,))(task, planner) == make("cost-greedy")(task, planner)
        assert controls.Argmin((np.inf,))(task, planner) != make("cost-greedy")(task, planner)


def test_the_argmin_leans_to_size_after_a_dead_end():
    planner, tight = simulators.make("roofline:h100-v1"), suites.get("tightmix-80x8").tasks("test")[:20]
    stuck = [task for task in tight if isinstance(solved(make("cost-greedy"), task, planner), InfeasibleTask)]
    for task in stuck:
        by_size = solved(controls.Argmin((np.inf,)), task, planner)
        assert str(solved(controls.Argmin((0.0, np.inf)), task, planner)) == str(by_size)
    assert stuck


def solved(solver, task, planner):
    try:
        return solver(task, planner)
    except InfeasibleTask as error:
        return error


def test_dreamshards_own_costs_are_its_networks():
    torch.manual_seed(0)
    nets = import_module("shard_gym_agents.learners.dreamshard").Nets(np.stack([np.zeros(21), np.ones(21)]))
    task, costs = TASKS[0], controls.OwnCosts(nets)
    features = torch.tensor(task.tables.features(), dtype=torch.float32)
    on = torch.nn.functional.one_hot(torch.arange(20) % 4).float()
    expected = nets.cost.phases(on.T @ nets.cost.table(features), torch.ones(4)).detach().numpy()
    latency = costs.latency(task, np.arange(20) % 4)
    np.testing.assert_allclose(latency.forward_compute, expected[:, 0], rtol=1e-4)
    np.testing.assert_allclose(latency.backward_comm, expected[:, 1], rtol=1e-4)
    np.testing.assert_allclose(latency.backward_compute, expected[:, 2], rtol=1e-4)


class Drawn:
    """A policy that puts all tables on one device, and whose samples are uniform."""

    def __call__(self, task, planner):
        return Plan((0,) * task.num_tables)

    def samples(self, task, planner, count, seed):
        return np.random.default_rng(seed).integers(task.num_devices, size=(count, task.num_tables))


@given(st.integers(0, 20), st.sampled_from([0.3, 0.5, 1.0]))
def test_the_best_of_samples_is_feasible_and_the_planners_choice(seed, share):
    planner, whole = simulators.make("roofline:rtx2080ti-x4-v1"), TASKS[seed]
    task = replace(whole, memory=(int(share * table_bytes(whole).sum()),) * 4)
    drawn = [*Drawn().samples(task, planner, controls.FIRST, seed), np.zeros(20, int)]
    scores = [score(task, Plan(tuple(plan.tolist())), planner) for plan in drawn]
    solve = controls.BestOf(Drawn(), budget=1e-9, seed=seed)
    if feasible := [one.makespan for one in scores if one.feasible]:
        found = score(task, solve(task, planner), planner)
        assert found.feasible and found.makespan == min(feasible)
    else:
        with pytest.raises(InfeasibleTask, match="samples"):
            solve(task, planner)
